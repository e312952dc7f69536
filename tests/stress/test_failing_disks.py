"""A full disk, a read-only disk, lost permissions: the old content stays, the error is clear, nothing is left over."""

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from support.disks import public_directory, tree
from support.mounts import SmallDisk, small_disk
from support.processes import started

pytestmark = pytest.mark.anyio

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


@pytest.mark.parametrize("durable", [False, True], ids=["", "durable"])
@pytest.mark.parametrize("change", GROW.values(), ids=GROW)
async def test_a_change_on_a_full_disk_fails_and_changes_nothing(
    disk: SmallDisk, change: Change, durable: bool
) -> None:
    backend = FilesystemBackend(disk.path, durable=durable)
    before = await seen(disk.path)
    result = await change(backend)
    assert result.error is not None
    check_error(result, "No space is left on the disk", disk.path)
    assert await seen(disk.path) == before
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


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        (disk.path / "dir").mkdir()
        (disk.path / "old.txt").write_text("old " * 1000)
        (disk.path / "dir" / "old.txt").write_text("old")
        disk.remount("ro")
        yield disk


CHANGE: dict[str, Change] = {
    **GROW,
    "move": lambda backend: backend.amove("/old.txt", "/moved.txt"),
    "move over": lambda backend: backend.amove("/old.txt", "/dir/old.txt", overwrite=True),
    "move a tree": lambda backend: backend.amove("/dir", "/moved"),
    "delete": lambda backend: backend.adelete("/old.txt"),
    "delete a tree": lambda backend: backend.adelete("/dir"),
}


@pytest.mark.parametrize("change", CHANGE.values(), ids=CHANGE)
async def test_a_read_only_disk_can_only_be_read(frozen: SmallDisk, change: Change) -> None:
    backend = FilesystemBackend(frozen.path)
    before = await seen(frozen.path)
    result = await change(backend)
    assert result.error is not None
    check_error(result, "read-only", frozen.path)
    assert await seen(frozen.path) == before
    assert (await backend.aread("/old.txt")).ok
    assert [match.path for match in (await backend.agrep("old")).matches or ()][-1] == "/old.txt"


def check_error(result: Any, reason: str, root: Path) -> None:
    """The error has the reason and no host path; the error of an upload is a code only."""
    if hasattr(result, "code"):
        assert reason.lower() in result.error.lower()
        assert str(root) not in result.error
    else:
        assert result.error in ("backend_error", "permission_denied")


async def seen(root: Path) -> dict[str, bytes | str | None]:
    return await anyio.to_thread.run_sync(tree, root)


# --- lost permissions ---

UNPRIVILEGED = """
import json, os, sys
from deepfs.backends.filesystem import FilesystemBackend

FilesystemBackend("/nowhere").grep("x", regex=True)  # Has everything imported while that is allowed.
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for root, name, arguments, options in json.loads(sys.stdin.read()):
    if name == "upload_files":
        arguments = [[(path, content.encode()) for path, content in arguments[0]]]
    answer = getattr(FilesystemBackend(root), name)(*arguments, **options)
    outcomes = answer if isinstance(answer, list) else [answer]
    print(json.dumps([[getattr(outcome, "code", None) or outcome.error, outcome.error] for outcome in outcomes]))
"""

LOCKED: dict[str, Callable[[Path], None]] = {
    "directory without w": lambda root: (root / "dir").chmod(0o555),
    "directory without x": lambda root: (root / "dir").chmod(0o666),
    "directory without any": lambda root: (root / "dir").chmod(0o000),
    "file without w": lambda root: (root / "dir" / "old.txt").chmod(0o444),
    "file without any": lambda root: (root / "dir" / "old.txt").chmod(0o000),
    "root without w": lambda root: root.chmod(0o555),
}

CALLS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("write", ["/dir/new.txt", "new"], {}),
    ("write", ["/dir/x/new.txt", "new"], {}),
    ("write", ["/dir/old.txt", "new"], {"overwrite": True}),
    ("edit", ["/dir/old.txt", "old", "new"], {}),
    ("upload_files", [[["/dir/old.txt", "new"], ["/dir/new.bin", "new"]]], {}),
    ("copy", ["/other.txt", "/dir/copy.txt"], {}),
    ("copy", ["/other.txt", "/dir/old.txt"], {"overwrite": True}),
    ("move", ["/dir/old.txt", "/moved.txt"], {}),
    ("move", ["/other.txt", "/dir/old.txt"], {"overwrite": True}),
    ("delete", ["/dir/old.txt"], {}),
    ("delete", ["/dir"], {}),
]


@pytest.mark.parametrize("lock", LOCKED.values(), ids=LOCKED)
def test_calls_without_permission_are_done_completely_or_not_at_all(lock: Callable[[Path], None]) -> None:
    """An unprivileged process makes each call on its own tree, of which it owns nothing."""
    with public_directory() as top, started(UNPRIVILEGED) as process:
        roots = [locked_tree(top / str(number), lock) for number in range(len(CALLS))]
        before = [tree(root) for root in roots]
        given = json.dumps([[str(root), *call] for root, call in zip(roots, CALLS, strict=True)])
        output, _ = process.communicate(given)
        assert process.returncode == 0
        assert str(top) not in output
        refused = 0
        for call, answers, root, old in zip(CALLS, map(json.loads, output.splitlines()), roots, before, strict=True):
            new = tree(root)
            assert not [path for path in new if ".~deepfs-" in path], call
            if all(code is not None for code, _ in answers):
                refused += 1
                # If a directory may not be deleted, its content may have been deleted.
                assert new == old or (call[:2] == ("delete", ["/dir"]) and "dir" in new), (call, answers)
                assert {code for code, _ in answers} <= {"permission_denied", "file_not_found"}, (call, answers)
            elif len(answers) == 1:
                assert new != old, call
        assert refused >= 3


def locked_tree(root: Path, lock: Callable[[Path], None]) -> Path:
    (root / "dir").mkdir(parents=True)
    for path, content in {"dir/old.txt": "old", "other.txt": "other"}.items():
        (root / path).write_text(content)
        (root / path).chmod(0o666)
    for directory in (root, root / "dir"):
        directory.chmod(0o777)
    lock(root)
    return root
