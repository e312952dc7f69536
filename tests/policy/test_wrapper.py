"""A wrapper forwards every operation once, and none passes it by."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import PermissionDeniedError
from deepfs.operations import Operation
from deepfs.policy import AuditedBackend
from deepfs.types import ChangeEvent, ReadResult, WriteResult


class Counting(MemoryBackend):
    """Overrides one sync and one async operation, and records their calls."""

    is_synchronous = True

    def __init__(self) -> None:
        super().__init__()
        self.hits: list[str] = []

    def write(self, path: str, content: str, **options: Any) -> WriteResult:
        self.hits.append("write")
        return super().write(path, content, **options)

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        self.hits.append("read")
        return await super().aread(path, offset, limit)


@pytest.mark.anyio
async def test_overrides_of_the_inner_backend_are_called_once() -> None:
    within = Counting()
    backend = WrapperBackend(WrapperBackend(within))
    assert (await backend.awrite("/a", "x")).ok
    assert (await backend.aread("/a")).ok
    assert backend.write("/b", "x").ok
    assert backend.read("/b").ok
    assert within.hits == ["write", "read"] * 2


class Relaying(WrapperBackend):
    """Replaces each opened stream by a generator of its own, and records which generators ended."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.relays: list[Any] = []
        self.ended: list[str] = []

    async def run(self, operation: Operation) -> Any:
        opened = await super().run(operation)
        if operation.name not in ("download_stream", "watch"):
            return opened

        async def relay() -> AsyncIterator[Any]:
            try:
                async with aclosing(opened):
                    async for each in opened:
                        yield each
            finally:
                self.ended.append(operation.name)

        self.relays.append(relay())
        return self.relays[-1]


class Watched(MemoryBackend):
    async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
        while True:
            yield ChangeEvent("/a", "modified")


@pytest.mark.anyio
async def test_a_generator_that_replaces_a_stream_is_closed_with_it() -> None:
    layer = Relaying(Watched())
    await layer.awrite("/a", "x" * 10)
    for stream in (layer.adownload_stream("/a", chunk_size=1), layer.awatch("/")):
        async for _ in stream:
            break
        await stream.aclose()
    assert layer.ended == ["download_stream", "watch"]


async def chunks() -> AsyncIterator[bytes]:
    yield b"x"


class NoChangesMixin:
    async def run(self, operation: Operation) -> Any:
        if operation.changes:
            raise PermissionDeniedError("/", "nothing is changed")
        return await super().run(operation)  # type: ignore[misc]


class NoChanges(NoChangesMixin, WrapperBackend):
    pass


class NoChangesReported(NoChangesMixin, AuditedBackend):
    pass


@pytest.mark.anyio
@pytest.mark.parametrize("layer", [NoChanges, lambda files: NoChangesReported(files, lambda record: None)])
async def test_streams_and_copies_do_not_bypass_a_layer_that_refuses(layer: Any) -> None:
    files, others = MemoryBackend(), MemoryBackend()
    guarded = layer(files)
    assert (await guarded.awrite("/a", "x")).code == "permission_denied"
    assert (await guarded.aupload_stream("/a", chunks())).error == "permission_denied"
    await others.aupload_files([("/large", b"x" * 2 * 1024 * 1024)])
    copied = await CompositeBackend(others, {"/guarded": guarded}).acopy("/large", "/guarded/large")
    assert copied.code == "permission_denied"
    assert (await files.als("/")).entries == []
