"""The tools of the reference filesystem server: the calls that its documentation describes, and their results."""

import base64
import json
import os
from pathlib import Path
from typing import Any, Final

import pytest
from anyio import Path as AsyncPath
from mcp_types import CallToolResult

from deepfs import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.mcp import McpSettings, ServerLimits
from deepfs.mcp.reference import at_own_paths
from support.mcp_clients import connected, text_of

pytestmark = pytest.mark.anyio

# By the table in the README of the reference server: read-only, idempotent, destructive.
READS: Final = (True, None, None)
ANNOTATIONS: Final = {
    "read_file": READS,
    "read_text_file": READS,
    "read_media_file": READS,
    "read_multiple_files": READS,
    "write_file": (False, True, True),
    "edit_file": (False, False, True),
    "create_directory": (False, True, False),
    "list_directory": READS,
    "list_directory_with_sizes": READS,
    "directory_tree": READS,
    "move_file": (False, False, True),
    "search_files": READS,
    "get_file_info": READS,
    "list_allowed_directories": READS,
}


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    """A directory that a client knows by its path on this machine."""
    root = tmp_path / "projects"
    (root / "src/deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "a.txt").write_text("one\ntwo\nthree\n")
    (root / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    (root / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (root / "big.bin").write_bytes(bytes(2_000))
    (root / "src/m.py").write_text("def f():\n    if x:\n        return 1\n    return 2\n")
    (root / "src/deep/n.md").write_text("```\ncode\n```\n")
    os.utime(root / "a.txt", (1_700_000_000, 1_700_000_000))
    (tmp_path / "outside.txt").write_text("secret")
    (root / "link.txt").symlink_to(tmp_path / "outside.txt")
    return root


class Calls:
    def __init__(self, client: Any, root: Path) -> None:
        self._client, self.root = client, str(root)

    async def __call__(self, name: str, **arguments: Any) -> CallToolResult:
        result: CallToolResult = await self._client.call_tool(name, arguments)
        return result

    async def text(self, name: str, path: str = "", **arguments: Any) -> str:
        """The text of a successful call about `path` beneath the root; its data is the same."""
        result = await self(name, **({"path": f"{self.root}{path}"} if path != "-" else {}), **arguments)
        assert not result.is_error, text_of(result)
        assert result.structured_content == {"content": text_of(result)}
        return text_of(result)


def reference(directory: Path, **options: Any) -> tuple[BackendProtocol, McpSettings]:
    allowed = [str(directory)]
    return at_own_paths(allowed), McpSettings(reference_names=True, allowed_directories=allowed, **options)


async def test_tools_have_the_names_and_annotations_of_the_reference(projects: Path) -> None:
    async with connected(*reference(projects)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    told = {name: tool.annotations for name, tool in tools.items()}
    assert {
        name: (each.read_only_hint, each.idempotent_hint, each.destructive_hint) for name, each in told.items() if each
    } == ANNOTATIONS
    assert all(each and each.open_world_hint is False for each in told.values())


async def test_reading(projects: Path) -> None:
    async with connected(*reference(projects)) as client:
        calls = Calls(client, projects)
        assert await calls.text("read_file", "/a.txt") == "one\ntwo\nthree\n"
        assert await calls.text("read_text_file", "/a.txt", head=2) == "one\ntwo"
        # As there, the end of the last line counts as a line.
        assert await calls.text("read_text_file", "/a.txt", tail=2) == "three\n"
        assert await calls.text("read_text_file", "/crlf.txt") == "one\r\ntwo\r\n"
        assert (await calls("read_text_file", path=f"{projects}/a.txt", head=1, tail=1)).is_error
        several = await calls.text("read_multiple_files", "-", paths=[f"{projects}/a.txt", f"{projects}/none"])
        first, second = several.split("\n---\n")
        assert first == f"{projects}/a.txt:\none\ntwo\nthree\n\n"
        assert second.startswith(f"{projects}/none: Error - File '{projects}/none' not found")
        media = await calls("read_media_file", path=f"{projects}/p.png")
        data = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
        assert media.structured_content == {"content": [{"type": "image", "data": data, "mimeType": "image/png"}]}
        [block] = (await calls("read_media_file", path=f"{projects}/big.bin")).content
        assert block.resource.uri == f"file://{projects}/big.bin"


async def test_writing_and_editing(projects: Path) -> None:
    async with connected(*reference(projects)) as client:
        calls = Calls(client, projects)
        new = f"{projects}/new.txt"
        for content in ("1\n", "2\n"):
            assert await calls.text("write_file", "/new.txt", content=content) == f"Successfully wrote to {new}"
        edits = [{"oldText": "two", "newText": "2"}, {"oldText": "three", "newText": "3"}]
        diff = await calls.text("edit_file", "/a.txt", edits=edits, dryRun=True)
        path = f"{projects}/a.txt"
        assert diff == (
            f"```diff\nIndex: {path}\n{'=' * 67}\n--- {path}\toriginal\n+++ {path}\tmodified\n"
            "@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\n+3\n```\n\n"
        )
        assert await AsyncPath(projects / "a.txt").read_text() == "one\ntwo\nthree\n"
        assert await calls.text("edit_file", "/a.txt", edits=edits) == diff
        assert await AsyncPath(projects / "a.txt").read_text() == "one\n2\n3\n"
        fenced = await calls.text("edit_file", "/src/deep/n.md", edits=[{"oldText": "code", "newText": "kode"}])
        assert fenced.startswith("````diff\n")
        await calls.text("edit_file", "/crlf.txt", edits=[{"oldText": "one\ntwo", "newText": "1\n2"}])
        assert await AsyncPath(projects / "crlf.txt").read_bytes() == b"1\r\n2\r\n"
        loose = [{"oldText": "if x:\nreturn 1", "newText": "if y:\n    return 3"}]
        await calls.text("edit_file", "/src/m.py", edits=loose)
        assert await AsyncPath(projects / "src/m.py").read_text() == "def f():\n    if y:\n    return 3\n    return 2\n"
        failed = await calls("edit_file", path=path, edits=[{"oldText": "absent", "newText": ""}])
        assert "absent" in text_of(failed)
        assert failed.is_error


async def test_directories(projects: Path) -> None:
    async with connected(*reference(projects)) as client:
        calls = Calls(client, projects)
        for _ in range(2):
            made = await calls.text("create_directory", "/x/y")
            assert made == f"Successfully created directory {projects}/x/y"
        assert await AsyncPath(projects / "x/y").is_dir()
        listed = await calls.text("list_directory")
        assert {"[FILE] a.txt", "[DIR] empty", "[DIR] src"} <= {*listed.split("\n")}
        assert await calls.text("list_directory", "/empty") == ""
        by_size = (await calls.text("list_directory_with_sizes", sortBy="size")).split("\n")
        assert by_size[0] == f"[FILE] {'big.bin':<30} {'1.95 KB':>10}"
        assert by_size[-3:] == ["", "Total: 5 files, 3 directories", "Combined size: 1.98 KB"]
        tree = json.loads(await calls.text("directory_tree", "/src", excludePatterns=["*.py"]))
        assert tree == [{"name": "deep", "type": "directory", "children": [{"name": "n.md", "type": "file"}]}]
        assert "deep" not in await calls.text("directory_tree", excludePatterns=["deep"])
        assert await calls.text("directory_tree", "/empty") == "[]"


async def test_moving_searching_and_information(projects: Path) -> None:
    async with connected(*reference(projects)) as client:
        calls = Calls(client, projects)
        source, destination = f"{projects}/a.txt", f"{projects}/b.txt"
        moved = await calls.text("move_file", "-", source=source, destination=destination)
        assert moved == f"Successfully moved {source} to {destination}"
        assert (await calls("move_file", source=destination, destination=f"{projects}/crlf.txt")).is_error
        assert await AsyncPath(projects / "crlf.txt").read_bytes() == b"one\r\ntwo\r\n"
        assert await calls.text("search_files", pattern="*.md") == "No matches found"
        assert await calls.text("search_files", pattern="**/*.md") == f"{projects}/src/deep/n.md"
        assert await calls.text("search_files", pattern="**/deep") == f"{projects}/src/deep"
        excluded = await calls.text("search_files", pattern="**/*.*", excludePatterns=["src/**", "*"])
        assert excluded == "No matches found"
        info = await calls.text("get_file_info", "/b.txt")
        date = "Tue Nov 14 2023 22:13:20 GMT+0000 (Coordinated Universal Time)"
        assert info == f"size: 14\nmodified: {date}\nisDirectory: false\nisFile: true"
        assert "isDirectory: true" in await calls.text("get_file_info", "/src")
        assert await calls.text("list_allowed_directories", "-") == f"Allowed directories:\n{projects}"


async def test_nothing_outside_is_reached(projects: Path) -> None:
    outside = projects.parent / "outside.txt"
    async with connected(*reference(projects)) as client:
        calls = Calls(client, projects)
        for path in (
            str(outside),
            f"{projects}/../outside.txt",
            f"{projects}/link.txt",
            "../outside.txt",
            "/etc/passwd",
        ):
            for name in ("read_text_file", "get_file_info", "read_media_file"):
                result = await calls(name, path=path)
                assert result.is_error
                assert "secret" not in str(result)
            assert (await calls("edit_file", path=path, edits=[{"oldText": "secret", "newText": "x"}])).is_error
        for path in (str(outside), f"{projects}/../outside.txt", "/etc/evil"):
            assert (await calls("write_file", path=path, content="x")).is_error
            assert (await calls("move_file", source=f"{projects}/a.txt", destination=path)).is_error
        # Relative paths start in the first allowed directory.
        assert not (await calls("read_text_file", path="src/../a.txt")).is_error
    assert await AsyncPath(outside).read_text() == "secret"


async def test_allowed_directories_hold_in_any_tree() -> None:
    backend = MemoryBackend()
    await backend.aupload_files([("/projects/a.md", b"a"), ("/other/b.md", b"b"), ("/projects2/c.md", b"c")])
    settings = McpSettings(reference_names=True, allowed_directories=["/projects/"])
    async with connected(backend, settings) as client:
        calls = Calls(client, Path("/projects"))
        assert await calls.text("read_text_file", "/a.md") == "a"
        for path in ("/other/b.md", "/projects2/c.md", "/", "/projects/../other/b.md"):
            result = await calls("read_text_file", path=path)
            assert "outside the allowed directories: /projects" in text_of(result)


@pytest.fixture
def maze(tmp_path: Path) -> Path:
    """A directory with links that lead round in circles, and a deep one."""
    (tmp_path / "deep" / "/".join("n" * 250)).mkdir(parents=True)
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "twice").symlink_to(".")
    return tmp_path


async def test_links_depth_and_patterns_have_bounds(maze: Path) -> None:
    async with connected(*reference(maze)) as client:
        calls = Calls(client, maze)
        assert await calls.text("search_files", pattern="*") == "\n".join(
            f"{maze}/{name}" for name in ("deep", "loop", "twice")
        )
        tree = await calls("directory_tree", path=str(maze), excludePatterns=["deep"])
        assert [node["type"] for node in json.loads(text_of(tree))] == ["file", "file"]
        assert (await calls("directory_tree", path=str(maze))).structured_content["error"]["code"] == "too_large"
        many = await calls("directory_tree", path=str(maze), excludePatterns=["x*"] * 101)
        assert many.structured_content["error"]["code"] == "invalid_arguments"


async def test_an_edit_ends_with_its_call() -> None:
    text = "a\n" * 100_000
    backend = MemoryBackend()
    await backend.aupload_files([("/a.md", text.encode())])
    # A comparison line by line would take minutes.
    missing = [{"oldText": " a\n" * 40_000 + "b", "newText": ""}]
    many = [{"oldText": " a", "newText": "b"}] * 1_000
    for edits, seconds, code in ((missing, 30, "invalid_arguments"), (many, 0.3, "timeout")):
        settings = McpSettings(reference_names=True, limits=ServerLimits(call_timeout=seconds))
        async with connected(backend, settings) as client:
            failed = await Calls(client, Path("/"))("edit_file", path="/a.md", edits=edits)
        assert failed.structured_content["error"]["code"] == code
    assert (await backend.aread_raw("/a.md")).unwrap().content == text
