"""Files as resources: contents, pages, permissions, and events of changes."""

import base64
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after
from mcp.server.subscriptions import ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPError

from deepfs import CompositeBackend, FilesystemBackend, FilesystemPermission, MemoryBackend, PermissionedBackend
from deepfs.mcp import McpSettings, ServerLimits
from support.mcp_clients import connected

pytestmark = pytest.mark.anyio


async def test_contents_are_text_or_bytes_with_their_type() -> None:
    backend = MemoryBackend()
    await backend.awrite("/notes/a b#1?é(x).md", "# hi\n")
    await backend.aupload_files([("/x.bin", b"\0\xff"), ("/latin.txt", b"caf\xe9")])
    async with connected(backend) as client:
        listed = {resource.name: resource for resource in (await client.list_resources()).resources}
        note = listed["notes/a b#1?é(x).md"]
        assert note.uri == "deepfs:///notes/a%20b%231%3F%C3%A9(x).md"
        assert (note.mime_type, note.size) == ("text/markdown", 5)
        [content] = (await client.read_resource(note.uri)).contents
        assert (content.text, content.mime_type) == ("# hi\n", "text/markdown")
        [content] = (await client.read_resource("deepfs:///latin.txt")).contents
        assert base64.b64decode(content.blob) == b"caf\xe9"
        [template] = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "deepfs:///{+path}"


async def test_the_list_has_pages_and_an_end() -> None:
    backend = MemoryBackend()
    await backend.aupload_files([(f"/{number:03}.txt", b"") for number in range(300)])
    async with connected(backend, McpSettings(limits=ServerLimits(max_listed=250))) as client:
        names, cursor = list[str](), None
        while True:
            page = await client.list_resources(cursor=cursor)
            assert len(page.resources) <= 100
            names += [resource.name for resource in page.resources]
            if (cursor := page.next_cursor) is None:
                break
    assert names == [f"{number:03}.txt" for number in range(250)]


async def test_what_cannot_be_read_has_a_code() -> None:
    backend = MemoryBackend()
    await backend.aupload_files([("/secret/s.txt", b"s"), ("/big.txt", b"x" * 101), ("/a.txt", b"")])
    rules = [FilesystemPermission(["read", "write"], ["/secret/**"], "deny")]
    settings = McpSettings(limits=ServerLimits(max_file_bytes=100))
    async with connected(PermissionedBackend(backend, rules), settings) as client:
        assert [resource.name for resource in (await client.list_resources()).resources] == ["a.txt", "big.txt"]
        for path, code in [
            ("secret/s.txt", "permission_denied"),
            ("secret/%73.txt", "permission_denied"),
            ("x/../secret/s.txt", "invalid_path"),
            ("none", "file_not_found"),
            ("secret", "permission_denied"),
            ("big.txt", "too_large"),
        ]:
            with pytest.raises(MCPError) as caught:
                await client.read_resource(f"deepfs:///{path}")
            assert caught.value.error.data["error"]["code"] == code, path


# --- events ----------------------------------------------------------------------------------------------------------


async def events_until(subscription: Any, wanted: set[object]) -> set[object]:
    """The events up to the last wanted one."""
    seen: set[object] = set()
    with fail_after(15):
        async for event in subscription:
            seen.add(event)
            if wanted <= seen:
                break
    return seen


async def test_changes_by_anyone_are_told(tmp_path: Path) -> None:
    backend = FilesystemBackend(str(tmp_path))
    await backend.awrite("/a.txt", "one")
    async with connected(backend) as client, connected(backend) as other:
        listening = client.listen(resources_list_changed=True, resource_subscriptions=["deepfs:///a.txt"])
        async with listening as subscription:
            await other.call_tool("write_file", {"file_path": "/a.txt", "content": "2", "overwrite": True})
            updated = ResourceUpdated("deepfs:///a.txt")
            assert await events_until(subscription, {updated}) == {updated}
            await backend.awrite("/new.txt", "made elsewhere")
            await events_until(subscription, {ResourcesListChanged()})


async def test_events_hold_to_the_rules() -> None:
    backend = MemoryBackend()
    rules = [FilesystemPermission(["read", "write"], ["/secret/**"], "deny")]
    uris = ["deepfs:///secret/s.txt", "deepfs:///a.txt"]
    async with (
        connected(PermissionedBackend(backend, rules)) as client,
        client.listen(resource_subscriptions=uris) as subscription,
    ):
        await backend.awrite("/secret/s.txt", "s")
        await backend.awrite("/a.txt", "a")
        assert await events_until(subscription, {ResourceUpdated(uris[1])}) == {ResourceUpdated(uris[1])}


class Unwatched(MemoryBackend):
    capabilities = MemoryBackend.capabilities.__class__()


async def test_without_watches_nobody_listens() -> None:
    for backend in (Unwatched(), CompositeBackend(MemoryBackend(), {"/u/": Unwatched()})):
        async with connected(backend) as client:
            assert not client.server_capabilities.resources.subscribe
            with pytest.raises(MCPError):
                async with client.listen(resources_list_changed=True):
                    pass
