"""Rules about paths hold also against a process that swaps links while operations run, on disk and in a box.

`/link` leads to `/open` and to `/denied` in turn. Both have files of the same names; rules deny `/denied`.
"""

import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path

import pytest
from anyio.to_thread import run_sync as in_thread

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import DeepFSError
from deepfs.policy.history import HistoryBackend
from deepfs.policy.hooks import HookedBackend
from deepfs.policy.limits import QuotaBackend
from deepfs.policy.permissions import FilesystemPermission, PermissionedBackend
from deepfs.sandboxes.landlock import LandlockSandbox
from deepfs.text.access import AccessScope, Role, access_at, current_access, permits
from deepfs.text.entries import EntryChange, TreeListing
from deepfs.types import FileDownloadResponse, ReadResult
from support.disks import tree
from support.files import everything_in
from support.promises import keeps

pytestmark = pytest.mark.anyio

FLIPS = [2_000, pytest.param(100_000, marks=[pytest.mark.stress, pytest.mark.timeout(1200)])]

FLIP = """
import os, random, sys, time
for number in range(int(sys.argv[1])):
    time.sleep(random.random() / 5000)  # Longer and shorter than an operation takes between two steps.
    os.symlink(("denied", "open")[number % 2], ".new")
    os.rename(".new", "link")
"""

DENIED = FilesystemPermission(["read", "write"], ["/denied/**"], "deny")


def make(root: Path) -> None:
    fill(root / "open", "public")
    fill(root / "denied", "SECRET")
    (root / "denied" / "hidden-name").write_text("SECRET")
    (root / "link").symlink_to("open")


def fill(directory: Path, content: str) -> None:
    (directory / "inner").mkdir(parents=True)
    for file in ("secret", "inner/secret"):
        (directory / file).write_text(content)


# --- flips ---


def restore(root: Path) -> None:
    """Undo what a call did beside `denied`, once it is seen that it took nothing from there."""
    found = None
    while found is None:
        with suppress(FileNotFoundError):  # The link that flips has a new name between a listing and a look.
            found = tree(root)
    beside = {name: content for name, content in found.items() if not name.startswith("denied")}
    assert "SECRET" not in repr(beside.values())
    for made in {root / name.partition("/")[0] for name in beside} - {root / "link", root / ".new"}:
        shutil.rmtree(made) if made.is_dir() else made.unlink()
    fill(root / "open", "public")


@keeps("swaps links at any moment")
@pytest.mark.parametrize("flips", FLIPS)
async def test_rules_on_disk_hold_while_links_are_swapped(tmp_path: Path, flips: int) -> None:
    """Rules before a history, before rules that allow everything."""
    await in_thread(make, tmp_path)
    history = HistoryBackend(PermissionedBackend(FilesystemBackend(tmp_path), []), MemoryBackend())
    backend = PermissionedBackend(history, [DENIED])
    before = await in_thread(tree, tmp_path / "denied")
    swapper = await in_thread(partial(subprocess.Popen, [sys.executable, "-c", FLIP, str(flips)], cwd=tmp_path))
    while await in_thread(swapper.poll) is None:
        for name, call in CALLS.items():
            shown = everything_in(await call(backend, ""))
            assert "SECRET" not in shown.replace("'SECRET'", ""), (name, shown)
            assert "hidden-name" not in shown, (name, shown)
            await in_thread(restore, tmp_path)
    assert swapper.returncode == 0
    assert await in_thread(tree, tmp_path / "denied") == before


# --- a link that is swapped between the judgement and the use ---


class SwappedFiles(FilesystemBackend):
    """Files whose link leads to `/denied` as soon as somebody has asked where it leads."""

    async def aresolve_paths(self, paths: list[str]) -> list[str | None]:
        resolved = await super().aresolve_paths(paths)
        await in_thread(lambda: point(self.cwd, "denied"))
        return resolved


def point(root: Path, target: str) -> None:
    (root / ".new").symlink_to(target)
    (root / ".new").replace(root / "link")


def confined(root: Path) -> tuple[BackendProtocol, str]:
    return SwappedFiles(root), ""


