"""Tools of MCP: how a call runs, bounded in number, time and size, and the file tools of an agent.

Every failure of a call is a tool error with a code. Answers of the agent's tools come as data as well.
"""

import logging
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import quote

from anyio import Semaphore, WouldBlock, move_on_after
from langchain_core.tools import ToolException
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolAnnotations,
)
from msgspec import Meta, Struct, json, to_builtins
from pydantic import Field, ValidationError

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import DeepFSError, ErrorCode
from deepfs.mcp.settings import McpSettings, ServerLimits
from deepfs.middleware.apply_patch import ApplyPatchArguments, apply_patch_tool
from deepfs.middleware.arguments import TOOL_NAMES, wrong_arguments
from deepfs.middleware.rendering import ToolAnswer
from deepfs.middleware.tools import FileTool, ToolFailure, ToolLimits, file_tools, not_offered
from deepfs.text import paths
from deepfs.text.media import OCTET_STREAM, mime_type, sniff
from deepfs.text.patches import patch_sections
from deepfs.types import (
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileInfo,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)

if TYPE_CHECKING:
    from langchain_core.tools import StructuredTool

_logger = logging.getLogger("deepfs.mcp")
_T = TypeVar("_T")
_Arguments: TypeAlias = Mapping[str, Any]

ROOT: Final = "deepfs:///"
"""The URI of the root of the files."""
_PLAIN: Final = "/:@!$&'()*+,;=~"
"""The characters, besides letters and digits, that stand for themselves in a path of a URI."""
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


# --- tools of the SDK ------------------------------------------------------------------------------------------------


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


# --- what the tools answer as data -----------------------------------------------------------------------------------

_Next = Annotated[int | None, Meta(description="The offset with which to go on; none at the end.")]
_Warning = Annotated[str | None, Meta(description="Why the answer is not complete.")]


class ListedEntries(Struct, omit_defaults=True):
    """A part of a listing."""

    entries: list[FileInfo]
    total: int
    next_offset: _Next = None
    skipped: Annotated[int, Meta(description="Names that are no text.")] = 0
    warning: _Warning = None


class FoundFiles(Struct, omit_defaults=True):
    """A part of the files that a pattern matches."""

    files: list[FileInfo]
    total: int
    next_offset: _Next = None
    truncated: bool = False
    warning: _Warning = None


class MatchedFile(Struct):
    """A file with matches."""

    path: str
    matches: int


class Matches(Struct, omit_defaults=True):
    """The matches of a search, as far as they fit into an answer."""

    files: list[MatchedFile]
    matches: Annotated[list[GrepMatch], Meta(description="Only for output_mode content.")] = []
    total: Annotated[int, Meta(description="The matches that were found.")] = 0
    truncated: Annotated[bool, Meta(description="There may be more matches.")] = False
    skipped: Annotated[int, Meta(description="Files that were not searched.")] = 0
    warning: _Warning = None


class FileContent(Struct, omit_defaults=True):
    """Lines of a text file, or what is known of a binary one, whose content is in a block."""

    path: str
    content: Annotated[str | None, Meta(description="The text of the lines; none for a binary file.")] = None
    start_line: int | None = None
    end_line: int | None = None
    total_lines: int | None = None
    next_offset: _Next = None
    next_column: Annotated[int, Meta(description="The column with which to go on in a long line.")] = 0
    version: Annotated[str | None, Meta(description="Identifies the content of the whole file.")] = None
    mime_type: str | None = None
    size: Annotated[int | None, Meta(description="Bytes of a binary file.")] = None


class Changed(Struct, omit_defaults=True):
    """A path that was changed."""

    path: str
    source: Annotated[str | None, Meta(description="Where it was before a move.")] = None
    occurrences: Annotated[int | None, Meta(description="How many texts an edit replaced.")] = None


class CommandOutput(Struct):
    """The output of a command."""

    output: str
    exit_code: int | None
    truncated: bool


class PatchedFile(Struct, omit_defaults=True):
    """A file that a patch changed."""

    action: str
    path: str
    move_to: str | None = None


class PatchedFiles(Struct):
    """The files that a patch changed."""

    files: list[PatchedFile]


# --- from answers to data --------------------------------------------------------------------------------------------


def _list_entries(given: _Arguments, answer: ToolAnswer, budget: int) -> ListedEntries:
    result = cast("LsResult", answer.result)
    return ListedEntries(*_page(given, answer, result.entries), result.skipped, result.error)


def _files(given: _Arguments, answer: ToolAnswer, budget: int) -> FoundFiles:
    result = cast("GlobResult", answer.result)
    return FoundFiles(*_page(given, answer, result.matches), result.truncated, result.error)


