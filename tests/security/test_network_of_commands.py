"""The network of commands: none, or the listed hosts by a proxy, and never an address that is not public."""

import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from threading import Event, Thread
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import SocketAttribute, SocketListener, SocketStream

from deepfs.sandboxes import AllowedHosts, BubblewrapSandbox, bubblewrap
from deepfs.sandboxes import network as proxy
from deepfs.sandboxes.network import is_public, listen_beside, normal_host, serve_proxy
from support.accounts import ACCOUNTS, IMPORTS, output_as
from support.waiting import until_tasks_wait

pytestmark = [pytest.mark.anyio, pytest.mark.needs("BubblewrapSandbox")]
accounts = pytest.mark.parametrize("account", ACCOUNTS)


# --- names, addresses and lists ---


def test_a_host_has_one_form() -> None:
    assert [normal_host(host) for host in ("Example.ORG", "example.org.", "a_b.c-d", "10.0.0.1", "2001:DB8:0::1")] == [
        *("example.org", "example.org", "a_b.c-d", "10.0.0.1", "2001:db8::1")
    ]


NO_HOSTS = [
    *("", ".", "..", "a..b", "-a.org", "a-.org", "a.org..", "a b.org", "a.org\0", "a.org\n", "a\x7f.org", "a/b", "u@a"),
    *("a%2eorg", "ä.org", "a\u3002org", "x" * 64, "a." * 127 + "org", "*", "*.org", "[::1]", "fe80::1%eth0", "a:80"),
    *("127.1", "2130706433", "0x7f.1", "0x7f000001", "0177.0.0.1", "127.0.0.1.", "1.2.3.4.5", "\uff11.org"),
]


def test_what_is_no_host_is_refused() -> None:
    for host in NO_HOSTS:
        with pytest.raises(ValueError):  # noqa: PT011 - it is the contract of the function.
            normal_host(host)


