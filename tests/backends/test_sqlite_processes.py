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
from deepfs.sandboxes.bubblewrap import bubblewrap_program
from support.counts import few_or_many
from support.processes import Process, started
from support.promises import keeps
from support.raw_sqlite import rows

_EDITS: Final = 50

_SPAWNER: Final = """
import os
import sys
import anyio
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

def work_together(backend, writers):
    async def write(writer):
        number = 0
        while True:
            number += 1
            assert (await backend.awrite(f"/{writer}/{number}.txt", "text " * 500)).ok
            say(f"/{writer}/{number}.txt")

    async def work():
        async with anyio.create_task_group() as tasks:
            for writer in range(writers):
                tasks.start_soon(write, writer)

    anyio.run(work)

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


@pytest.mark.parametrize("kills", few_or_many(8, 1_000, seconds=1_800))
def test_a_killed_process_loses_nothing_that_it_was_told_is_stored(file: Path, spawner: Process, kills: int) -> None:
    chooser = random.Random(3)
    number = 0
    assert spawner.stdout is not None
    with SqliteBackend(file) as backend:
        assert backend.write("/count.txt", "0").ok
    for kill in range(1, kills + 1):
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
            if kill <= 8 or kill % 20 == 0:  # It takes longer the more files there are.
                assert run_sync(backend.acheck) == []
            backend.delete(f"/files/{number + 1}.txt")


def test_a_killed_process_stored_all_concurrent_changes_that_it_told_of(file: Path, spawner: Process) -> None:
    assert spawner.stdout is not None
    for _ in range(4):
        process = _send(spawner, "work_together", ["8"])
        told = {spawner.stdout.readline().strip() for _ in range(100)}
        os.kill(process, signal.SIGKILL)
        told |= set(_rest(spawner))
        with SqliteBackend(file) as backend:
            assert told <= {found.path for found in backend.glob("*.txt").unwrap()}
            assert run_sync(backend.acheck) == []
            for writer in range(8):
                backend.delete(f"/{writer}")


_CHILD_OF_A_DAEMON: Final = """
import os
import sys
from deepfs import SqliteBackend

backend = SqliteBackend(sys.argv[1])
assert backend.write("/parent.txt", "x").ok
if os.fork():
    if sys.argv[2] == "closes":
        backend.close()
        os.wait()
    os._exit(0)
