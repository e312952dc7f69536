"""Clients of MCP servers, in this process and over real transports."""

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import jsonschema  # noqa: F401  # The client would import it on the event loop, where it reads files.
from anyio import fail_after, open_process
from anyio.streams.text import TextReceiveStream
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CallToolResult

from deepfs.backends.protocol import BackendProtocol
from deepfs.mcp import McpSettings, create_server

__all__ = ["COMMAND", "connected", "http_server", "mcp_over_http", "text_of"]

COMMAND: Final = [sys.executable, "-m", "deepfs", "mcp"]
_SECONDS: Final = 30


@asynccontextmanager
async def connected(
    backend: BackendProtocol, settings: McpSettings | None = None, **options: Any
) -> AsyncIterator[Client]:
    """The official client of a server in this process. It checks results by the schemas of the tools."""
    async with Client(create_server(backend, settings, **options)) as client:
        yield client


def text_of(result: CallToolResult) -> str:
    """The text of a result that has one block, a text."""
    [block] = result.content
    assert block.type == "text"
    return block.text


@asynccontextmanager
async def http_server(*arguments: str, descriptors: int | None = None, **environment: str) -> AsyncIterator[str]:
    """The URL of a server in a process of its own, at a free port of the loopback interface.

    `descriptors` is how many the process may have.
    """
    command = [*COMMAND, *arguments, "--transport", "http", "--port", "0"]
    if descriptors is not None:
        command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
    async with await open_process(command, stderr=-1, env={**os.environ, **environment}) as process:
        try:
            assert process.stderr is not None
            with fail_after(_SECONDS):
                told = ""
                async for part in TextReceiveStream(process.stderr):
                    told += part
                    if "\n" in told:
                        break
            yield told.split()[-1]
        finally:
            process.terminate()


@asynccontextmanager
async def mcp_over_http(url: str, token: str, mode: str = "auto") -> AsyncIterator[Client]:
    """The official client over streamable HTTP."""
    async with (
        create_mcp_http_client(headers={"Authorization": f"Bearer {token}"}) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


INITIALIZE: Final = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
)
"""The first message of a client."""
