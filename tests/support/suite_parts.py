"""A pytest plugin: of a shipped suite, run only the parts that a storage or an event loop can make fail.

A test class says so by the mark `suite_parts`. The parts are modules of `deepfs.testing`. What else the class has runs
as well.
"""

from typing import Any, Final

import pytest

__all__ = ["LOOP_PARTS", "few_on_trio", "pytest_collection_modifyitems"]

LOOP_PARTS: Final = ("cancellation", "concurrency", "machine", "transfer", "watching")
"""What depends on the event loop: cancellation, tasks that run at once, random programs, streams and watching."""

few_on_trio: Final = pytest.mark.suite_parts(*LOOP_PARTS, loop="trio")
"""For classes whose suite runs in full on asyncio, and for another class with the same driver or base on trio too."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if not _runs(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _runs(item)]


def _runs(item: Any) -> bool:
    mark = item.get_closest_marker("suite_parts")
    package, _, part = item.function.__module__.rpartition(".") if mark else ("", "", "")
    if not package.startswith("deepfs.testing"):
        return True
    loop = mark.kwargs.get("loop")
    return part in mark.args or (loop is not None and item.callspec.params.get("anyio_backend") != loop)
