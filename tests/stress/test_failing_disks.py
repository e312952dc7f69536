"""A full disk, a read-only disk, lost permissions: the old content stays, the error is clear, nothing is left over."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from support.disks import tree
from support.mounts import SmallDisk, small_disk

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

BIG = "new " * 200_000
"""More than half of what the disk holds."""

Change = Callable[[BackendProtocol], Awaitable[Any]]


async def uploaded(backend: BackendProtocol, path: str, content: bytes) -> Any:
    [outcome] = await backend.aupload_files([(path, content)])
    return outcome


# --- a full disk ---

LIMITS = {"no space": "size=1m", "no inodes": "size=8m,nr_inodes=16"}


@pytest.fixture(params=LIMITS.values(), ids=LIMITS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    """A small mounted disk; the directory above it has space left."""
    with small_disk(tmp_path / "disk", request.param) as disk:
        (disk.path / "dir").mkdir()
        (disk.path / "old.txt").write_text("old " * 1000)
        (disk.path / "dir" / "old.txt").write_text("old")
        if "nr_inodes" in request.param:
            for number in range(100):
                try:
                    (disk.path / "dir" / str(number)).touch()
                except OSError:
                    break
        else:
            disk.fill()
        yield disk


GROW: dict[str, Change] = {
    "create": lambda backend: backend.awrite("/new.txt", BIG),
    "create deep": lambda backend: backend.awrite("/x/y/new.txt", BIG),
    "overwrite": lambda backend: backend.awrite("/old.txt", BIG, overwrite=True),
    "edit": lambda backend: backend.aedit("/old.txt", "old", "a longer text", replace_all=True),
    "edit by a letter": lambda backend: backend.aedit("/dir/old.txt", "old", "new"),
    "upload": lambda backend: uploaded(backend, "/new.bin", b"\0" * 700_000),
    "upload over": lambda backend: uploaded(backend, "/old.txt", b"\0" * 700_000),
    "copy": lambda backend: backend.acopy("/old.txt", "/copy.txt"),
    "copy over": lambda backend: backend.acopy("/old.txt", "/dir/old.txt", overwrite=True),
    "copy a tree": lambda backend: backend.acopy("/dir", "/copied"),
}


async def test_a_change_on_a_full_disk_fails_and_changes_nothing(disk: SmallDisk) -> None:
    before = await seen(disk.path)
    for durable in (False, True):
        backend = FilesystemBackend(disk.path, durable=durable)
        for name, change in GROW.items():
            result = await change(backend)
            assert result.error is not None, name
            check_error(result, "No space is left on the disk", disk.path)
            assert await seen(disk.path) == before, name
        assert (await backend.aread("/old.txt")).ok


async def test_freed_space_can_be_used(disk: SmallDisk) -> None:
    backend = FilesystemBackend(disk.path)
    assert not (await backend.aedit("/old.txt", "old", "newer", replace_all=True)).ok
    for path in ("/filler", "/dir/5", "/dir/6"):
        await backend.adelete(path)
    assert (await backend.aedit("/old.txt", "old", "newer", replace_all=True)).ok
    assert (await backend.awrite("/new.txt", BIG)).ok


async def test_deleting_needs_no_space(disk: SmallDisk) -> None:
    backend = FilesystemBackend(disk.path)
    assert (await backend.adelete("/dir")).ok
    assert (await backend.adelete("/old.txt")).ok


async def test_a_move_onto_a_full_disk_keeps_its_source(disk: SmallDisk) -> None:
    """Moves across the mounts of a composite; files that were copied before the disk was full may stay."""
    backend = CompositeBackend(MemoryBackend(), {"/disk/": FilesystemBackend(disk.path), "/beside/": MemoryBackend()})
    for path in ("/file.txt", "/tree/one.txt", "/tree/two.txt"):
        assert (await backend.awrite(f"/beside{path}", BIG)).ok
    before = await seen(disk.path)
    for path in ("/file.txt", "/tree"):
        for dst in (f"/disk{path}", f"/disk/deep{path}", "/disk/old.txt"):
            for change in (backend.amove, backend.acopy):
                assert not (await change(f"/beside{path}", dst, overwrite=True)).ok
                assert (await backend.aread(f"/beside{path}{'/one.txt' if path == '/tree' else ''}")).ok
    after = await seen(disk.path)
    assert {path: after[path] for path in before} == before
    assert not [path for path in after if ".~deepfs-" in path]


async def test_a_move_between_file_systems_keeps_its_source(disk: SmallDisk) -> None:
    backend = FilesystemBackend(disk.path.parent)
    for path in ("/file.txt", "/tree/one.txt", "/tree/two.txt"):
        assert (await backend.awrite(path, BIG)).ok
    before = await seen(disk.path.parent)
    for path in ("/file.txt", "/tree"):
        for dst in (f"/disk{path}", f"/disk/deep{path}"):
            for change in (backend.amove, backend.acopy):
                result = await change(path, dst)
                check_error(result, "No space is left on the disk", disk.path)
    for change in (backend.amove, backend.acopy):
        check_error(await change("/file.txt", "/disk/old.txt", overwrite=True), "No space is left", disk.path)
    assert await seen(disk.path.parent) == before


# --- a read-only disk ---


def check_error(result: Any, reason: str, root: Path) -> None:
    """The error has the reason and no host path; the error of an upload is a code only."""
    if hasattr(result, "code"):
        assert reason.lower() in result.error.lower()
        assert str(root) not in result.error
    else:
        assert result.error in ("backend_error", "permission_denied")


async def seen(root: Path) -> dict[str, bytes | str | None]:
    return await anyio.to_thread.run_sync(tree, root)
