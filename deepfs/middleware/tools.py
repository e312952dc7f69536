"""The tools that give a model a filesystem; they need langchain-core alone, and work in a plain ToolNode."""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import BaseModel, ValidationError

from deepfs.backends.factories import backend_from
from deepfs.backends.protocol import BACKEND_TYPES, BackendProtocol, supports_execute
from deepfs.middleware import _arguments as arguments
from deepfs.middleware._moves import heeds_writes
from deepfs.middleware._operations import MAX_MEDIA_BYTES, MAX_RESULT_CHARS, FileOperations
from deepfs.middleware.prompts import PROMPTS
from deepfs.sync import call_over

__all__ = ["FILE_TOOLS", "MAX_MEDIA_BYTES", "MAX_RESULT_CHARS", "TOOL_NAMES", "filesystem_tools", "wrong_arguments"]

_ARGUMENTS: Final[Mapping[str, type[BaseModel]]] = {
    "ls": arguments.LsArguments,
    "read_file": arguments.ReadArguments,
    "write_file": arguments.WriteArguments,
    "edit_file": arguments.EditArguments,
    "glob": arguments.GlobArguments,
    "grep": arguments.GrepArguments,
    "delete": arguments.DeleteArguments,
    "move": arguments.MoveArguments,
    "execute": arguments.ExecuteArguments,
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
