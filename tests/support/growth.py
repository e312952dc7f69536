"""How the time of a function grows with its input, in CPU time of the thread, so that other load matters little."""

import gc
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from time import thread_time
from typing import Final

import re2

from deepfs.errors import DeepFSError

SIZES: Final = (10_000, 100_000, 1_000_000)
_HARMLESS_S = 0.002
"""Even what grows by the square takes no more than a fifth of a second for the next size."""
_EVEN = 12.0
"""What takes no more times longer for the second size is not measured for the third: a part of it that grows by the
square is so small that it would not take `_STEEPEST` times longer there."""
_STEEPEST = 30.0
"""How many times longer an input may take that is ten times as large."""
_SLACK_S = 0.06
"""What no ratio is taken of: less is noise, and harms nobody."""


def steep_growth(call: Callable[[int], Callable[[], object]], sizes: Sequence[int] = SIZES) -> str:
    """Where a call takes more than thrice linear time, as a text; empty if it does not.

    Args:
        call: Makes the input of a size, and returns what to measure.
        sizes: Each ten times the one before.
    """
    measured = call(sizes[0])
    before = min(seconds_of(measured), seconds_of(measured))
    for size in sizes[1:]:
        measured = call(size)
        taken, limit = seconds_of(measured), before * _STEEPEST + _SLACK_S
        for _ in range(3):  # The least of several runs is what it takes on a quiet machine.
            if taken > limit:
                taken = min(taken, seconds_of(measured))
        if taken > limit:
            return f"{size:,}: {taken:.3f} s after {before:.3f} s"
        if taken < max(_HARMLESS_S, before * _EVEN):
            return ""
        before = taken
    return ""


def seconds_of(call: Callable[[], object]) -> float:
    """How long a call takes, which may raise errors about what it gets.

    Without garbage collection, whose time depends on all that other tests have left in memory, and with empty caches:
    a second run would measure these.
    """
    _empty_caches()
    gc.disable()
    try:
        begun = thread_time()
        with suppress(DeepFSError, ValueError, UnicodeError):
            call()
        return thread_time() - begun
    finally:
        gc.enable()


_CACHING: Final = tuple(f"deepfs.{part}." for part in ("_langgraph", "sandboxes", "search", "text"))
"""Where what was measured may be kept."""


def _empty_caches() -> None:
    re.purge()
    re2.purge()
    for clear in _clearing(len(sys.modules)):
        clear()


@lru_cache(maxsize=1)
def _clearing(modules: int) -> list[Callable[[], None]]:
    """What empties the caches of the modules that are loaded, looked for again when there are more."""
    kept = [module for name, module in list(sys.modules.items()) if name.startswith(_CACHING)]
    return [each.cache_clear for module in kept for each in vars(module).values() if hasattr(each, "cache_clear")]
