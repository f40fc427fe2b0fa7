"""Which method a layer shall get: the `keep` and `policy` arguments of `compress`, checked and looked up."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from subbit.errors import ConfigError
from subbit.methods.base import Method

Keep = str | type[nn.Module]
Policy = Mapping[str, Method | None]

_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class Layer:
    """One layer object of a model with all its paths; most have one."""

    module: nn.Module
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.names[0]

    def __str__(self) -> str:
        return f"{self.name or 'the model'} ({type(self.module).__name__})"


@dataclass(frozen=True)
class Wish:
    """What the arguments say about a layer."""

    method: Method | None  # None: keep
    reason: str = ""  # why it is kept
    asked: bool = False  # a policy pattern matched, so the first and last layer are no exceptions
    exact: bool = False  # the policy has the layer's own name, so costs are no reason to keep it


class Rules:
    """`method` for every layer, except where `keep` or `policy` say otherwise."""

    def __init__(
        self, model: nn.Module, method: Method, keep: Keep | Iterable[Keep], policy: Policy, layers: Iterable[Layer]
    ) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.layers = list(layers)
        self.method = method
        self.keep = [keep] if isinstance(keep, str | type) else list(keep)
        self.policy = dict(policy)
        for entry in self.keep:
            self._check_keep(entry)
        for pattern in self.policy:
            self._check_policy(pattern)

    def wish(self, layer: Layer) -> Wish:
        for entry in self.keep:
            if self._keeps(entry, layer):
                return Wish(None, f"asked to keep (keep {_show(entry)})")
        for pattern, method in self.policy.items():
            if any(_matches(pattern, name) for name in layer.names):
                if method is None:
                    return Wish(None, f"asked to keep (policy {pattern!r}: None)")
                return Wish(method, asked=True, exact=pattern in layer.names)
        return Wish(self.method)

    def _keeps(self, entry: Keep, layer: Layer) -> bool:
        if isinstance(entry, str):
            return any(_matches(entry, name) for name in layer.names)
        return any(isinstance(self.modules[path], entry) for name in layer.names for path in _lineage(name))

    def _check_keep(self, entry: Keep) -> None:
        if isinstance(entry, str):
            # A module without layers is kept anyway, so naming one is no mistake; naming nothing is.
            if not any(_matches(entry, name) for name in self.modules):
                raise ConfigError(f"keep {entry!r} matches nothing: {self._near(entry)}")
        elif not (isinstance(entry, type) and issubclass(entry, nn.Module)):
            raise ConfigError(f"keep takes layer names, globs and nn.Module types, got {entry!r}")
        elif not any(isinstance(module, entry) for module in self.modules.values()):
            kinds = sorted({type(layer.module).__name__ for layer in self.layers})
            raise ConfigError(f"keep {entry.__name__} matches nothing: the layers here are {', '.join(kinds)}")

    def _check_policy(self, pattern: str) -> None:
        if not isinstance(pattern, str):
            raise ConfigError(f"policy maps layer names or globs to methods, got the key {pattern!r}")
        check_method(self.policy[pattern], f"policy {pattern!r}", optional=True)
        if not any(_matches(pattern, name) for layer in self.layers for name in layer.names):
            raise ConfigError(f"policy {pattern!r} matches no layer: {self._near(pattern)}")

    def _near(self, pattern: str) -> str:
        names = [name for layer in self.layers for name in layer.names]
        near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4) or names[:3]
        shown = ", ".join(map(repr, near))
        return f"near are {shown}" + (f" ({len(names)} layers in all)" if len(names) > len(near) else "")


def check_method(method: object, where: str, *, optional: bool = False) -> None:
    """A ConfigError unless `method` is a configured method (or None where that is allowed)."""
    if isinstance(method, Method) or (optional and method is None):
        return
    if isinstance(method, type) and issubclass(method, Method):
        raise ConfigError(f"{where}: {method.__name__} is a class, pass a configuration such as {method.__name__}()")
    also = " or None" if optional else ""
    raise ConfigError(f"{where}: expected a method from subbit.methods{also}, got {method!r}")


def _matches(pattern: str, name: str) -> bool:
    """Glob over the dotted name; a name without wildcards also stands for everything below it."""
    if name == pattern or fnmatch.fnmatchcase(name, pattern):
        return True
    return not _WILDCARDS & set(pattern) and name.startswith(f"{pattern}.")


def _lineage(name: str) -> Iterator[str]:
    """The name itself, its block, that block's block, … and the root."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""


def _show(entry: Keep) -> str:
    return repr(entry) if isinstance(entry, str) else entry.__name__
