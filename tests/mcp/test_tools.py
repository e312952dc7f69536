"""The tools of the MCP server, called by the official client, which checks data by the schemas of the tools."""

import base64
from typing import Any, Final

import pytest
from anyio import Event, create_task_group, fail_after, move_on_after
from jsonschema import Draft202012Validator

from deepfs import FilesystemPermission, MemoryBackend, PermissionedBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import BackendError
from deepfs.mcp import McpSettings, ServerLimits, create_server
from deepfs.middleware.tools import filesystem_tools
from deepfs.policy import ReadOnlyBackend
from deepfs.types import LsResult
from support.agents import Sandbox
from support.mcp_clients import connected, text_of

PNG: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
pytestmark = pytest.mark.anyio

CHANGING: Final = {"write_file", "edit_file", "delete", "move"}


async def stored(**files: str | bytes) -> MemoryBackend:
    backend = MemoryBackend()
    for path, content in files.items():
        content = content.encode() if isinstance(content, str) else content
        await backend.aupload_files([(f"/{path.replace('__', '/').replace('_', '.')}", content)])
    return backend


# --- what is offered -------------------------------------------------------------------------------------------------


async def test_tools_are_those_of_an_agent() -> None:
    backend = await stored(a_txt="one\n")
    own = {tool.name: tool for tool in filesystem_tools(backend)}
    async with connected(backend) as client:
        served = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(served) == list(own)
    for name, tool in served.items():
        assert tool.description == own[name].description
        assert set(tool.input_schema["properties"]) == set(own[name].args)
        hints = tool.annotations
        assert tool.title
        assert hints is not None
        assert hints.read_only_hint is (name not in CHANGING)
        assert hints.destructive_hint is (True if name in CHANGING else None)
        assert hints.open_world_hint is False
        Draft202012Validator.check_schema(tool.output_schema)
        assert "error" in tool.output_schema["properties"]


async def test_commands_and_patches_are_offered_if_asked_for() -> None:
    for settings, more in [
        (McpSettings(), set()),
        (McpSettings(execute=True, apply_patch=True), {"execute", "apply_patch"}),
        (McpSettings(tools=["apply_patch", "ls"]), {"apply_patch"}),
    ]:
        async with connected(Sandbox(), settings) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
        assert names & {"execute", "apply_patch"} == more
        assert settings.tools is None or names == set(settings.tools)


@pytest.mark.parametrize(("reference_names", "is_refused_by_backend"), [(False, True), (True, True), (True, False)])
async def test_read_only_offers_no_change_and_makes_none(reference_names: bool, is_refused_by_backend: bool) -> None:
    files = await stored(a_txt="one\n")
    backend = ReadOnlyBackend(files) if is_refused_by_backend else files
    settings = McpSettings(reference_names=reference_names)
    async with connected(backend, settings, read_only=not is_refused_by_backend) as client:
        tools = (await client.list_tools()).tools
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        arguments = {"path": "/b"} if reference_names else {"file_path": "/b"}
        assert (await client.call_tool("write_file", {**arguments, "content": "x"})).is_error
    assert not (await files.aread("/b")).ok


async def test_unknown_tools_in_settings_are_named() -> None:
    with pytest.raises(ValueError, match="no such tool: copy; there are ls, read_file"):
        create_server(MemoryBackend(), McpSettings(tools=["copy"]))


# --- answers ---------------------------------------------------------------------------------------------------------


