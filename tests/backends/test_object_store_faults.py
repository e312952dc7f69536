"""Object stores that fail: cut connections, lost answers, overload. No change is lost, made twice or misreported."""

import gc
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from obstore.store import S3Store

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.object_store import ObjectStoreBackend, S3Backend
from deepfs.backends.sqlite import SqliteBackend
from deepfs.storage.runners import RetryPolicy
from deepfs.testing.suite import gather
from support.http_proxy import Fault, HttpProxy, Request, one_proxy, proxy
from support.object_server import ObjectServer, running_object_server
from support.object_stores import BUCKET, S3Server

__all__ = ["one_proxy", "proxy"]

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(attempts=4, first_delay=0.001, longest_delay=0.01, timeout=10)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """What happens after an answer hardly depends on the loop: on trio the same code runs on asyncio."""
    return "asyncio"


@pytest.fixture
def prefix(s3_server: S3Server) -> str:
    return s3_server.prefix()


@pytest.fixture
def other(s3_server: S3Server, prefix: str) -> S3Backend:
    """Another client of the same files, without faults."""
    return s3_server.backend(prefix)


@pytest.fixture
def backend(s3_server: S3Server, proxy: HttpProxy, prefix: str) -> S3Backend:
    backend = s3_server.backend(prefix, endpoint_url=proxy.url, retries=QUICK)
    backend._is_checked = True
    return backend


async def text_at(backend: ObjectStoreBackend, path: str) -> str | None:
    read = await backend.aread_raw(path)
    return None if read.data is None else str(read.data.content)


def once(method: str, fault: Fault) -> Callable[[Request], Fault | None]:
    """A fault for the first request with the method."""
    left = [fault]
    return lambda request: left.pop() if request.method == method and left else None


async def test_an_answer_may_end_at_any_byte(backend: S3Backend, proxy: HttpProxy, other: S3Backend) -> None:
    assert (await other.awrite("/a", "0\n")).ok
    answers: list[int] = []
    proxy.fault = lambda request: Fault(then=lambda: answers.append(proxy.sent))
    assert (await backend.aedit("/a", "0\n", "1\n")).ok
    length = 700
    for count, cut in enumerate(range(0, length, 7), 1):
        proxy.fault = once("PUT" if count % 2 else "GET", Fault(sent=cut))
        result = await backend.aedit("/a", f"{count}\n", f"{count + 1}\n")
        assert result.ok, (cut, result.error)
        assert await text_at(other, "/a") == f"{count + 1}\n"
    for cut in range(0, length, 50):
        proxy.fault = once("GET", Fault(sent=cut))
        assert [info.path for info in (await backend.als("/")).entries or []] == ["/a"]
        proxy.fault = once("HEAD", Fault(sent=min(cut, 100)))
        assert (await backend.awrite("/a", "x")).code == "already_exists"


@pytest.mark.parametrize("reaches", [True, False])
@pytest.mark.parametrize("fault", [{"sent": 0}, {"status": 503}, {"status": 500}])
async def test_a_lost_answer_is_resolved_by_looking(
    backend: S3Backend, proxy: HttpProxy, other: S3Backend, reaches: bool, fault: dict[str, int]
) -> None:
    lost = Fault(reaches=reaches, **fault)
    proxy.fault = once("PUT", lost)
    assert (await backend.awrite("/d/a", "x\n")).ok
    proxy.fault = once("PUT", lost)
    assert (await backend.aedit("/d/a", "x", "xx")).ok
    assert await text_at(other, "/d/a") == "xx\n"
    proxy.fault = once("PUT", lost)
    assert [each.error for each in await backend.aupload_files([("/d/a", b"1"), ("/d/b", b"2")])] == [None, None]
    proxy.fault = once("PUT", lost)
    assert (await backend.amove("/d", "/e")).ok
    proxy.fault = once("POST", lost)
    assert (await backend.adelete("/e/a")).ok
    assert [info.path for info in (await other.aglob("**")).matches or []] == ["/e/b"]


