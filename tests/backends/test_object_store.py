"""ObjectStoreBackend over S3: requests are counted, metadata and odd keys, conditions, streams, addresses."""

import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any
from urllib.request import urlopen

import anyio
import anyio.to_thread
import pytest
from obstore.store import LocalStore, MemoryStore

from deepfs.backends import object_store
from deepfs.backends.object_store import ObjectStoreBackend, S3Backend
from deepfs.backends.object_store.keys import Keys
from deepfs.errors import ErrorCode, IsDirectoryError, NotSupportedError
from deepfs.storage.runners import RetryPolicy
from deepfs.testing.suite import gather
from deepfs.text.entries import Relation, relation
from support.http_proxy import Fault, HttpProxy, Request, one_proxy, proxy
from support.object_server import ObjectServer, running_object_server
from support.object_stores import BUCKET, S3Server
from support.processes import started

__all__ = ["one_proxy", "proxy"]

pytestmark = pytest.mark.anyio

MB = 1024 * 1024


@pytest.fixture
def prefix(s3_server: S3Server) -> str:
    return s3_server.prefix()


@pytest.fixture
def store(s3_server: S3Server) -> Any:
    return s3_server.store()


@pytest.fixture
async def backend(s3_server: S3Server, proxy: HttpProxy, prefix: str) -> S3Backend:
    backend = s3_server.backend(prefix, endpoint_url=proxy.url)
    backend._is_checked = True
    return backend


@pytest.fixture
def object_server() -> Iterator[ObjectServer]:
    with running_object_server() as server:
        yield server


async def put(store: Any, key: str, content: bytes, **options: Any) -> None:
    await anyio.to_thread.run_sync(lambda: store.put(key, content, **options))


async def keys(store: Any, prefix: str) -> list[str]:
    return [meta["path"] for meta in await anyio.to_thread.run_sync(lambda: store.list(prefix).collect())]


# --- the driver and addresses ----------------------------------------------------------------------------------------


def test_what_is_no_object_store_is_refused() -> None:
    wrong: list[tuple[Any, str]] = [
        ("file:///tmp/x", "FilesystemBackend"),
        (LocalStore(), "FilesystemBackend"),
        ("ftp://user:secret@host/x", "s3://bucket/prefix"),
        ("s3:///x", "s3://bucket/prefix"),
        ("s3://bucket/../x", r"'\.\.'"),
        (3, "int"),
    ]
    for given, text in wrong:
        with pytest.raises((ValueError, TypeError), match=text) as raised:
            ObjectStoreBackend(given)
        assert "secret" not in str(raised.value)


def test_options_are_checked_and_not_shown() -> None:
    with pytest.raises(ValueError, match="password_of_mine") as raised:
        ObjectStoreBackend("s3://bucket", password_of_mine="a-secret-key")
    assert "a-secret-key" not in repr(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    with pytest.raises(TypeError, match="options"):
        ObjectStoreBackend(MemoryStore(), region="x")


def test_without_the_driver_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ModuleNotFoundError, match=r"deepfs\[objectstore\]"):
        ObjectStoreBackend("memory://")


async def test_errors_show_neither_addresses_nor_secrets(s3_server: S3Server, caplog: Any) -> None:
    policy = RetryPolicy(attempts=2, first_delay=0.01)
    backend = s3_server.backend("x", endpoint_url="http://127.0.0.1:9", retries=policy)
    results = [
        await backend.aread("/a"),
        await backend.als("/"),
        await backend.awrite("/a", "x"),
        await backend.agrep("x"),
    ]
    assert [result.error for result in results] == ["Error: The object store failed: connection refused"] * 4
    shown = repr([results, backend]) + caplog.text
    assert "127.0.0.1" not in repr([results, backend])
    assert "a-secret-key" not in shown + repr([vars(backend), vars(backend._client), vars(backend._bucket().keys)])


