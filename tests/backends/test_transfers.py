"""Moves and copies between storages lose nothing; a tree that cannot be transferred completely is refused."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from deepfs import CompositeBackend, FilesystemBackend, FilesystemPermission, MemoryBackend, PermissionedBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.compat.adapters import adapt_backend_protocol
from deepfs.operations import Operation
from deepfs.policy import ReadOnlyBackend, WrapperBackend
from deepfs.types import DeleteResult, FileDownloadResponse, FileUploadResponse, LsResult
from support.disks import public_directory, recorded_modes, seen_by_nobody, tree
from support.v1_backend import DuckS3

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

LATIN = b"caf\xe9.txt".decode(errors="surrogateescape")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "d" / "deep").mkdir(parents=True)
    (root / "d" / "a.txt").write_bytes(b"one\r\n")
    (root / "d" / "deep" / "b.bin").write_bytes(b"\x00\xff")
    return root


def over(root: Path, memory: BackendProtocol | None = None) -> CompositeBackend:
    return CompositeBackend(MemoryBackend() if memory is None else memory, {"/disk/": FilesystemBackend(root)})


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Run a blocking function in a worker thread."""
    return await anyio.to_thread.run_sync(function, *args)


async def contents(backend: BackendProtocol, *paths: str) -> list[bytes | None]:
    return [download.content for download in await backend.adownload_files([*paths])]


# --- transfers that would lose something are refused and change nothing ---

OBSTACLES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a name that is not UTF-8": (lambda d: (d / LATIN).write_bytes(b"kept"), "invalid_path", "caf"),
    "a name with two dots": (lambda d: (d / "..\\x").write_bytes(b"kept"), "invalid_path", "x"),
    "a link to a directory": (lambda d: (d / "link").symlink_to("../other"), "unsupported", "/disk/d/link"),
    "a link to itself": (lambda d: (d / "loop").symlink_to("."), "unsupported", "/disk/d/loop"),
    "two links to itself": (
        lambda d: ((d / "x").symlink_to("."), (d / "y").symlink_to(".")), "unsupported", "/disk/d/x"),
    "a link that leads nowhere": (lambda d: (d / "link").symlink_to("none"), "unsupported", "/disk/d/link"),
    "a special file": (lambda d: os.mkfifo(d / "pipe"), "unsupported", "/disk/d/pipe"),
}  # fmt: skip


@pytest.mark.parametrize("obstacle", OBSTACLES)
async def test_a_tree_that_cannot_be_transferred_completely_is_refused(root: Path, obstacle: str) -> None:
    make, code, message = OBSTACLES[obstacle]
    await in_thread(lambda: (root / "other").mkdir())
    await in_thread(lambda: (root / "other" / "kept").write_bytes(b"kept"))
    await in_thread(make, root / "d")
    before, memory = (await in_thread(tree, root)), MemoryBackend()
    for transfer in (over(root, memory).amove, over(root, memory).acopy):
        with anyio.fail_after(10):
            result = await transfer("/disk/d", "/moved")
        assert (result.code, message in str(result.error)) == (code, True), result.error
    assert (await in_thread(tree, root)) == before
    assert memory._files == {}


async def test_a_copy_follows_links_to_files_and_a_move_refuses_them(root: Path) -> None:
    await in_thread(lambda: (root / "d" / "link").symlink_to("a.txt"))
    await in_thread(lambda: (root / "top").symlink_to("d/a.txt"))
    backend = over(root)
    for src in ("/disk/d", "/disk/top"):
        assert (await backend.amove(src, "/moved")).code == "unsupported"
    assert (await backend.acopy("/disk/d", "/copy")).ok
    assert (await backend.acopy("/disk/top", "/top")).ok
    assert await contents(backend, "/copy/link", "/copy/a.txt", "/top") == [b"one\r\n"] * 3
    assert await in_thread(lambda: (root / "d" / "link").is_symlink())


