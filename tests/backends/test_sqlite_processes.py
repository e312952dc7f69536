"""Several processes over one database: no edit is lost, killed ones leave nothing torn, and all may start at once."""

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from deepfs import SqliteBackend, run_sync
from support.processes import Process, started
from support.raw_sqlite import rows

_EDITS: Final = 50

_START: Final = """
import sys
from deepfs import SqliteBackend
backend = SqliteBackend(sys.argv[1])
"""

_EDITOR: Final = (
    _START
    + """
assert backend.read("/log.txt").ok
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    result = backend.edit("/log.txt", f"<{number}>", f"({number})")
    print("ok" if result.ok else result.error, flush=True)
"""
)

_FIRST: Final = (
    _START
    + """
print("ready", flush=True)
sys.stdin.readline()
print(backend.write(f"/{sys.argv[2]}.txt", "text").error, flush=True)
"""
)

_WRITER: Final = (
    _START
    + """
number = int(sys.argv[2])
while True:
    number += 1
    assert backend.write(f"/files/{number}.txt", f"content {number} " * 500).ok
    assert backend.edit("/count.txt", str(number - 1), str(number)).ok
    print(number, flush=True)
"""
)


def _go(processes: Sequence[Process]) -> None:
    """Let all processes go on at once, when all are ready."""
    assert [process.stdout and process.stdout.readline() for process in processes] == ["ready\n"] * len(processes)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def _outcomes(script: str, file: Path, arguments: Sequence[tuple[object, ...]]) -> Iterator[str]:
    """The lines that processes print which run at the same time."""
    with ExitStack() as stack:
        processes = [stack.enter_context(started(script, file, *each)) for each in arguments]
        _go(processes)
        for process in processes:
            yield from process.communicate()[0].splitlines()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "files.db"


@pytest.mark.parametrize("processes", [4])
def test_concurrent_processes_lose_no_edit(file: Path, processes: int) -> None:
    total = processes * _EDITS
    with SqliteBackend(file) as backend:
        assert backend.write("/log.txt", "".join(f"<{number}>\n" for number in range(total))).ok
        parts = [(first * _EDITS, (first + 1) * _EDITS) for first in range(processes)]
        assert list(_outcomes(_EDITOR, file, parts)) == ["ok"] * total
        assert backend.read_raw("/log.txt").data["content"] == "".join(f"({number})\n" for number in range(total))
        assert run_sync(backend.acheck) == []


def test_many_processes_may_make_the_database_at_once(file: Path) -> None:
    assert list(_outcomes(_FIRST, file, [(number,) for number in range(8)])) == ["None"] * 8
    with SqliteBackend(file) as backend:
        assert [entry.path for entry in backend.ls("/").entries] == [f"/{number}.txt" for number in range(8)]
        assert run_sync(backend.acheck) == []
    assert rows(file, "SELECT count(*) FROM state") == [(1,)]


def test_a_killed_process_loses_nothing_that_it_was_told_is_stored(file: Path) -> None:
    chooser = random.Random(3)
    number = 0
    with SqliteBackend(file) as backend:
        assert backend.write("/count.txt", "0").ok
    for _ in range(5):
        with started(_WRITER, file, number) as process:
            assert process.stdout is not None
            told = [int(process.stdout.readline()) for _ in range(chooser.randint(1, 12))]
            os.kill(process.pid, signal.SIGKILL)
            told += [int(line) for line in process.stdout if line.endswith("\n")]
        with SqliteBackend(file) as backend:
            number = int(backend.read_raw("/count.txt").data["content"])
            stored = {entry.path for entry in backend.ls("/files").entries}
            assert number in (told[-1], told[-1] + 1)
            assert {f"/files/{each}.txt" for each in range(1, number + 1)} <= stored
            assert len(stored) <= number + 1
            assert run_sync(backend.acheck) == []
            backend.delete(f"/files/{number + 1}.txt")


def test_another_process_reads_while_this_one_has_it_open(file: Path) -> None:
    script = _START + "print(backend.read('/a.txt').file_data.content, backend.write('/b.txt', 'theirs').ok)"
    with SqliteBackend(file) as backend:
        assert backend.write("/a.txt", "ours").ok
        with started(script, file) as process:
            assert process.communicate()[0] == "ours True\n"
        assert backend.read_raw("/b.txt").data["content"] == "theirs"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_opens_connections_of_its_own(file: Path) -> None:
    with SqliteBackend(file) as backend:
        assert backend.write("/a.txt", "one").ok
        assert _in_child(lambda: backend.edit("/a.txt", "one", "two").ok and backend.write("/c.txt", "child").ok)
        assert backend.edit("/a.txt", "two", "three").ok
        assert _in_child(lambda: backend.read("/a.txt").file_data.content == "three" and backend.close() is None)
        assert [entry.path for entry in backend.ls("/").entries] == ["/a.txt", "/c.txt"]
        assert run_sync(backend.acheck) == []


def _in_child(check: Callable[[], object]) -> bool:
    child = os.fork()
    if not child:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
