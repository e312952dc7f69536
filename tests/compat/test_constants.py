"""Constants that programs import by the names of deepagents have the values that are true for deepfs."""

from pathlib import Path
from typing import Any

from deepfs import FilesystemMiddleware, MemoryBackend, filesystem_tools
from deepfs.backends import LocalShellBackend
from deepfs.backends.protocol import (
    execute_accepts_timeout,
)
from deepfs.middleware import filesystem
from deepfs.types import GlobResult


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


def test_notes_are_those_of_the_tools() -> None:
    backend = Cut()
    for name in ("a", "b"):
        backend.write(f"/{name}", "one\none\n")
    tools = {each.name: each for each in filesystem_tools(backend)}
    assert filesystem.GREP_TRUNCATION_NOTE in tools["grep"].invoke({"pattern": "one", "max_count": 1})
    assert filesystem.GLOB_TRUNCATION_NOTE in tools["glob"].invoke({"pattern": "*"})
