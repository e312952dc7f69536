"""A directory or file is repeatedly swapped for a link that leads outside while operations run."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from deepfs.disk import Deadline, Disk
from deepfs.disk import resolve as places
from deepfs.errors import DeepFSError, NotFoundError
from deepfs.text.lines import version
from support.disks import Swapping, open_descriptors, tree, walk, when_free

SWAPS = [2_000, pytest.param(100_000, marks=[pytest.mark.stress, pytest.mark.timeout(1200)])]

OUTSIDE = {"secret": b"secret", "inner": None, "inner/secret": b"secret", "kept": b"kept"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root whose directory `dir` has the same names as the directory outside, with other contents."""
    outside, inside = tmp_path / "outside", tmp_path / "root" / "dir"
    for directory, content in ((outside, b"secret"), (inside, b"public")):
        (directory / "inner").mkdir(parents=True)
        (directory / "secret").write_bytes(content)
        (directory / "inner" / "secret").write_bytes(content)
    (outside / "kept").write_bytes(b"kept")
    return tmp_path / "root"


@pytest.fixture
def disk(root: Path) -> Disk:
    return Disk(str(root))


def look(disk: Disk, number: int) -> None:
    for path in ("/dir/secret", "/dir/inner/secret"):
        with suppress(DeepFSError):
            assert disk.read_file(path)[0] == b"public"
        with suppress(DeepFSError):
            assert disk.read_window(path, 0, 1).shown.text == "public"
    with suppress(DeepFSError):
        assert {entry.path.removeprefix("/dir/").rstrip("/") for entry in disk.list_directory("/dir").entries} <= {
            "secret",
            "inner",
            ".link",
        }
    with suppress(DeepFSError):
        assert {entry.path.strip("/") for entry in disk.list_directory("/").entries} <= {"dir", ".link"}
    with suppress(DeepFSError):
        assert disk.read_file("/dir/kept") is None


def look_in_memory(disk: Disk, number: int) -> None:
    disk.in_memory.prepare()
    for path in ("/dir/secret", "/dir/inner/secret"):
        with suppress(BlockingIOError):
            assert disk.in_memory.read_file(path)[0] == b"public"
        with suppress(BlockingIOError):
            assert disk.in_memory.read_window(path, 0, 1).version == version(b"public")
    with suppress(BlockingIOError):
        assert disk.in_memory.read_file("/dir/kept") is None


def search(disk: Disk, number: int) -> None:
    with suppress(DeepFSError):
        for found in walk(disk, "/"):
            assert "kept" not in found.path
            with suppress(DeepFSError):
                assert found.read() == b"public"
    with suppress(DeepFSError):
        for run in disk.walk_runs("/"):
            assert {info.size for info in run.infos(run.names, Deadline())} <= {6, None}
    with suppress(DeepFSError):
        for found in walk(disk, "/dir"):
            assert found.path.replace(".link", "inner") in {"/dir/secret", "/dir/inner", "/dir/inner/secret"}


def write(disk: Disk, number: int) -> None:
    for path in ("/dir/secret", "/dir/inner/secret"):
        with suppress(DeepFSError):
            when_free(disk.write_file, path, b"public", overwrite=True)
        with suppress(DeepFSError):
            when_free(disk.edit_file, path, lambda data: data)
    with suppress(DeepFSError):
        when_free(disk.write_file, f"/dir/new-{number % 5}/file", b"public")


def delete(disk: Disk, number: int) -> None:
    with suppress(DeepFSError):
        when_free(disk.write_file, f"/dir/kept/{number % 5}", b"public")
    with suppress(DeepFSError):
        when_free(disk.delete, "/dir/kept")
    for path in ("/dir/inner", "/dir/secret"):
        with suppress(DeepFSError):
            when_free(disk.delete, path)
    for path in ("/dir/inner/secret", "/dir/secret"):
        with suppress(DeepFSError):
            when_free(disk.write_file, path, b"public")