def test_options_of_the_client_stand_beside_those_of_the_store(s3_server: S3Server) -> None:
    options = {"allow_http": True, "timeout": "20s", **s3_server.options()}
    for backend in (
        S3Backend(BUCKET, endpoint_url=s3_server.url, **options),
        S3Backend(BUCKET, endpoint=s3_server.url, client_options={"connect_timeout": "2s"}, **s3_server.options()),
        ObjectStoreBackend(f"s3://{BUCKET}", endpoint=s3_server.url, **options),
    ):
        assert backend.ls("/").ok


def test_backends_of_one_bucket_share_a_client_unless_an_option_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"region": "us-east-1", "access_key_id": "id", "secret_access_key": "secret", "timeout": "20s"}
    ways: list[dict[str, Any]] = [
        {},
        {"bucket": "another"},
        {"secret_access_key": "another"},
        {"timeout": "10s"},
        {"client_options": {"connect_timeout": "2s"}},
        {"retries": RetryPolicy(attempts=9)},
    ]

    def clients(way: dict[str, Any], prefix: str) -> S3Backend:
        return S3Backend(**{"bucket": "bucket", "prefix": prefix, **options, **way})

    first, second = ([clients(way, prefix) for way in ways] for prefix in ("ada", "bob"))
    for one, other in zip(first, second, strict=True):
        assert one._place.resending is other._place.resending
    assert len({id(each._place.resending) for each in first}) == len(ways)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of another caller")
    assert clients({}, "ada")._place.resending is not first[0]._place.resending


async def test_prefixes_that_overlap_are_one_place(s3_server: S3Server, prefix: str) -> None:
    outer, inner = s3_server.backend(prefix), ObjectStoreBackend(s3_server.store(), f"{prefix}/in")
    same = await outer.astorage_place("/in/a"), await inner.astorage_place("/a")
    assert relation(*same) is Relation.SAME
    assert relation(await outer.astorage_place("/"), await inner.astorage_place("/a")) is Relation.INSIDE
    assert relation(await outer.astorage_place("/b"), await inner.astorage_place("/a")) is Relation.APART
    async with outer._hold("/in/a"):
        with anyio.move_on_after(0.1) as scope:
            await inner.awrite("/a", "x")
    assert scope.cancelled_caught
    assert (await inner.awrite("/a", "x")).ok
    assert (await outer.aread("/in/a")).ok


# --- keys and metadata -----------------------------------------------------------------------------------------------


async def test_markers_of_directories_are_no_files(backend: S3Backend, s3_server: S3Server, prefix: str) -> None:
    for key in ("", "d/", "d/e/", "lonely/"):
        await anyio.to_thread.run_sync(_put_raw, s3_server, f"{prefix}/{key}")
    for path in ("/d/a.txt", "/d/empty"):
        assert (await backend.awrite(path, "x" if path.endswith("txt") else "")).ok
    for _ in range(2):
        assert [info.path for info in (await backend.aglob("**")).matches or []] == ["/d/a.txt", "/d/empty"]
        assert [info.path for info in (await backend.als("/d")).entries or []] == ["/d/a.txt", "/d/e/", "/d/empty"]
    assert (await backend.als("/lonely")).code == ErrorCode.FILE_NOT_FOUND
    assert (await backend.awrite("/lonely", "a file")).ok
    assert (await backend.adelete("/d")).ok
    assert (await backend.aglob("**", "/d")).code == ErrorCode.FILE_NOT_FOUND


def _put_raw(server: S3Server, key: str, content: bytes = b"") -> None:
    """Put an object by HTTP, since the driver takes no odd keys."""
    from urllib.parse import quote
    from urllib.request import Request as HttpRequest

    with urlopen(HttpRequest(f"{server.url}/{BUCKET}/{quote(key)}", data=content, method="PUT")):
        pass