def _page(
    given: _Arguments, answer: ToolAnswer, infos: list[FileInfo] | None
) -> tuple[list[FileInfo], int, int | None]:
    """What the tool shows of a listing, how much there is, and the offset of the rest."""
    listed, last = infos or [], given["offset"] + (answer.shown or 0)
    return listed[given["offset"] : last], len(listed), last if last < len(listed) else None


def _matches(given: _Arguments, answer: ToolAnswer, budget: int) -> Matches:
    result = cast("GrepResult", answer.result)
    found = result.matches or []
    counts = Counter(match.path for match in found)
    files = [*_take_fitting((MatchedFile(*each) for each in counts.items()), lambda file: len(file.path), budget)]
    lines = [*_take_fitting(found, _length, budget)] if given["output_mode"] == "content" else []
    cut = len(files) < len(counts) or (given["output_mode"] == "content" and len(lines) < len(found))
    return Matches(files, lines, len(found), result.truncated or cut, result.skipped, result.error)


def _length(match: GrepMatch) -> int:
    beside = (*(match.context_before or ()), *(match.context_after or ()))
    return len(match.path) + len(match.text) + sum(len(line.text) for line in beside)


_EACH: Final = 40
"""The characters of a record besides its texts."""


def _take_fitting(records: Iterable[_T], length: Callable[[_T], int], budget: int) -> Iterator[_T]:
    """The first records that fit into `budget` characters."""
    for record in records:
        budget -= length(record) + _EACH
        if budget < 0:
            return
        yield record


def _content(given: _Arguments, answer: ToolAnswer, budget: int) -> FileContent:
    read, path = cast("ReadResult", answer.result), paths.normalize(given["file_path"])
    data = read.file_data
    if data is None or data.encoding == "base64":
        content = "" if data is None else data.content
        size = len(content) * 3 // 4 - content[-2:].count("=")
        kind = mime_type(path) or sniff(b64decode(content[:1024]))
        return FileContent(path, version=read.version, mime_type=kind, size=size)
    told = FileContent(path, "", version=read.version, mime_type=mime_type(path) or "text/plain")
    told.total_lines = read.total_lines
    if not data.content or read.start_line is None:
        return told
    lines = data.content.removesuffix("\n").split("\n")
    shown = answer.shown or 0
    told.start_line, told.end_line = read.start_line, read.start_line + shown - 1
    if answer.cut is not None:
        end = given["column"] + answer.cut
        told.content, told.next_offset, told.next_column = lines[0][given["column"] : end], read.start_line - 1, end
        return told
    is_last = shown == len(lines)
    end_of_line = "\n" if not is_last or data.content.endswith("\n") else ""
    told.content = "\n".join(lines[:shown])[given["column"] :] + end_of_line
    told.next_offset = None if is_last and read.next_offset is None else told.end_line
    return told


def _change(given: _Arguments, answer: ToolAnswer, budget: int) -> Changed:
    result = answer.result
    assert isinstance(result, WriteResult | EditResult | DeleteResult)
    named = given.get("file_path") or given["destination"]
    source = paths.normalize(given["source"]) if "source" in given else None
    times = result.occurrences if isinstance(result, EditResult) else None
    return Changed(result.path or paths.normalize(named), source, times)


def _output(given: _Arguments, answer: ToolAnswer, budget: int) -> CommandOutput:
    done = cast("ExecuteResponse", answer.result)
    return CommandOutput(done.output[:budget], done.exit_code, done.truncated or len(done.output) > budget)


def _patches(given: _Arguments, answer: ToolAnswer, budget: int) -> PatchedFiles:
    patches = patch_sections(given["input"])
    move = (each.move_to and paths.normalize(each.move_to) for each in patches)
    return PatchedFiles(
        [PatchedFile(each.action, paths.normalize(each.path), to) for each, to in zip(patches, move, strict=True)]
    )


# --- blocks ----------------------------------------------------------------------------------------------------------


def uri_of(path: str) -> str:
    """The URI of a file."""
    return ROOT + quote(path.removeprefix("/"), safe=_PLAIN)


def block_of(uri: str, content: str, kind: str) -> ContentBlock:
    """A binary file as a block."""
    if kind.startswith("image/"):
        return ImageContent(data=content, mime_type=kind)
    if kind.startswith("audio/"):
        return AudioContent(data=content, mime_type=kind)
    return EmbeddedResource(resource=BlobResourceContents(uri=uri, mime_type=kind, blob=content))


def _blocks(answer: ToolAnswer, data: object, *, links: bool) -> list[ContentBlock]:
    if not isinstance(answer.content, str):
        path = data.path if isinstance(data, FileContent) else "/"
        return [block_of(uri_of(path), block["base64"], block["mime_type"]) for block in answer.content]
    blocks: list[ContentBlock] = [TextContent(text=answer.content)]
    if links and isinstance(data, FileContent) and data.content is None:
        name = data.path.rpartition("/")[2]
        kind = data.mime_type or OCTET_STREAM
        blocks.append(ResourceLink(uri=uri_of(data.path), name=name, mime_type=kind, size=data.size))
    return blocks