async def test_answers_have_the_text_of_the_agents_tools_and_the_same_as_data() -> None:
    backend = await stored(a_txt="one\ntwo needle\nthree\n", d__b_md="# b\n")
    own = {
        tool.name: tool for tool in filesystem_tools(await stored(a_txt="one\ntwo needle\nthree\n", d__b_md="# b\n"))
    }
    steps: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("ls", {}, {"total": 2}),
        ("ls", {"limit": 1}, {"total": 2, "next_offset": 1}),
        (
            "read_file",
            {"file_path": "/a.txt", "offset": 1, "limit": 1},
            {"content": "two needle\n", "start_line": 2, "end_line": 2, "total_lines": 3, "next_offset": 2}
            | {"version": (await backend.aread("/a.txt")).version},
        ),
        ("read_file", {"file_path": "/a.txt", "column": 1}, {"content": "ne\ntwo needle\nthree\n"}),
        ("glob", {"pattern": "**/*.md"}, {"total": 1}),
        ("grep", {"pattern": "needle"}, {"files": [{"path": "/a.txt", "matches": 1}], "total": 1}),
        ("grep", {"pattern": "absent"}, {"files": []}),
        ("write_file", {"file_path": "/n", "content": "x"}, {"path": "/n"}),
        ("edit_file", {"file_path": "/n", "old_string": "x", "new_string": "y"}, {"path": "/n", "occurrences": 1}),
        ("move", {"source": "/n", "destination": "/m"}, {"path": "/m", "source": "/n"}),
        ("delete", {"file_path": "/m"}, {"path": "/m"}),
    ]
    async with connected(backend) as client:
        for name, arguments, data in steps:
            result = await client.call_tool(name, arguments)
            assert text_of(result) == own[name].invoke(arguments)
            assert not result.is_error
            assert data.items() <= result.structured_content.items()


async def test_data_and_text_end_at_the_same_place() -> None:
    lines = "".join(f"line {number} {'x' * 60}\n" for number in range(100))
    backend = await stored(long_txt=lines, wide_txt="y" * 5_000, **{f"f{number}": "" for number in range(100)})
    async with connected(backend, McpSettings(limits=ServerLimits(max_result_chars=1_000))) as client:
        data = (await client.call_tool("read_file", {"file_path": "/long.txt"})).structured_content
        assert 500 < len(data["content"]) < 1_000
        assert lines.startswith(data["content"])
        assert data["next_offset"] == data["end_line"] == data["content"].count("\n")
        wide = (await client.call_tool("read_file", {"file_path": "/wide.txt"})).structured_content
        assert (wide["next_offset"], wide["next_column"]) == (0, len(wide["content"]))
        listed = await client.call_tool("ls", {"limit": 90})
        assert len(listed.structured_content["entries"]) == text_of(listed).count("\n") < 100
        found = (await client.call_tool("grep", {"pattern": "line", "output_mode": "content"})).structured_content
        assert found["truncated"]
        assert len(str(found["matches"])) < 3_000


async def test_images_are_blocks_and_other_binary_files_links() -> None:
    async with connected(await stored(p_png=PNG, x_bin=bytes(range(256)))) as client:
        image = await client.call_tool("read_file", {"file_path": "/p.png"})
        [block] = image.content
        assert (block.type, block.mime_type) == ("image", "image/png")
        assert base64.b64decode(block.data) == PNG
        assert image.structured_content["size"] == len(PNG)
        note, link = (await client.call_tool("read_file", {"file_path": "/x.bin"})).content
        assert "is a binary file" in note.text
        [blob] = (await client.read_resource(link.uri)).contents
        assert base64.b64decode(blob.blob) == bytes(range(256))


async def test_commands_and_patches() -> None:
    async with connected(Sandbox(), McpSettings(execute=True, apply_patch=True)) as client:
        patch = "*** Begin Patch\n*** Add File: /p.txt\n+one\n*** End Patch"
        patched = await client.call_tool("apply_patch", {"input": patch})
        assert patched.structured_content == {"files": [{"action": "add", "path": "/p.txt"}]}
        assert text_of(patched) == "Added /p.txt"
        done = await client.call_tool("execute", {"command": "echo hello"})
        assert done.structured_content["exit_code"] == 0


# --- failures --------------------------------------------------------------------------------------------------------


