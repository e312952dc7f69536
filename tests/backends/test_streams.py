"""Streamed uploads and downloads: in bounded memory on disk; an upload is stored completely or not at all."""

import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from deepfs.backends import transfer
from deepfs.backends.composite import CompositeBackend
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from support.disks import tree

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

MB = 1024 * 1024

BACKENDS: dict[str, Callable[[Path], BackendProtocol]] = {
    "memory": lambda path: MemoryBackend(),
    "disk": lambda path: FilesystemBackend(path),
    "mounted": lambda path: CompositeBackend(MemoryBackend(), {"/dir/": FilesystemBackend(path)}),
}


@pytest.fixture(params=BACKENDS.values(), ids=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> BackendProtocol:
    return request.param(tmp_path / "root")


async def chunks(*content: bytes) -> AsyncIterator[bytes]:
    for chunk in content:
        yield chunk


async def streamed(backend: BackendProtocol, path: str, chunk_size: int = 4) -> list[bytes]:
    return [chunk async for chunk in backend.adownload_stream(path, chunk_size=chunk_size)]


async def test_an_upload_that_fails_or_is_cancelled_changes_nothing(backend: BackendProtocol, tmp_path: Path) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"begun"
        raise RuntimeError("the source is gone")

    async def endless() -> AsyncIterator[bytes]:
        yield b"begun"
        await anyio.sleep_forever()

    await backend.awrite("/dir/a.txt", "old")
    before = await anyio.to_thread.run_sync(tree, tmp_path)
    for path in ("/dir/a.txt", "/dir/deep/er/b.txt"):
        with anyio.move_on_after(0.02) as scope:
            await backend.aupload_stream(path, endless())
        assert scope.cancelled_caught
        with pytest.raises(RuntimeError, match="the source is gone"):
            await backend.aupload_stream(path, failing())
    assert await anyio.to_thread.run_sync(tree, tmp_path) == before
    assert (await backend.awrite("/dir/a.txt", "new", overwrite=True)).ok


async def test_a_reader_sees_one_version_whatever_is_written_meanwhile(backend: BackendProtocol) -> None:
    await backend.awrite("/dir/a.txt", "old" * 100)
    seen = b""
    async for chunk in backend.adownload_stream("/dir/a.txt", chunk_size=64):
        seen += chunk
        assert (await backend.aupload_stream("/dir/a.txt", chunks(b"new" * 50))).error is None
    assert seen == b"old" * 100


async def test_a_download_left_early_leaves_no_file_open(tmp_path: Path) -> None:
    backend = FilesystemBackend(tmp_path)
    await backend.awrite("/a.txt", "text" * 1000)
    before = await anyio.to_thread.run_sync(open_files, tmp_path)
    async with aclosing(backend.adownload_stream("/a.txt", chunk_size=10)) as stream:
        assert await anext(stream) == b"texttextte"
    assert await anyio.to_thread.run_sync(open_files, tmp_path) == before


def open_files(root: Path) -> list[str]:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    targets = [str(link.readlink()) for link in links if link.exists()]
    return [target for target in targets if target.startswith(str(root))]


async def test_a_large_file_is_streamed_in_little_memory(tmp_path: Path) -> None:
    backend = CompositeBackend(MemoryBackend(), {"/disk/": FilesystemBackend(tmp_path)})
    block = bytes(range(256)) * (MB // 256)

    async def many() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield block

    tracemalloc.start()
    try:
        assert (await backend.aupload_stream("/disk/large.bin", many())).error is None
        size = 0
        async for chunk in backend.adownload_stream("/disk/large.bin"):
            assert chunk == block
            size += len(chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == 100 * MB
    assert peak < 8 * MB


async def test_an_upload_that_is_buffered_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MAX_HELD_BYTES", 10)
    backend = MemoryBackend()
    assert (await backend.aupload_stream("/a", chunks(b"123456", b"78901"))).error == "too_large"
    assert (await backend.aread("/a")).code == "file_not_found"
