"""A pytest plugin: what runs on one event loop only, and which parts of the shipped suite a class leaves to others.

Elsewhere every async test runs on both loops. Tests of what a loop may change are never left out: cancellation, tasks
that run at once, streams and watching. A class runs less only where another one with the same driver or the same base
runs all on that loop.
"""

from typing import Any, Final

import pytest

__all__ = ["few_on_trio", "one_loop", "pytest_collection_modifyitems"]

few_on_trio: Final = pytest.mark.suite_parts("Cancellation", "Concurrency", "Transfer", "Watching", loop="trio")
"""For a class whose suite runs in full on asyncio, and on trio by another class with the same driver or base."""

one_loop: Final = pytest.mark.one_loop
"""For tests of what is computed without waiting: they run on asyncio."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not _runs(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _runs(item)]


def _runs(item: Any) -> bool:
    loop = item.callspec.params.get("anyio_backend") if hasattr(item, "callspec") else None
    if loop == "trio" and item.get_closest_marker("one_loop"):
        return False
    mark = item.get_closest_marker("suite_parts")
    if mark is None or not item.function.__module__.startswith("deepfs.testing."):
        return True
    home = item.function.__qualname__.partition(".")[0]  # The part of the suite that defines it.
    return any(part in home for part in mark.args) or mark.kwargs.get("loop") not in (None, loop)
