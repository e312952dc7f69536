"""Closing and watching backends, through wrappers and composites: resources that a backend created are closed once."""

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import anyio
import anyio.to_thread
import pytest
from langgraph.store.memory import InMemoryStore

from deepfs import BackendProtocol, CompositeBackend, MemoryBackend, StateBackend, StoreBackend
from deepfs.backends.protocol import Capabilities
from deepfs.compat.adapters import adapt_backend_protocol
from deepfs.errors import BackendError, NotSupportedError
from deepfs.policy import (
    AuditedBackend,
    HistoryBackend,
    HookedBackend,
    PermissionedBackend,
    ReadOnlyBackend,
    WrapperBackend,
)
from deepfs.sandboxes.bubblewrap import BubblewrapSandbox
from deepfs.types import ChangeEvent
from support.v1_backend import DuckS3

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


class Pooled(MemoryBackend):
    """A memory backend with a resource to close."""

    is_synchronous = False

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.closed = 0
        self.fails = fails

    async def aclose(self) -> None:
        await anyio.sleep(0.01)
        self.closed += 1
        if self.fails:
            raise RuntimeError("the pool does not close")


STANDING_BEFORE: dict[str, Callable[[BackendProtocol], BackendProtocol]] = {
    "wrapper": WrapperBackend,
    "permissions": PermissionedBackend,
    "hooks": HookedBackend,
    "audit": lambda inner: AuditedBackend(inner, lambda record: None),
    "history": HistoryBackend,
    "history elsewhere": lambda inner: HistoryBackend(MemoryBackend(), inner, "/"),
    "read only": ReadOnlyBackend,
    "composite": lambda inner: CompositeBackend(inner),
    "composite, twice": lambda inner: CompositeBackend(inner, {"/a": inner}),
    "composite, mounted": lambda inner: CompositeBackend(MemoryBackend(), {"/a": inner, "/b": inner}),
    "three": lambda inner: WrapperBackend(CompositeBackend(MemoryBackend(), {"/a": HistoryBackend(inner)})),
}


async def test_wrappers_and_composites_close_their_backend_once_even_if_cancelled() -> None:
    for name, before in STANDING_BEFORE.items():
        pooled = Pooled()
        async with before(pooled):
            assert pooled.closed == 0, name
        assert pooled.closed == 1, name
        with anyio.CancelScope() as scope:
            scope.cancel()
            await before(pooled).aclose()
        assert pooled.closed == 2, name
    with anyio.CancelScope() as scope:
        async with pooled:
            scope.cancel()
    assert pooled.closed == 3


async def test_each_mount_is_closed_although_another_fails() -> None:
    pools = [Pooled(fails=True), Pooled(), Pooled(fails=True)]
    tree = CompositeBackend(pools[0], {"/a": pools[1], "/b": pools[2]})
    with pytest.raises(RuntimeError, match="the pool"):
        await tree.aclose()
    assert [pool.closed for pool in pools] == [1, 1, 1]


async def test_a_sync_close_on_the_loop_of_the_backend_is_refused() -> None:
    class Bound(Pooled):
        def bound_to_this_thread(self) -> bool:
            return True

    with pytest.raises(RuntimeError, match=r"await Bound\.aclose\(\) instead"):
        Bound().close()


async def test_stores_and_foreign_backends_passed_in_stay_open() -> None:
    closed: list[str] = []

    class Store(InMemoryStore):
        async def aclose(self) -> None:
            closed.append("store")

        close = aclose

    class Foreign(DuckS3):
        def close(self) -> None:
            closed.append("foreign")

        async def aclose(self) -> None:
            closed.append("foreign")

    store = StoreBackend(Store(), namespace=("fs",))
    foreign = adapt_backend_protocol(Foreign({}))
    async with CompositeBackend(store, {"/foreign": WrapperBackend(foreign)}) as tree:
        assert (await tree.awrite("/a", "x")).ok
    assert closed == []
    assert (await tree.awrite("/b", "x")).ok


# --- a sandbox with a workspace of its own ---


async def test_operations_on_a_closed_sandbox_fail_and_say_that_it_is_closed() -> None:
    box = BubblewrapSandbox()
    tree = CompositeBackend(MemoryBackend(), {"/box": WrapperBackend(box)})
    assert (await tree.awrite("/box/a.txt", "x")).ok
    await tree.aclose()
    await box.aclose()
    results: list[Any] = [
        await box.awrite("/b.txt", "x"),
        await box.aread("/a.txt"),
        await box.als("/"),
        await box.aglob("*"),
        await box.agrep("x"),
        await box.adelete("/a.txt"),
        await tree.aread("/box/a.txt"),
    ]
    assert [result.code for result in results] == ["backend_error"] * len(results)
    assert all("closed" in str(result.error) for result in results[:6])
    assert [item.error for item in await box.aupload_files([("/c", b"")])] == ["backend_error"]
    with pytest.raises(BackendError, match="closed"):
        await box.aexecute("true")
    assert not await anyio.to_thread.run_sync(os.path.exists, box._given_root)


async def test_a_workspace_created_by_a_stream_is_private() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"x"

    async with BubblewrapSandbox() as box:
        assert (await box.aupload_stream("/a.txt", chunks())).error is None
        mode = await anyio.to_thread.run_sync(lambda: os.stat(box._given_root).st_mode)
        assert mode & 0o077 == 0
    assert (await box.aupload_stream("/a.txt", chunks())).error == "backend_error"


# --- watching ---


class Watching(MemoryBackend):
    """Yields three change events once it is active."""

    capabilities = Capabilities(watches=True)

    async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
        self.ended = False
        try:
            yield ChangeEvent(path, "resync")
            for name in ("a", "secret", "b"):
                yield ChangeEvent(f"{path.rstrip('/')}/{name}", "created")
            await anyio.sleep_forever()
        finally:
            self.ended = True


class Silent(MemoryBackend):
    """Tells of no changes."""

    capabilities = Capabilities()


async def watched(backend: BackendProtocol, path: str, count: int) -> list[str]:
    """The paths of the first events after the one that says that the watch is active."""
    found: list[str] = []
    async with aclosing(backend.awatch(path)) as events:
        assert await anext(events) == ChangeEvent(path, "resync")
        async for event in events:
            found.append(event.path)
            if len(found) == count:
                break
    return found


async def test_watching_a_backend_without_the_capability_is_unsupported() -> None:
    foreign = adapt_backend_protocol(DuckS3({}))
    for backend in (Silent(), WrapperBackend(Silent()), CompositeBackend(Silent()), StateBackend(), foreign):
        assert not backend.capabilities.watches
        with pytest.raises(NotSupportedError, match="watch"):
            await watched(backend, "/", 1)


async def test_a_mount_that_tells_of_no_changes_makes_the_paths_above_it_unsupported() -> None:
    tree = CompositeBackend(Watching(), {"/m/n": Watching(), "/silent/x": Silent()})
    assert not tree.capabilities.watches
    for path in ("/", "/silent", "/silent/x", "/silent/x/y"):
        with pytest.raises(NotSupportedError):
            await watched(tree, path, 1)
    assert await watched(tree, "/m/n", 1) == ["/m/n/a"]
    assert await watched(tree, "/elsewhere", 1) == ["/elsewhere/a"]
    assert set(await watched(tree, "/m", 6)) == {
        "/m/a", "/m/b", "/m/secret", "/m/n/a", "/m/n/b", "/m/n/secret",
    }  # fmt: skip
