"""Constants that programs import by the names of deepagents have the values that are true for deepfs."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from deepfs import FilesystemBackend, FilesystemMiddleware, MemoryBackend, filesystem_tools
from deepfs.backends import DEFAULT_EXECUTE_TIMEOUT, BaseSandbox, LocalShellBackend
from deepfs.backends.protocol import (
    ASYNC_GREP_TIMEOUT,
    DEFAULT_GREP_TIMEOUT,
    FILE_NOT_FOUND,
    INVALID_PATH,
    execute_accepts_timeout,
)
from deepfs.backends.sandbox import MAX_BINARY_BYTES
from deepfs.middleware import filesystem
from deepfs.types import ErrorCode, GlobResult


def default(function: Any, name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def test_limits_are_the_defaults_of_the_backends() -> None:
    assert default(LocalShellBackend, "timeout") == DEFAULT_EXECUTE_TIMEOUT
    assert default(FilesystemBackend, "search_timeout") == DEFAULT_GREP_TIMEOUT == ASYNC_GREP_TIMEOUT
    assert default(BaseSandbox, "max_file_size_mb") * 1024 * 1024 == MAX_BINARY_BYTES
    assert (FILE_NOT_FOUND, INVALID_PATH) == (ErrorCode.FILE_NOT_FOUND, ErrorCode.INVALID_PATH)


def test_execute_accepts_timeout() -> None:
    class Older:
        def execute(self, command: str) -> Any: ...

    assert execute_accepts_timeout(LocalShellBackend)
    assert not execute_accepts_timeout(Older)  # type: ignore[arg-type]
    assert filesystem.supports_execution(LocalShellBackend())
    assert not filesystem.supports_execution(MemoryBackend())


def test_descriptions_and_schemas_are_those_of_the_tools(tmp_path: Path) -> None:
    tools = {tool.name: tool for tool in filesystem_tools(LocalShellBackend(tmp_path))}
    for name, constant, schema in [
        ("ls", "LIST_FILES", "Ls"),
        ("read_file", "READ_FILE", "ReadFile"),
        ("write_file", "WRITE_FILE", "WriteFile"),
        ("edit_file", "EDIT_FILE", "EditFile"),
        ("delete", "DELETE", "Delete"),
        ("glob", "GLOB", "Glob"),
        ("grep", "GREP", "Grep"),
        ("execute", "EXECUTE", "Execute"),
    ]:
        # That of `execute` goes on with where commands of the backend start.
        assert tools[name].description.startswith(getattr(filesystem, f"{constant}_TOOL_DESCRIPTION"))
        assert tools[name].args_schema is getattr(filesystem, f"{schema}Schema")
    told = {tool.name: tool.description for tool in FilesystemMiddleware(MemoryBackend()).tools}
    assert told["ls"] == filesystem.LIST_FILES_TOOL_DESCRIPTION


class Cut(MemoryBackend):
    """Finds the first file only."""

    async def aglob(self, pattern: str, path: str = "/") -> GlobResult:
        found = await super().aglob(pattern, path)
        return GlobResult(matches=(found.matches or [])[:1], truncated=True)


@pytest.mark.parametrize(
    ("tool", "given", "note"),
    [
        ("grep", {"pattern": "one", "max_count": 1}, "GREP_TRUNCATION_NOTE"),
        ("glob", {"pattern": "*"}, "GLOB_TRUNCATION_NOTE"),
    ],
)
def test_notes_are_those_of_the_tools(tool: str, given: dict[str, Any], note: str) -> None:
    backend = Cut()
    for name in ("a", "b"):
        backend.write(f"/{name}", "one\none\n")
    tools = {each.name: each for each in filesystem_tools(backend)}
    assert getattr(filesystem, note) in tools[tool].invoke(given)


def test_read_defaults_are_those_of_the_tool() -> None:
    schema = filesystem.ReadFileSchema(file_path="/a")
    assert (schema.offset, schema.limit) == (filesystem.DEFAULT_READ_OFFSET, filesystem.DEFAULT_READ_LIMIT)