assert backend.write("/before.txt", "x").ok
print("written", flush=True)
sys.stdin.readline()
print(backend.write("/after.txt", "x").ok, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("parent", ["ends", "closes"])
def test_what_a_child_wrote_stays_when_another_process_closes_the_database(file: Path, parent: str) -> None:
    with started(_CHILD_OF_A_DAEMON, file, parent) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "written\n"
        script = "import sys\nfrom deepfs import SqliteBackend\nSqliteBackend(sys.argv[1]).write('/other.txt', 'x')"
        with started(script, file) as other:
            other.communicate()
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "True\n"
    with SqliteBackend(file) as backend:
        names = [entry.path for entry in backend.ls("/").entries]
        assert names == ["/after.txt", "/before.txt", "/other.txt", "/parent.txt"]


_FORK_STORM: Final = """
import os
import random
import sys
import threading
import time
from deepfs import SqliteBackend, run_sync

chooser = random.Random(5)
forks, is_over = int(sys.argv[2]), False
backends = [SqliteBackend(sys.argv[1], "ada"), SqliteBackend(sys.argv[1], "bob"), SqliteBackend(sys.argv[1] + "-2")]
stored = []

def change(backend, name):
    number = 0
    while not is_over:
        number += 1
        path = f"/{name}-{number}.txt"
        if backend.write(path, str(number) * 20_000).ok:
            stored.append((backend, path))

def look(backend):
    while not is_over:
        assert backend.grep("no such text").ok
        assert backend.ls("/").ok

threads = [threading.Thread(target=change, args=(backend, "parent")) for backend in backends]
threads += [threading.Thread(target=look, args=(backend,)) for backend in backends]
for backend in backends:  # A child cannot import what a thread of its parent is importing.
    assert backend.write("/first.txt", "x").ok
    assert backend.grep("no such text").ok
    assert backend.ls("/").ok
for thread in threads:
    thread.start()
for number in range(forks):
    time.sleep(chooser.random() / 100)
    child = os.fork()
    if not child:
        os._exit(0 if all(backend.write(f"/child-{number}.txt", "x").ok for backend in backends) else 1)
    assert os.waitpid(child, 0)[1] == 0, number
    stored += [(backend, f"/child-{number}.txt") for backend in backends]
is_over = True
for thread in threads:
    thread.join()
for backend in backends:
    found = {entry.path for entry in backend.ls("/").entries}
    assert {path for owner, path in stored if owner is backend} <= found
    assert run_sync(backend.acheck) == []
print("passed", len(stored) > 3 * forks)
"""


@keeps("A process may be forked at any moment, and nothing that parent or child stored is lost.")
@pytest.mark.parametrize("forks", few_or_many(10, 1000))
def test_forks_at_any_moment_lose_nothing(file: Path, forks: int) -> None:
    with started(_FORK_STORM, file, forks) as process:
        assert process.communicate()[0] == "passed True\n"


_READ_ONLY: Final = """
from deepfs import SqliteBackend

backend = SqliteBackend("/mnt/files.db")
for _ in range(2):
    assert [entry.path for entry in backend.ls("/").entries] == ["/a.txt"]
    assert backend.read("/a.txt").file_data.content == "one"
    assert [match.path for match in backend.grep("one").matches] == ["/a.txt"]
    assert backend.write("/b.txt", "x").code == "permission_denied"
print("passed")
"""


def _in_box(*mounts: str) -> tuple[str, ...]:
    return (str(bubblewrap_program()), "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", *mounts)


@pytest.mark.needs("BubblewrapSandbox")
@pytest.mark.parametrize("is_used", [False, True])
def test_a_database_on_a_read_only_mount_is_read(file: Path, is_used: bool) -> None:
    backend = SqliteBackend(file)
    assert backend.write("/a.txt", "one").ok
    if not is_used:
        backend.close()
    box = _in_box("--ro-bind", str(file.parent), "/mnt")
    with started(_READ_ONLY, prefix=box) as process:
        assert process.communicate()[0] == "passed\n"
    assert backend.write("/b.txt", "x").ok
    backend.close()


_FULL_DISK: Final = """
import errno
import os
import sys
from itertools import count
from deepfs import SqliteBackend, run_sync

def fill(name):
    for number in count():
        result = backend.write(f"/{name}-{number}.txt", f"line {number} of a text\\n" * 4000)
        if not result.ok:
            assert "full" in result.error, result.error
            return number

def fill_the_rest():
    with open("/mnt/other", "wb", buffering=0) as other:
        try:
            while True:
                other.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC

backend = SqliteBackend("/mnt/files.db")
stored = fill("a")
assert stored > 20
kept = backend.read_raw("/a-0.txt").data["content"]
if sys.argv[1] == "others":
    fill_the_rest()
assert backend.read_raw("/a-0.txt").data["content"] == kept
deleted = [backend.delete(f"/a-{number}.txt").ok for number in range(1, stored)]
assert all(deleted), sum(deleted)
assert backend.edit("/a-0.txt", "line 0 of", "line 1 of", replace_all=True).ok
assert fill("b") >= stored - 10
assert run_sync(backend.acheck) == []
print("passed")
"""


@pytest.mark.needs("BubblewrapSandbox")
@pytest.mark.parametrize("by", ["deepfs", "others"])
def test_files_can_be_deleted_where_the_disk_is_full(by: str) -> None:
    box = _in_box("--size", "12000000", "--tmpfs", "/mnt")
    with started(_FULL_DISK, by, prefix=box) as process:
        assert process.communicate()[0] == "passed\n"