def unconfined(root: Path) -> tuple[BackendProtocol, str]:
    return SwappedFiles(root, virtual_mode=False), str(root)


class SwappedWorkspace(LandlockSandbox):
    """The same in the workspace of a sandbox."""

    async def aresolve_paths(self, paths: list[str]) -> list[str | None]:
        resolved = await super().aresolve_paths(paths)
        await in_thread(lambda: point(self.cwd, "denied"))
        return resolved


def workspace(root: Path) -> tuple[BackendProtocol, str]:
    return SwappedWorkspace(root), ""


def mounted(root: Path) -> tuple[BackendProtocol, str]:
    return CompositeBackend(MemoryBackend(), {"/a/disk": SwappedFiles(root)}), "/a/disk"


async def chunks() -> AsyncIterator[bytes]:
    yield b"new"


async def first_chunk(backend: BackendProtocol, path: str) -> object:
    try:
        return [chunk async for chunk in backend.adownload_stream(path)]
    except DeepFSError as error:
        return error.code, str(error)


async def listed(backend: BackendProtocol, path: str) -> object:
    try:
        return await backend.alist_tree(path)
    except DeepFSError as error:
        return error.code, str(error)


CALLS: dict[str, Callable[[BackendProtocol, str], Awaitable[object]]] = {
    "read": lambda backend, at: backend.aread(f"{at}/link/secret"),
    "read a window of a missing file": lambda backend, at: backend.aread(f"{at}/link/missing"),
    "read beneath a missing directory": lambda backend, at: backend.aread(f"{at}/link/missing/file"),
    "read beneath a file": lambda backend, at: backend.aread(f"{at}/link/secret/file"),
    "read_raw": lambda backend, at: backend.aread_raw(f"{at}/link/inner/secret"),
    "download": lambda backend, at: backend.adownload_files([f"{at}/link/secret", f"{at}/link/missing"]),
    "download_stream": lambda backend, at: first_chunk(backend, f"{at}/link/secret"),
    "ls": lambda backend, at: backend.als(f"{at}/link"),
    "ls of a missing directory": lambda backend, at: backend.als(f"{at}/link/missing"),
    "glob": lambda backend, at: backend.aglob("**", f"{at}/link"),
    "grep": lambda backend, at: backend.agrep("SECRET", f"{at}/link/inner"),
    "grep of a file": lambda backend, at: backend.agrep("SECRET", f"{at}/link/secret"),
    "list_tree": lambda backend, at: listed(backend, f"{at}/link/inner"),
    "write": lambda backend, at: backend.awrite(f"{at}/link/secret", "new", overwrite=True),
    "write beneath missing directories": lambda backend, at: backend.awrite(f"{at}/link/missing/one/file", "new"),
    "edit": lambda backend, at: backend.aedit(f"{at}/link/secret", "E", "e"),
    "delete": lambda backend, at: backend.adelete(f"{at}/link/secret"),
    "delete a directory": lambda backend, at: backend.adelete(f"{at}/link/inner"),
    "copy": lambda backend, at: backend.acopy(f"{at}/link/secret", f"{at}/copy"),
    "copy a directory": lambda backend, at: backend.acopy(f"{at}/link/inner", f"{at}/copy"),
    "copy to": lambda backend, at: backend.acopy(f"{at}/open/secret", f"{at}/link/copy"),
    "move": lambda backend, at: backend.amove(f"{at}/link/secret", f"{at}/moved"),
    "move to": lambda backend, at: backend.amove(f"{at}/open/inner", f"{at}/link/moved"),
    "upload": lambda backend, at: backend.aupload_files([(f"{at}/link/secret", b"new")]),
    "upload_stream": lambda backend, at: backend.aupload_stream(f"{at}/link/missing/file", chunks()),
    "make a directory": lambda backend, at: backend.achange_entries([EntryChange(f"{at}/link/d", "make_directory")]),
    "set a mode": lambda backend, at: backend.achange_entries([EntryChange(f"{at}/link/secret", "set_mode", 0o600)]),
}


