"""How the time of a function grows with its input, in CPU time of the thread, so that other load matters little."""

from collections.abc import Callable
from contextlib import suppress
from time import thread_time

_HARMLESS_S = 0.002
"""Even what grows by the square takes no more than a fifth of a second for the next size."""
SIZES = (10_000, 100_000, 1_000_000)
_STEEPEST = 30.0
"""How many times longer an input may take that is ten times as large."""
_SLACK_S = 0.06
"""What no ratio is taken of: less is noise, and harms nobody."""


def steep_growth(call: Callable[[int], Callable[[], object]], sizes: tuple[int, ...] = SIZES) -> str:
    """Where a call takes more than thrice linear time, as a text; empty if it does not.

    Args:
        call: Makes the input of a size, and returns what to measure. It may raise errors.
        sizes: The sizes, each ten times the one before.
    """
    before = None
    for size in sizes:
        measured = call(size)
        taken = _seconds(measured)
        limit = _limit(before)
        for _ in range(3):  # The least of several runs is what it takes on a quiet machine.
            if taken > limit:
                taken = min(taken, _seconds(measured))
        if taken > limit:
            return f"{size:,}: {taken:.3f} s after {before:.3f} s"
        if taken < _HARMLESS_S and before is not None:
            return ""
        before = taken
    return ""


def _limit(before: float | None) -> float:
    return float("inf") if before is None else before * _STEEPEST + _SLACK_S


def _seconds(call: Callable[[], object]) -> float:
    begun = thread_time()
    with suppress(Exception):
        call()
    return thread_time() - begun
