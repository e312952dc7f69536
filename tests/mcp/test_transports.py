"""The command `deepfs mcp` over stdio and HTTP, with the official client, and the settings of both."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from anyio import BrokenResourceError, EndOfStream, connect_tcp, fail_after, move_on_after, open_process
from anyio.abc import SocketStream
from anyio.streams.text import TextReceiveStream
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from rich.pretty import pretty_repr
from starlette.applications import Starlette

from deepfs import MemoryBackend
from deepfs.mcp import HttpSettings, McpSettings, ServerLimits, StaticTokens, create_server, http_app, serve
from deepfs.mcp.serving import open_files
from deepfs.mcp.settings import settings_from
from support.mcp_clients import COMMAND, INITIALIZE, http_server, mcp_over_http, text_of

pytestmark = pytest.mark.anyio

TOKEN: Final = "a-token-of-many-characters"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The HTTP server and the processes of the SDK belong to asyncio."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_blocking() -> None:
    """Starting a process blocks the event loop on asyncio. The servers run in processes of their own."""


@pytest.fixture
def tree(tmp_path: Path) -> str:
    """A TOML file of a tree with rules and a token, of which it knows the digest."""
    (tmp_path / "files/secret").mkdir(parents=True)
    (tmp_path / "files/a.txt").write_text("one\n")
    (tmp_path / "files/secret/s.txt").write_text("s\n")
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    file = tmp_path / "tree.toml"
    file.write_text(f"""
        url = "./files"
        [[permissions]]
        operations = ["read", "write"]
        paths = ["/secret/**"]
        [mcp]
        name = "notes"
        [mcp.http]
        tokens = ["sha256:{digest}"]
        max_request_bytes = 10_000
    """)
    return str(file)


# --- stdio -----------------------------------------------------------------------------------------------------------


async def test_stdio_serves_a_tree(tree: str, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        parameters = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "--config", tree])
        async with Client(stdio_client(parameters, errlog=log), mode="legacy") as client:
            assert client.server_info is not None
            assert client.server_info.name == "notes"
            assert text_of(await client.call_tool("read_file", {"file_path": "/a.txt"})) == "1\tone"
            denied = await client.call_tool("read_file", {"file_path": "/secret/s.txt"})
            assert denied.structured_content["error"]["code"] == "permission_denied"
            assert str(tmp_path) not in text_of(await client.call_tool("read_file", {"file_path": "/none"}))
            assert [each.name for each in (await client.list_resources()).resources] == ["a.txt"]


async def test_a_request_with_half_a_surrogate_pair_is_answered(tree: str) -> None:
    """It is valid JSON. The SDK cannot read it, and would leave its client waiting."""
    half = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {"name": "ls", "arguments": {"path": "/\ud800"}},
    }
    async with await open_process([*COMMAND, "--config", tree], stderr=None) as process:
        assert process.stdin
        assert process.stdout
        for message in (INITIALIZE, "no JSON", '{"jsonrpc": "2.0", "id": 5}', json.dumps(half)):
            await process.stdin.send(f"{message}\n".encode())
        answers = ""
        with fail_after(60):
            async for part in TextReceiveStream(process.stdout):
                answers += part
                if answers.count("\n") == 2:
                    break
        process.terminate()
    answer = json.loads(answers.splitlines()[1])
    assert answer["id"] == 7
    assert "cannot be read" in answer["error"]["message"]


over_http = pytest.mark.needs("mcp>=2.2")


# --- HTTP ------------------------------------------------------------------------------------------------------------


@over_http
async def test_http_asks_for_a_token_and_tells_changes(tree: str) -> None:
    async with http_server("--config", tree) as url:
        accepted = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        known = {**accepted, "authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient() as http:

            async def status(headers: dict[str, str], content: str = INITIALIZE) -> int:
                return (await http.post(url, headers=headers, content=content)).status_code

            assert await status(accepted) == 401
            assert await status({**accepted, "authorization": "Bearer another-token-of-many"}) == 401
            assert await status({**known, "host": "evil.example"}) == 421
            assert await status({**known, "origin": "http://evil.example"}) == 403
            assert await status(known, json.dumps({"x": "y" * 10_000})) == 413
            assert await status(known) == 200
        for mode in ("auto", "legacy"):
            async with mcp_over_http(url, TOKEN, mode) as client:
                result = await client.call_tool("read_file", {"file_path": "/a.txt"})
                assert result.structured_content["content"] == "one\n"
                assert (await client.read_resource("deepfs:///a.txt")).contents[0].text == "one\n"
        async with client_listening(url) as (client, events):
            await client.call_tool("edit_file", {"file_path": "/a.txt", "old_string": "one", "new_string": "1"})
            with fail_after(15):
                assert (await anext(events)).uri == "deepfs:///a.txt"


HALF: Final = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX: "
"""The beginning of a request, without a token."""
SLOW: Final = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n{"
"""A request without a token, of whose body little is sent."""


@over_http
async def test_half_requests_use_up_nothing(tree: str) -> None:
    append(tree, "request_timeout = 2\n")
    async with http_server("--config", tree, descriptors=300) as url, AsyncExitStack() as stack:
        for number in range(450):
            stream = await connect_tcp("127.0.0.1", port_of(url))
            stack.push_async_callback(stream.aclose)
            with suppress(BrokenResourceError):
                await stream.send(HALF if number % 2 else SLOW)
        # The timer ends all of them, so that the server answers again.
        answer = None
        async with httpx2.AsyncClient() as http:
            while answer is None:
                with suppress(httpx2.TransportError):
                    answer = await http.post(url, content=INITIALIZE)
        assert answer.status_code == 401


@over_http
async def test_a_request_that_comes_byte_by_byte_ends(tree: str) -> None:
    append(tree, "request_timeout = 0.5\n")
    async with http_server("--config", tree) as url:
        for begun in (b"", HALF, SLOW):
            async with await connect_tcp("127.0.0.1", port_of(url)) as stream:
                with pytest.raises((EndOfStream, BrokenResourceError)):
                    await send_slowly(stream, begun)


@over_http
async def test_connections_beyond_the_bound_are_refused(tree: str) -> None:
    append(tree, "max_connections = 1\n")
    async with (
        http_server("--config", tree) as url,
        await connect_tcp("127.0.0.1", port_of(url)) as first,
        await connect_tcp("127.0.0.1", port_of(url)) as second,
    ):
        with pytest.raises((EndOfStream, BrokenResourceError)):
            await second.receive()
        await first.send(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await first.receive()).startswith(b"HTTP/1.1 401")


def append(file: str, text: str) -> None:
    Path(file).write_text(Path(file).read_text() + text)


async def send_slowly(stream: SocketStream, begun: bytes) -> None:
    await stream.send(begun)
    while True:
        with move_on_after(0.05):
            await stream.receive()
        await stream.send(b"x" if begun else b"")


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


@asynccontextmanager
async def client_listening(url: str) -> AsyncIterator[tuple[Client, Any]]:
    async with (
        mcp_over_http(url, TOKEN) as client,
        client.listen(resource_subscriptions=["deepfs:///a.txt"]) as events,
    ):
        yield client, events


# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_are_checked() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tols": []}, "unknown field `tols`"),
        ({"limits": {"max_calls": 0}}, ">= 1"),
        ({"http": {"port": 70_000}}, "<= 65535"),
        ({"http": {"tokens": "hush"}}, "Expected `array`"),
        ({"http": {"path": "mcp"}}, "regex"),
        ({"allowed_directories": []}, "allowed_directories is empty"),
    ]
    for table, message in wrong:
        with pytest.raises(ValueError, match=message) as caught:
            settings_from(table)
        assert "hush" not in str(caught.value)
    with pytest.raises(ValueError, match=">= 1"):
        create_server(MemoryBackend(), McpSettings(limits=ServerLimits(max_calls=0)))


async def test_unsafe_servers_do_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for http, message in [
        (HttpSettings(host="192.0.2.1"), "set tokens for the server, or allow_anonymous"),
        (HttpSettings(host="0.0.0.0", tokens=[TOKEN]), "name the hosts in allowed_hosts"),
        (HttpSettings(tokens=["short"]), "needs 16 characters"),
        (HttpSettings(tokens=["sha256:abc"]), "64 hexadecimal digits"),
        (HttpSettings(port=-1), ">= 0"),
    ]:
        with pytest.raises(ValueError, match=message) as caught:
            await serve(MemoryBackend(), McpSettings(http=http), transport="http")
        assert "short" not in str(caught.value)
    monkeypatch.setenv("DEEPFS_MCP_TOKEN", "")
    async with open_files([str(tmp_path)]) as (backend, settings):
        with pytest.raises(ValueError, match="needs 16 characters"):
            await serve(backend, settings, transport="http")


async def test_tokens() -> None:
    tokens = StaticTokens([TOKEN, f"sha256:{hashlib.sha256(b'the second token').hexdigest()}"])
    first, second = await tokens.verify_token(TOKEN), await tokens.verify_token("the second token")
    assert first
    assert second
    assert first.client_id != second.client_id
    for wrong in ("", TOKEN[:-1], f"{TOKEN} ", "sha256:" + hashlib.sha256(TOKEN.encode()).hexdigest(), "\udcff"):
        assert await tokens.verify_token(wrong) is None
    assert TOKEN not in str(vars(tokens))
    settings = McpSettings(http=HttpSettings(tokens=[TOKEN]))
    for shown in (repr(settings), pretty_repr(settings)):
        assert TOKEN not in shown
        assert "port=8000" in shown


@over_http
async def test_an_application_is_mounted() -> None:
    app = http_app(create_server(MemoryBackend(), token_verifier=StaticTokens([TOKEN])))
    assert isinstance(app, Starlette)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.post("/mcp", content=INITIALIZE)).status_code == 401


@over_http
async def test_any_host_does_not_mean_any_origin() -> None:
    settings = HttpSettings(allowed_hosts=["*"], allowed_origins=["https://app.example", "http://localhost:*"])
    app = http_app(create_server(MemoryBackend(), token_verifier=StaticTokens([TOKEN])), settings)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://any.example") as http:
        for origin, status in (
            ("http://evil.example", 403),
            ("null", 403),
            ("https://app.example", 401),
            ("http://localhost:3000", 401),
        ):
            assert (await http.post("/mcp", content=INITIALIZE, headers={"origin": origin})).status_code == status


async def test_http_needs_a_release_that_bounds_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(self: object, *, transport_security: object = None) -> None: ...

    monkeypatch.setattr("mcp.server.mcpserver.MCPServer.streamable_http_app", older)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'mcp>=2\.2'"):
        await serve(MemoryBackend(), transport="http")


# --- the command -----------------------------------------------------------------------------------------------------


async def test_what_a_command_names(tmp_path: Path, tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPFS_MCP_TOKEN", TOKEN)
    directory = str(tmp_path / "files")
    async with open_files([directory]) as (backend, settings):
        assert (await backend.aread("/a.txt")).ok
        assert settings.http.tokens == [TOKEN]
    async with open_files([directory], reference_names=True) as (backend, settings):
        assert (await backend.aread(f"{directory}/a.txt")).ok
        assert settings.allowed_directories == [directory]
    async with open_files([], on=f"tree://{tree}") as (_, settings):
        assert settings.name == "notes"
        assert settings.http.tokens != [TOKEN]
    async with open_files(["memory://"]) as (backend, _):
        assert isinstance(backend, MemoryBackend)


async def test_what_cannot_be_served() -> None:
    wrong: list[tuple[list[str], str | None]] = [
        ([], None),
        (["."], "memory://"),
        (["memory://", "memory://"], None),
        (["memory://#/notes"], None),
        (["/no/such/directory"], None),
    ]
    for places, on in wrong:
        with pytest.raises((ValueError, NotADirectoryError)):
            async with open_files(places, on=on):
                pass
