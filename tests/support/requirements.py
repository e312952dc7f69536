"""A pytest plugin: tests whose programs are missing on this machine are left out, and counted by name at the end.

A test declares its needs by the mark `needs`, or by a fixture of `_FIXTURES`. A need such as `mcp>=2.2` is a release of
a package of which older ones are supported too, but not for what is tested. The report is printed at the end of the
run, and written to the file that `--left-out` names: `nox -s complete` fails if the file is not empty.
"""

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from support import postgres, redis_server

__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]

_FIXTURES: Final = {
    "busybox": "busybox",
    "ceph_server": "radosgw",
    "postgres_server": "postgresql",
    "redis_server": "redis-server",
}
"""The program that each of these fixtures needs."""

_LeftOut = Counter[tuple[str, str]]
"""The number of tests left out, by missing program and test file."""

_LEFT_OUT: Final = pytest.StashKey[_LeftOut]()
_REPORT: Final = "deepfs_left_out"
"""The key under which a worker of pytest-xdist passes on its count."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("deepfs")
    group.addoption("--left-out", metavar="FILE", help="write what was left out, and why, to FILE")
    group.addoption(
        "--only-needing-programs", action="store_true", help="run only the tests that need a program of the system"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = config.stash.setdefault(_LEFT_OUT, Counter())
    kept, deselected = [], []
    for item in items:
        needs = _needs(item)
        missing = next((program for program in needs if not _is_here(program)), None)
        if missing is not None:
            left_out[missing, _file(item)] += 1
        is_kept = missing is None and (needs or not config.getoption("only_needing_programs"))
        (kept if is_kept else deselected).append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = kept


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    counted = config.stash.get(_LEFT_OUT, Counter())
    if hasattr(config, "workeroutput"):
        config.workeroutput[_REPORT] = [[*key, count] for key, count in counted.items()]
    elif path := config.getoption("left_out"):
        Path(path).write_text("".join(f"{line}\n" for line in _lines(counted)))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Store the count of a worker. Every worker collects all tests, so the count of one is enough."""
    report = getattr(node, "workeroutput", {}).get(_REPORT, [])
    node.config.stash[_LEFT_OUT] = Counter({(program, file): count for program, file, count in report})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if counted := config.stash.get(_LEFT_OUT, Counter()):
        terminalreporter.section("left out")
        for line in _lines(counted):
            terminalreporter.write_line(line)


def _lines(counted: _LeftOut) -> Iterator[str]:
    for program in sorted({program for program, _ in counted}):
        files = {file: count for (missing, file), count in sorted(counted.items()) if missing == program}
        places = ", ".join(f"{file} ({count})" for file, count in files.items())
        yield f"{sum(files.values())} tests left out, since {program} is not here: {places}"


def _file(item: pytest.Item) -> str:
    return item.path.relative_to(item.config.rootpath).as_posix()


# --- the needs of tests ----------------------------------------------------------------------------------------------


def _needs(item: pytest.Item) -> list[str]:
    marked = [program for mark in item.iter_markers("needs") for program in mark.args]
    fixtures = getattr(item, "fixturenames", ())
    return [*marked, *(program for fixture, program in _FIXTURES.items() if fixture in fixtures)]


@cache
def _is_here(program: str) -> bool:
    name, _, least = program.partition(">=")
    if least:
        return _numbers(version(name)) >= _numbers(least)
    return _CHECKS[program]() if program in _CHECKS else shutil.which(program) is not None


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


def _has_boxes() -> bool:
    """Whether bubblewrap is installed and can make namespaces."""
    from deepfs.sandboxes.bubblewrap import bubblewrap_program

    program = bubblewrap_program()
    box = [program or "", "--ro-bind", "/", "/", "--cap-drop", "ALL", "true"]
    return program is not None and subprocess.run(box, capture_output=True).returncode == 0


def _has_sandboxes() -> bool:
    """Whether BubblewrapSandbox can run commands; as root, it needs control groups too."""
    from deepfs.errors import NotSupportedError
    from deepfs.sandboxes.bubblewrap import BubblewrapSandbox
    from deepfs.sync import run_sync

    try:
        return run_sync(BubblewrapSandbox().aexecute, "true").exit_code == 0
    except NotSupportedError:
        return False


def _has_landlock() -> bool:
    """Whether LandlockSandbox can run commands; as root, other accounts need an interpreter that they can run."""
    from deepfs.sandboxes.landlock import landlock_version
    from support.accounts import ordinary_interpreter

    return landlock_version() >= 6 and ordinary_interpreter() is not None


def _has_files_in_memory() -> bool:
    """Whether temporary files are on a file system whose files are read without waiting."""
    from deepfs.disk import Disk

    files = Disk(tempfile.gettempdir()).in_memory
    files.prepare()
    return files.begin_read()


_CHECKS: Final[dict[str, Callable[[], bool]]] = {
    "boxes of bubblewrap": _has_boxes,
    "BubblewrapSandbox": _has_sandboxes,
    "LandlockSandbox": _has_landlock,
    "ext4": _has_files_in_memory,
    "postgresql": postgres.is_here,
    "redis-server": redis_server.is_here,
    "pydantic-ai-slim": lambda: find_spec("pydantic_ai") is not None,
}
"""Checks for the needs that are more than a program on the PATH."""
