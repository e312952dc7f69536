"""A hostile client: bad arguments, wrong types, huge inputs, ways out of the tree."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from anyio import Path as AsyncPath
from mcp import Client
from mcp.shared.exceptions import MCPError

from deepfs import FilesystemBackend
from deepfs.mcp import McpSettings, create_server

pytestmark = pytest.mark.anyio

SECRET: Final = "what lies outside"
WAYS_OUT: Final = (
    "/../outside.txt",
    "../outside.txt",
    "/d/../../outside.txt",
    "/..\\outside.txt",
    "/%2e%2e/outside.txt",
    "/..%2foutside.txt",
    "/link.txt",
    "/up/outside.txt",
    "file:///../outside.txt",
    "~/outside.txt",
    "C:\\outside.txt",
    "/\0/../outside.txt",
    "/a\0.txt",
    "/" + "a/" * 3_000,
    "/" + "a" * 10_000,
    "",
    "\u202e/txt.a",
)
VALUES: Final[tuple[Any, ...]] = (None, 5, -1, 1e308, True, [], {}, ["/a.txt"], {"path": "/a.txt"}, "x" * 100_000)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file beside the served directory, to which links in it lead."""
    root = tmp_path / "served"
    (root / "d").mkdir(parents=True)
    (root / "a.txt").write_text("one\n")
    file = tmp_path / "outside.txt"
    file.write_text(SECRET)
    (root / "link.txt").symlink_to(file)
    (root / "up").symlink_to(tmp_path)
    return file


@pytest.fixture(params=[False, True], ids=["own names", "reference names"])
async def client(request: pytest.FixtureRequest, outside: Path, anyio_backend: str) -> AsyncIterator[Client]:
    backend = FilesystemBackend(str(outside.parent / "served"))
    server = create_server(backend, McpSettings(reference_names=request.param, apply_patch=not request.param))
    async with Client(server) as client:
        yield client
        assert not (await client.call_tool("list_directory" if request.param else "ls", {"path": "/"})).is_error
    # Nothing beside the tree was read, changed or made.
    assert await AsyncPath(outside).read_text() == SECRET
    assert {each.name async for each in AsyncPath(outside.parent).iterdir()} == {"outside.txt", "served"}


def texts(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments for a tool, all of its needed ones."""
    kinds: dict[str, Any] = {"string": "/a.txt", "array": [], "integer": 1, "boolean": False}
    return {name: kinds.get(schema["properties"][name].get("type"), "/a.txt") for name in schema.get("required", [])}


async def test_no_tool_leads_out_of_the_tree(client: Client) -> None:
    for tool in (await client.list_tools()).tools:
        needed = texts(tool.input_schema)
        paths = [name for name in tool.input_schema.get("properties", {}) if name in PATHS]
        for name in paths:
            for way in WAYS_OUT:
                for given in ([way], way):
                    result = await client.call_tool(tool.name, {**needed, name: given})
                    assert SECRET not in str(result)
                    assert "Traceback" not in str(result)


PATHS: Final = {"path", "paths", "file_path", "source", "destination"}


async def test_wrong_arguments_are_errors_with_a_code(client: Client) -> None:
    for tool in (await client.list_tools()).tools:
        schema = tool.input_schema
        for name in schema.get("properties", {}):
            for value in VALUES:
                result = await client.call_tool(tool.name, {**texts(schema), name: value})
                if result.is_error:
                    assert result.structured_content["error"]["code"] != "backend_error", (tool.name, name, value)
    assert (await client.call_tool("no_such_tool", {"x": "y" * 1_000})).is_error
    assert (await client.call_tool("", {})).is_error
    many = {f"argument {number}": number for number in range(10_000)}
    result = await client.call_tool("write_file", many)
    assert result.is_error
    assert len(str(result)) < 5_000


async def test_huge_inputs_are_refused(client: Client) -> None:
    ten_megabytes = "x" * 10_000_000
    nested: Any = "deep"
    for _ in range(100):
        nested = [nested]
    for arguments in (
        {"file_path": "/big.txt", "path": "/big.txt", "content": ten_megabytes},
        {"file_path": ten_megabytes, "path": ten_megabytes, "content": ""},
        {ten_megabytes: ""},
        {"content": nested},
    ):
        result = await client.call_tool("write_file", arguments)
        assert result.is_error
        assert len(str(result)) < 10_000
    assert not (await client.call_tool("write_file", {"path": "/ok.txt", "content": "y" * 1_000_000})).is_error


async def test_resources_lead_nowhere_else(client: Client, outside: Path) -> None:
    for way in (
        *WAYS_OUT,
        "%2e%2e/outside.txt",
        "..%2Foutside.txt",
        "%252e%252e/outside.txt",
        "%00",
        "%ff",
        "up%2foutside.txt",
    ):
        for prefix in ("deepfs:///", "deepfs://", "deepfs:", "file:///", f"file://{outside}#", ""):
            with pytest.raises(MCPError) as caught:
                await client.read_resource(prefix + way.lstrip("/"))
            assert SECRET not in str(caught.value.error)
            assert str(outside.parent) not in str(caught.value.error.data).replace(f"{outside}#", "")
    listed = await client.list_resources()
    assert "outside.txt" not in {resource.name for resource in listed.resources}
    for cursor in ("", "\0", "x" * 100_000, "/../"):
        await client.list_resources(cursor=cursor)