@pytest.mark.parametrize("place", [confined, unconfined, workspace, mounted])
async def test_a_link_swapped_after_the_judgement_is_refused_as_one_swapped_before(
    tmp_path: Path, place: Callable[[Path], tuple[BackendProtocol, str]]
) -> None:
    for number, name in enumerate(CALLS):
        root = tmp_path / str(number)
        await in_thread(root.mkdir)
        await in_thread(make, root)
        inner, at = place(root)
        rules = [FilesystemPermission(["read", "write"], [f"{at}/denied/**"], "deny")]
        outer = PermissionedBackend(PermissionedBackend(inner, rules), [])
        await in_thread(point, root, "denied")
        before = await in_thread(tree, root)
        early = await CALLS[name](outer, at)
        assert "permission" in repr(early), name
        await in_thread(point, root, "open")
        assert await CALLS[name](outer, at) == early, name
        await in_thread(point, root, "denied")
        assert await in_thread(tree, root) == before, name


# --- layers ---


class OpenOnly(WrapperBackend):
    """The directory `/open` of another backend."""

    async def aresolve_paths(self, paths: list[str]) -> list[str | None]:
        resolved = await self.inner.aresolve_paths([f"/open{path}" for path in paths])
        return [path and path.removeprefix("/open") for path in resolved]

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        with access_at("", "/open"):
            return await self.inner.aread(f"/open{path}", offset, limit)


async def test_a_layer_that_changes_paths_has_them_judged_as_they_were(tmp_path: Path) -> None:
    await in_thread(make, tmp_path)
    await in_thread((tmp_path / "open" / "up").symlink_to, "../denied/secret")
    rules = [FilesystemPermission(["read"], ["/open/**", "/denied/**", "/secret"], "deny")]
    backend = PermissionedBackend(OpenOnly(FilesystemBackend(tmp_path)), rules)
    assert (await backend.aread("/inner/secret")).ok
    assert (await backend.aread("/secret")).code == "permission_denied"
    assert (await backend.aread("/up")).code == "permission_denied"


async def test_what_a_layer_does_besides_the_operation_is_not_judged(tmp_path: Path) -> None:
    history = HistoryBackend(FilesystemBackend(tmp_path))
    hooked = HookedBackend(history, after=[lambda call, result: history.awrite("/log", "x", overwrite=True)])
    quota = QuotaBackend(hooked, max_bytes=10)
    only = FilesystemPermission(["write"], ["/file"])
    backend = PermissionedBackend(quota, [only, FilesystemPermission(["read", "write"], mode="deny")])
    assert (await backend.awrite("/file", "1")).ok
    assert (await backend.awrite("/file", "2", overwrite=True)).ok
    assert [version.number for version in await history.ahistory("/file")] == [1]
    assert await in_thread((tmp_path / "log").read_text) == "x"


async def test_a_copy_to_another_mount_needs_no_permission_to_read_there(tmp_path: Path) -> None:
    await in_thread((tmp_path / "out").mkdir)
    mounts = CompositeBackend(MemoryBackend(), {"/disk": FilesystemBackend(tmp_path)})
    assert (await mounts.aupload_files([("/a/file", b"1"), ("/a/bytes", b"\xff")]))[1].error is None
    backend = PermissionedBackend(mounts, [FilesystemPermission(["read"], ["/disk/out/**"], "deny")])
    assert (await backend.acopy("/a", "/disk/out/a")).ok
    assert (await backend.amove("/a", "/disk/out/b")).ok
    assert await in_thread(tree, tmp_path / "out") == {
        "a": None,
        "a/file": b"1",
        "a/bytes": b"\xff",
        "b": None,
        "b/file": b"1",
        "b/bytes": b"\xff",
    }


class SwappedWhileKept(FilesystemBackend):
    """Files whose link leads to `/denied` while a layer downloads what an operation is about to replace."""

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        await in_thread(lambda: point(self.cwd, "denied"))
        downloaded = await super().adownload_files(paths)
        await in_thread(lambda: point(self.cwd, "open"))
        return downloaded

    async def adownload_stream(self, path: str, *, chunk_size: int = 65_536) -> AsyncGenerator[bytes, None]:
        await in_thread(lambda: point(self.cwd, "denied"))
        async with aclosing(super().adownload_stream(path, chunk_size=chunk_size)) as stream:
            async for chunk in stream:
                yield chunk