# --- tools -----------------------------------------------------------------------------------------------------------


class _AgentTool(NamedTuple):
    """What is known of a tool besides its schema."""

    data: Callable[[_Arguments, ToolAnswer, int], Struct]
    output: type[Struct]
    annotations: ToolAnnotations


def reads(title: str) -> ToolAnnotations:
    """The annotations of a tool that changes nothing."""
    return ToolAnnotations(title=title, read_only_hint=True, open_world_hint=False)


def changes(
    title: str, *, idempotent: bool = False, destructive: bool = True, open_world: bool = False
) -> ToolAnnotations:
    """The annotations of a tool that changes files."""
    return ToolAnnotations(
        title=title,
        read_only_hint=False,
        destructive_hint=destructive,
        idempotent_hint=idempotent,
        open_world_hint=open_world,
    )


def select_tools(settings: McpSettings, known: Collection[str]) -> set[str]:
    """The names of the tools that the settings want. Raises ValueError if they name one that does not exist."""
    wanted = set(known if settings.tools is None else settings.tools)
    if unknown := sorted({*wanted, *settings.descriptions} - set(known)):
        raise ValueError(f"no such tool: {', '.join(unknown)}; there are {', '.join(known)}")
    return wanted


_KINDS: Final[Mapping[str, _AgentTool]] = {
    "ls": _AgentTool(_list_entries, ListedEntries, reads("List directory")),
    "read_file": _AgentTool(_content, FileContent, reads("Read file")),
    "write_file": _AgentTool(_change, Changed, changes("Write file", idempotent=True)),
    "edit_file": _AgentTool(_change, Changed, changes("Edit file")),
    "glob": _AgentTool(_files, FoundFiles, reads("Find files")),
    "grep": _AgentTool(_matches, Matches, reads("Search in files")),
    "delete": _AgentTool(_change, Changed, changes("Delete", idempotent=True)),
    "move": _AgentTool(_change, Changed, changes("Move")),
    # What a command reaches is up to the sandbox.
    "execute": _AgentTool(_output, CommandOutput, changes("Run command", open_world=True)),
    "apply_patch": _AgentTool(_patches, PatchedFiles, changes("Apply patch")),
}


def agent_tools(backend: BackendProtocol, settings: McpSettings, calls: BoundedCalls) -> list[Tool]:
    """The tools of an agent that make sense over a backend. Raises ValueError for a name that does not exist."""
    hidden = not_offered(backend) | (set() if settings.execute else {"execute"})
    hidden |= set() if settings.apply_patch or "apply_patch" in (settings.tools or ()) else {"apply_patch"}
    wanted = select_tools(settings, _KINDS)
    chosen: list[Any] = [name for name in TOOL_NAMES if name in wanted]
    given = {name: text for name, text in settings.descriptions.items() if name in TOOL_NAMES}
    limits = ToolLimits(settings.limits.max_result_chars, settings.limits.max_media_bytes)
    made = file_tools(backend, limits, given, chosen, hidden | (set(TOOL_NAMES) - wanted))
    if "apply_patch" in wanted:
        made.append(_patch_tool(backend, settings.descriptions.get("apply_patch")))
    return [_serve(tool, settings, calls) for tool in made if tool.name not in hidden]


def _patch_tool(backend: BackendProtocol, description: str | None) -> FileTool:
    tool = cast("StructuredTool", apply_patch_tool(backend))
    apply = tool.coroutine
    assert apply is not None

    async def call(**given: Any) -> ToolAnswer:
        return ToolAnswer(await apply(**given))

    return FileTool(tool.name, description or tool.description, ApplyPatchArguments, call)


def _serve(tool: FileTool, settings: McpSettings, calls: BoundedCalls) -> Tool:
    kind = _KINDS[tool.name]
    return make_tool(
        calls,
        tool.name,
        tool.description,
        partial(_reply, tool, kind, settings),
        parameters=tool.arguments.model_json_schema(),
        output=output_schema(kind.output),
        annotations=kind.annotations,
    )


async def _reply(tool: FileTool, kind: _AgentTool, settings: McpSettings, arguments: dict[str, Any]) -> Reply:
    """What a call of `tool` answers. A result that is an error, although the tool tells it as a note, is raised."""
    checked = tool.arguments.model_validate(tool.arguments.resolve_aliases(arguments))
    given = {name: getattr(checked, name) for name in type(checked).model_fields}
    answer = await tool.call(**given)
    result = answer.result
    if isinstance(result, ReadResult) and result.error is not None:
        raise ToolFailure(str(answer.content), result.code, result.error, given.get("file_path"))
    data = kind.data(given, answer, settings.limits.max_result_chars)
    return Reply(_blocks(answer, data, links=settings.resources), data)