PRIVATE = (
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
    *("100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.0.2.1", "198.18.0.1", "203.0.113.1"),
    *("192.88.99.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::8.8.8.8", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "64:ff9b::8.8.8.8", "64:ff9b:1::1", "fe80::1"),
    *("fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "100::1"),
    *("5f00::1", "fe80::1%1"),
)


def test_addresses_are_public_or_not() -> None:
    assert [address for address in PRIVATE if is_public(ip_address(address))] == []
    public = ("8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001:80b::200e")
    assert all(is_public(ip_address(address)) for address in public)


def test_a_list_allows_names_patterns_and_ports() -> None:
    allowed = AllowedHosts(["Example.org.", "*.pypi.org", "a.net:8443", "192.0.2.7", "[2001:db8::1]:80", "straße.de"])
    yes = (
        *(("example.org", 80), ("example.org", 443), ("files.pypi.org", 443), ("a.b.pypi.org", 80), ("a.net", 8443)),
        *(("192.0.2.7", 443), ("2001:db8::1", 80), ("xn--strae-oqa.de", 443)),
    )
    no = (
        *(("example.org", 22), ("www.example.org", 80), ("pypi.org", 443), ("evilpypi.org", 443), ("a.net", 443)),
        *(("2001:db8::1", 443), ("strasse.de", 443), ("example.org.evil.net", 80), ("7", 80), ("192.0.2.70", 80)),
    )
    assert [pair for pair in yes if not allowed.allows(*pair)] == []
    assert [pair for pair in no if allowed.allows(*pair)] == []


def test_an_unusable_list_is_an_error() -> None:
    for host in ["*", "", "a b", "http://a.org", "a.org/", "u@a.org", "a.org:0", "a.org:99999", "127.1"]:
        with pytest.raises(ValueError, match="hosts: "):
            AllowedHosts(["example.org", host])


def test_a_network_is_true_false_or_a_list(tmp_path: Path) -> None:
    for wrong in ("example.org", b"example.org", 1, None, [80], [["a.org"]]):
        with pytest.raises(TypeError):
            BubblewrapSandbox(tmp_path, network=wrong)  # type: ignore[arg-type]


# --- the proxy, with servers on loopback ---


class Site:
    """A server on loopback that records what it gets, and a proxy that reaches it by the name `site.test`."""

    def __init__(self) -> None:
        self.port = 0
        self.got: list[bytes] = []
        self.asked: list[str] = []
        self.found = ["127.0.0.1"]
        self.open = 0
        self.most_open = 0

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.found

    async def serve(self, stream: SocketStream) -> None:
        """Answer what has come up to the end of a head, or of the stream, and close."""
        async with stream:
            self.open += 1
            self.most_open = max(self.open, self.most_open)
            data = b""
            with suppress(anyio.EndOfStream):
                while not data.endswith((b"\r\n\r\n", b"END")):
                    data += await stream.receive()
            if not data:
                return
            self.got.append(data)
            await anyio.sleep(0.01)
            self.open -= 1
            await stream.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")


@asynccontextmanager
async def proxied(*hosts: str) -> AsyncIterator[tuple[Site, Callable[[bytes], Any]]]:
    """A site, and a function that sends bytes to the proxy and returns all that comes back."""
    site = Site()
    served, listener = await _listener(), await _listener()
    site.port, port = (each.extra(SocketAttribute.local_port) for each in (served, listener))
    names = [host.replace("PORT", str(site.port)) for host in hosts or ("site.test:PORT", "127.0.0.1:PORT")]

    async def say(data: bytes) -> bytes:
        got = b""
        with anyio.fail_after(20):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(data.replace(b"PORT", str(site.port).encode()))
                try:
                    while True:
                        got += await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return got

    async with served, listener, anyio.create_task_group() as tasks:
        tasks.start_soon(served.serve, site.serve)
        tasks.start_soon(serve_proxy, listener, AllowedHosts(names, resolve=site.resolve))
        yield site, say
        tasks.cancel_scope.cancel()


async def _listener() -> SocketListener:
    def listening() -> socket.socket:
        return socket.create_server(("127.0.0.1", 0))

    return await SocketListener.from_socket(await anyio.to_thread.run_sync(listening))


async def test_a_tunnel_carries_bytes_to_a_listed_host() -> None:
    async with proxied() as (site, say):
        shown = await say(b"CONNECT Site.TEST.:PORT HTTP/1.1\r\nHost: x\r\n\r\nany bytes \0\xff END")
    assert shown.startswith(b"HTTP/1.1 200 ")
    assert shown.endswith(b"\r\n\r\nhello")
    assert site.got == [b"any bytes \0\xff END"]
    assert site.asked == ["site.test"], "one form of the name, looked up once"


async def test_a_request_is_forwarded_with_the_name_of_its_url() -> None:
    async with proxied() as (site, say):
        shown = await say(
            b"GET HTTP://SITE.test:PORT?q=1 HTTP/1.1\r\nHost: other.test\r\nX-Kept: yes\r\nX-Hop: no\r\n"
            b"Connection: keep-alive, X-Hop\r\nProxy-Authorization: secret\r\nUpgrade: h2c\r\n\r\n"
        )
    assert shown == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"
    assert site.got == [
        b"GET /?q=1 HTTP/1.1\r\nHost: site.test:%d\r\nConnection: close\r\nX-Kept: yes\r\n\r\n" % site.port
    ]


def socks(host: bytes, port: int, *, kind: int = 3, command: int = 1) -> bytes:
    size = bytes([len(host)]) if kind == 3 else b""
    return b"\x05\x01\x00\x05" + bytes([command, 0, kind]) + size + host + port.to_bytes(2)


async def test_socks_reaches_a_listed_host_by_its_name() -> None:
    async with proxied() as (site, say):
        shown = await say(socks(b"site.test", site.port) + b"END")
        assert shown == b"\x05\x00\x05\x00\x00\x01" + bytes(6) + b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"
        assert site.got == [b"END"]
        for asked, code in (
            (socks(b"other.test", site.port), 2),
            (socks(b"site.test", 25), 2),
            (socks(b"site.test\0", site.port), 1),
            (socks(b"", site.port), 1),
            (socks(bytes([10, 0, 0, 1]), site.port, kind=1), 2),
            (socks(bytes(15) + b"\1", site.port, kind=4), 2),
            (socks(b"site.test", site.port, command=2), 7),
            (socks(b"", site.port, kind=9), 1),
        ):
            assert (await say(asked))[2:5] == bytes([5, code, 0]), asked
        assert await say(b"\x05\x01\x02") == b"\x05\xff", "passwords are not asked for"
        assert len(site.got) == 1
        assert site.asked == ["site.test"]


REFUSED = (
    (b"CONNECT other.test:PORT", 403),
    (b"CONNECT site.test:22", 403),
    (b"CONNECT sub.site.test:PORT", 403),
    (b"CONNECT site.test.evil.org:PORT", 403),
    (b"CONNECT 10.0.0.1:PORT", 403),
    (b"CONNECT [::1]:PORT", 403),
    (b"CONNECT [::ffff:127.0.0.1]:PORT", 403),
    (b"CONNECT 2130706433:PORT", 400),
    (b"CONNECT 127.1:PORT", 400),
    (b"CONNECT 0x7f000001:PORT", 400),
    (b"CONNECT site.test", 400),
    (b"CONNECT user@site.test:PORT", 400),
    (b"CONNECT other.test@site.test:PORT", 400),
    (b"CONNECT site.test\0.evil.org:PORT", 400),
    (b"CONNECT site.test%00:PORT", 400),
    (b"CONNECT site.test:PORT:80", 400),
    (b"CONNECT  site.test:PORT", 400),
    (b"CONNECT \xe3\x80\x82site.test:PORT", 400),
    (b"GET http://other.test:PORT/", 403),
    (b"GET http://site.test:PORT@other.test/", 400),
    (b"GET http://other.test#@site.test:PORT/", 400),
    (b"GET http://other.test\\@site.test:PORT/", 400),
    (b"GET https://site.test:PORT/", 400),
    (b"GET ftp://site.test:PORT/", 400),
    (b"GET /", 400),
    (b"GET http://site.test:PORT/ HTTP/1.1\r\nA: b\nHost: evil", 400),
    (b"GET http://site.test:PORT/ HTTP/1.1\r\n folded: b", 400),
    (b"GET http://site.test:PORT/ HTTP/1.1\r\nA: b\0", 400),
    (b"GET http://site.test:PORT/ HTTP/1.1\r\nA : b", 400),
    (b"PUT http://site.test:PORT/ HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 5", 400),
    (b"PUT http://site.test:PORT/ HTTP/1.1\r\nContent-Length: 0, 5", 400),
    (b"PUT http://site.test:PORT/ HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", 400),
    (b"PUT http://site.test:PORT/ HTTP/1.1\r\nContent-Length: 5\r\nConnection: Content-Length", 400),
    *(
        (b"PUT http://site.test:PORT/ HTTP/1.1\r\n" + header, 400)
        for header in (
            *(b"Content-Length: +5", b"Content-Length: 0x5", b"Content-Length: 5 5", b"Content-Length: \xb2"),
            *(b"Content-Length:", b"Content-Length: -0", b"Content-Length: " + b"9" * 19, b"Content_Length: 5"),
            *(b"Transfer-Encoding: xchunked", b"Transfer-Encoding: identity", b"Transfer-Encoding: gzip, chunked"),
            *(b"Transfer-Encoding:", b"Transfer_Encoding: chunked", b"Transfer-Encoding: chunked;a=b"),
            *(b"Content-Length: 5\r\nContent_Length: 6", b"A: b\nContent-Length: 5", b"A: b\rContent-Length: 5"),
            *(b"Content-Length: 5\r\n 6", b"Content-Length : 5", b"A: b\r\n" * 201 + b"C: d"),
        )
    ),
    (b"PUT http://site.test:PORT/ HTTP/1.0\r\nTransfer-Encoding: chunked", 400),
)


async def test_what_is_not_listed_or_not_clear_reaches_nobody() -> None:
    async with proxied() as (site, say):
        for request, status in REFUSED:
            head = request if b" HTTP/1." in request else request + b" HTTP/1.1"
            assert (await say(head + b"\r\n\r\n")).startswith(b"HTTP/1.1 %d " % status), request
        assert (site.got, site.asked) == ([], [])


async def test_one_clear_header_says_where_a_body_ends() -> None:
    for size in (b"Content-Length:\t3 ", b"content-length: 003", b"Transfer-Encoding: Chunked"):
        async with proxied() as (site, say):
            assert (await say(b"PUT http://site.test:PORT/ HTTP/1.1\r\n" + size + b"\r\n\r\nEND")).endswith(b"hello")
            assert size.replace(b"\t", b" ").strip() in site.got[0]


async def test_names_do_not_lead_to_addresses_that_are_not_public() -> None:
    async with proxied("site.test:PORT") as (site, say):
        for address in PRIVATE:
            site.found = [address]
            assert (await say(b"CONNECT site.test:PORT HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403 "), address
        assert site.got == []


async def test_a_listed_address_can_be_reached_as_it_is() -> None:
    async with proxied("127.0.0.1:PORT") as (site, say):
        assert (await say(b"CONNECT 127.0.0.1:PORT HTTP/1.1\r\n\r\nEND")).endswith(b"hello")
        assert (await say(b"CONNECT 127.0.0.2:PORT HTTP/1.1\r\n\r\nEND")).startswith(b"HTTP/1.1 403 ")
        assert site.asked == []


async def test_a_public_address_of_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "is_public", lambda address: True)
    async with proxied("site.test:PORT") as (site, say):
        assert (await say(b"CONNECT site.test:PORT HTTP/1.1\r\n\r\nEND")).startswith(b"HTTP/1.1 403 ")
        assert not site.got


async def test_an_unreachable_host_is_told_as_such() -> None:
    async with proxied("site.test:PORT", "127.0.0.1:1", "site.test:1") as (site, say):
        assert (await say(b"CONNECT site.test:1 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 502 ")
        site.found = ["no address"]
        assert (await say(b"CONNECT site.test:PORT HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 502 ")


async def test_slow_names_hold_up_no_lookup_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup, over = socket.getaddrinfo, Event()

    def slow(host: Any, *arguments: Any, **options: Any) -> Any:
        if ".test" in str(host):
            over.wait(20)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return lookup(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    allowed = AllowedHosts(["*.test"])
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(allowed.addresses, f"slow{number}.test", 443)
        await until_tasks_wait()
        with anyio.fail_after(5):
            assert await anyio.getaddrinfo("127.0.0.1", 80)
        tasks.cancel_scope.cancel()
    over.set()


async def test_a_host_that_resets_connections_does_not_end_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = anyio.connect_tcp

    async def connect_until_reset(address: str, port: int) -> SocketStream:
        stream = await connect(address, port)
        with suppress(OSError):
            for _ in range(10_000):
                stream.extra(SocketAttribute.raw_socket).getpeername()
                await anyio.sleep(0.001)
        return stream

    async def reset(self: Site, stream: SocketStream) -> None:
        stream.extra(SocketAttribute.raw_socket).setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        await stream.aclose()

    monkeypatch.setattr(Site, "serve", reset)
    async with proxied() as (site, say):
        connections = {site.port: connect_until_reset}
        monkeypatch.setattr(anyio, "connect_tcp", lambda host, port: connections.get(port, connect)(host, port))
        for _ in range(2):
            assert (await say(b"CONNECT site.test:PORT HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 502 ")


async def test_heads_are_bounded_in_size_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_HEAD_S", 0.2)
    async with proxied() as (site, say):
        endless = b"GET http://site.test:PORT/ HTTP/1.1\r\nX: " + b"x" * 100_000
        shown = await say(endless)
        assert shown == b"" or shown.startswith(b"HTTP/1.1 400 "), "the system may drop the answer with what came late"
        assert await say(b"CONNECT site") == b"", "it is closed in the end"
        assert not site.asked


async def test_connections_are_bounded_and_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_MOST_CONNECTIONS", 1)
    async with proxied() as (site, say):
        shown: list[bytes] = []

        async def ask() -> None:
            shown.append(await say(b"CONNECT site.test:PORT HTTP/1.1\r\n\r\nEND"))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)
        assert [each[-5:] for each in shown] == [b"hello"] * 5
        assert (len(site.got), site.most_open) == (5, 1)


# --- from within a box ---

_RUN = """
async def resolve(host, port):
    return ["127.0.0.1"]
async def main():
    port, *commands = sys.argv[1:]
    network = AllowedHosts([f"site.test:{port}", f"127.0.0.1:{port}"], resolve=resolve)
    async with BubblewrapSandbox(network=network) as box:
        print(json.dumps([(await box.aexecute(command)).output for command in commands]))
anyio.run(main)
"""
_IMPORTS = f"""{IMPORTS}
async def first():
    await (await anyio.connect_tcp("127.0.0.1", int(sys.argv[1]))).aclose()
anyio.run(first)
"""


async def in_box(account: str, port: int, *commands: str) -> list[str]:
    shown = await anyio.to_thread.run_sync(partial(output_as, account, _RUN, str(port), *commands, imports=_IMPORTS))
    found: list[str] = json.loads(shown)
    return found


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@asynccontextmanager
async def website(directory: Path) -> AsyncIterator[int]:
    """A web server on loopback that shows the files of a directory."""

    def begin() -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(directory)))
        Thread(target=server.serve_forever, daemon=True).start()
        return server

    def end() -> None:
        server.shutdown()
        server.server_close()

    server = await anyio.to_thread.run_sync(begin)
    try:
        yield server.server_address[1]
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(end)


@pytest.mark.needs("curl")
@accounts
async def test_programs_in_a_box_reach_listed_hosts_and_nothing_else(account: str, tmp_path: Path) -> None:
    def make() -> None:
        (tmp_path / "page").write_text("hello\n")

    await anyio.to_thread.run_sync(make)
    raw = "import socket; socket.create_connection(('{}', {}), 2)"
    async with website(tmp_path) as port:
        page = f"http://site.test:{port}/page"
        shown = await in_box(
            account,
            port,
            f"curl -sS {page}",
            f"curl -sS -p {page}",
            f"curl -sS -x socks5h://127.0.0.1:1080 {page}",
            f'python3 -c \'import urllib.request as r; print(r.urlopen("{page}").read().decode(), end="")\'',
            f"curl -sS http://other.test:{port}/page",
            f"curl -sS --noproxy '*' {page}; curl -sS --noproxy '*' http://127.0.0.1:{port}/page",
            f'python3 -c "{raw.format("127.0.0.1", port)}"',
            f'python3 -c "{raw.format("1.1.1.1", 443)}"',
        )
    assert shown[:4] == ["hello\n"] * 4
    assert "only listed hosts" in shown[4]
    assert all("hello" not in each and each for each in shown[5:])


@pytest.mark.needs("curl")
async def test_the_proxy_ends_with_its_command(tmp_path: Path) -> None:
    box = BubblewrapSandbox(tmp_path, network=["example.org"])
    with anyio.fail_after(30):
        async with box.astream_execute("echo begun; sleep 60") as run:
            async for chunk in run:
                assert chunk.text == "begun\n"
                break
        assert (await box.aexecute("curl -sS http://other.test/; sleep 60", timeout=2)).exit_code is None
        assert (await box.aexecute("echo one")).output == "one\n"


async def test_a_command_does_not_run_without_its_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_LISTEN", "raise SystemExit(1)")
    response = await BubblewrapSandbox(tmp_path, network=["example.org"]).aexecute("echo one > f")
    assert (response.exit_code, "its network cannot be set up" in response.output) == (None, True)
    assert not await anyio.to_thread.run_sync(os.listdir, tmp_path)


async def test_the_proxy_does_not_listen_beside_a_process_without_a_network_of_its_own() -> None:
    with pytest.raises(OSError, match="no network namespace"):
        await anyio.to_thread.run_sync(listen_beside, os.getpid())


async def test_programs_of_this_process_do_not_inherit_the_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def listen(process: int) -> socket.socket:
        listener = listen_beside(process)
        found.append(listener.get_inheritable())
        return listener

    monkeypatch.setattr(bubblewrap, "listen_beside", listen)
    assert (await BubblewrapSandbox(tmp_path, network=["example.org"]).aexecute("true")).exit_code == 0
    assert found == [False]
