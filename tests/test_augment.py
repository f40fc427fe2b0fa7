"""Augmentation does to every image what was drawn for it, and what is drawn depends on the seed alone."""

from __future__ import annotations

import pytest
import torch

from subbit.data.augment import Augmentation, derive
from subbit.errors import ConfigError
from subbit.train.batches import Batches, Normalise, plain_batches
from tests import tiny

IMAGES = torch.randint(0, 256, (64, 3, 9, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
SIZE = (9, 7)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("fill", ["zero", "reflect"])
@pytest.mark.parametrize("flip", [False, True])
def test_shift_and_flip_against_one_image_at_a_time(dtype: torch.dtype, fill: str, flip: bool) -> None:
    images = IMAGES.to(dtype)
    draw = Augmentation(shift=3, fill="reflect" if fill == "reflect" else "zero", flip=flip).draw(64, SIZE, seed=5)
    moved = draw.move(images)
    assert moved.dtype == dtype
    mode = {"zero": "constant", "reflect": "reflect"}[fill]
    for i, (down, right) in enumerate(draw.shifts.tolist()):
        padded = torch.nn.functional.pad(images[i : i + 1].float(), (3, 3, 3, 3), mode=mode)[0]
        expected = padded[:, 3 - down : 12 - down, 3 - right : 10 - right]
        expected = expected.flip(2) if draw.flips[i] else expected
        assert torch.equal(moved[i].float(), expected)
    assert set(draw.shifts.flatten().tolist()) == set(range(-3, 4))
    assert bool(draw.flips.any()) == flip


def test_reflection_further_than_the_image() -> None:
    draw = Augmentation(shift=20, fill="reflect").draw(64, SIZE, seed=5)
    moved = draw.move(IMAGES)
    for image, original in zip(moved, IMAGES, strict=True):
        assert set(image.flatten().tolist()) <= set(original.flatten().tolist())


def test_nothing_asked_nothing_done() -> None:
    draw = Augmentation().draw(64, SIZE, seed=5)
    assert torch.equal(draw.move(IMAGES), IMAGES)
    assert torch.equal(draw.turn(IMAGES), IMAGES)
    assert torch.equal(draw.blank(IMAGES.float()), IMAGES.float())


@pytest.mark.parametrize("side", [1, 4, 5])
def test_cutout_blanks_one_square(side: int) -> None:
    draw = Augmentation(cutout=side).draw(64, SIZE, seed=5)
    blanked = draw.blank(torch.ones(64, 3, *SIZE))
    for i, (row, column) in enumerate(draw.centres.tolist()):
        expected = torch.ones(3, *SIZE)
        top, left = row - side // 2, column - side // 2
        expected[:, max(0, top) : max(0, top + side), max(0, left) : max(0, left + side)] = 0
        assert torch.equal(blanked[i], expected)


def test_quarter_turn() -> None:
    square = torch.rand(8, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    draw = Augmentation(rotate=90.0).draw(8, (9, 9), seed=5)
    draw.turns[:, 0] = 90.0
    assert torch.allclose(draw.turn(square), torch.rot90(square, 1, (2, 3)), atol=1e-5)


def test_a_pure_function_of_seed_epoch_and_step() -> None:
    seeds = {derive(seed, "augment", epoch, step) for seed in range(5) for epoch in range(5) for step in range(5)}
    assert len(seeds) == 125
    augmentation = Augmentation(shift=2, flip=True, cutout=3)
    torch.manual_seed(1)
    first = augmentation.draw(64, SIZE, derive(0, "augment", 1, 2))
    torch.manual_seed(2)  # global random numbers play no part
    again = augmentation.draw(64, SIZE, derive(0, "augment", 1, 2))
    other = augmentation.draw(64, SIZE, derive(0, "augment", 1, 3))
    assert torch.equal(first.move(IMAGES), again.move(IMAGES))
    assert not torch.equal(first.move(IMAGES), other.move(IMAGES))


def test_batches_do_not_depend_on_where_they_begin() -> None:
    settings = tiny.settings(shift=2, cutout=4)
    whole = Batches(tiny.digits(), settings)
    list(whole)  # the first epoch
    second = list(whole)
    late = Batches(tiny.digits(), settings)
    late.seek(1, 6)
    for mine, theirs in zip(list(late), second[6:], strict=True):
        assert torch.equal(mine[0], theirs[0])
        assert torch.equal(mine[1], theirs[1])
    assert (late.epoch, late.step) == (2, 0)


def test_every_epoch_has_all_images_in_another_order() -> None:
    batches = Batches(tiny.digits(), tiny.settings())
    orders = [batches.order(epoch) for epoch in range(3)]
    for order in orders:
        assert torch.equal(order.sort().values, torch.arange(320))
    assert not torch.equal(orders[0], orders[1])
    other = Batches(tiny.digits(), tiny.settings(seed=1))
    assert not torch.equal(orders[0], other.order(0))


def test_images_stay_bytes_until_the_batch() -> None:
    data = tiny.digits()
    batches = Batches(data, tiny.settings(batch=320, shift=0, cutout=0, rotate=0, zoom=0))
    assert batches.images.dtype == torch.uint8
    ((images, labels, whole),) = list(batches)
    assert whole is images  # nothing was shrunk
    assert images.dtype == torch.float32
    expected = (data.train.images[batches.order(0).numpy()] / 255 - data.mean[0]) / data.std[0]
    assert torch.allclose(images, torch.from_numpy(expected).float(), atol=1e-5)
    assert torch.equal(labels, torch.from_numpy(data.train.labels)[batches.order(0)])


def test_alternating_flips_show_every_image_both_ways() -> None:
    settings = tiny.settings(shift=0, rotate=0, zoom=0, flip=True, alternate=True, batch=320)
    batches = Batches(tiny.digits(), settings)
    plain = batches.normalise(batches.images)
    order = torch.arange(320)
    first, second, third = (batches.make(order, epoch, 0)[0] for epoch in range(3))
    assert torch.equal(first.flip(3), second)
    assert torch.equal(first, third)
    mirrored = [torch.equal(image, shown.flip(2)) for image, shown in zip(plain, first, strict=True)]
    assert 100 < sum(mirrored) < 220  # by chance in the first epoch
    assert all(torch.equal(image, shown) for image, shown, flip in zip(plain, first, mirrored, strict=True) if not flip)


def test_alternating_without_flips_mirrors_nothing() -> None:
    settings = tiny.settings(rotate=0, zoom=0, flip=False)
    plain, alternating = (Batches(tiny.digits(), settings.but(alternate=value)) for value in (False, True))
    assert torch.equal(plain.make(plain.order(1), 1, 0)[0], alternating.make(plain.order(1), 1, 0)[0])


def test_images_grow_to_their_full_size() -> None:
    settings = tiny.settings(epochs=10, start_size=18, grown=0.6, rotate=0, zoom=0)
    batches = Batches(tiny.digits(), settings)
    sides = [batches.make(batches.order(epoch), epoch, 0)[0].shape[2] for epoch in range(12)]
    assert sides == [18, 18, 18, 26, 26, 26, 28, 28, 28, 28, 28, 28]  # and behind the end
    assert {batches.make(batches.order(0), epoch, 9)[0].shape[3] for epoch in (0, 5)} == {18, 26}


def test_images_of_full_size_are_not_resampled() -> None:
    grown = Batches(tiny.digits(), tiny.settings(start_size=28))
    plain = Batches(tiny.digits(), tiny.settings())
    assert torch.equal(grown.make(grown.order(0), 0, 0)[0], plain.make(plain.order(0), 0, 0)[0])


def test_start_size_beyond_the_images() -> None:
    with pytest.raises(ConfigError, match="start_size is 29, more than the 28 pixels"):
        Batches(tiny.digits(), tiny.settings(start_size=29))


def test_fewer_images_than_a_batch() -> None:
    batches = Batches(tiny.digits(), tiny.settings(batch=1000))
    assert (len(batches), batches.batch) == (1, 320)


def test_plain_batches_have_every_image_once() -> None:
    data = tiny.digits(1200, 100)
    images = torch.cat([batch for batch, _ in plain_batches(data, data.train)])
    assert torch.equal(images, Normalise(data)(torch.from_numpy(data.train.images)))