async def test_a_key_that_the_driver_cannot_list_is_named(backend: S3Backend, s3_server: S3Server, prefix: str) -> None:
    for number, key in enumerate(("a//b", "a/../b", "a/./b", "tab\tname")):
        assert (await backend.awrite(f"/{number}/other/c", "x")).ok
        await anyio.to_thread.run_sync(_put_raw, s3_server, f"{prefix}/{number}/{key}")
        found = await backend.aglob("**", f"/{number}")
        assert (found.code, "cannot list: '" in str(found.error)) == (ErrorCode.BACKEND_ERROR, True), key
        assert (await backend.als(f"/{number}/other")).ok
        assert (await backend.aread(f"/{number}/other/c")).ok


async def test_keys_that_are_no_paths_are_skipped(backend: S3Backend, store: Any, prefix: str) -> None:
    for key in ("~x", "n" * 300, "ok", "with space+plus%20percent", "ä/ö"):
        await put(store, f"{prefix}/{key}", b"match")
    found = await backend.agrep("match")
    assert [match.path for match in found.matches or []] == ["/ok", "/with space+plus%20percent", "/ä/ö", "/~x"] or (
        [match.path for match in found.matches or []] == ["/ok", "/with space+plus%20percent", "/~x", "/ä/ö"]
    )
    assert found.skipped == 1
    for path in ("/ok", "/with space+plus%20percent", "/ä/ö"):
        assert (await backend.aedit(path, "match", "found")).ok


def test_keys_and_paths_are_one_to_one() -> None:
    of = Keys("/prefix")
    for path in ("/a\nb", "/\x7f", "/\uf00a", "/\uf000\uf00a", "/\uf000", "/\uf000\n", "/\uf041", "/a\t/\uf07f"):
        assert of.path(of.key(path)) == path
        assert not any(ord(sign) < 0x20 or ord(sign) == 0x7F for sign in of.key(path))
    assert of.path("prefix/\uf000x") == "///\uf000x"


async def test_a_key_that_is_too_long_is_refused_before_anything_is_sent(backend: S3Backend, proxy: HttpProxy) -> None:
    too_long = "/d/" + "/".join(["a" * 250] * 4) + "/very-very-long"
    assert not backend._bucket().keys.fits(too_long)
    assert (await backend.awrite(too_long, "x")).code == ErrorCode.INVALID_PATH
    assert (await backend.aread(too_long)).code == ErrorCode.FILE_NOT_FOUND
    assert (await backend.adelete(too_long)).code == ErrorCode.FILE_NOT_FOUND
    assert [each.error for each in await backend.aupload_files([(too_long, b""), ("/ok", b"")])] == [
        "invalid_path",
        None,
    ]
    assert not any(request.target.endswith("-long") for request in proxy.requests)


ATTRIBUTES = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "max-age=60",
    "Content-Language": "de",
    "Content-Disposition": "inline",
    "Content-Encoding": "identity",
    "owner": "ada",
}


async def test_what_others_stored_with_an_object_survives(backend: S3Backend, store: Any, prefix: str) -> None:
    async def kept(path: str) -> dict[str, str]:
        got = await anyio.to_thread.run_sync(lambda: store.get(f"{prefix}{path}"))
        return {name: value for name, value in got.attributes.items() if not name.startswith("deepfs")}

    await put(store, f"{prefix}/page.html", b"<p>one", attributes=ATTRIBUTES)
    for _ in range(2):
        assert (await backend.aedit("/page.html", "<p>", "<p>x")).ok
        assert await kept("/page.html") == ATTRIBUTES
    assert (await backend.acopy("/page.html", "/copy.txt")).ok
    assert (await backend.amove("/copy.txt", "/moved.md")).ok
    assert (await backend.awrite("/old.html", "x")).ok
    assert (await backend.amove("/moved.md", "/old.html", overwrite=True)).ok
    assert await kept("/old.html") == ATTRIBUTES
    new_content = {name: value for name, value in ATTRIBUTES.items() if name != "Content-Encoding"}
    assert (await backend.awrite("/page.html", "x", overwrite=True)).ok
    assert await kept("/page.html") == new_content
    assert [each.error for each in await backend.aupload_files([("/page.html", b"y")])] == [None]
    assert (await backend.aupload_stream("/page.html", _chunks(20))).error is None
    assert await kept("/page.html") == new_content


