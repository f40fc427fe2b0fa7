"""Interleaved measurement: everybody takes a turn in every round.

A machine that is busy, hot or throttled is so for all contestants of a round alike. What counts is therefore the
ratio of two contestants within a round, and its median over rounds.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MIN_ROUNDS = 5
TURN_SECONDS = 0.01  # a turn repeats its call for so long: one call may be shorter than a tick of the scheduler
THREADED_PAUSE = 0.002  # threads of other runtimes spin for a while before they sleep


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a sample."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, sample: Sequence[float]) -> Spread:
        low, median, high = np.quantile(np.asarray(sample, dtype=np.float64), (0.25, 0.5, 0.75))
        return cls(float(median), float(low), float(high))


def interleave(
    calls: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    threads: int = 1,
    clock: Callable[[], float] | None = None,
) -> dict[str, list[float]]:
    """Seconds of one call of each contestant, in every round; rounds go on for about `seconds`.

    With one thread the processor's time counts, which other programs on the machine do not add to; with more of them
    the time on the wall.

    Each turn begins with a call that is not counted, which brings the contestant's weights back into the cache. The
    order rotates, so that nobody always runs behind the same neighbour.
    """
    clock = clock or (time.process_time if threads == 1 else time.perf_counter)
    names = list(calls)
    taken: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()
    try:
        end = time.monotonic() + seconds
        for turn in itertools.count():
            if turn >= MIN_ROUNDS and time.monotonic() >= end:
                break
            first = turn % max(1, len(names))
            for name in names[first:] + names[:first]:
                if threads > 1:
                    time.sleep(THREADED_PAUSE)
                taken[name].append(_turn(calls[name], clock))
    finally:
        if collecting:
            gc.enable()
    return taken


def ratio(of: Sequence[float], to: Sequence[float]) -> Spread:
    """How many times as long `of` takes as `to`: the spread of the quotients of equal rounds."""
    return Spread.of([a / b for a, b in zip(of, to, strict=True)])


def _turn(call: Callable[[], object], clock: Callable[[], float]) -> float:
    call()
    count, start = 0, clock()
    while True:
        call()
        count += 1
        spent = clock() - start
        if spent >= TURN_SECONDS:
            return spent / count