KEPT: dict[str, Callable[[BackendProtocol], Awaitable[object]]] = {
    "write": lambda backend: backend.awrite("/link/secret", "new", overwrite=True),
    "edit": lambda backend: backend.aedit("/link/secret", "E", "e", True),
    "upload": lambda backend: backend.aupload_files([("/link/secret", b"new")]),
    "upload_stream": lambda backend: stored(backend, "/link/secret"),
    "move": lambda backend: backend.amove("/link/secret", "/moved"),
    "move to": lambda backend: backend.amove("/open/inner/secret", "/link/secret", overwrite=True),
    "delete": lambda backend: backend.adelete("/link/secret"),
}


async def stored(backend: BackendProtocol, path: str) -> object:
    try:
        return await backend.aupload_stream(path, chunks())
    except DeepFSError as error:
        return error.code


async def test_a_history_keeps_nothing_that_the_operation_may_not_reach(tmp_path: Path) -> None:
    for number, name in enumerate(KEPT):
        root = tmp_path / str(number)
        await in_thread(root.mkdir)
        await in_thread(make, root)
        await in_thread((root / "denied" / "secret").write_bytes, b"DENIED CONTENT")
        await in_thread(point, root, "open")
        versions = MemoryBackend()
        history = HistoryBackend(SwappedWhileKept(root), versions)
        assert "permission" in repr(await KEPT[name](PermissionedBackend(history, [DENIED]))), name
        assert (await versions.agrep("DENIED CONTENT")).matches == []


async def test_what_gives_the_chunks_of_an_upload_is_not_judged(tmp_path: Path) -> None:
    files = FilesystemBackend(tmp_path)

    async def told() -> AsyncIterator[bytes]:
        assert (await files.awrite("/log", "x")).ok
        yield b"new"

    rules = [FilesystemPermission(["write"], ["/log"], "deny")]
    assert (await PermissionedBackend(MemoryBackend(), rules).aupload_stream("/file", told())).error is None


class SwappedOnceListed(FilesystemBackend):
    """Files whose link leads to `/denied` as soon as somebody has listed a tree."""

    async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
        listing = await super().alist_tree(path, deleting=deleting)
        await in_thread(lambda: point(self.cwd, "denied"))
        return listing


async def test_a_large_file_that_is_copied_to_another_mount_is_judged_where_it_is_read(tmp_path: Path) -> None:
    disk, other = tmp_path / "disk", tmp_path / "other"
    for directory in (disk / "open", disk / "denied", other):
        await in_thread(partial(directory.mkdir, parents=True))
        await in_thread((directory / "large").write_bytes, directory.name.encode() * 1_000_000)
    rules = [
        FilesystemPermission(["read", "write"], ["/disk/denied/**"], "deny"),
        FilesystemPermission(["read", "write"], ["/disk/**", "/other/**"]),
        FilesystemPermission(["read", "write"], mode="deny"),
    ]
    mounts = CompositeBackend(MemoryBackend(), {"/disk": SwappedOnceListed(disk), "/other": FilesystemBackend(other)})
    backend = PermissionedBackend(mounts, rules)
    assert (await backend.acopy("/disk/open/large", "/other/copy")).ok
    await in_thread(point, disk, "open")
    copied = await backend.acopy("/disk/link/large", "/other/secret")
    assert copied.code == "permission_denied"
    assert not await in_thread((other / "secret").exists)


def test_what_lies_outside_of_the_root_of_a_layer_is_refused_also_where_paths_stay_the_same() -> None:
    with AccessScope(AllowsAll()), access_at("/a", "/a"):
        assert permits(current_access(), "/a/file")
        assert not permits(current_access(), "/b")


class AllowsAll:
    """An access check that refuses nothing."""

    def check(self, path: str, role: Role, shown: str) -> None: ...