# --- conditions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignored", [(b"if-none-match",), (b"if-match",), (b"if-match", b"if-none-match")])
async def test_a_store_that_ignores_conditions_is_refused(
    s3_server: S3Server, proxy: HttpProxy, store: Any, prefix: str, ignored: tuple[bytes, ...]
) -> None:
    proxy.without = ignored
    object_store._bare_tags.clear()
    backend = s3_server.backend(prefix, endpoint_url=proxy.url)
    assert (await backend.als("/")).ok
    assert proxy.methods() == ["GET"]
    for result in (await backend.awrite("/a", "x"), await backend.awrite("/a", "x")):
        assert result.code == ErrorCode.UNSUPPORTED
        assert "unsafe_overwrites=True" in str(result.error)
    assert [each.error for each in await backend.aupload_files([("/a", b"x")])] == ["unsupported"]
    assert (await backend.aupload_stream("/a", _chunks(20))).error == "unsupported"
    assert await keys(store, prefix) == []
    unsafe = s3_server.backend(prefix, endpoint_url=proxy.url, unsafe_overwrites=True)
    assert (await unsafe.awrite("/a", "x")).ok
    assert (await unsafe.aedit("/a", "x", "y")).ok
    assert (await unsafe.awrite("/a", "x")).code == ErrorCode.ALREADY_EXISTS


async def test_tags_are_sent_in_the_form_that_the_store_compares(object_server: ObjectServer) -> None:
    object_server.tags = "bare"
    backend = S3Backend("bucket", **object_server.options())
    created = await gather([partial(backend.awrite, f"/{n}", "x") for n in range(10)])
    edited = await gather([partial(backend.aedit, f"/{n}", "x", "y") for n in range(10)])
    assert [each.error for each in (*created, *edited) if not each.ok] == []
    another = S3Backend("bucket", **object_server.options())  # It need not find it out again.
    requests = object_server.requests
    assert (await another.aedit("/0", "y", "z")).ok
    assert object_server.requests == requests + 2


async def test_a_store_that_refuses_conditions_that_hold_is_refused(object_server: ObjectServer) -> None:
    object_server.tags = "none"
    backend = S3Backend("bucket", **object_server.options())
    result = await backend.awrite("/a", "x")
    assert result.code == ErrorCode.UNSUPPORTED
    assert "refuses puts whose conditions hold" in str(result.error)
    assert object_server.objects == {}


async def test_what_changes_during_a_move_stays_and_its_copy_goes(
    backend: S3Backend, proxy: HttpProxy, store: Any, prefix: str
) -> None:
    for path in ("/d/a", "/d/b"):
        assert (await backend.awrite(path, path)).ok
    backend._retries = RetryPolicy(contention=0.2)

    def interfere(request: Request) -> Fault | None:
        if request.method == "PUT" and request.target.endswith("/moved/b"):
            return Fault(then=lambda: store.put(f"{prefix}/d/a", str(len(proxy.requests)).encode()))
        return None

    proxy.fault = interfere
    assert (await backend.amove("/d", "/moved")).code == ErrorCode.CONFLICT
    assert await keys(store, prefix) == [f"{prefix}/d/a", f"{prefix}/d/b"]
    proxy.fault = lambda request: None
    assert (await backend.amove("/d", "/moved")).ok
    assert await keys(store, prefix) == [f"{prefix}/moved/a", f"{prefix}/moved/b"]


async def test_a_move_that_met_a_new_file_takes_its_copies_back(
    backend: S3Backend, proxy: HttpProxy, store: Any, prefix: str
) -> None:
    for path in ("/d/a", "/d/b", "/d/c"):
        assert (await backend.awrite(path, path)).ok

    def interfere(request: Request) -> Fault | None:
        if request.method == "PUT" and request.target.endswith("/moved/b"):
            return Fault(first=lambda: store.put(f"{prefix}/moved/b", b"theirs"))
        return None

    proxy.fault = interfere
    assert (await backend.amove("/d", "/moved")).code == ErrorCode.ALREADY_EXISTS
    assert await keys(store, prefix) == [f"{prefix}/{path}" for path in ("d/a", "d/b", "d/c", "moved/b")]


