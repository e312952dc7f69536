"""The network of commands as a list of hosts: a proxy on this side, which listens inside the box."""

import os
import re
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, Literal, TypeAlias

import anyio
import anyio.to_thread
from anyio import BrokenResourceError, ClosedResourceError, DelimiterNotFound, EndOfStream, IncompleteRead
from anyio.abc import ByteReceiveStream, SocketAttribute, SocketListener, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct

from deepfs.disk.programs import interpreter_parts, is_safe

# --- names and addresses ---

_AUTHORITY: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:@/\[\]]+))(?::([0-9]{1,5}))?")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LONGEST_NAME: Final = 253


def normal_host(host: str) -> str:
    """The one form of a host: a name in lower case without a last dot, or an address as `ipaddress` writes it.

    Raises ValueError if it is neither a name in ASCII nor an address, or an address in another form, such as `0x7f.1`.
    """
    if (address := _address(host)) is not None:
        return address
    name = host.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > _LONGEST_NAME or not all(map(_LABEL.fullmatch, labels)) or _NUMBER.fullmatch(labels[-1]):
        raise ValueError("it is no name of a host")
    return name


def _address(host: str) -> str | None:
    """An address as `ipaddress` writes it; None if the host is none. One with a zone, which is any text, is none."""
    with suppress(ValueError):
        return None if "%" in host else str(ip_address(host))
    return None


def _split(authority: str) -> tuple[str, int | None]:
    """The host, in brackets if it is an IPv6 address, and the port. Raises ValueError, also for user names."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise ValueError("it is no host with or without a port")
    port = int(match[3]) if match[3] else None
    if port is not None and not 0 < port < 1 << 16:
        raise ValueError("its port is out of range")
    return match[1] or match[2], port


_GLOBAL: Final = ip_network("2000::/3")
_SPECIAL: Final = [
    ip_network(block)
    for block in (
        "168.63.129.16/32",  # Metadata of Azure.
        "192.0.0.0/24",  # Among them the metadata of Oracle.
        "192.88.99.0/24",
        "2001::/23",  # Among them Teredo, which holds an IPv4 address; so do the next ones.
        "2002::/16",
        "3fff::/20",
    )
]


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address belongs to one host of the internet.

    The others are loopback, private, shared, link-local, multicast, reserved and unspecified ones, those that contain
    an IPv4 address (mapped, NAT64, 6to4, Teredo), and the metadata services of clouds.
    """
    if isinstance(address, IPv6Address) and address not in _GLOBAL:
        return False
    is_unicast = not (address.is_multicast or address.is_reserved or address.is_unspecified)
    return address.is_global and is_unicast and not any(address in block for block in _SPECIAL)


class _AllowedHost(Struct, frozen=True):
    host: str
    covers_beneath: bool
    """Whether it stands for the names beneath `host`, and not for `host` itself."""
    ports: frozenset[int]

    def covers(self, host: str, port: int) -> bool:
        is_covered = host.endswith(f".{self.host}") if self.covers_beneath else host == self.host
        return is_covered and port in self.ports


_PORTS: Final = frozenset({80, 443})


def _parse_host(text: str) -> _AllowedHost:
    if not isinstance(text, str):
        raise TypeError(f"hosts: {text!r} is no text")
    name = text.removeprefix("*.")
    if (address := _address(text)) is not None:
        return _AllowedHost(address, False, _PORTS)  # Also an IPv6 address without brackets.
    try:
        host, port = _split(name if name.isascii() else _in_ascii(name))
        return _AllowedHost(normal_host(host), name != text, frozenset({port}) if port else _PORTS)
    except ValueError as error:
        raise ValueError(f"hosts: {text!r} cannot be used: {error}") from None


def _in_ascii(name: str) -> str:
    """A name as the domain name system has it."""
    # Imported late: the import takes milliseconds, and few names need it.
    import idna

    host, mark, port = name.partition(":")
    return idna.encode(host, uts46=True).decode() + mark + port


Resolve: TypeAlias = Callable[[str, int], Awaitable[Iterable[str]]]


async def _look_up(host: str, port: int) -> list[str]:
    # In threads of their own: slow names must not hold up other lookups of the program, which share a few threads.
    found = await anyio.to_thread.run_sync(
        partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM),
        abandon_on_cancel=True,
        limiter=anyio.CapacityLimiter(1),
    )
    return [str(address[0]) for *_, address in found]