async def test_a_change_that_others_have_changed_again_was_made(
    backend: S3Backend, proxy: HttpProxy, other: S3Backend
) -> None:
    assert (await other.awrite("/a", "x\n")).ok
    proxy.fault = once("PUT", Fault(sent=0, then=lambda: other.edit("/a", "xx", "xxyy")))
    assert (await backend.aedit("/a", "x", "xx")).ok
    assert await text_at(other, "/a") == "xxyy\n"


async def test_a_change_that_came_second_is_made_once_again(
    backend: S3Backend, proxy: HttpProxy, other: S3Backend
) -> None:
    assert (await other.awrite("/a", "x\n")).ok
    proxy.fault = once("PUT", Fault(reaches=False, sent=0, then=lambda: other.edit("/a", "\n", "y\n")))
    assert (await backend.aedit("/a", "x", "xx")).ok
    assert await text_at(other, "/a") == "xxy\n"


async def test_what_cannot_be_found_out_is_said(
    backend: S3Backend, proxy: HttpProxy, other: S3Backend, s3_server: S3Server, prefix: str
) -> None:
    assert (await other.awrite("/a", "x\n")).ok
    store = s3_server.store()
    proxy.fault = once("PUT", Fault(sent=0, then=lambda: store.put(f"{prefix}/a", b"x of others\n")))
    result = await backend.aedit("/a", "x", "xx")
    assert result.code == "backend_error"
    assert "read the file to see what was stored" in str(result.error)
    assert await text_at(other, "/a") == "x of others\n"


async def test_a_store_that_falls_silent_after_a_put_is_told_apart(
    backend: S3Backend, proxy: HttpProxy, other: S3Backend
) -> None:
    assert (await other.awrite("/a", "x\n")).ok
    proxy.fault = lambda request: Fault(sent=0) if request.method in ("PUT", "HEAD") else None
    result = await backend.aedit("/a", "x", "xx")
    assert "it does not answer now: read the file" in str(result.error)
    assert await text_at(other, "/a") == "xx\n"


async def test_a_file_that_came_back_after_a_lost_deletion_stays(
    backend: S3Backend, proxy: HttpProxy, other: S3Backend
) -> None:
    assert (await other.awrite("/a", "x\n")).ok
    proxy.fault = once("POST", Fault(sent=0, then=lambda: other.write("/a", "another\n")))
    result = await backend.adelete("/a")
    assert result.code == "backend_error"
    assert await text_at(other, "/a") == "another\n"


async def test_a_client_that_sends_again_by_itself_is_seen_through(
    s3_server: S3Server, proxy: HttpProxy, prefix: str, other: S3Backend
) -> None:
    backoff = {"init_backoff": timedelta(milliseconds=1)}
    retries: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=20), "backoff": backoff}
    options: Any = {"client_options": {"allow_http": True}, "retry_config": retries, **s3_server.options()}
    backend = ObjectStoreBackend(S3Store(BUCKET, endpoint=proxy.url, **options), prefix, retries=QUICK)
    backend._is_checked = True
    proxy.fault = once("PUT", Fault(status=503))
    assert (await backend.awrite("/a", "x\n")).ok
    proxy.fault = once("PUT", Fault(status=503))
    assert (await backend.aedit("/a", "x", "xx")).ok
    assert await text_at(other, "/a") == "xx\n"
    assert sum(request.method == "PUT" for request in proxy.requests) == 4


async def test_a_slow_answer_is_a_lost_one(
    s3_server: S3Server, proxy: HttpProxy, prefix: str, other: S3Backend
) -> None:
    policy = RetryPolicy(attempts=3, timeout=0.5, first_delay=0.001)
    backend = s3_server.backend(prefix, endpoint_url=proxy.url, retries=policy)
    backend._is_checked = True
    proxy.fault = once("PUT", Fault(delay=3))
    assert (await backend.awrite("/a", "x\n")).ok
    proxy.fault = once("GET", Fault(delay=3))
    assert (await backend.aread("/a")).ok
    proxy.fault = lambda request: Fault(delay=3)
    for result in (await backend.aread("/a"), await backend.aedit("/a", "x", "y"), await backend.als("/")):
        assert (result.code, result.error) == ("timeout", "Error: The object store failed: timed out")


