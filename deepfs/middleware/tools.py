"""The arguments of the tools, as models see them. A null stands for the default, because some models send nulls."""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import BaseModel, Field, ValidationError, model_validator

from deepfs.backends.protocol import BACKEND_TYPES, BackendProtocol, supports_execute
from deepfs.compat.factories import backend_from
from deepfs.middleware._backends import heeds_writes
from deepfs.middleware._operations import MAX_MEDIA_BYTES, MAX_RESULT_CHARS, FileOperations
from deepfs.middleware.prompts import PROMPTS
from deepfs.sync import call_over

__all__ = [
    "FILE_TOOLS",
    "MAX_MEDIA_BYTES",
    "MAX_RESULT_CHARS",
    "TOOL_NAMES",
    "DeleteArguments",
    "EditArguments",
    "ExecuteArguments",
    "GlobArguments",
    "GrepArguments",
    "LsArguments",
    "MoveArguments",
    "OutputMode",
    "ReadArguments",
    "WriteArguments",
    "filesystem_tools",
    "wrong_arguments",
]

OutputMode = Literal["files_with_matches", "content", "count"]


class _Arguments(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class LsArguments(_Arguments):
    path: str = Field("/", description="Absolute path.")


class ReadArguments(_Arguments):
    file_path: str = Field(description="Absolute path.")
    offset: int = Field(0, ge=0, description="Lines to skip.")
    limit: int = Field(500, ge=1, description="Most lines to read.")
    column: int = Field(0, ge=0, description="Characters of the first line to skip.")


class WriteArguments(_Arguments):
    file_path: str = Field(description="Absolute path.")
    content: str = Field(description="The whole text.")
    overwrite: bool = Field(False, description="Replace an existing file.")


class EditArguments(_Arguments):
    file_path: str = Field(description="Absolute path.")
    old_string: str = Field(description="The exact text to replace.")
    new_string: str = Field(description="What takes its place.")
    replace_all: bool = Field(False, description="Replace every occurrence.")


class GlobArguments(_Arguments):
    pattern: str = Field(description="The glob pattern.")
    path: str = Field("/", description="Directory to search.")


class GrepArguments(_Arguments):
    pattern: str = Field(description="The text to find.")
    path: str = Field("/", description="Directory or file to search.")
    glob: str = Field("", description="Search only files such as `*.py`.")
    output_mode: OutputMode = Field("files_with_matches", description="Paths, numbered lines, or counts.")
    regex: bool = Field(False, description="The pattern is a regular expression; `(?i)` ignores case.")
    context_lines: int = Field(0, ge=0, description="Lines around a match.")
    max_count: int = Field(1000, ge=1, description="Most matches.")


class DeleteArguments(_Arguments):
    file_path: str = Field(description="Absolute path.")


class MoveArguments(_Arguments):
    source: str = Field(description="What to move.")
    destination: str = Field(description="Its new path.")
    overwrite: bool = Field(False, description="Replace an existing file.")


class ExecuteArguments(_Arguments):
    command: str = Field(description="The shell command.")
    timeout: float = Field(0, ge=0, description="Seconds; 0 is the default.")


_ARGUMENTS: Final[Mapping[str, type[BaseModel]]] = {
    "ls": LsArguments,
    "read_file": ReadArguments,
    "write_file": WriteArguments,
    "edit_file": EditArguments,
    "glob": GlobArguments,
    "grep": GrepArguments,
    "delete": DeleteArguments,
    "move": MoveArguments,
    "execute": ExecuteArguments,
}
TOOL_NAMES: Final = tuple(_ARGUMENTS)
"""The names of all tools, in the order in which they are given."""
FILE_TOOLS: Final = frozenset(TOOL_NAMES) - {"execute"}
"""The tools whose results keep within a budget by themselves."""


def filesystem_tools(
    backend: BACKEND_TYPES,
    *,
    descriptions: Mapping[str, str] | None = None,
    max_result_chars: int = MAX_RESULT_CHARS,
    max_media_bytes: int = MAX_MEDIA_BYTES,
    execute: bool | None = None,
) -> list[BaseTool]:
    """Make the tools `ls read_file write_file edit_file glob grep delete move`, and `execute` where `backend` executes.

    There is no `move` where a class overrides `write` alone, as rules of its own: moving would pass them by.
    Each works async and sync. A failure is a `ToolMessage` with `status="error"` that says what to do next.
    `descriptions` replace those of the tools they name. No result of a file tool is longer than `max_result_chars`;
    images, audio, video and PDF of up to `max_media_bytes` are content blocks, other binary files a note. `execute`
    has the tool of that name given, or not, whether or not `backend` executes. Raises ValueError for a description
    of a tool that does not exist.
    """
    given = descriptions or {}
    unknown = sorted(set(given) - set(TOOL_NAMES))
    if unknown:
        raise ValueError(f"no such tool: {', '.join(unknown)}; there are {', '.join(TOOL_NAMES)}")
    files = backend_from(backend)
    operations = FileOperations(files, max_result_chars, max_media_bytes)
    executes = supports_execute(files) if execute is None else execute
    left_out = {"move": not heeds_writes(files), "execute": not executes}
    names = [name for name in TOOL_NAMES if not left_out.get(name, False)]
    return [_tool(operations, name, given.get(name) or PROMPTS[name]) for name in names]


class _Calls(NamedTuple):
    """One operation in both forms."""

    backend: BackendProtocol
    operation: Callable[..., Coroutine[Any, Any, Any]]
    name: str

    def call(self, **given: Any) -> Any:
        bound = partial(self.operation, **given)
        return call_over(self.backend, bound, f"The sync form of the tool {self.name}", "its async form (ainvoke)")

    async def acall(self, **given: Any) -> Any:
        return await self.operation(**given)


def _tool(operations: FileOperations, name: str, description: str) -> BaseTool:
    calls = _Calls(operations.backend, getattr(operations, name), name)
    return StructuredTool(
        name=name,
        description=description,
        args_schema=_ARGUMENTS[name],
        func=calls.call,
        coroutine=calls.acall,
        handle_tool_error=_told,
        handle_validation_error=wrong_arguments,
    )


def _told(error: ToolException) -> str:
    return str(error)


def wrong_arguments(error: Any) -> str:
    """What is wrong with the arguments of a call, one after another."""
    if not isinstance(error, ValidationError):
        return f"Error: The arguments are wrong: {error}"
    wrong = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in error.errors())
    return f"Error: The arguments are wrong. {wrong}. Correct them and call the tool again."