class AllowedHosts:
    """The hosts that commands in a sandbox may reach, each by TCP on some ports.

    A name is looked up once for each connection, and only public addresses are connected to: no loopback, private,
    link-local or multicast address, and no metadata service of a cloud, unless the address itself is in the list too.

    Args:
        hosts: Names (`"example.org"`), patterns for all names beneath one (`"*.example.org"`), and addresses. Each may
            have a port (`"example.org:8443"`, `"[2001:db8::1]:80"`); otherwise the ports are 80 and 443.
        resolve: Called with a name and a port, returns addresses as text or raises OSError; None asks the system.

    Raises:
        TypeError: If `hosts` is no list of texts.
        ValueError: If one of them is no host.
    """

    def __init__(self, hosts: Iterable[str], *, resolve: Resolve | None = None) -> None:
        if isinstance(hosts, str | bytes):
            raise TypeError("hosts: a list of texts is needed, not one text")
        self._given = list(hosts)
        self._entries = [_parse_host(text) for text in self._given]
        self._resolve = resolve or _look_up

    def __repr__(self) -> str:
        return f"AllowedHosts({self._given!r})"

    def allows(self, host: str, port: int) -> bool:
        """Whether the list has a host, without looking it up.

        Args:
            host: The name or address, as from `normal_host`.
            port: The port.
        """
        return any(entry.covers(host, port) for entry in self._entries)

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host that may be connected to.

        Args:
            host: The name or address, as from `normal_host`.
            port: The port.

        Returns:
            The addresses as text; none if the host is not in the list, or has no address that is allowed.

        Raises:
            OSError: If the name cannot be resolved.
        """
        if not self.allows(host, port):
            return []
        if _address(host) is not None:
            return [host]
        found = [ip_address(address) for address in await self._resolve(host, port)]
        return [
            str(address) for address in dict.fromkeys(found) if is_public(address) or self.allows(str(address), port)
        ]


# --- requests to the proxy ---

_Reason: TypeAlias = Literal["granted", "invalid", "refused", "unreachable", "unsupported"]


class _ProxyError(Exception):
    def __init__(self, reason: _Reason) -> None:
        super().__init__(reason)
        self.reason: _Reason = reason


class _Request(Struct, frozen=True):
    host: str
    port: int
    head: bytes = b""
    """What to send to the host first; if it is empty, the client is told that it is connected."""


_LONGEST_HEAD: Final = 32 * 1024
_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,20}) ([!-~]+) (HTTP/1\.[01])")
_URL: Final = re.compile(r"(?i:http)://([^/?#]+)([/?][^#]*)?")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]++):([\t -~\x80-\xff]*+)")
_MOST_HEADERS: Final = 200
_OF_ONE_HOP: Final = frozenset(
    {b"connection", b"host", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te", b"upgrade"}
)
_OF_THE_BODY: Final = {
    b"content-length": re.compile(rb"[0-9]{1,18}"),
    b"transfer-encoding": re.compile(rb"(?i:chunked)"),  # Programs of HTTP/1.0 do not know it.
}
"""A request has at most one of these, once, in this form; otherwise programs may differ on where its body ends."""

_HTTP: Final[Mapping[_Reason, str]] = {
    "granted": "200 Connection established",
    "invalid": "400 Bad Request",
    "refused": "403 Forbidden",
    "unreachable": "502 Bad Gateway",
}


def _http_answer(reason: _Reason) -> bytes:
    if reason == "granted":
        return f"HTTP/1.1 {_HTTP[reason]}\r\n\r\n".encode()
    told = b"The network of this sandbox allows only listed hosts with public addresses.\n" * (reason == "refused")
    return f"HTTP/1.1 {_HTTP[reason]}\r\nConnection: close\r\nContent-Length: {len(told)}\r\n\r\n".encode() + told


async def _http_request(begin: bytes, reader: BufferedByteReceiveStream) -> _Request:
    """Read a request. Raises ValueError or DelimiterNotFound if it cannot be understood."""
    first, *lines = (begin + await reader.receive_until(b"\r\n\r\n", _LONGEST_HEAD)).split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    headers = [_HEADER.fullmatch(line) for line in lines[: _MOST_HEADERS + 1]]
    if line is None or None in headers or len(headers) > _MOST_HEADERS:
        raise ValueError("it is no request")
    method, target, version = line.groups()
    if method == b"CONNECT":
        host, port = _split(target.decode())
        if port is None:
            raise ValueError("it has no port")
        return _Request(normal_host(host), port)
    return _parse_request(
        method, target.decode(), version, [(match[1], match[2].strip()) for match in headers if match]
    )


def _parse_request(method: bytes, url: str, version: bytes, headers: Sequence[tuple[bytes, bytes]]) -> _Request:
    """A request to forward to the host in its URL, which also gets the name that the URL has, and no other."""
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError("it is no URL of HTTP")
    given, port = _split(match[1])
    host = normal_host(given)
    path = match[2] or "/"
    name = f"[{host}]" if ":" in host else host
    named = [value.lower().split(b",") for key, value in headers if key.lower() == b"connection"]
    dropped = _OF_ONE_HOP.union(*(map(bytes.strip, names) for names in named))
    # Some servers take `_` for `-`.
    sizes = [pair for pair in headers if pair[0].lower().replace(b"_", b"-") in _OF_THE_BODY]
    if len(sizes) > 1 or not dropped.isdisjoint(_OF_THE_BODY) or not all(_is_clear(*pair, version) for pair in sizes):
        raise ValueError("it can be read in two ways where its body ends")
    kept = [b"%s: %s" % header for header in headers if header[0].lower() not in dropped]
    head = [
        b"%s %s %s" % (method, (path if path[0] == "/" else f"/{path}").encode(), version),
        f"Host: {name}{'' if port in (None, 80) else f':{port}'}".encode(),
        b"Connection: close",
        *kept,
    ]
    return _Request(host, port or 80, b"\r\n".join(head) + b"\r\n\r\n")


def _is_clear(name: bytes, value: bytes, version: bytes) -> bool:
    """Whether every program finds the end of the body by this header at the same place."""
    form = _OF_THE_BODY.get(name.lower())
    is_known = version == b"HTTP/1.1" or name.lower() == b"content-length"
    return form is not None and is_known and form.fullmatch(value) is not None


_SOCKS: Final = b"\x05"
_WITHOUT_PASSWORD, _NO_METHOD = 0x00, 0xFF
_CONNECT: Final = 1
_NAME: Final = 3
_ADDRESS_BYTES: Final = {1: 4, 4: 16}
_SOCKS_CODES: Final[Mapping[_Reason, int]] = {
    "granted": 0,
    "invalid": 1,
    "refused": 2,
    "unreachable": 4,
    "unsupported": 7,
}


def _socks_answer(reason: _Reason) -> bytes:
    return _SOCKS + bytes([_SOCKS_CODES[reason], 0, 1, *bytes(6)])


async def _socks_request(client: SocketStream, reader: BufferedByteReceiveStream) -> _Request:
    """Read a request of SOCKS5, of which the first byte has been read. Raises ValueError if it cannot be understood."""
    (count,) = await reader.receive_exactly(1)
    if _WITHOUT_PASSWORD not in await reader.receive_exactly(count or 1):
        await client.send(_SOCKS + bytes([_NO_METHOD]))
        raise EndOfStream
    await client.send(_SOCKS + bytes([_WITHOUT_PASSWORD]))
    _, command, _, kind = await reader.receive_exactly(4)
    if kind == _NAME:
        (size,) = await reader.receive_exactly(1)
        host = (await reader.receive_exactly(size)).decode("ascii") if size else ""
    elif kind in _ADDRESS_BYTES:
        host = str(ip_address(await reader.receive_exactly(_ADDRESS_BYTES[kind])))
    else:
        raise ValueError("it is no kind of address")
    port = int.from_bytes(await reader.receive_exactly(2))
    if command != _CONNECT:
        raise _ProxyError("unsupported")
    return _Request(normal_host(host), port)


# --- the proxy ---

_MOST_CONNECTIONS: Final = 32
"""Of one command at once; others wait."""
_MOST_ADDRESSES: Final = 4
_HEAD_S: Final = 15.0
_CONNECT_S: Final = 15.0
_ANSWER_S: Final = 5.0
_CHUNK: Final = 64 * 1024
_SHORTAGE_S: Final = 0.1
_ENDS: Final = (BrokenResourceError, ClosedResourceError, EndOfStream, IncompleteRead, OSError)
"""What ends a connection, TimeoutError among them."""


async def serve_proxy(listener: SocketListener, allowed: AllowedHosts) -> None:
    """Serve HTTP (`CONNECT` and requests for URLs) and SOCKS5 on one port, until this is cancelled."""
    turns = anyio.Semaphore(_MOST_CONNECTIONS)

    async def attend(client: SocketStream) -> None:
        try:
            async with client:
                with suppress(*_ENDS):
                    await _attend(client, allowed)
        finally:
            turns.release()

    async with anyio.create_task_group() as tasks:
        while True:
            await turns.acquire()
            while True:
                try:
                    client = await listener.accept()
                    break
                except OSError:  # The process has no descriptor left, for a while.
                    await anyio.sleep(_SHORTAGE_S)
            tasks.start_soon(attend, client)


async def _attend(client: SocketStream, allowed: AllowedHosts) -> None:
    """Connect one client with the host that it asks for, until both have said all."""
    reader, answer = BufferedByteReceiveStream(client), _http_answer
    try:
        with anyio.fail_after(_HEAD_S):
            begin = await reader.receive_exactly(1)
            if begin == _SOCKS:
                answer = _socks_answer
            request = await (_socks_request(client, reader) if begin == _SOCKS else _http_request(begin, reader))
        server = await _connect(request, allowed)
    except (_ProxyError, ValueError, DelimiterNotFound) as error:
        with anyio.move_on_after(_ANSWER_S):
            await client.send(answer(error.reason if isinstance(error, _ProxyError) else "invalid"))
        return
    async with server:
        await (server.send(request.head) if request.head else client.send(answer("granted")))
        await _relay(reader, client, server)


async def _connect(request: _Request, allowed: AllowedHosts) -> SocketStream:
    """A connection to the host, at an address that was checked. Raises _ProxyError."""
    with anyio.move_on_after(_CONNECT_S):
        try:
            addresses = await allowed.addresses(request.host, request.port)
        except Exception:  # The resolver is code of the caller, and may raise anything.
            raise _ProxyError("unreachable") from None
        if not addresses:
            raise _ProxyError("refused")
        for address in addresses[:_MOST_ADDRESSES]:
            with suppress(OSError):
                return await _connect_to(address, request.port, allowed)
    raise _ProxyError("unreachable")


async def _connect_to(address: str, port: int, allowed: AllowedHosts) -> SocketStream:
    """A connection to an address. Raises OSError, or _ProxyError for an address of this machine."""
    stream = await anyio.connect_tcp(address, port)
    try:
        # The socket itself: without a peer, since that has ended the connection already, this is an OSError.
        connected = stream.extra(SocketAttribute.raw_socket)
        is_own = connected.getsockname()[0] == connected.getpeername()[0]
        if is_own and not allowed.allows(address, port):
            raise _ProxyError("refused")  # A public address of this machine.
    except BaseException:
        await stream.aclose()
        raise
    return stream


async def _relay(reader: ByteReceiveStream, client: SocketStream, server: SocketStream) -> None:
    async with anyio.create_task_group() as tasks:

        async def pump(source: ByteReceiveStream, target: SocketStream) -> None:
            try:
                while True:
                    await target.send(await source.receive(_CHUNK))
            except EndOfStream:
                with suppress(*_ENDS):
                    await target.send_eof()
            except _ENDS:
                tasks.cancel_scope.cancel()

        tasks.start_soon(pump, reader, server)
        tasks.start_soon(pump, server, client)


# --- inside the box ---

_PORT: Final = 1080
_HERE: Final = f"http://127.0.0.1:{_PORT}"
PROXY_VARIABLES: Final[Mapping[str, str]] = {
    written: value
    for name, value in (
        *((f"{scheme}_proxy", _HERE) for scheme in ("http", "https", "all")),
        ("no_proxy", "localhost,127.0.0.1,::1"),
    )
    for written in (name, name.upper())
}
"""The variables that tell programs in a box of the proxy."""

# It enters the user namespace that owns the network namespace, then that one. In it there is only the loopback device.
_LISTEN: Final = """
import ctypes, fcntl, os, socket, sys
namespace, channel, port = map(int, sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
def enter(descriptor, kind):
    if libc.setns(descriptor, kind):
        raise OSError(ctypes.get_errno(), "setns")
enter(fcntl.ioctl(namespace, 0xB701), 0x10000000)
enter(namespace, 0x40000000)
listener = socket.socket()
listener.bind(("0.0.0.0", port))
listener.listen(64)
socket.send_fds(socket.socket(fileno=channel), [b"x"], [listener.fileno()])
"""
_START_S: Final = 20.0


def listen_beside(process: int) -> socket.socket:
    """A socket that listens at the address in `PROXY_VARIABLES`, in the network namespace of a process.

    The namespace is one that this user made; OSError if the process has ended, or shares that of this one. A program
    does it, since only a process without threads can enter a user namespace; SubprocessError if it fails. Blocks.
    """
    namespace = os.open(f"/proc/{process}/ns/net", os.O_RDONLY)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            if os.path.samestat(os.fstat(namespace), os.stat("/proc/self/ns/net")):
                raise OSError("it has no network namespace of its own")
            descriptors = (namespace, theirs.fileno())
            line = [_interpreter(), "-I", "-S", "-c", _LISTEN, *map(str, descriptors), str(_PORT)]
            subprocess.run(line, pass_fds=descriptors, timeout=_START_S, check=True, capture_output=True)
        finally:
            os.close(namespace)
        _, sockets, _, _ = socket.recv_fds(ours, 1, 1)
    listener = socket.socket(fileno=sockets[0])
    listener.set_inheritable(False)  # Unlike other descriptors of Python, received ones are inheritable.
    return listener


def _interpreter() -> str:
    """A Python that this user may start; after a change of accounts, the one of this process may be out of reach.

    Raises OSError if commands could change all that there are.
    """
    for program, *rest in filter(None, (interpreter_parts(), ("/usr/bin/python3",))):
        if os.access(program, os.X_OK) and all(map(is_safe, (program, *rest))):
            return program
    raise OSError("there is no Python that commands cannot change")
