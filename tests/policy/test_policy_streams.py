"""Streams and searches through policies over a disk: bounded memory, rules checked before the first byte, no bypass."""

import os
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio.lowlevel
import anyio.to_thread
import pytest

from deepfs import CompositeBackend, FilesystemBackend, FilesystemPermission, MemoryBackend
from deepfs.backends import filesystem, transfer
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError, NotFoundError, PermissionDeniedError
from deepfs.policy import (
    AuditedBackend,
    AuditRecord,
    Call,
    HistoryBackend,
    HookedBackend,
    PermissionedBackend,
    QuotaBackend,
    RateLimit,
    TracedBackend,
    WrapperBackend,
    without_contents,
)
from deepfs.testing import FaultyBackend
from deepfs.types import FileDownloadResponse, FileUploadResponse
from support.disks import tree

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

MB = 1024 * 1024
BLOCK = bytes(range(256)) * (MB // 256)

HIDES = FilesystemPermission(["read", "write"], ["/hidden/**"], "deny")

POLICIES: dict[str, Callable[[BackendProtocol, int], BackendProtocol]] = {
    "permissions": lambda inner, level: PermissionedBackend(inner, [HIDES]),
    "limit": lambda inner, level: HookedBackend(inner, [RateLimit(10_000, 1)]),
    "hooks": lambda inner, level: HookedBackend(
        inner, [without_contents(lambda call: None)], [without_contents(lambda call, result: None)]
    ),
    "quota": lambda inner, level: QuotaBackend(inner, max_bytes=10**9),
    "audit": lambda inner, level: AuditedBackend(inner, lambda record: None),
    "traced": lambda inner, level: TracedBackend(inner),
    "history": lambda inner, level: HistoryBackend(inner, directory=f"/.history/{level}"),
    "wrapper": lambda inner, level: WrapperBackend(inner),
}
ALONE = [(name,) for name in POLICIES]
STACKS = [
    *ALONE,
    ("quota", "quota", "history"),
    ("history", "permissions", "limit", "audit"),
    ("audit", "history", "quota", "permissions"),
    ("history", "history", "hooks"),
]


def stacked(stack: Sequence[str], inner: BackendProtocol) -> BackendProtocol:
    for level, name in enumerate(stack):
        inner = POLICIES[name](inner, level)
    return inner


def fresh(tmp_path: Path) -> Iterator[tuple[Sequence[str], Path, FilesystemBackend]]:
    """Each stack, with a disk of its own."""
    for stack in STACKS:
        root = tmp_path / "-".join(stack)
        yield stack, root, FilesystemBackend(root, ripgrep=False)


class Source(AsyncIterator[bytes]):
    """Yields `blocks` blocks, then ends or fails; `left` counts the blocks not yet taken."""

    def __init__(self, blocks: int, *, fails: bool = False) -> None:
        self.left = blocks
        self.fails = fails

    async def __anext__(self) -> bytes:
        if self.left:
            self.left -= 1
            return BLOCK
        if self.fails:
            raise BackendError("Error: the source is gone")
        raise StopAsyncIteration


async def received(backend: BackendProtocol, path: str) -> int:
    size = 0
    async with aclosing(backend.adownload_stream(path)) as chunks:
        async for chunk in chunks:
            size += len(chunk)
    return size


async def peak_of(call: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        await call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- every stack ---


async def test_a_large_file_streams_through_every_stack_in_bounded_memory(tmp_path: Path) -> None:
    """Upload twice, so that a history has a former version to keep."""
    for stack, _, disk in fresh(tmp_path):
        backend = stacked(stack, disk)

        async def pass_through(backend: BackendProtocol = backend) -> None:
            for _ in range(2):
                assert (await backend.aupload_stream("/dir/large.bin", Source(16))).error is None
                assert await received(backend, "/dir/large.bin") == 16 * MB

        assert await peak_of(pass_through) < 8 * MB, stack


async def test_a_source_that_fails_or_is_refused_changes_nothing_and_is_closed(tmp_path: Path) -> None:
    closed: list[str] = []

    async def source(blocks: int) -> AsyncIterator[bytes]:
        try:
            for _ in range(blocks):
                yield BLOCK
            raise RuntimeError("the source is gone")
        finally:
            await anyio.lowlevel.checkpoint()
            closed.append("source")

    for stack, root, disk in fresh(tmp_path):
        await disk.awrite("/dir/a.txt", "old")
        backend = stacked(stack, QuotaBackend(disk, max_bytes=3 * MB))
        for path in ("/dir/a.txt", "/dir/new/b.txt"):
            with pytest.raises(RuntimeError, match="the source is gone"):
                await backend.aupload_stream(path, source(1))
            assert (await backend.aupload_stream(path, source(9))).error == "quota_exceeded"
            assert (await backend.aupload_stream(path, Source(1, fails=True))).error == "backend_error"
        after = await anyio.to_thread.run_sync(tree, root)
        files = {path: content for path, content in after.items() if content is not None}
        if stack.count("history") == 2:  # The inner one keeps the versions that the outer one deletes again.
            files = {path: content for path, content in files.items() if not path.startswith(".history")}
        assert files == {"dir/a.txt": b"old"}, stack
    assert closed == ["source"] * 4 * len(STACKS)


async def test_hidden_trees_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[str] = []
    scandir = os.scandir

    def watched(path: Any = ".") -> Any:
        visited.append(os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", watched)
    for stack, root, disk in fresh(tmp_path):
        await disk.aupload_files([("/open/a.txt", b"needle"), ("/hidden/deep/a.txt", b"needle")])
        backend = stacked(stack, PermissionedBackend(disk, [HIDES]))
        visited.clear()
        assert [match.path for match in (await backend.agrep("needle")).matches or ()] == ["/open/a.txt"], stack
        assert [match.path for match in (await backend.aglob("*.txt")).matches or ()] == ["/open/a.txt"], stack
        assert f"{root}/open" in visited
        assert not [path for path in visited if path.startswith(f"{root}/hidden")], stack


async def with_links(root: Path) -> None:
    """A directory with a file, and a link to it."""

    def fill() -> None:
        (root / "hidden").mkdir(parents=True)
        (root / "hidden" / "a.txt").write_text("secret")
        (root / "link").symlink_to("hidden")

    await anyio.to_thread.run_sync(fill)


async def test_rules_see_links_through_every_stack_before_the_first_byte_of_a_stream(tmp_path: Path) -> None:
    for stack, root, disk in fresh(tmp_path):
        await with_links(root)
        above = stacked(stack, disk)
        assert await above.aresolve_paths(["/link/a.txt", "/new", "/../x"]) == ["/hidden/a.txt", "/new", None], stack
        for backend in (stacked(stack, PermissionedBackend(disk, [HIDES])), PermissionedBackend(above, [HIDES])):
            for path in ("/hidden/a.txt", "/link/a.txt", "/link/../hidden/a.txt"):
                source = Source(3)
                error = (await backend.aupload_stream(path, source)).error
                assert (error in ("permission_denied", "invalid_path"), source.left) == (True, 3), (stack, path)
                with pytest.raises((PermissionDeniedError, ValueError), match=r"a\.txt"):
                    await received(backend, path)
        assert await received(disk, "/hidden/a.txt") == len("secret")


# --- single policies ---


async def test_the_audit_log_has_one_entry_per_stream_with_the_bytes_transferred(tmp_path: Path) -> None:
    log: list[AuditRecord] = []
    backend = AuditedBackend(FilesystemBackend(tmp_path), log.append)
    await backend.aupload_stream("/a", Source(3))
    await received(backend, "/a")
    async with aclosing(backend.adownload_stream("/a", chunk_size=10)) as chunks:
        await anext(chunks)
    await backend.aupload_stream("/b", Source(2, fails=True))
    with pytest.raises(NotFoundError):
        await received(backend, "/none")
    assert [(each.operation, each.arguments, each.ok, each.code) for each in log] == [
        ("upload_stream", {"path": "/a", "size": 3 * MB}, True, None),
        ("download_stream", {"path": "/a", "size": 3 * MB}, True, None),
        ("download_stream", {"path": "/a", "size": 10}, True, None),
        ("upload_stream", {"path": "/b", "size": 2 * MB}, False, "backend_error"),
        ("download_stream", {"path": "/none", "size": 0}, False, "file_not_found"),
    ]


@pytest.mark.parametrize("contents", [True, False])
async def test_hooks_see_a_stream_as_one_call(tmp_path: Path, contents: bool) -> None:
    seen: list[tuple[str, dict[str, Any], bool]] = []
    ended: list[Any] = []

    def see(call: Call) -> None:
        seen.append((call.operation, dict(call.arguments), call.changes))
        if call.paths == ("/denied",):
            raise PermissionDeniedError("/denied")

    def see_result(call: Call, result: Any) -> None:
        ended.append(result)

    declared = (lambda hook: hook) if contents else without_contents
    backend = HookedBackend(FilesystemBackend(tmp_path), [declared(see)], [declared(see_result)])
    await backend.aupload_stream("/a", Source(1))
    await received(backend, "/a")
    source = Source(1)
    assert (await backend.aupload_stream("/denied", source)).error == "permission_denied"
    assert source.left == (0 if contents else 1)
    content = {"content": BLOCK} if contents else {}
    assert seen == [
        ("upload_files", {"path": "/a", **content}, True),
        ("download_files", {"path": "/a"}, False),
        ("upload_files", {"path": "/denied", **content}, True),
    ]
    assert ended == [FileUploadResponse("/a"), FileDownloadResponse("/a", BLOCK if contents else None)]


async def test_hooks_can_refuse_and_replace_the_content_of_streams(tmp_path: Path) -> None:
    def refuse(call: Call) -> None:
        if b"secret" in call.arguments.get("content", b""):
            raise PermissionDeniedError("/a")

    def censor(call: Call, result: Any) -> Any:
        if isinstance(result, FileDownloadResponse) and result.content is not None:
            return FileDownloadResponse(result.path, result.content.replace(b"secret", b"------"))
        return None

    async def two() -> AsyncIterator[bytes]:
        for chunk in (b"a sec", b"ret"):
            yield chunk

    backend = HookedBackend(FilesystemBackend(tmp_path), [refuse, RateLimit(9, 1)], [censor])
    assert (await backend.aupload_stream("/a", two())).error == "permission_denied"
    await FilesystemBackend(tmp_path).awrite("/a", "a secret")
    assert [chunk async for chunk in backend.adownload_stream("/a", chunk_size=4)] == [b"a --", b"----"]


async def test_a_history_keeps_the_file_that_a_stream_replaces(tmp_path: Path) -> None:
    backend = HistoryBackend(FilesystemBackend(tmp_path))
    await backend.awrite("/a", "one")
    await backend.aupload_stream("/a", Source(1))
    await backend.aupload_stream("/a", Source(2))
    assert [each.size for each in await backend.ahistory("/a")] == [3, MB]
    assert await backend.aread_version("/a", 2) == BLOCK
    assert (await backend.arestore("/a", 1)).ok
    assert [each.size for each in await backend.ahistory("/a")] == [3, MB, 2 * MB]


async def test_a_stream_is_refused_if_the_version_cannot_be_kept(tmp_path: Path) -> None:
    disk = FilesystemBackend(tmp_path)
    full = FaultyBackend(MemoryBackend(), {"upload_stream": BackendError("Error: full")})
    backend = HistoryBackend(disk, full)
    await disk.awrite("/a", "old")
    source = Source(1)
    assert (await backend.aupload_stream("/a", source)).error == "backend_error"
    assert (source.left, await received(disk, "/a")) == (1, 3)
    assert (await backend.aupload_stream("/new", source)).error is None


async def test_a_file_that_changes_while_it_is_kept_is_a_conflict(tmp_path: Path) -> None:
    class Changing(WrapperBackend):
        """Simulates a file that is replaced between two reads."""

        async def adownload_stream(self, path: str, *, chunk_size: int = MB) -> AsyncIterator[bytes]:  # type: ignore[override]
            self.reads = getattr(self, "reads", 0) + 1
            yield b"version %d" % self.reads

    disk = FilesystemBackend(tmp_path)
    backend = HistoryBackend(Changing(disk), MemoryBackend())
    await disk.awrite("/a", "old")
    assert (await backend.aupload_stream("/a", Source(1))).error == "conflict"
    assert (await disk.aread("/a")).file_data.content == "old"  # type: ignore[union-attr]
    assert await backend.ahistory("/a") == []


async def test_a_dropped_download_stream_leaves_no_file_open(tmp_path: Path) -> None:
    disk = FilesystemBackend(tmp_path)
    await disk.aupload_stream("/a", Source(2))
    backend = FaultyBackend(disk, {"download_stream": BackendError("Error: lost")}, late=True)
    with pytest.raises(BackendError, match="lost"):
        await received(backend, "/a")
    assert await anyio.to_thread.run_sync(open_files, tmp_path) == []


def open_files(root: Path) -> list[str]:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [str(link.readlink()) for link in links if link.exists() and str(link.readlink()).startswith(f"{root}/")]


# --- copies between mounts ---


@pytest.mark.parametrize("operation", ["acopy", "amove"])
async def test_copies_between_mounts_stream_through_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    for module in (transfer, filesystem):
        monkeypatch.setattr(module, "MAX_HELD_BYTES", 2 * MB)
    for stack, root, _ in fresh(tmp_path):
        mounts = {name: FilesystemBackend(root / name) for name in ("from", "to")}
        await mounts["from"].aupload_stream("/d/large.bin", Source(4))
        routes = {f"/{name}": stacked(stack, disk) for name, disk in mounts.items()}
        result = await getattr(CompositeBackend(MemoryBackend(), routes), operation)("/from/d", "/to/d")
        refused = operation == "amove" and "history" in stack  # No tree is deleted that a history cannot keep.
        assert result.code == ("backend_error" if refused else None), stack
        assert await received(mounts["from" if refused else "to"], "/d/large.bin") == 4 * MB
