"""Every option of a recipe does what it says, and a run leaves everything that is needed to use it."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from subbit.errors import ConfigError, InputError, TrainingError
from subbit.methods import METHODS
from subbit.methods.slbf import SLBFLayer
from subbit.methods.stacking import StackedLayer
from subbit.train import Learner, Settings, accuracy, build_model, fit, load_run, open_run
from subbit.train import checkpoint as checkpoints
from subbit.train.batches import Batches
from subbit.train.build import method_of
from subbit.train.evaluate import reestimate_batchnorm
from subbit.train.learner import distillation
from subbit.train.logs import COLUMNS, Logs
from subbit.train.optim import learning_rate, optimizer, parameter_groups
from subbit.train.teacher import open_teacher
from subbit.train.watch import Watch
from tests import tiny


def learner(settings: Settings, *teachers: nn.Module) -> Learner:
    return Learner(build_model(settings, 10, 1), Batches(tiny.digits(), settings), settings, teachers)


def batch(settings: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels, _ = next(iter(Batches(tiny.digits(), settings)))
    return images, labels


# ------------------------------------------------------------------------------------------------ a run


@pytest.mark.parametrize("method", ["dense", *METHODS])
def test_every_method_learns(method: str, tmp_path: Path) -> None:
    settings = tiny.settings(method=method, epochs=3, batch=16, lr=4e-3, shift=0, rotate=0, zoom=0, log_every=50)
    result = fit(settings, out=tmp_path / "run", data=tiny.digits())
    assert result.epochs[-1]["loss"] < 0.8 * result.epochs[0]["loss"]
    assert result.test_accuracy > 0.3  # guessing: 0.1
    assert result.steps == 60
    assert result.validation_accuracy is None


def test_same_seed_same_bits_other_seed_other_bits(tmp_path: Path) -> None:
    runs: dict[str, dict[str, torch.Tensor]] = {}
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        torch.manual_seed(len(runs))  # what the process did before plays no part
        fit(tiny.settings(seed=seed, epochs=1), out=tmp_path / name, data=tiny.digits())
        runs[name] = checkpoints.read(tmp_path / name / "model.pt")["state"]
    assert all(torch.equal(runs["one"][key], runs["same"][key]) for key in runs["one"])
    assert not all(torch.equal(runs["one"][key], runs["other"][key]) for key in runs["one"])


def test_what_a_run_leaves(tmp_path: Path) -> None:
    settings = tiny.settings(epochs=2, validation=0.1, test_each_epoch=True, log_every=4)
    result = fit(settings, out=tmp_path / "run", data=tiny.digits())
    assert Settings.from_toml((tmp_path / "run" / "settings.toml").read_text()) == settings
    described = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert described["threads"] == 1
    assert {"torch", "lightning", "numpy", "python", "cpu", "commit"} <= described.keys()
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [4, 8, 9, 12, 16, 18]  # and the ends of the epochs
    epochs = [row for row in rows if row["test_accuracy"]]
    assert [float(row["test_accuracy"]) for row in epochs] == [row["test_accuracy"] for row in result.epochs]
    for row in rows:
        assert 0 <= float(row["flipped_signs"]) <= 1
        assert 0 <= float(row["changed_selections"]) <= 1
        assert 0 <= float(row["dead_filters"]) <= 1
        assert 0 < float(row["input_share"]) < 1
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))
    assert result.validation_accuracy == result.epochs[-1]["validation_accuracy"]
    assert result.test_accuracy == result.epochs[-1]["test_accuracy"]


def test_test_images_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from subbit.train import runner

    looked = []

    def spy(model: nn.Module, data: Any, part: Any, **place: int) -> float:
        looked.append("test" if part is data.test else "validation")
        return accuracy(model, data, part, **place)

    monkeypatch.setattr(runner, "accuracy", spy)
    fit(tiny.settings(validation=0.1), out=tmp_path / "run", data=tiny.digits())
    assert looked.count("test") == 1
    assert looked[-1] == "test"


def test_testing_each_epoch_changes_nothing(tmp_path: Path) -> None:
    for name, flag in (("without", False), ("with", True)):
        fit(tiny.settings(test_each_epoch=flag), out=tmp_path / name, data=tiny.digits())
    one, other = (checkpoints.read(tmp_path / name / "model.pt")["state"] for name in ("without", "with"))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_process_is_left_as_it_was(tmp_path: Path) -> None:
    threads, random = torch.get_num_threads(), torch.get_rng_state()
    fit(tiny.settings(epochs=1), out=tmp_path / "run", data=tiny.digits())
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), random)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("option", [{"precision": "bf16"}, {"channels_last": True}])
def test_other_arithmetic_trains_too(option: dict[str, Any], tmp_path: Path) -> None:
    result = fit(tiny.settings(epochs=3, lr=4e-3, **option), out=tmp_path / "run", data=tiny.digits())
    assert result.epochs[-1]["loss"] < result.epochs[0]["loss"]
    assert all(
        value.dtype != torch.bfloat16 for value in checkpoints.read(tmp_path / "run" / "model.pt")["state"].values()
    )


# ------------------------------------------------------------------------------------- a finished run


def test_load_run_gives_the_trained_network(tmp_path: Path) -> None:
    settings = tiny.settings(epochs=1, validation=0.1)
    result = fit(settings, out=tmp_path / "run", data=tiny.digits())
    for path in (tmp_path / "run", tmp_path / "run" / "model.pt"):
        model, loaded = load_run(path)
        assert loaded == settings
        assert not model.training
        assert accuracy(model, tiny.digits(), tiny.digits().test) == result.test_accuracy
    run = open_run(tmp_path / "run")
    assert run.classes == tiny.digits().classes
    assert run.shape == (1, 28, 28)
    assert np.array_equal(run.mean, tiny.digits().mean)


def test_unfinished_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no run was made in it"):
        load_run(tmp_path)
    checkpoints.save(tmp_path, {"epoch": 0})
    with pytest.raises(TrainingError, match="it is not finished, continue it with --resume"):
        load_run(tmp_path)
    with pytest.raises(TrainingError, match="is not the model of a run"):
        load_run(tmp_path / "checkpoint.pt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(TrainingError, match="damaged or not a checkpoint"):
        load_run(tmp_path / "text.pt")


def test_method_and_model_options_arrive() -> None:
    method = method_of(tiny.settings(f2="1/4", method_options={"scale": False}))
    assert method is not None
    assert method.config() | {"scale": False, "f2": "1/4"} == method.config()
    with pytest.raises(ConfigError, match="slbf"):
        method_of(tiny.settings(method_options={"colour": 3}))
    plain = build_model(tiny.settings(method="dense", model_options={"affine": False}), 10, 1)
    assert not [m for m in plain.modules() if isinstance(m, nn.BatchNorm2d) and m.affine]
    with pytest.raises(ConfigError, match="model lenet5"):
        build_model(tiny.settings(model_options={"colour": 3}), 10, 1)
    with pytest.raises(ConfigError, match="unknown model 'lenet'"):
        build_model(tiny.settings(model="lenet"), 10, 1)


def test_kept_layers_stay_dense() -> None:
    kept = build_model(tiny.settings(keep=["Linear"]), 10, 1)
    usual = build_model(tiny.settings(), 10, 1)
    count = {
        name: sum(isinstance(m, nn.Linear) for m in net.modules()) for name, net in (("kept", kept), ("usual", usual))
    }
    assert count["kept"] == 2
    assert count["usual"] == 1


# ------------------------------------------------------------------------------------------- optimiser


def test_decay_by_kind_of_parameter() -> None:
    settings = tiny.settings(weight_decay=0.1, latent_decay=0.2, selector_decay=0.3, norm_decay=0.4)
    model = build_model(settings, 10, 1)
    decay = {id(p): group["weight_decay"] for group in parameter_groups(model, settings) for p in group["params"]}
    assert len(decay) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        end = name.split(".")[-1]
        expected = 0.2 if end == "R" else 0.3 if end == "Q" else 0.1 if parameter.ndim > 1 else 0.4
        assert decay[id(parameter)] == expected, name


@pytest.mark.parametrize(
    ("method", "latents", "selectors"),
    [("legonet", set(), {"coefficient", "proxy"}), ("binaryconnect", {"latent"}, set()), ("bwn", {"latent"}, set())],
)
def test_latents_and_selectors_of_other_methods(method: str, latents: set[str], selectors: set[str]) -> None:
    settings = tiny.settings(method=method)
    model = build_model(settings, 10, 1)
    names = {id(p): name.split(".")[-1] for name, p in model.named_parameters()}
    groups = {g["name"]: {names[id(p)] for p in g["params"]} for g in parameter_groups(model, settings)}
    assert groups.get("latent", set()) == latents
    assert groups.get("selector", set()) == selectors


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_optimisers(name: str, kind: type[torch.optim.Optimizer]) -> None:
    settings = tiny.settings(optimizer=name, momentum=0.8, lr=0.01)
    made = optimizer(build_model(settings, 10, 1), settings)
    assert type(made) is kind
    group = made.param_groups[0]
    assert (group["momentum"] if name == "sgd" else group["betas"][0]) == 0.8


def rates(**changes: Any) -> list[float]:
    settings = tiny.settings(lr=1.0, epochs=10, **changes)
    return [learning_rate(settings, step, 100, 10) for step in range(100)]


def test_schedules() -> None:
    assert rates(schedule="constant") == [1.0] * 100
    cosine = rates(schedule="cosine")
    assert cosine[0] == 1
    assert cosine[50] == pytest.approx(0.5)
    assert 0 < cosine[-1] < 0.001
    assert cosine == sorted(cosine, reverse=True)
    one = rates(schedule="onecycle")
    peak = int(np.argmax(one))
    assert one[0] == pytest.approx(1 / 25)
    assert 0.25 < peak / 100 < 0.35
    assert one[: peak + 1] == sorted(one[: peak + 1])
    assert one[peak:] == sorted(one[peak:], reverse=True)
    assert one[-1] < 1e-4


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_warmup_rises_linearly(schedule: str) -> None:
    warm = rates(schedule=schedule, warmup=2)
    assert warm[:20] == pytest.approx([(i + 1) / 21 for i in range(20)])
    assert warm[20] == 1


def test_rate_reaches_the_optimiser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    real = torch.optim.SGD.step

    def step(self: torch.optim.SGD, closure: Any = None) -> Any:
        used.append({group["lr"] for group in self.param_groups})
        return real(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    settings = tiny.settings(optimizer="sgd", lr=0.05, schedule="cosine", warmup=0.5)
    fit(settings, out=tmp_path / "run", data=tiny.digits())
    assert used == [{learning_rate(settings, step, 20, 10)} for step in range(20)]


# ------------------------------------------------------------------------------------------------- loss


def test_label_smoothing() -> None:
    settings = tiny.settings(label_smoothing=0.2)
    images, labels = batch(settings)
    logits = torch.randn(32, 10, generator=torch.Generator().manual_seed(0))
    targets = F.one_hot(labels, 10) * 0.8 + 0.02
    expected = -(targets * F.log_softmax(logits, 1)).sum(1).mean()
    assert float(learner(settings).loss(images, logits, labels)) == pytest.approx(float(expected), rel=1e-5)


def test_distillation_is_hintons() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(8, 10, generator=generator), torch.randn(8, 10, generator=generator)
    p, q = F.softmax(teacher / 3, 1), F.softmax(student / 3, 1)
    expected = 9 * (p * (p / q).log()).sum(1).mean()
    assert float(distillation(student, [teacher], 3)) == pytest.approx(float(expected), rel=1e-4)
    assert float(distillation(teacher, [teacher], 3)) == pytest.approx(0, abs=1e-6)
    p = (p + F.softmax(student / 3, 1) + p) / 3  # several teachers: the mean of what they say
    expected = 9 * (p * (p / q).log()).sum(1).mean()
    assert float(distillation(student, [teacher, student, teacher], 3)) == pytest.approx(float(expected), rel=1e-4)


def test_teacher_counts_by_its_weight_and_is_not_trained(dense: Path) -> None:
    teacher, _ = load_run(dense)
    before = copy.deepcopy(teacher.state_dict())
    settings = tiny.settings(distill_weight=0.7, distill_temperature=2.0)
    taught, alone = learner(settings, teacher), learner(settings)
    images, labels = batch(settings)
    logits = taught.model(images)
    with torch.no_grad():
        wanted = teacher(images)
    expected = 0.3 * alone.loss(images, logits, labels) + 0.7 * distillation(logits, [wanted], 2.0)
    loss = taught.loss(images, logits, labels)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is None for p in teacher.parameters())
    assert all(torch.equal(before[key], value) for key, value in teacher.state_dict().items())
    own = {id(p) for p in taught.parameters()}
    assert not any(id(p) in own for p in teacher.parameters())


def test_teachers_see_images_in_full_size(dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, sides = load_run(dense)[0], []
    teacher.register_forward_pre_hook(lambda module, inputs: sides.append(inputs[0].shape[2]))
    monkeypatch.setattr("subbit.train.runner.open_teacher", lambda name, data: teacher)
    small = {"model": "vgg16", "model_options": {"width": 1 / 16}, "f1": "1/2", "f2": "1/2"}
    settings = tiny.settings(**small, teacher=str(dense), epochs=1, start_size=20)
    assert next(iter(Batches(tiny.digits(), settings)))[0].shape[2] == 20  # what is trained on
    fit(settings, out=tmp_path / "run", data=tiny.digits())
    assert set(sides) == {28}


def test_distilled_run_resumes_like_any_other(dense: Path, tmp_path: Path) -> None:
    settings = tiny.settings(teacher=str(dense), epochs=1)
    result = fit(settings, out=tmp_path / "run", data=tiny.digits())
    alone = fit(settings.but(teacher=""), out=tmp_path / "alone", data=tiny.digits())
    assert result.epochs[0]["loss"] != alone.epochs[0]["loss"]


def test_teacher_must_know_the_same_classes(dense: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    other = replace(tiny.digits(), classes=tuple("abcdefghij"))
    with pytest.raises(ConfigError, match="was trained on other classes"):
        fit(tiny.settings(teacher=str(dense)), out=tmp_path / "run", data=other)


def test_packed_file_teaches_as_the_network_it_was_packed_from(dense: Path, tmp_path: Path) -> None:
    import subbit

    run = open_run(dense)
    file = tmp_path / "teacher.sbit"
    example = torch.zeros(1, *run.shape)
    subbit.pack(run.model, file, example=example, labels=run.classes, preprocessing=run.preprocessing)
    images, _ = batch(tiny.settings())
    packed = open_teacher(str(file), tiny.digits())
    with torch.no_grad():
        expected = run.model(images)
    torch.testing.assert_close(packed(images), expected, rtol=0, atol=1e-2)  # dense weights are stored in fp16
    assert torch.equal(packed(images), packed(images.to(memory_format=torch.channels_last)))
    losses = [
        fit(tiny.settings(teacher=teacher, epochs=1), out=tmp_path / name, data=tiny.digits()).epochs[0]["loss"]
        for name, teacher in (("run", dense), ("file", file), ("both", [str(file), dense]), ("none", []))
    ]
    assert losses[1:3] == pytest.approx([losses[0]] * 2, rel=1e-2)
    assert losses[3] < 0.9 * losses[0]


def test_a_teacher_that_was_replaced_is_noticed(dense: Path, tmp_path: Path) -> None:
    import shutil

    teacher = tmp_path / "teacher.pt"
    shutil.copy(dense / "model.pt", teacher)
    settings = tiny.settings(teacher=teacher, epochs=1)
    fit(settings, out=tmp_path / "run", data=tiny.digits())
    (tmp_path / "run" / "result.json").unlink()
    fit(settings, out=tmp_path / "run", data=tiny.digits(), resume=True)
    (tmp_path / "run" / "result.json").unlink()
    fit(tiny.settings(method="dense", epochs=1, seed=4), out=tmp_path / "other", data=tiny.digits())
    shutil.copy(tmp_path / "other" / "model.pt", teacher)
    with pytest.raises(ConfigError, match="had other teachers"):
        fit(settings, out=tmp_path / "run", data=tiny.digits(), resume=True)


def test_packed_teacher_must_expect_such_images(dense: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    import subbit

    run = open_run(dense)
    subbit.pack(run.model, tmp_path / "a.sbit", example=torch.zeros(1, *run.shape), labels=run.classes,
                preprocessing=run.preprocessing)  # fmt: skip
    data = tiny.digits()
    with pytest.raises(ConfigError, match="expects images of another mean and spread"):
        open_teacher(str(tmp_path / "a.sbit"), replace(data, mean=data.mean + 0.1))
    with pytest.raises(ConfigError, match="was trained on other classes"):
        open_teacher(str(tmp_path / "a.sbit"), replace(data, classes=tuple("abcdefghij")))
    with pytest.raises(InputError, match="there is no file 'lenet', and the zoo has no network 'lenet'"):
        open_teacher("lenet", data)
    subbit.pack(run.model, tmp_path / "b.sbit", example=torch.zeros(1, *run.shape))  # neither labels nor preprocessing
    open_teacher(str(tmp_path / "b.sbit"), data)
    with pytest.raises(ConfigError, match=r"gives \(10,\) numbers, .* has 3 classes"):
        open_teacher(str(tmp_path / "b.sbit"), replace(data, classes=tuple("abc")))


def test_balance_penalty_of_legonet() -> None:
    settings = tiny.settings(method="legonet", f1="1/2", f2="1/4", balance=0.3)
    penalised = learner(settings)
    images, labels = batch(settings)
    logits = torch.zeros(32, 10)
    expected = np.log(10)
    for layer in penalised.model.modules():
        if isinstance(layer, StackedLayer):
            used = np.bincount(layer.selected_index().flatten().numpy(), minlength=layer.filters)
            shares = used / used.sum()
            expected += 0.3 * (layer.filters * (shares**2).sum() - 1)
    assert penalised.loss(images, logits, labels).item() == pytest.approx(expected, rel=1e-4)


# --------------------------------------------------------------------------------------- the end of it


def test_frozen_selections_stand_still(tmp_path: Path) -> None:
    settings = tiny.settings(epochs=3, freeze_selection=0.5, lr=0.02, schedule="constant", checkpoint_minutes=0)
    fit(settings, out=tmp_path / "run", data=tiny.digits())
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        changed = {int(row["step"]): float(row["changed_selections"]) for row in csv.DictReader(file)}
    assert max(share for step, share in changed.items() if step <= 15) > 0
    assert max(share for step, share in changed.items() if step > 15) == 0
    flipped = checkpoints.read(tmp_path / "run" / "model.pt")["state"]
    assert all(bool(value) for key, value in flipped.items() if key.endswith("frozen"))


def test_batchnorm_is_estimated_anew_from_the_final_weights() -> None:
    settings = tiny.settings(method="dense", batchnorm_batches=5)
    model = build_model(settings, 10, 1)
    before = copy.deepcopy(model.state_dict())
    batches = Batches(tiny.digits(), settings)
    reestimate_batchnorm(model, batches, 5)
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert moved
    assert all("running_" in key or "num_batches" in key for key in moved)
    first = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    seen: list[torch.Tensor] = []
    handle = first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        for step in range(5):
            model(batches.make(batches.order(settings.epochs), settings.epochs, step)[0])
    handle.remove()
    assert first.running_mean is not None
    assert torch.allclose(first.running_mean, torch.cat(seen).mean((0, 2, 3)), atol=1e-5)


# ------------------------------------------------------------------------------------------------ watch


def test_watch_counts_flips_choices_and_dead_filters() -> None:
    model = build_model(tiny.settings(f1="1/2", f2="1/4"), 10, 1)
    layers = [m for m in model.modules() if isinstance(m, SLBFLayer)]
    watch = Watch(model)
    assert watch.look().flipped_signs == 0
    signs = sum(layer.R.numel() for layer in layers)
    choices = sum(int(np.prod(layer.index_shape)) for layer in layers)
    scores = [layer.Q for layer in layers if layer.Q is not None]  # (c_out, k, m)
    assert len(scores) == len(layers) > 0
    with torch.no_grad():
        layers[0].R.view(-1)[:7].neg_()
        first = scores[0][0, 0]  # let the first block choose another filter
        first[(int(first.abs().argmax()) + 1) % len(first)] = 100
    health = watch.look()
    assert health.flipped_signs == pytest.approx(7 / signs)
    assert health.changed_selections == pytest.approx(1 / choices)
    with torch.no_grad():
        for score in scores:
            score.zero_()
            score[..., 0] = 1
    dead = watch.look().dead_filters
    assert dead == pytest.approx(1 - len(layers) / sum(layer.filters for layer in layers))


def test_watch_of_a_dense_network_has_nothing_to_say() -> None:
    assert Watch(build_model(tiny.settings(method="dense"), 10, 1)).look().values() == {}


def test_a_line_that_was_cut_inside_its_last_number_is_dropped(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 0)
    for step in (10, 20):
        logs.write(step, dict.fromkeys(COLUMNS[1:], 1.25))
    logs.close()
    logs.path.write_bytes(logs.path.read_bytes()[:-3])
    Logs(tmp_path, 20).close()
    with logs.path.open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["10"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_accelerator_that_is_not_there_is_a_plain_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="do not fit this machine"):
        fit(tiny.settings(accelerator="gpu"), out=tmp_path / "run", data=tiny.digits())
    assert not (tmp_path / "run").exists()


def test_images_that_the_network_does_not_take(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not take images of shape \(1, 8, 8\), with which start_size begins"):
        fit(tiny.settings(start_size=8), out=tmp_path / "run", data=tiny.digits())
    assert not list(tmp_path.iterdir())