async def test_a_storm_of_refusals_ends_in_clear_errors(backend: S3Backend, proxy: HttpProxy, other: S3Backend) -> None:
    assert (await other.awrite("/a", "x\n")).ok
    proxy.fault = lambda request: Fault(reaches=False, status=503)
    results = [
        await backend.aread("/a"),
        await backend.als("/"),
        await backend.aedit("/a", "x", "y"),
        await backend.agrep("x"),
        await backend.adelete("/a"),
        await backend.amove("/a", "/b"),
    ]
    assert {result.code for result in results} == {"backend_error"}
    texts = {str(result.error) for result in results}
    assert "Error: The object store failed (503)" in texts
    assert all(text.endswith("(503)") for text in texts)
    assert [each.error for each in await backend.aupload_files([("/c", b"x")])] == ["backend_error"]
    assert [each.error for each in await backend.adownload_files(["/a"])] == ["backend_error"]
    proxy.fault = lambda request: None
    assert (await backend.aedit("/a", "x", "y")).ok
    assert [info.path for info in (await other.aglob("**")).matches or []] == ["/a"]


@pytest.mark.parametrize(("status", "code"), [(403, "permission_denied"), (400, "backend_error")])
async def test_one_unreadable_object_spoils_no_other(
    backend: S3Backend, proxy: HttpProxy, other: S3Backend, status: int, code: str, tmp_path: Path
) -> None:
    assert [each.error for each in await other.aupload_files([(f"/d/{n}", b"needle\n") for n in range(5)])] == [
        None
    ] * 5
    proxy.fault = lambda request: Fault(status=status) if request.target.endswith("/d/2") else None
    readable = [f"/d/{n}" for n in (0, 1, 3, 4)]
    searched = [backend, CompositeBackend(MemoryBackend(), {"/m/": backend})]
    for each in (backend, searched[1]):
        found = await each.agrep("needle")
        assert [match.path.removeprefix("/m") for match in found.matches or ()] == readable
        assert (found.error, found.skipped) == (None, 1)
    got = await backend.adownload_files([f"/d/{n}" for n in range(5)])
    assert [each.error for each in got] == [None, None, code, None, None]
    assert (await backend.aread("/d/2")).code == code
    assert (await backend.aedit("/d/2", "needle", "x")).code == code
    assert (await backend.acopy("/d", "/e")).code == code
    assert (await other.als("/e")).code == "file_not_found"
    assert len((await backend.aglob("**")).matches or ()) == len((await backend.als("/d")).entries or ()) == 5


async def test_an_index_skips_what_cannot_be_read_until_it_can(
    s3_server: S3Server, proxy: HttpProxy, prefix: str, other: S3Backend, tmp_path: Path
) -> None:
    for number in range(3):
        assert (await other.awrite(f"/{number}", "needle\n")).ok
    async with SqliteBackend(tmp_path / "index.db") as index:
        backend = s3_server.backend(prefix, endpoint_url=proxy.url, retries=QUICK, index=index)
        proxy.fault = lambda request: Fault(status=403) if request.target.endswith("/1") else None
        found = await backend.agrep("needle")
        assert ([match.path for match in found.matches or ()], found.skipped) == (["/0", "/2"], 1)
        proxy.fault = lambda request: None
        await backend.arefresh_index()
        assert [match.path for match in (await backend.agrep("needle")).matches or ()] == ["/0", "/1", "/2"]


async def test_a_store_that_fails_is_no_unreadable_object(
    backend: S3Backend, proxy: HttpProxy, other: S3Backend
) -> None:
    for number in range(3):
        assert (await other.awrite(f"/{number}", "needle\n")).ok
    proxy.fault = lambda request: Fault(status=503) if request.target.endswith("/1") else None
    assert (await backend.agrep("needle")).code == "backend_error"
    assert {each.error for each in await backend.adownload_files(["/0", "/1"])} == {"backend_error"}


