"""How a call of a tool runs: bounded in number, time and size, and with every failure as a tool error with a code."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from anyio import Semaphore, WouldBlock, move_on_after
from langchain_core.tools import ToolException
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp_types import CallToolResult, ContentBlock, TextContent, ToolAnnotations
from msgspec import Struct, json, to_builtins
from pydantic import Field, ValidationError

from deepfs.errors import DeepFSError, ErrorCode
from deepfs.mcp.settings import ServerLimits
from deepfs.middleware.arguments import wrong_arguments
from deepfs.middleware.tools import ToolFailure

_logger = logging.getLogger("deepfs.mcp")
_T = TypeVar("_T")

INVALID_ARGUMENTS: Final = "invalid_arguments"
"""The code of a call whose arguments are wrong; all other codes are those of `ErrorCode`."""
_MARK: Final = "Error: "


class Failure(Struct, omit_defaults=True):
    """Why a call failed."""

    code: str
    message: str
    path: str | None = None


class Reply(NamedTuple):
    """What a call answers: blocks for a model, and the same as data."""

    content: list[ContentBlock]
    data: object


Handler: TypeAlias = Callable[[dict[str, Any]], Awaitable[Reply]]
"""Takes the arguments as they came. Raises pydantic's ValidationError, ToolException or DeepFSError."""


# --- tools -----------------------------------------------------------------------------------------------------------


class ServedTool(Tool):
    """A tool of the SDK that hands the arguments of a call to a handler as they are."""

    handler: Callable[[dict[str, Any]], Awaitable[CallToolResult]] = Field(exclude=True)

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        return await self.handler(arguments)


def make_tool(
    calls: "BoundedCalls",
    name: str,
    description: str,
    handler: Handler,
    *,
    parameters: Mapping[str, Any],
    output: Mapping[str, Any],
    annotations: ToolAnnotations,
) -> Tool:
    """A tool whose calls go through `calls`."""
    bound = partial(calls.result_of, name, handler)
    return ServedTool(
        fn=bound,
        handler=bound,
        name=name,
        title=annotations.title,
        description=description,
        parameters=_without_titles(parameters),
        fn_metadata=FuncMetadata(arg_model=ArgModelBase, output_schema=dict(output)),
        is_async=True,
        context_kwarg=None,
        annotations=annotations,
        meta=None,
    )


def _without_titles(schema: Any) -> Any:
    """The schema without the titles that pydantic adds, which only repeat the names."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _without_titles(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)
    }


def output_schema(kind: type[Struct]) -> dict[str, Any]:
    """The schema of the data of a tool: that of `kind`, or else `{"error": …}`.

    Clients check the data of failed calls as well, so that the schema has to admit them.
    """
    _, parts = json.schema_components([kind, Failure], ref_template="#/$defs/{name}")
    top = parts.pop(kind.__name__)
    properties = {**top["properties"], "error": {"$ref": "#/$defs/Failure"}}
    required = [{"required": top.get("required", [])}, {"required": ["error"]}]
    schema = _without_titles({"properties": properties, "$defs": parts})
    return {"type": "object", **schema, "anyOf": required}


# --- calls -----------------------------------------------------------------------------------------------------------


class BoundedCalls:
    """The calls of a server, of all its clients together."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._slots = Semaphore(limits.max_calls)
        self._waiting = 0

    async def run(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Run a call when there is room for it, and stop it when its time is up. Raises ToolFailure for both."""
        seconds = self._limits.call_timeout
        await self._enter()
        try:
            with move_on_after(seconds):
                return await call()
        finally:
            self._slots.release()
        raise _failure(f"The call was stopped after {seconds:g} s. Look at what it did, and do less at once.")

    async def _enter(self) -> None:
        with suppress(WouldBlock):
            return self._slots.acquire_nowait()
        if self._waiting >= self._limits.max_waiting:
            raise _failure("The server is busy: too many calls wait. Try again later.")
        self._waiting += 1
        try:
            with move_on_after(self._limits.call_timeout):
                return await self._slots.acquire()
        finally:
            self._waiting -= 1
        raise _failure("The server is busy: no call ended in time. Try again later.")

    async def result_of(self, name: str, handler: Handler, arguments: dict[str, Any]) -> CallToolResult:
        """The result of a call; a failure is one as well, with its code in `structured_content["error"]`."""
        try:
            if _size(arguments) > self._limits.max_argument_chars:
                raise _failure(
                    f"The arguments are longer than {self._limits.max_argument_chars:,} characters. Send less at once.",
                    ErrorCode.TOO_LARGE,
                )
            reply = await self.run(partial(handler, arguments))
            return CallToolResult(content=reply.content, structured_content=to_builtins(reply.data))
        except ValidationError as error:
            text = wrong_arguments(error)
            return _failed_result(text, Failure(INVALID_ARGUMENTS, text.removeprefix(_MARK)))
        except (ToolException, DeepFSError) as error:
            return _failed_result(str(error), failure_of(error))
        except Exception:
            # The text of an unforeseen error may hold paths and secrets of this machine.
            _logger.exception("The tool %s failed", name)
            text = "Error: The tool failed by a mistake of the server, which its log tells."
            return _failed_result(text, Failure(ErrorCode.BACKEND_ERROR.value, text.removeprefix(_MARK)))


def failure_of(error: Exception) -> Failure:
    """The failure that an error of a tool or a backend means."""
    if isinstance(error, ToolFailure):
        return Failure(error.code.value, error.message.removeprefix(_MARK), error.path)
    if isinstance(error, DeepFSError):
        return Failure(error.code.value, str(error).removeprefix(_MARK), error.path)
    return Failure(INVALID_ARGUMENTS, str(error).removeprefix(_MARK))


def _failed_result(text: str, failure: Failure) -> CallToolResult:
    content: list[ContentBlock] = [TextContent(text=text)]
    return CallToolResult(content=content, structured_content={"error": to_builtins(failure)}, is_error=True)


def _failure(text: str, code: ErrorCode = ErrorCode.TIMEOUT) -> ToolFailure:
    return ToolFailure(f"Error: {text}", code, f"Error: {text}", None)


def _size(value: object) -> int:
    """The characters of all texts in a value of JSON."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(str(key)) + _size(each) for key, each in value.items())
    return sum(map(_size, value)) if isinstance(value, list) else 1
