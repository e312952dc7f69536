"""A process of an earlier version and one of this version share a directory or a database, and lose no edit.

Both versions lock the file itself, so they exclude each other. A store has no such lock: version `67c86ec` replaces
what it read a moment before, and guarantees only that edits within one process are serialized. Between the versions,
nothing more is guaranteed for stores than what the tests at the end check.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest
from langgraph.store.sqlite import SqliteStore

import deepfs
from support.files import stored

Process = subprocess.Popen[str]
Start = Callable[..., Process]

HERE: Final = Path(__file__).parent
NOW: Final = Path(deepfs.__file__).parents[1]
EARLIER: Final = sorted(HERE.glob("*.zip"))
FILES: Final = ("/0.txt", "/1.txt", "/2.txt")

BEGIN = """
import sys
import deepfs

assert deepfs.__file__.startswith(sys.argv[1]), deepfs.__file__
from deepfs import FilesystemBackend, StoreBackend

def told(line):
    print(line, flush=True)
    sys.stdin.readline()
"""
"""The beginning of each script. Its arguments are the directory of the package, and a directory or a database."""

EDITOR = """
backend, name, edits = FilesystemBackend(sys.argv[2]), sys.argv[3], int(sys.argv[4])

def append(path, line):
    return backend.edit(path, "end\\n", line + "end\\n")

def put_first(path, line):
    read = backend.read(path, 0, 1_000_000)
    return backend.write(path, line + read.file_data.content, if_match=read.version)

told("ready")
for number in range(edits):
    change = append if number % 2 else put_first
    while (result := change(f"/{number % 3}.txt", f"{name}-{number}\\n")).code == "conflict":
        pass
    assert result.error is None, result.error
"""

HOLDER = """
import os
rename = os.rename

def held(*arguments, **options):
    os.rename = rename
    told("held")
    rename(*arguments, **options)

backend = FilesystemBackend(sys.argv[2])
for path in sys.stdin:
    os.rename = held
    print(backend.edit(path.strip(), "two", "2").error, flush=True)
"""
"""Edits the files named on stdin, and pauses before each rename, with the lock held."""

WAITER = """
import fcntl
lock, is_told = fcntl.flock, True

def locked(*arguments):
    global is_told
    try:
        lock(*arguments)
    except BlockingIOError:
        if not is_told:
            is_told = True
            print("waiting", flush=True)
        raise

fcntl.flock = locked
backend = FilesystemBackend(sys.argv[2])
for name in map(str.strip, sys.stdin):
    is_told, path = False, f"/{name}.txt"
    if name == "edit":
        result = backend.edit(path, "three", "3")
    elif name == "write":
        result = backend.write(path, "new", overwrite=True)
    elif name == "delete":
        result = backend.delete(path)
    else:
        result = backend.move(path, "/moved.txt")
    print(result.error, flush=True)
"""
"""Changes a file by the operation named on stdin, and reports once if it finds the file locked."""

SWEEPER = """
backend = FilesystemBackend(sys.argv[2])
[module] = [module for module in sys.modules.values() if hasattr(module, "_STALE_AFTER_S")]
module._STALE_AFTER_S = -1.0
print(backend.write("/another.txt", "").error, *(info.path for info in backend.ls("/").entries))
"""
"""Writes in the directory, and treats every unfinished file there as old."""

STORE_EDITOR = """
import asyncio
from langgraph.store.sqlite.aio import AsyncSqliteStore

async def main():
    async with AsyncSqliteStore.from_conn_string(sys.argv[2]) as store:
        await store.conn.execute("PRAGMA busy_timeout = 60000")
        await store.setup()
        backend = StoreBackend(store, namespace=("files",))
        told("ready")
        for line in sys.stdin:
            path, marker = line.split()
            if marker == "read":
                print(repr((await backend.aread(path)).file_data.content), flush=True)
            else:
                print((await backend.aedit(path, "end\\n", f"{marker}\\nend\\n")).error, flush=True)

asyncio.run(main())
"""
"""Edits or reads the files of a store, as the lines of stdin say."""


@pytest.fixture(scope="session", params=EARLIER, ids=lambda package: package.stem)
def earlier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an earlier version's package, unpacked once, so that it is compiled only once."""
    directory = tmp_path_factory.mktemp(request.param.stem)
    with ZipFile(request.param) as package:
        package.extractall(directory)
    return directory


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a script with a version of the package; processes that still run are killed at the end of the test."""
    with ExitStack() as processes:

        def started(script: str, package: Path, *arguments: object) -> Process:
            process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-c", BEGIN + script, str(package), *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(package), *filter(None, sys.path)])},
            )
            processes.enter_context(process)
            processes.callback(process.kill)
            return process

        yield started


def line(process: Process) -> str:
    """The next line that the process prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def tell(process: Process, *lines: str) -> None:
    """Send lines to the process, so that it continues."""
    assert process.stdin is not None
    process.stdin.write("".join(f"{each}\n" for each in lines or ("",)))
    process.stdin.flush()