async def test_an_upload_in_a_batch_that_met_another_change_is_done_again(
    backend: S3Backend, proxy: HttpProxy, store: Any, prefix: str
) -> None:
    await put(store, f"{prefix}/a", b"old")
    times = iter(range(2))

    def interfere(request: Request) -> Fault | None:
        if request.method == "HEAD" and request.target.endswith("/a") and (number := next(times, None)) is not None:
            return Fault(then=lambda: store.put(f"{prefix}/a", f"other {number}".encode()))
        return None

    proxy.fault = interfere
    assert [each.error for each in await backend.aupload_files([("/a", b"new"), ("/b", b"new")])] == [None, None]
    assert bytes(await anyio.to_thread.run_sync(lambda: store.get(f"{prefix}/a").bytes())) == b"new"


# --- large files -----------------------------------------------------------------------------------------------------


async def _chunks(number: int, size: int = MB, error: Exception | None = None) -> AsyncIterator[bytes]:
    for index in range(number):
        yield bytes([index % 250]) * size
    if error is not None:
        raise error


async def test_a_stream_is_stored_in_parts_and_comes_back(backend: S3Backend, proxy: HttpProxy) -> None:
    assert (await backend.awrite("/d/big", "old")).ok
    proxy.methods()
    assert (await backend.aupload_stream("/d/big", _chunks(20))).error is None
    puts = [request for request in proxy.requests if request.method == "PUT"]
    assert len(puts) == 3
    assert all("partNumber" in request.target for request in puts)
    came = [chunk async for chunk in backend.adownload_stream("/d/big", chunk_size=3 * MB)]
    assert [len(chunk) for chunk in came] == [3 * MB] * 6 + [2 * MB]
    assert b"".join(came) == b"".join([chunk async for chunk in _chunks(20)])


async def test_a_stream_that_fails_or_is_cancelled_leaves_nothing(
    backend: S3Backend, proxy: HttpProxy, store: Any, prefix: str
) -> None:
    with pytest.raises(RuntimeError, match="the source failed"):
        await backend.aupload_stream("/a", _chunks(20, error=RuntimeError("the source failed")))

    async def endless() -> AsyncIterator[bytes]:
        async for chunk in _chunks(20):
            yield chunk
        scope.cancel()
        await anyio.sleep(60)

    with anyio.CancelScope() as scope:
        await backend.aupload_stream("/b", endless())
    assert scope.cancelled_caught
    assert await keys(store, prefix) == []
    begun = [request for request in proxy.requests if request.method == "POST" and "uploads" in request.target]
    aborted = [request for request in proxy.requests if request.method == "DELETE" and "uploadId" in request.target]
    assert len(begun) == len(aborted) == 2


async def test_a_window_of_a_large_text_fetches_what_it_shows(
    backend: S3Backend, proxy: HttpProxy, store: Any, prefix: str
) -> None:
    text = b"".join(b"line %07d\n" % number for number in range(500_000))
    await put(store, f"{prefix}/log.txt", text)
    proxy.sent = 0
    first = await backend.aread("/log.txt", 0, 2)
    assert first.file_data is not None
    assert (first.file_data.content, first.next_offset, first.total_lines) == ("line 0000000\nline 0000001\n", 2, None)
    assert proxy.sent < 1.1 * MB
    late = await backend.aread("/log.txt", 499_998, 10)
    assert late.file_data is not None
    assert (late.file_data.content, late.total_lines) == ("line 0499998\nline 0499999\n", 500_000)
    assert (await backend.aread("/log.txt", 500_000, 1)).error is not None
    assert first.version == late.version
    assert first.version is not None
    assert (await backend.aedit("/log.txt", "line 0000007\n", "seven\n", if_match=first.version)).ok
    assert (await backend.aedit("/log.txt", "line 0000008\n", "eight\n", if_match=first.version)).code == "conflict"
    after = await backend.aread("/log.txt", 7, 1)
    assert after.version != first.version
    assert (await backend.adelete("/log.txt", if_match=after.version)).ok