async def test_a_bucket_that_refuses_access_is_permission_denied(backend: S3Backend, proxy: HttpProxy) -> None:
    proxy.fault = lambda request: Fault(reaches=False, status=403)
    results = [
        await backend.als("/"), await backend.aglob("**"), await backend.agrep("x"), await backend.aread("/a"),
        await backend.awrite("/a", "x"), await backend.aedit("/a", "x", "y"), await backend.adelete("/a"),
    ]  # fmt: skip
    assert {str(result.code) for result in results} == {"permission_denied"}
    proxy.fault = lambda request: Fault(reaches=False, status=403) if request.method == "PUT" else None
    assert (await backend.awrite("/a", "x")).code == "permission_denied"


async def test_two_hundred_edits_through_faults_are_made_once_or_reported(
    backend: S3Backend, proxy: HttpProxy, other: S3Backend
) -> None:
    files, edits = 20, 10
    chance = random.Random(7)
    kinds = [
        Fault(sent=0),
        Fault(sent=80),
        Fault(status=503),
        Fault(reaches=False, sent=0),
        Fault(reaches=False, status=503),
    ]
    for number in range(files):
        assert (await other.awrite(f"/{number}", "end\n")).ok
    proxy.fault = lambda request: chance.choice(kinds) if chance.random() < 0.2 else None
    told: dict[str, bool] = {}

    async def edit(number: int) -> None:
        for step in range(edits):
            mark = f"<{step}>"
            told[f"{number} {mark}"] = (await backend.aedit(f"/{number}", "end", f"{mark}\nend")).ok

    await gather([partial(edit, number) for number in range(files)])
    proxy.fault = lambda request: None
    texts = {number: str(await text_at(other, f"/{number}")) for number in range(files)}
    counts = {key: texts[int(key.split()[0])].count(key.split()[1]) for key in told}
    assert all(counts[key] == 1 for key, is_ok in told.items() if is_ok)
    assert all(count <= 1 for count in counts.values())
    assert sum(told.values()) > 0.9 * len(told)
    assert (await backend.aedit("/0", "end", "over")).ok


async def test_an_upload_in_parts_survives_faults(backend: S3Backend, proxy: HttpProxy, other: S3Backend) -> None:
    async def chunks() -> Any:
        for index in range(20):
            yield bytes([index]) * 1_000_000

    proxy.fault = once("PUT", Fault(status=503))
    assert (await backend.aupload_stream("/big", chunks())).error is None
    lost = [Fault(sent=0), None]  # The answer to the request that completes the upload.
    proxy.fault = lambda request: lost.pop() if request.method == "POST" and lost else None
    assert (await backend.aupload_stream("/big", chunks())).error is None
    assert (await other.als("/")).entries[0].size == 20_000_000  # type: ignore[index]
    proxy.fault = lambda request: Fault(reaches=False, status=403) if request.method == "PUT" else None
    assert (await backend.aupload_stream("/other", chunks())).error == "permission_denied"
    assert [info.path for info in (await other.als("/")).entries or []] == ["/big"]


@pytest.fixture
def slow_server() -> Iterator[ObjectServer]:
    with running_object_server() as server:
        server.delay = 0.2
        yield server


async def test_a_listing_that_is_cancelled_leaves_the_driver_usable(slow_server: ObjectServer) -> None:
    backend = S3Backend("bucket", **slow_server.options())
    kept: list[BaseException] = []
    try:
        with anyio.fail_after(slow_server.delay / 2):
            await backend.aglob("**")  # The first request of a client: it has not used its connections yet.
    except TimeoutError as error:
        kept.append(error)  # With the frames in which the listing is.
    await anyio.sleep(slow_server.delay)  # The answer comes.
    kept.clear()
    gc.collect()
    assert (await backend.aglob("**")).error is None
