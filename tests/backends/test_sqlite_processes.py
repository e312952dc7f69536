"""Several processes over one database: no edit is lost, killed ones leave nothing torn, and all may start at once."""

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from deepfs import SqliteBackend, run_sync
from support.processes import Process, started
from support.raw_sqlite import rows

_EDITS: Final = 50

_SPAWNER: Final = """
import os
import sys
from deepfs import SqliteBackend

path = sys.argv[1]
SqliteBackend(path + "-other").write("/a.txt", "x")  # What the first call loads takes longer than many edits.

def say(word):
    os.write(1, f"{word}\\n".encode())  # At once, so that the lines of several processes do not mix.

def edit(backend, first, last):
    for number in range(first, last):
        result = backend.edit("/log.txt", f"<{number}>", f"({number})")
        say("ok" if result.ok else result.error)

def create(backend, number):
    say(backend.write(f"/{number}.txt", "text").error or "ok")

def work(backend, number):
    while True:
        number += 1
        assert backend.write(f"/files/{number}.txt", f"content {number} " * 500).ok
        assert backend.edit("/count.txt", str(number - 1), str(number)).ok
        say(number)

def child(gate, function, arguments):
    os.read(gate, 1)  # It ends when all are started.
    function(SqliteBackend(path), *map(int, arguments))
    os._exit(0)

for line in sys.stdin:
    name, *each = line.split()
    waiting, opened = os.pipe()
    children = []
    for arguments in each:
        process = os.fork()
        if not process:
            os.close(opened)
            child(waiting, globals()[name], arguments.split(","))
        children.append(process)
    os.close(waiting)
    say(children[-1])
    os.close(opened)
    for process in children:
        os.waitpid(process, 0)
    say("ended")
"""


def _send(spawner: Process, name: str, arguments: Sequence[str]) -> int:
    """Have a spawner start a process for each of `arguments`, all at once. Return the number of the last one."""
    assert spawner.stdin is not None
    assert spawner.stdout is not None
    spawner.stdin.write(f"{name} {' '.join(arguments)}\n")
    spawner.stdin.flush()
    return int(spawner.stdout.readline())


def _rest(spawner: Process) -> list[str]:
    """What the processes print until all have ended."""
    assert spawner.stdout is not None
    return [line.strip() for line in iter(spawner.stdout.readline, "ended\n")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "files.db"


@pytest.fixture
def spawner(file: Path) -> Iterator[Process]:
    with started(_SPAWNER, file) as process:
        yield process


def test_concurrent_processes_lose_no_edit(file: Path, spawner: Process) -> None:
    total = 4 * _EDITS
    with SqliteBackend(file) as backend:
        assert backend.write("/log.txt", "".join(f"<{number}>\n" for number in range(total))).ok
        _send(spawner, "edit", [f"{first},{first + _EDITS}" for first in range(0, total, _EDITS)])
        assert _rest(spawner) == ["ok"] * total
        assert backend.read_raw("/log.txt").data["content"] == "".join(f"({number})\n" for number in range(total))
        assert run_sync(backend.acheck) == []


def test_many_processes_may_make_the_database_at_once(tmp_path: Path, file: Path, spawner: Process) -> None:
    _send(spawner, "create", [str(number) for number in range(8)])
    assert _rest(spawner) == ["ok"] * 8
    with SqliteBackend(file) as backend:
        assert [entry.path for entry in backend.ls("/").entries] == [f"/{number}.txt" for number in range(8)]
        assert run_sync(backend.acheck) == []
    assert rows(file, "SELECT count(*) FROM state") == [(1,)]


def test_a_killed_process_loses_nothing_that_it_was_told_is_stored(file: Path, spawner: Process) -> None:
    chooser = random.Random(3)
    number = 0
    assert spawner.stdout is not None
    with SqliteBackend(file) as backend:
        assert backend.write("/count.txt", "0").ok
    for _ in range(8):
        process = _send(spawner, "work", [str(number)])
        told = [int(spawner.stdout.readline()) for _ in range(chooser.randint(1, 12))]
        time.sleep(chooser.random() / 100)
        os.kill(process, signal.SIGKILL)
        told += map(int, _rest(spawner))
        with SqliteBackend(file) as backend:
            number = int(backend.read_raw("/count.txt").data["content"])
            stored = {entry.path for entry in backend.ls("/files").entries}
            assert number in (told[-1], told[-1] + 1)
            assert {f"/files/{each}.txt" for each in range(1, number + 1)} <= stored
            assert len(stored) <= number + 1
            assert run_sync(backend.acheck) == []
            backend.delete(f"/files/{number + 1}.txt")


def test_another_process_reads_while_this_one_has_it_open(file: Path) -> None:
    script = "import sys\nfrom deepfs import SqliteBackend\nbackend = SqliteBackend(sys.argv[1])\n"
    script += "print(backend.read('/a.txt').file_data.content, backend.write('/b.txt', 'theirs').ok)"
    with SqliteBackend(file) as backend:
        assert backend.write("/a.txt", "ours").ok
        with started(script, file) as process:
            assert process.communicate()[0] == "ours True\n"
        assert backend.read_raw("/b.txt").data["content"] == "theirs"


_FORKING: Final = """
import os
import sys
from deepfs import SqliteBackend, run_sync

def in_child(check):
    child = os.fork()
    if not child:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

with SqliteBackend(sys.argv[1]) as backend:
    assert backend.write("/a.txt", "one").ok
    assert in_child(lambda: backend.edit("/a.txt", "one", "two").ok and backend.write("/c.txt", "child").ok)
    assert backend.edit("/a.txt", "two", "three").ok
    assert in_child(lambda: backend.read("/a.txt").file_data.content == "three" and backend.close() is None)
    with backend._database().session() as session:
        session.execute("BEGIN IMMEDIATE")  # A child must neither use nor end it.
        session.execute("DELETE FROM files WHERE path = '/c.txt'")
        assert in_child(lambda: backend.read("/c.txt").ok)
        session.execute("COMMIT")
    assert [entry.path for entry in backend.ls("/").entries] == ["/a.txt"]
    assert run_sync(backend.acheck) == []
print("passed")
"""


def test_a_forked_child_opens_connections_of_its_own(file: Path) -> None:
    with started(_FORKING, file) as process:
        assert process.communicate()[0] == "passed\n"


def test_a_process_that_ends_leaves_one_file(file: Path) -> None:
    script = "import sys\nfrom deepfs import SqliteBackend\nassert SqliteBackend(sys.argv[1]).write('/a.txt', 'x').ok"
    with started(script, file) as process:
        assert process.communicate()[0] == ""
    assert [path.name for path in file.parent.iterdir()] == [file.name]