@pytest.mark.parametrize("denied", [["read"], ["write"], ["read", "write"]])
async def test_a_move_is_refused_if_permissions_hide_a_part_of_the_tree(root: Path, denied: list[Any]) -> None:
    rules = [FilesystemPermission(denied, ["/d/deep/**"], "deny")]
    before, memory = (await in_thread(tree, root)), MemoryBackend()
    backend = CompositeBackend(memory, {"/disk/": PermissionedBackend(FilesystemBackend(root), rules)})
    moved = await backend.amove("/disk/d", "/moved")
    assert (moved.code, "deep" in str(moved.error)) == ("permission_denied", False)
    assert ((await in_thread(tree, root)), memory._files) == (before, {})
    assert (await backend.acopy("/disk/d", "/copy")).ok == ("read" not in denied)
    if "read" in denied:
        assert memory._files == {}


async def test_permissions_apply_to_the_targets_of_links(root: Path) -> None:
    await in_thread(lambda: (root / "secret").write_bytes(b"secret"))
    await in_thread(lambda: (root / "d" / "link").symlink_to("../secret"))
    disk = PermissionedBackend(FilesystemBackend(root), [FilesystemPermission(["read"], ["/secret"], "deny")])
    backend = CompositeBackend(MemoryBackend(), {"/disk/": disk})
    assert (await backend.acopy("/disk/d", "/copy")).code == "permission_denied"
    assert (await backend.aglob("**", "/")).ok
    assert b"secret" not in await contents(backend, "/copy/link")


@pytest.mark.parametrize("moved", ["/in/d", "/in/d/mount"])
async def test_a_mount_of_a_nested_composite_is_not_moved(moved: str) -> None:
    beneath, mounted, out = MemoryBackend(), MemoryBackend(), MemoryBackend()
    tree = CompositeBackend(out, {"/in": CompositeBackend(beneath, {"/d/mount": mounted})})
    await tree.aupload_files([("/in/d/a", b"a"), ("/in/d/mount/b", b"b")])
    result = await tree.amove(moved, "/new")
    assert (result.code, "Nothing changed" in (result.error or "")) == ("permission_denied", True)
    assert await contents(tree, "/in/d/a", "/in/d/mount/b", "/new/a", "/new/b") == [b"a", b"b", None, None]
    assert (await tree.acopy(moved, "/new")).ok


async def test_a_move_from_a_source_without_delete_is_refused_before_copying(root: Path) -> None:
    keeps = adapt_backend_protocol(DuckS3({"/d/a.txt": "x"}))
    for source in (ReadOnlyBackend(FilesystemBackend(root)), keeps, WrapperBackend(keeps)):
        memory = MemoryBackend()
        result = await CompositeBackend(memory, {"/in/": source}).amove("/in/d", "/moved")
        assert result.code in ("permission_denied", "unsupported")
        assert "moved" not in str(result.error)
        assert memory._files == {}


async def test_a_move_of_an_empty_directory_to_flat_storage_is_refused(root: Path) -> None:
    await in_thread(lambda: (root / "d" / "empty").mkdir())
    await in_thread(lambda: (root / "alone").mkdir())
    backend = over(root)
    for src in ("/disk/d", "/disk/alone"):
        result = await backend.amove(src, "/moved")
        assert (result.code, "empty" in str(result.error)) == ("unsupported", True)
    assert (await in_thread(tree, root))["d/empty"] is None
    assert (await backend.acopy("/disk/d", "/copy")).ok


# --- results of transfers ---


