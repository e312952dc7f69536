"""FsspecBackend over s3fs: what S3 itself compares, in one step with the change, and keys as other clients make them.

The whole suite runs over an async filesystem in memory; over a server it would take minutes.
"""

import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio.to_thread
import pytest
from fsspec import get_filesystem_class

from deepfs.backends.fsspec import FsspecBackend
from deepfs.errors import ErrorCode
from deepfs.testing.suite import assert_failed, assert_ok
from support.http_proxy import Fault, HttpProxy, Request, one_proxy, proxy
from support.object_stores import BUCKET, S3Server

__all__ = ["one_proxy", "proxy"]

pytestmark = pytest.mark.anyio


class _Objects:
    """A prefix of the bucket, and direct access to it."""

    def __init__(self, server: S3Server) -> None:
        self.server, self.prefix, self.store = server, server.prefix(), server.store()

    def backend(self, url: str | None = None, **options: Any) -> FsspecBackend:
        given = self.server.options()
        return FsspecBackend(
            f"s3://{BUCKET}/{self.prefix}",
            key=given["access_key_id"],
            secret=given["secret_access_key"],
            client_kwargs={"endpoint_url": url or self.server.url, "region_name": given["region"]},
            **options,
        )

    async def put(self, key: str, content: bytes) -> None:
        await anyio.to_thread.run_sync(self.store.put, f"{self.prefix}/{key}", content)


@pytest.fixture(autouse=True)
def _finalized() -> Iterator[None]:
    """Run the finalizers of filesystems after each test: they block, and would run on the event loop of a later one."""
    yield
    gc.collect()


@pytest.fixture
def objects(s3_server: S3Server) -> _Objects:
    get_filesystem_class("s3")  # Imported here, where it may block.
    return _Objects(s3_server)


@pytest.fixture
async def backend(objects: _Objects) -> AsyncIterator[FsspecBackend]:
    async with objects.backend() as backend:
        yield backend


async def test_files_go_in_and_out(backend: FsspecBackend) -> None:
    for name in ("plain.txt", "plus+and&.txt", "with space", "percent%20", "question?", "hash#", "é"):
        assert_ok(await backend.awrite(f"/dir/{name}", "one\n"))
        assert_ok(await backend.aedit(f"/dir/{name}", "one", "two"))
        assert_ok(await backend.amove(f"/dir/{name}", f"/moved/{name}"))
        [download] = await backend.adownload_files([f"/moved/{name}"])
        assert download.content == b"two\n"
    assert_failed(await backend.als("/dir"), ErrorCode.FILE_NOT_FOUND)
    assert len(assert_ok(await backend.agrep("two")).matches or []) == 7
    assert_ok(await backend.adelete("/moved"))
    assert assert_ok(await backend.als("/")).entries == []


async def test_markers_of_directories_are_hidden(objects: _Objects, backend: FsspecBackend) -> None:
    assert_ok(await backend.awrite("/dir/a.txt", "one\n"))
    filesystem = backend._source.calls.filesystem  # type: ignore[union-attr]
    for key in ("dir/", "empty/"):
        await anyio.to_thread.run_sync(filesystem.pipe_file, f"{BUCKET}/{objects.prefix}/{key}", b"")
    assert [info.path for info in assert_ok(await backend.als("/")).entries or []] == ["/dir/"]
    assert [info.path for info in assert_ok(await backend.als("/dir")).entries or []] == ["/dir/a.txt"]
    assert [info.path for info in assert_ok(await backend.aglob("**")).matches or []] == ["/dir/a.txt"]


@pytest.mark.parametrize("checks", [True, False])
async def test_a_change_between_check_and_store_is_refused_by_the_server(
    objects: _Objects, backend: FsspecBackend, checks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client is faster by the moment between the check and the put. Without the check, S3 still compares."""
    await objects.put("a.txt", b"one\n")
    async with objects.backend(unsafe_overwrites=not checks) as racing:
        assert (await racing.aread("/a.txt")).ok
        filesystem = racing._source.calls.filesystem  # type: ignore[union-attr]
        pipe, races = filesystem._pipe_file, [b"one\ntheirs\n"]

        async def late(path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
            if races:
                objects.store.put(path.removeprefix(f"{BUCKET}/"), races.pop())
            await pipe(path, value, mode=mode, **options)

        monkeypatch.setattr(filesystem, "_pipe_file", late)
        assert_ok(await racing.aedit("/a.txt", "one", "two"))
        assert (await backend.adownload_files(["/a.txt"]))[0].content == b"two\ntheirs\n"
        races.append(b"theirs\n")
        assert_failed(await racing.awrite("/new.txt", "ours\n"), ErrorCode.ALREADY_EXISTS)
        assert (await backend.adownload_files(["/new.txt"]))[0].content == b"theirs\n"


async def test_a_change_whose_answer_is_lost_is_made_once_and_reported(objects: _Objects, proxy: HttpProxy) -> None:
    """The client sends it again by itself, and the second one is refused since the first was made."""
    lost: list[Request] = []

    def lose(request: Request) -> Fault | None:
        if request.method != "PUT" or lost:
            return None
        lost.append(request)
        return Fault(sent=0)

    async with objects.backend(proxy.url) as backend:
        assert (await backend.als("/")).ok
        proxy.fault = lose
        assert_ok(await backend.awrite("/a.txt", "|"))
        lost.clear()
        assert_ok(await backend.aedit("/a.txt", "|", "x|"))
        assert lost
        lost.clear()
        assert_ok(await backend.amove("/a.txt", "/b.txt"))
        assert lost
        assert (await backend.adownload_files(["/b.txt"]))[0].content == b"x|"
        assert [info.path for info in (await backend.aglob("**")).matches or ()] == ["/b.txt"]


async def test_tags_are_sent_in_the_form_that_the_store_compares(ceph_server: S3Server) -> None:
    get_filesystem_class("s3")
    async with _Objects(ceph_server).backend() as backend:
        assert_ok(await backend.awrite("/a.txt", "0"))
        for number in range(3):
            assert_ok(await backend.aedit("/a.txt", str(number), str(number + 1)))
        assert_ok(await backend.amove("/a.txt", "/b.txt"))
        assert (await backend.adownload_files(["/b.txt"]))[0].content == b"3"