def finished(processes: Sequence[Process]) -> list[str]:
    """The remaining output of the processes, which must end with status 0."""
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [each for text in said for each in text.splitlines()]


# --- a directory -----------------------------------------------------------------------------------------------------


def test_no_edit_of_either_version_is_lost(start: Start, earlier: Path, tmp_path: Path) -> None:
    edits = 60
    for path in FILES:
        (tmp_path / path[1:]).write_text("end\n")
    packages = {"old-1": earlier, "new-1": NOW, "old-2": earlier, "new-2": NOW}
    running = [start(EDITOR, package, tmp_path, name, edits) for name, package in packages.items()]
    assert [line(process) for process in running] == ["ready"] * 4
    for process in running:
        tell(process)
    finished(running)
    markers = [(tmp_path / path[1:]).read_text().split() for path in FILES]
    made = [(number % 3, f"{name}-{number}") for name in packages for number in range(edits)]
    expected = [[marker for file, marker in made if file == number] for number in range(3)]
    assert [sorted(each) for each in markers] == [sorted([*each, "end"]) for each in expected]
    assert sorted(os.listdir(tmp_path)) == [path[1:] for path in FILES]


OPERATIONS: Final = ("edit", "write", "delete", "move")


@pytest.mark.parametrize("holder", ["earlier", "now"])
def test_a_change_of_one_version_waits_for_that_of_the_other(
    start: Start, earlier: Path, tmp_path: Path, holder: str
) -> None:
    first, second = (earlier, NOW) if holder == "earlier" else (NOW, earlier)
    holding, waiting = start(HOLDER, first, tmp_path), start(WAITER, second, tmp_path)
    for operation in OPERATIONS:
        (tmp_path / f"{operation}.txt").write_text("one\ntwo\nthree\n")
        tell(holding, f"/{operation}.txt")
        assert line(holding) == "held"
        tell(waiting, operation)
        assert line(waiting) == "waiting"
        tell(holding)
        assert (line(holding), line(waiting)) == ("None", "None")
    assert finished([holding, waiting]) == []
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "edit.txt": "one\n2\n3\n", "write.txt": "new", "moved.txt": "one\n2\nthree\n"
    }  # fmt: skip


@pytest.mark.parametrize("holder", ["earlier", "now"])
def test_unfinished_files_of_one_version_are_kept_by_the_other(
    start: Start, earlier: Path, tmp_path: Path, holder: str
) -> None:
    (tmp_path / "file.txt").write_text("one\ntwo\nthree\n")
    first, second = (earlier, NOW) if holder == "earlier" else (NOW, earlier)
    holding = start(HOLDER, first, tmp_path)
    tell(holding, "/file.txt")
    assert line(holding) == "held"
    assert finished([start(SWEEPER, second, tmp_path)]) == ["None /another.txt /file.txt"]
    tell(holding)
    assert finished([holding]) == ["None"]
    assert (tmp_path / "file.txt").read_text() == "one\n2\nthree\n"
    assert sorted(os.listdir(tmp_path)) == ["another.txt", "file.txt"]


# --- a store ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The database of a store with a few files, which have only their last line."""
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        store.setup()
        for path in FILES:
            store.put(("files",), path, stored(b"end\n"))
    return tmp_path / "store.db"


def edited(process: Process, path: str, marker: str) -> str:
    tell(process, f"{path} {marker}")
    return line(process)


def test_alternating_edits_of_a_store_build_on_each_other(start: Start, earlier: Path, database: Path) -> None:
    running = [start(STORE_EDITOR, package, database) for package in (earlier, NOW)]
    assert [line(process) for process in running] == ["ready"] * 2
    for process in running:
        tell(process)
    markers = [f"{turn}-{name}" for turn in range(6) for name in ("old", "new")]
    assert [edited(running[n % 2], "/0.txt", marker) for n, marker in enumerate(markers)] == ["None"] * 12
    expected = "".join(f"{marker}\n" for marker in [*markers, "end"])
    assert [edited(process, "/0.txt", "read") for process in running] == [repr(expected)] * 2


def test_edits_by_an_earlier_version_do_not_affect_other_files(start: Start, earlier: Path, database: Path) -> None:
    edits = 12
    of = {"old": (earlier, "/0.txt"), "new-1": (NOW, "/1.txt"), "new-2": (NOW, "/1.txt")}
    running = [start(STORE_EDITOR, package, database) for package, _ in of.values()]
    assert [line(process) for process in running] == ["ready"] * 3
    for process, (name, (_, path)) in zip(running, of.items(), strict=True):
        tell(process, "", *(f"{path} {name}-{number}" for number in range(edits)))
    assert finished(running) == ["None"] * 3 * edits
    with SqliteStore.from_conn_string(str(database)) as store:
        items = {item.key: item.value["content"].split() for item in store.search(("files",))}
    for path in FILES:
        expected = [f"{name}-{number}" for name, (_, own) in of.items() if own == path for number in range(edits)]
        assert sorted(items[path]) == sorted(["end", *expected])
