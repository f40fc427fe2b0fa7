"""Recipes are values: how a network is trained, apart from what is trained on what.

    Settings.resolve(data="mnist", recipe="fast").lr        # 0.002

A recipe gives defaults to any field of `Settings`; `BY_DATA` refines it per data set, since a digit must not be
mirrored and a photograph should be. Values given by hand win over both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]

RECIPES: dict[str, Values] = {
    # The recipe of LegoNet's code, which the paper builds on and says nothing against.
    "paper": {
        "epochs": 400,
        "batch": 128,
        "optimizer": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "schedule": "cosine",
        "weight_decay": 5e-4,
        "latent_decay": 5e-4,
        "selector_decay": 5e-4,
        "norm_decay": 5e-4,
    },
    # The best accuracy for a small budget. Decay pulls latents towards their flipping point and selectors towards
    # each other, so both go without.
    "fast": {
        "epochs": 8,
        "batch": 128,
        "optimizer": "adamw",
        "lr": 2e-3,
        "schedule": "onecycle",
        "weight_decay": 0.01,
        "latent_decay": 0.0,
        "selector_decay": 0.0,
        "norm_decay": 0.0,
    },
}

_DIGITS: Values = {"shift": 2}
_CLOTHES: Values = {"shift": 2, "flip": True}
_PHOTOS: Values = {"shift": 4, "flip": True}

# Augmentation belongs to the data: data set -> values. Folders of images are taken for photographs.
BY_DATA: dict[str, Values] = {
    "digits": _DIGITS,
    "mnist": _DIGITS,
    "fashion-mnist": _CLOTHES,
    "cifar10": _PHOTOS,
    "cifar100": _PHOTOS,
}
OTHER_DATA: Values = _PHOTOS

# docs/training.md has the search behind these values, and says which of them were not compared.
_CIFAR: Values = {
    "epochs": 20,
    "lr": 6e-3,
    "latent_optimizer": "muon",
    "nesterov": True,
    "whiten": True,
    "start_size": 16,
    "grown": 0.6,
    "shift": 3,
    "shift_fill": "reflect",
    "alternate": True,
    "label_smoothing": 0.1,
    "channels_last": True,
}

# (recipe, data set) -> values, where a recipe wants something else for one data set
BY_RECIPE_AND_DATA: dict[tuple[str, str], Values] = {
    # Chosen on 5,000 held-out training digits with SLBF (1, 1/16): a rate of 0.006 against 0.002 gave +0.2 points.
    ("fast", "mnist"): {"epochs": 20, "lr": 6e-3, "rotate": 8.0, "zoom": 0.1},
    ("fast", "cifar10"): _CIFAR,
    ("fast", "cifar100"): _CIFAR,
}

# What has no latents is trained as is usual; latents of whole filters are too large for Muon on a CPU.
_DENSE: Values = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4}
_WHOLE_FILTERS: Values = {"lr": 2e-3, "latent_optimizer": ""}

# method -> values that a method wants otherwise, by recipe and data set
BY_METHOD: dict[tuple[str, str], dict[str, Values]] = {
    ("fast", data): {
        "slbf": {"method_options": {"selection": "fixed", "estimator": "soft"}},
        "dense": _DENSE,
        "legonet": _DENSE,
        **dict.fromkeys(("binaryconnect", "bwn", "bnn", "xnornet"), _WHOLE_FILTERS),
    }
    for data in ("cifar10", "cifar100")
}


def defaults(recipe: str, data: str, method: str) -> dict[str, Any]:
    """What `recipe` says about every setting it has an opinion on, for this data set and method."""
    values = {**BY_DATA.get(data, OTHER_DATA), **RECIPES[recipe], **BY_RECIPE_AND_DATA.get((recipe, data), {})}
    return {**values, **BY_METHOD.get((recipe, data), {}).get(method, {})}