async def test_transfers_between_disks_keep_empty_directories_and_modes(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    await in_thread(lambda: (root / "d" / "empty").mkdir(mode=0o700))
    await in_thread(lambda: (root / "d" / "a.txt").chmod(0o755))
    await in_thread(lambda: (root / "d" / "deep" / "b.bin").chmod(0o600))
    backend = CompositeBackend(FilesystemBackend(root), {"/other/": FilesystemBackend(other)})
    before = await in_thread(tree, root)
    assert (await backend.acopy("/d", "/other/copy")).ok
    assert (await backend.amove("/d", "/other/d")).ok
    assert (await in_thread(tree, root)) == {}
    for place in ("copy", "d"):
        assert {
            path.replace(place, "d", 1): what
            for path, what in (await in_thread(tree, other)).items()
            if path.startswith(place)
        } == before
        found = [await in_thread((other / place / name).stat) for name in ("a.txt", "deep/b.bin", "empty")]
        assert [status.st_mode & 0o777 for status in found] == [0o755, 0o600, 0o700]


def test_a_directory_that_its_owner_cannot_change_is_copied_with_its_content() -> None:
    with public_directory() as root, seen_by_nobody():
        (root / "one" / "d").mkdir(parents=True)
        (root / "one" / "d" / "a").write_bytes(b"a")
        (root / "one" / "d").chmod(0o555)
        backend = CompositeBackend(FilesystemBackend(root / "one"), {"/two/": FilesystemBackend(root / "two")})
        copied = backend.copy("/d", "/two/d")
        mode = (root / "two" / "d").stat().st_mode & 0o777
        for name in ("one", "two"):
            (root / name / "d").chmod(0o700)
        assert (copied.error, mode, (root / "two" / "d" / "a").read_bytes()) == (None, 0o555, b"a")


@pytest.mark.parametrize("size", [10, 3 * 1024 * 1024], ids=["small", "streamed"])
@pytest.mark.parametrize("is_text", [True, False], ids=["text", "bytes"])
async def test_copies_of_private_files_are_private_from_the_start(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, is_text: bool
) -> None:
    await in_thread(lambda: (root / "d" / "key").write_bytes((b"x" if is_text else b"\xff") * size))
    await in_thread(lambda: (root / "d" / "key").chmod(0o600))
    backend = CompositeBackend(FilesystemBackend(root), {"/other/": FilesystemBackend(tmp_path / "other")})
    modes = recorded_modes(monkeypatch, tmp_path / "other")
    assert (await backend.acopy("/d/key", "/other/copy")).ok
    assert (await backend.amove("/d/key", "/other/key")).ok
    assert modes == {0o600}


# --- changes during a transfer ---


class ChangedBefore(WrapperBackend):
    """Calls `act` once, before the operation `before`."""

    def __init__(self, inner: BackendProtocol, before: str, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.before = before
        self.act = act

    async def run(self, operation: Operation) -> Any:
        if operation.name == self.before:
            self.before = ""
            await in_thread(self.act)
        return await super().run(operation)


@pytest.mark.parametrize("before", ["download_files", "delete"])
async def test_a_file_written_during_a_move_stays_and_is_a_conflict(root: Path, before: str) -> None:
    source = ChangedBefore(FilesystemBackend(root), before, lambda: (root / "d" / "deep" / "new").write_bytes(b"new"))
    backend = CompositeBackend(MemoryBackend(), {"/disk/": source})
    result = await backend.amove("/disk/d", "/moved")
    assert result.code == "conflict"
    assert "'/disk/d/deep'" in str(result.error)
    assert (await in_thread(tree, root)) == {"d": None, "d/deep": None, "d/deep/new": b"new"}
    assert await contents(backend, "/moved/a.txt", "/moved/deep/b.bin") == [b"one\r\n", b"\x00\xff"]


async def test_an_edit_between_copy_and_delete_stays_and_is_a_conflict(root: Path) -> None:
    source = ChangedBefore(FilesystemBackend(root), "delete", lambda: (root / "d" / "a.txt").write_bytes(b"two"))
    backend = CompositeBackend(MemoryBackend(), {"/disk/": source})
    result = await backend.amove("/disk/d", "/moved")
    assert result.code == "conflict"
    assert "'/disk/d/a.txt'" in str(result.error)
    assert (await in_thread(lambda: (root / "d" / "a.txt").read_bytes())) == b"two"
    assert not (await in_thread(lambda: (root / "d" / "deep" / "b.bin").exists()))
    assert await contents(backend, "/moved/a.txt", "/moved/deep/b.bin") == [b"one\r\n", b"\x00\xff"]


class WaitsBeforeDelete(WrapperBackend):
    """Before a delete, waits until a second backend is about to delete, at most 0.2 seconds."""

    def __init__(self, inner: BackendProtocol, deleting: list[anyio.Event]) -> None:
        super().__init__(inner)
        self._deleting = deleting

    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        self._deleting.append(anyio.Event())
        if len(self._deleting) == 2:
            self._deleting[0].set()
        with anyio.move_on_after(0.2):
            await self._deleting[0].wait()
        return await super().adelete(path, if_match=if_match)


@pytest.mark.parametrize("on_disk", [False, True])
async def test_a_move_and_its_concurrent_reverse_leave_one_copy(tmp_path: Path, on_disk: bool) -> None:
    """Source and destination have the same content, so each move finds at its source the version that it copied."""
    here, there = MemoryBackend(), MemoryBackend()
    deleting: list[anyio.Event] = []

    def mounted() -> CompositeBackend:
        files = WaitsBeforeDelete(FilesystemBackend(tmp_path) if on_disk else here, deleting)
        return CompositeBackend(MemoryBackend(), {"/here": files, "/there": WaitsBeforeDelete(there, deleting)})

    await mounted().aupload_files([("/here/d/f", b"kept"), ("/there/d/f", b"kept")])
    async with anyio.create_task_group() as tasks:
        for src, dst in (("/here/d/f", "/there/d/f"), ("/there/d/f", "/here/d/f")):
            tasks.start_soon(partial(mounted().amove, src, dst, overwrite=True))
    assert sorted(await contents(mounted(), "/here/d/f", "/there/d/f"), key=bool) == [None, b"kept"]


async def test_a_file_created_at_the_destination_during_a_move_stays(root: Path) -> None:
    for name, content in (("a.txt", b"theirs"), ("b.bin", b"\x00theirs")):
        await in_thread((root / "one").write_bytes, b"\x00ours" if name == "b.bin" else b"ours")
        memory = MemoryBackend()

        def act(path: str = f"/m/{name}", content: bytes = content, memory: MemoryBackend = memory) -> None:
            memory.upload_files([(path, content)])

        source = ChangedBefore(FilesystemBackend(root), "download_files", act)
        backend = CompositeBackend(memory, {"/disk/": source})
        assert (await backend.amove("/disk/one", f"/m/{name}")).code == "already_exists"
        assert await contents(backend, f"/m/{name}", "/disk/one") == [
            content,
            (await in_thread(lambda: (root / "one").read_bytes())),
        ]


# --- errors say where the files are ---


async def test_a_failed_copy_keeps_the_source_and_reports_how_many_files_arrived(root: Path) -> None:
    for number in range(200):
        await in_thread((root / "d" / f"{number}.bin").write_bytes, b"\x00")
    before = await in_thread(tree, root)

    class Full(MemoryBackend):
        room = 100

        async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
            taken, self.room = files[: self.room], max(0, self.room - len(files))
            outcomes = await super().aupload_files(taken)
            return [*outcomes, *(FileUploadResponse(path, "quota_exceeded") for path, _ in files[len(taken) :])]

    full = Full()
    result = await over(root, full).amove("/disk/d", "/moved")
    assert not result.ok
    assert "All of '/disk/d' is still there, 100 of 202 files are in '/moved' already" in str(result.error)
    assert (await in_thread(tree, root)) == before


# --- forged answers ---


class Forging(MemoryBackend):
    """A storage whose listings contain a path outside the listed directory."""

    named = "/../memories/AGENTS.md"

    async def als(self, path: str) -> LsResult:
        listing = await super().als(path)
        from deepfs.types import FileInfo

        return LsResult(entries=[*(listing.entries or ()), FileInfo(self.named, is_dir=False)])

    alist_tree = BackendProtocol.alist_tree

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [FileDownloadResponse("/memories/AGENTS.md", b"forged") for _ in paths]


async def test_forged_listings_reach_no_other_mount() -> None:
    for named in ("/../memories/AGENTS.md", "/memories/AGENTS.md", "memories", "/", "/d/../x", "/d/a/b"):
        forging, memories = Forging(), MemoryBackend()
        forging.named = named
        await forging.awrite("/d/a", "a")
        await memories.awrite("/AGENTS.md", "ours")
        backend = CompositeBackend(MemoryBackend(), {"/box/": forging, "/memories/": memories})
        for transfer, target in ((backend.acopy, "/copy"), (backend.amove, "/moved")):
            await transfer("/box/d", target)
            there = {info.path for info in (await backend.aglob("**", target)).matches or ()}
            assert there <= {f"{target}/{name}" for name in ("a", "a/b", "memories")}, named
        assert await contents(memories, "/AGENTS.md") == [b"ours"]