def relocate(disk: Disk, number: int) -> None:
    for change in (disk.move, disk.copy):
        for src, dst in (("/dir/secret", "/moved"), ("/moved", "/dir/secret"), ("/dir/inner", "/dir/kept")):
            with suppress(DeepFSError):
                when_free(change, src, dst, overwrite=True)
        with suppress(DeepFSError):
            when_free(disk.delete, "/dir/kept")
        with suppress(DeepFSError):
            when_free(disk.write_file, "/dir/inner/secret", b"public", overwrite=True)


IN_MEMORY = pytest.param(look_in_memory, marks=pytest.mark.needs("ext4"))


@pytest.mark.parametrize("swapped", ["dir", "dir/secret"])
@pytest.mark.parametrize("operate", [look, IN_MEMORY, search, write, delete, relocate])
@pytest.mark.parametrize("swaps", SWAPS)
def test_files_outside_are_never_read_listed_or_changed(
    root: Path, disk: Disk, operate: Callable[[Disk, int], None], swapped: str, swaps: int
) -> None:
    outside, before = root.parent / "outside", open_descriptors()
    with Swapping(root / swapped, outside / swapped.removeprefix("dir").removeprefix("/")) as swapping:
        for number in count():
            operate(disk, number)
            if swapping.count >= swaps and number >= swaps / 25:
                break
    assert tree(outside) == OUTSIDE
    assert b"secret" not in tree(root).values()
    assert open_descriptors() == before


@pytest.mark.parametrize("swapped", ["dir/inner", "dir/secret"])
@pytest.mark.parametrize("operate", [look, search, write, delete, relocate])
def test_a_name_that_becomes_a_link_just_before_it_is_opened_is_not_followed(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, operate: Callable[[Disk, int], None], swapped: str
) -> None:
    """Swap the name at the worst moment: just before each open, after all checks."""
    outside, inside = root.parent / "outside", root / swapped
    open_, open_unlinked = os.open, places.open_unlinked
    opened: list[str] = []

    @contextmanager
    def swapped_away() -> Iterator[None]:
        away = inside.with_name(".away")
        inside.rename(away)
        inside.symlink_to(outside / swapped.removeprefix("dir/"))
        try:
            yield
        finally:
            # A change may have removed the link, or put another file in its place.
            if inside.is_symlink():
                inside.unlink()
            if not inside.exists():
                away.rename(inside)

    def swap_then_open(name: str, flags: int, *rest: int, **where: int) -> int:
        if name != inside.name or inside.is_symlink() or not inside.exists():
            return open_(name, flags, *rest, **where)
        opened.append(name)
        with swapped_away():
            return open_(name, flags, *rest, **where)

    def swap_then_open_unlinked(path: str, *how: int) -> int | None:
        if inside.name not in path.split("/") or inside.is_symlink() or not inside.exists():
            return open_unlinked(path, *how)
        opened.append(path)
        with swapped_away():
            return open_unlinked(path, *how)

    monkeypatch.setattr(os, "open", swap_then_open)
    monkeypatch.setattr(places, "open_unlinked", swap_then_open_unlinked)
    operate(disk, 0)
    assert opened
    assert tree(outside) == OUTSIDE
    assert b"secret" not in tree(root).values()


def test_writes_and_concurrent_deletions_of_their_directory_all_succeed(root: Path, disk: Disk) -> None:
    """Concurrent writes and deletions take effect one after another, so none of them fails."""
    errors: list[Exception] = []
    done = threading.Event()

    def keep_deleting() -> None:
        deleting = Disk(str(root))
        while not done.is_set():
            try:
                deleting.delete("/x")
            except NotFoundError:
                pass
            except DeepFSError as error:
                errors.append(error)

    thread = threading.Thread(target=keep_deleting)
    thread.start()
    try:
        for number in range(500):
            disk.write_file(f"/x/y/z/{number}", b"", overwrite=True)
    finally:
        done.set()
        thread.join()
    assert errors == []