FAILURES: list[tuple[str, dict[str, Any], str, str | None, str]] = [
    ("read_file", {"file_path": "/a.tx"}, "file_not_found", "/a.tx", "Did you mean /a.txt?"),
    ("read_file", {"file_path": "/d"}, "is_directory", "/d", "List it with ls"),
    ("read_file", {"file_path": "/../x"}, "invalid_path", "/../x", "'..' is not allowed"),
    ("write_file", {"file_path": "/a.txt", "content": ""}, "already_exists", "/a.txt", "use edit_file"),
    ("edit_file", {"file_path": "/a.txt", "old_string": "z", "new_string": "y"}, "no_match", "/a.txt", "Read the"),
    ("grep", {"pattern": "(", "regex": True}, "invalid_pattern", None, "set regex=false"),
    ("read_file", {"file_path": "/secret"}, "permission_denied", "/secret", "Do not try again"),
    ("edit_file", {"file_path": "/a.txt", "old_string": "", "new_string": ""}, "invalid_arguments", None, "empty"),
    ("ls", {"limit": 0}, "invalid_arguments", None, "it must be at least 1, not 0"),
    ("ls", {"offset": "many"}, "invalid_arguments", None, "valid integer"),
    ("read_file", {}, "invalid_arguments", None, "file_path is missing"),
    ("read_file", {"paht": "/a"}, "invalid_arguments", None, "there is no argument paht"),
]


async def test_failures_have_advice_and_a_code() -> None:
    rules = [FilesystemPermission(["read", "write"], ["/secret"], "deny")]
    backend = PermissionedBackend(await stored(a_txt="one\n", d__b_md="# b\n", secret="s"), rules)
    async with connected(backend) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        for name, arguments, code, path, advice in FAILURES:
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert advice in text_of(result)
            error = result.structured_content["error"]
            assert (error["code"], error.get("path")) == (code, path)
            assert not error["message"].startswith("Error")
            # Other clients check the data of failed calls as well.
            Draft202012Validator(tools[name].output_schema).validate(result.structured_content)


class Broken(WrapperBackend):
    async def als(self, path: str) -> LsResult:
        raise RuntimeError("postgresql://user:password@db/") if path == "/bug" else BackendError("it is down")


async def test_no_text_of_an_unforeseen_error_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with connected(Broken(MemoryBackend())) as client:
        bug = await client.call_tool("ls", {"path": "/bug"})
        down = await client.call_tool("ls", {"path": "/down"})
    assert bug.is_error
    assert "password" not in str(bug)
    assert bug.structured_content["error"]["code"] == "backend_error"
    assert "it is down" in text_of(down)


class Slow(WrapperBackend):
    """Waits in `als` until it is told, and counts the calls that wait and that were cancelled."""

    def __init__(self) -> None:
        super().__init__(MemoryBackend())
        self.running = self.most = self.cancelled = 0
        self.entered, self.go, self.left = Event(), Event(), Event()

    async def als(self, path: str) -> LsResult:
        self.running += 1
        self.most = max(self.most, self.running)
        self.entered.set()
        try:
            await self.go.wait()
            return await super().als(path)
        except BaseException:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
            self.left.set()


async def test_calls_are_bounded_in_number_and_time() -> None:
    backend, codes = Slow(), list[str]()
    limits = ServerLimits(max_calls=2, max_waiting=1, call_timeout=0.3)
    async with connected(backend, McpSettings(limits=limits)) as client, create_task_group() as group:

        async def listed() -> None:
            result = await client.call_tool("ls", {})
            codes.append(text_of(result))

        for _ in range(5):
            group.start_soon(listed)
    assert backend.most == 2
    assert sum("too many calls wait" in code for code in codes) == 2
    assert sum("was stopped after 0.3 s" in code for code in codes) >= 2
    assert len(codes) == 5


async def test_a_cancelled_call_ends_the_operation() -> None:
    backend = Slow()
    async with connected(backend) as client:
        with fail_after(10), move_on_after(5) as scope:
            async with create_task_group() as group:
                group.start_soon(client.call_tool, "ls", {})
                await backend.entered.wait()
                scope.cancel()
        with fail_after(5):
            await backend.left.wait()
        assert backend.cancelled == 1
        backend.go.set()
        assert not (await client.call_tool("ls", {})).is_error
