"""A pytest plugin: which tests run on both event loops, and which parts of the shipped suite a class leaves to others.

The package uses nothing of asyncio outside its loop bridge, which lint checks. So a test runs on asyncio, and on trio
too if a loop may change its outcome: in modules and classes marked `both_loops`, and in the parts `BOTH_LOOPS` of the
shipped suite. With `--every-loop`, as in the nightly run, all tests run on both.
"""

from typing import Any, Final

import pytest

__all__ = ["pytest_addoption", "pytest_collection_modifyitems"]

BOTH_LOOPS: Final = ("Cancellation", "Concurrency", "Transfer", "Watching")
"""Parts of the shipped suite about tasks that end early or run at once, streams and watching."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-loop", action="store_true", help="run all tests on trio as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every_loop = config.getoption("--every-loop")
    chosen = [item for item in items if _has_its_part(item) and (every_loop or _has_its_loop(item))]
    if len(chosen) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen


def _has_its_loop(item: Any) -> bool:
    loop = item.callspec.params.get("anyio_backend") if hasattr(item, "callspec") else None
    return loop != "trio" or item.get_closest_marker("both_loops") is not None or _is_part(item, BOTH_LOOPS)


def _has_its_part(item: Any) -> bool:
    mark = item.get_closest_marker("suite_parts")
    return mark is None or not _suite(item) or _is_part(item, mark.args)


def _is_part(item: Any, parts: tuple[str, ...]) -> bool:
    return any(part in _suite(item) for part in parts)


def _suite(item: Any) -> str:
    """The class of the shipped suite that defines a test; empty for other tests."""
    function = item.function
    return function.__qualname__.partition(".")[0] if function.__module__.startswith("deepfs.testing.") else ""