async def test_a_text_that_changes_between_its_parts_is_read_anew(
    backend: S3Backend, proxy: HttpProxy, store: Any, prefix: str
) -> None:
    await put(store, f"{prefix}/log.txt", b"old line\n" * 400_000)
    times = iter([None])

    def interfere(request: Request) -> Fault | None:
        if request.method == "GET" and next(times, 1) is None:
            return Fault(then=lambda: store.put(f"{prefix}/log.txt", b"new line\n" * 400_000))
        return None

    proxy.fault = interfere
    assert set((await backend.aread("/log.txt", 0, 400_000)).unwrap().content.splitlines()) == {"new line"}


async def test_a_large_binary_file_is_not_fetched_beyond_the_limit(
    backend: S3Backend, proxy: HttpProxy, store: Any, prefix: str
) -> None:
    backend._max_bytes = backend._bucket().max_bytes = 2 * MB
    await put(store, f"{prefix}/a.png", b"\x89PNG" * MB)
    await put(store, f"{prefix}/a.txt", b"\xff" * (3 * MB))
    proxy.sent = 0
    assert (await backend.aread("/a.png")).code == ErrorCode.TOO_LARGE
    assert (await backend.aread("/a.txt")).code == ErrorCode.TOO_LARGE
    assert proxy.sent < 2.2 * MB
    await put(store, f"{prefix}/b.png", b"\x89PNG" * (MB * 3 // 8))
    read = await backend.aread("/b.png")
    assert read.file_data is not None
    assert read.file_data.encoding == "base64"


# --- presigned addresses ---------------------------------------------------------------------------------------------


async def test_presigned_urls_read_a_file(backend: S3Backend) -> None:
    assert (await backend.awrite("/a b.txt", "content")).ok
    url = await backend.apresign("/a b.txt", expires_in=60)
    assert await anyio.to_thread.run_sync(lambda: urlopen(url).read()) == b"content"
    assert await anyio.to_thread.run_sync(backend.presign, "/a b.txt")
    with pytest.raises(IsDirectoryError):
        await backend.apresign("/")
    with pytest.raises(ValueError, match="method"):
        await backend.apresign("/a", method="DELETE")  # type: ignore[arg-type]
    with pytest.raises(NotSupportedError):
        await ObjectStoreBackend("memory://").apresign("/a")


FORKS = """
import os, sys
from support.object_stores import S3Server

server = S3Server(sys.argv[1])
backend = server.backend(sys.argv[2])
assert backend.write("/a.txt", "x").ok
child = os.fork()
codes = backend.read("/a.txt").code, server.backend("new").write("/b", "x").code
if child:
    os.waitpid(child, 0)  # So that what both print is not mixed.
print("parent" if child else "child", *codes, flush=True)
"""


def test_a_forked_child_fails_and_does_not_hang(s3_server: S3Server) -> None:
    with started(FORKS, s3_server.url, s3_server.prefix()) as process:
        lines = process.communicate(timeout=60)[0].splitlines()
    assert sorted(lines) == ["child backend_error backend_error", "parent None None"]


LISTED_WHILE_CHANGED = """
import anyio
from deepfs import ObjectStoreBackend

backend = ObjectStoreBackend("memory://")

async def change(name):
    for number in range(300):
        [result] = await backend.aupload_files([(name, b"%d" % number)])
        assert not result.error
        assert not (await backend.aupload_stream(name, stream(number))).error

async def stream(number):
    yield b"%d" % number

async def look():
    for _ in range(300):
        assert (await backend.aglob("*")).ok

async def main():
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(change, f"/{number}")
            tasks.start_soon(look)

anyio.run(main)
print("done")
"""


def test_a_store_in_memory_is_listed_while_it_is_changed() -> None:
    with started(LISTED_WHILE_CHANGED) as process:
        assert process.communicate(timeout=60)[0] == "done\n"
