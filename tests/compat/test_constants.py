"""Constants that programs import by the names of deepagents have the values that are true for deepfs."""

from pathlib import Path

from deepfs import FilesystemMiddleware, MemoryBackend, filesystem_tools
from deepfs.backends import LocalShellBackend
from deepfs.middleware import filesystem


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
