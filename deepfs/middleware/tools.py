"""The filesystem tools of an agent: arguments, and results in the form that models read."""

from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from pydantic import BaseModel, Field, ValidationError, model_validator

from deepfs.backends.protocol import BACKEND_TYPES, BackendProtocol, SandboxBackendProtocol, supports_execute
from deepfs.compat.factories import backend_from
from deepfs.errors import DeepFSError, ErrorCode, InvalidContentError
from deepfs.middleware._messages import media_block
from deepfs.middleware.approved import approved_delete, approved_edit, approved_move, approved_write
from deepfs.middleware.prompts import PROMPTS
from deepfs.sync import call_sync
from deepfs.text.arguments import check_number
from deepfs.text.lines import check_text
from deepfs.text.visible import ESCAPES_NOTE, escaped, fenced, one_line, output_text, shown_path
from deepfs.types import ExecuteResponse, FileInfo, GrepMatch, GrepResult, ReadResult, Result

__all__ = [
    "FILE_TOOLS",
    "MAX_EXECUTE_SECONDS",
    "MAX_MEDIA_BYTES",
    "MAX_RESULT_CHARS",
    "MIN_CHARS",
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
    "ToolArguments",
    "WriteArguments",
    "command_output",
    "entries",
    "filesystem_tools",
    "listing",
    "matches",
    "numbered",
    "offers_move",
    "tool_of",
    "wrong_arguments",
]


ResultT = TypeVar("ResultT", bound=Result)

MAX_RESULT_CHARS: Final = 60_000
"""About 15,000 tokens."""
MAX_MEDIA_BYTES: Final = 5_000_000
MAX_EXECUTE_SECONDS: Final = 3_600
"""As in deepagents."""

_NEXT: Final = {
    ErrorCode.FILE_NOT_FOUND: "Find the right path with ls or glob.",
    ErrorCode.IS_DIRECTORY: "List it with ls, or name a file.",
    ErrorCode.NOT_A_DIRECTORY: "Name a directory, or use read_file for a file.",
    ErrorCode.PERMISSION_DENIED: "Do not try again; choose a path that you may use.",
    ErrorCode.INVALID_PATH: "Give an absolute path such as /notes/plan.md.",
    ErrorCode.ALREADY_EXISTS: "To replace it, set overwrite.",
    ErrorCode.NO_MATCH: "Read the file again and copy the text exactly, without line numbers.",
    ErrorCode.BINARY_FILE: "Only text files can be edited.",
    ErrorCode.INVALID_PATTERN: "Correct the pattern.",
    ErrorCode.TIMEOUT: "Narrow the path or the pattern.",
    ErrorCode.UNSUPPORTED: "Reach your aim with other tools.",
    ErrorCode.BACKEND_ERROR: "Try once more; if it fails again, say so.",
}


class FileOperations:
    """The operations, one method for each tool; a failure raises a ToolException that says what to do next."""

    def __init__(
        self, backend: BackendProtocol, max_chars: int, max_media_bytes: int, max_execute_timeout: float
    ) -> None:
        self.backend = backend
        self._max_chars = max(max_chars, MIN_CHARS)
        self._max_media_bytes = max_media_bytes
        self._max_execute_timeout = max_execute_timeout

    async def ls(self, path: str) -> str:
        result = await self.backend.als(path)
        failed = _partial(result, result.entries)
        skipped = f"{result.skipped:,} names are no text (UTF-8) and are not shown" if result.skipped else ""
        shown = listing(entries(result.entries or ()), self._max_chars, skipped, failed)
        return shown or f"[{shown_path(path)} is empty]"

    async def read_file(self, file_path: str, offset: int, limit: int, column: int) -> str | list[dict[str, Any]]:
        read = await self.backend.aread(file_path, offset, limit)
        if read.code is ErrorCode.TOO_LARGE:
            return f"[{one_line(read.error or '')}]"
        data = _done(read).file_data
        if data is not None and data.encoding == "base64":
            return media_block(file_path, data, self._max_media_bytes)
        try:
            return numbered(file_path, read, column, self._max_chars)
        except DeepFSError as error:
            raise ToolException(str(error)) from None

    async def write_file(self, file_path: str, content: str, overwrite: bool) -> str:
        _done(await approved_write(self.backend, file_path, content, overwrite=overwrite))
        return f"Wrote {shown_path(file_path)}"

    async def edit_file(self, file_path: str, old_string: str, new_string: str, replace_all: bool) -> str:
        result = _done(await approved_edit(self.backend, file_path, old_string, new_string, replace_all))
        times = "1 occurrence" if result.occurrences == 1 else f"{result.occurrences} occurrences"
        return f"Replaced {times} in {shown_path(file_path)}"

    async def glob(self, pattern: str, path: str) -> str:
        result = await self.backend.aglob(pattern, path)
        failed = _partial(result, result.matches)
        rows = [shown_path(info.path) for info in result.matches or ()]
        more = "There are more files: narrow the search" if result.truncated else ""
        nothing = f"[No file under {shown_path(path)} matches {one_line(pattern)}]"
        return listing(rows, self._max_chars, more, failed) or nothing

    async def grep(
        self,
        pattern: str,
        path: str,
        glob: str,
        output_mode: str,
        context_lines: int,
        **options: Any,
    ) -> str:
        lines = context_lines if output_mode == "content" else 0
        result = await self.backend.agrep(pattern, path, glob or None, context_lines=lines, **options)
        failed = _partial(result, result.matches)
        rows = matches(result, output_mode) or ["[No line matches]"]
        more = "There are more matches: narrow the search" if result.truncated else ""
        skipped = f"{result.skipped:,} files could not be searched" if result.skipped else ""
        return listing(rows, self._max_chars, more, skipped, failed)

    async def delete(self, file_path: str) -> str:
        _done(await approved_delete(self.backend, file_path))
        return f"Deleted {shown_path(file_path)}"

    async def move(self, source: str, destination: str, overwrite: bool) -> str:
        _done(await approved_move(self.backend, source, destination, overwrite=overwrite))
        return f"Moved {shown_path(source)} to {shown_path(destination)}"

    async def execute(self, command: str, timeout: float) -> str:
        if not supports_execute(self.backend):
            raise ToolException("Error: This filesystem does not run commands. Use the file tools.")
        sandbox = cast("SandboxBackendProtocol", self.backend)
        try:
            check_text(command, "command")
            seconds = min(timeout, self._max_execute_timeout) or None
            return command_output(await sandbox.aexecute(command, timeout=seconds))
        except DeepFSError as error:
            raise ToolException(_advised(str(error), error.code)) from error


def _partial(result: Result, found: object) -> str:
    """The error of a search that found something nevertheless, or `""`; raises it if nothing was found."""
    if not found:
        _done(result)
    return one_line(result.error or "", _ERROR_CHARS)


def _done(result: ResultT) -> ResultT:
    """Return the result of an operation. Raises ToolException if it failed."""
    if result.error is not None:
        raise ToolException(_advised(result.error, result.code))
    return result


def _advised(error: str, code: ErrorCode | None) -> str:
    """Append to the text of an error what to do next, if there is advice for its code."""
    error = escaped(error[:_ERROR_CHARS])
    advice = _NEXT.get(code) if code else None
    end = "" if error.endswith(".") else "."
    return f"{error}{end} {advice}" if advice else error


MIN_CHARS = 400
"""The smallest budget of a result: room for the notes and some content."""

_NOTE = 200
"""The characters reserved for notes."""
_ERROR_CHARS = 4_000
"""The most characters of an error that are shown; those of other libraries may be of any length."""


# --- lists -----------------------------------------------------------------------------------------------------------


def listing(rows: Sequence[str], budget: int, *notes: str) -> str:
    """The rows that fit into `budget` characters, the number of rows left out, and the notes that are not empty."""
    notes = tuple(one_line(note, budget // 4) for note in notes)
    room = budget - _NOTE - sum(len(note) + 3 for note in notes)
    shown = list(_fitting(rows, room))
    left_out = len(rows) - len(shown)
    more = f"{left_out:,} more lines are not shown: narrow the search" if left_out else ""
    return "\n".join([*shown, *(f"[{note}]" for note in (more, *notes) if note)])


def _fitting(rows: Iterable[str], room: int) -> Iterator[str]:
    for row in rows:
        room -= len(row) + 1
        if room < 0:
            return
        yield row


def entries(found: Iterable[FileInfo]) -> list[str]:
    """A row for each entry: its path, and the size of a file if known."""
    named = ((shown_path(info.path), info) for info in found)
    return [name if info.size is None or info.is_dir else f"{name}\t{info.size}" for name, info in named]


# --- matches ---------------------------------------------------------------------------------------------------------


def matches(result: GrepResult, output_mode: str) -> list[str]:
    """The rows of a search result, in the form that `output_mode` names."""
    by_path: defaultdict[str, list[GrepMatch]] = defaultdict(list)
    for match in result.matches or ():
        by_path[shown_path(match.path)].append(match)
    if output_mode == "count":
        return [f"{path}: {len(found)}" for path, found in by_path.items()]
    if output_mode == "content":
        return [row for path, found in by_path.items() for row in (f"{path}:", *_lines(found))]
    return list(by_path)


def _lines(found: Sequence[GrepMatch]) -> list[str]:
    """The matching lines (`12: text`) and the context lines around them (`13- text`), each line once."""
    rows: dict[int, str] = {}
    for match in found:
        for beside in (*(match.context_before or ()), *(match.context_after or ())):
            rows.setdefault(beside.line, f"  {beside.line}- {escaped(beside.text)}")
    rows.update({match.line: f"  {match.line}: {escaped(match.text)}" for match in found})
    return [rows[line] for line in sorted(rows)]


# --- text ------------------------------------------------------------------------------------------------------------


_ESCAPE_CHARS = 6
"""The length of the longest escape of a character."""


class _Shown(NamedTuple):
    rows: list[str]
    cut: int | None
    """The number of characters shown of the first line, if not all of it fits; otherwise None."""


def numbered(path: str, read: ReadResult, column: int, budget: int) -> str:
    """Number the lines that were read, and note in brackets how to read on if there is more.

    Raises InvalidContentError if the first line is shorter than `column`.
    """
    content = read.file_data.content if read.file_data else ""
    first = read.start_line
    if not content or first is None:
        return f"[{shown_path(path)} is empty]"
    lines = [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")]
    if column > len(lines[0]):
        length = f"{len(lines[0]):,} characters"
        raise InvalidContentError(path, f"column {column:,} exceeds line {first}, which has {length}")
    shown = _rows(lines, first, column, budget - _NOTE)
    notes = [f"[{ESCAPES_NOTE}]"] if _has_escapes(lines, shown, column) else []
    return "\n".join([*shown.rows, *notes, *_reading_on(read, lines, shown, first, column)])


def _has_escapes(lines: Sequence[str], shown: _Shown, column: int) -> bool:
    """Whether the rows show characters as escapes."""
    if shown.cut is not None:
        start = lines[0][column : column + shown.cut]
        return escaped(start) != start
    return any(escaped(line) != line for line in islice(lines, len(shown.rows)))


def _rows(lines: Sequence[str], first: int, column: int, room: int) -> _Shown:
    texts = (text[:room] for text in chain([lines[0][column:]], islice(lines, 1, None)))  # More never fits.
    rows = list(_fitting((f"{number}\t{escaped(text)}" for number, text in enumerate(texts, first)), room))
    if rows:
        return _Shown(rows, None)
    prefix = f"{first}\t"
    cut = room - len(prefix)
    start = lines[0][column : column + cut]
    if len(escaped(start)) > cut:
        cut //= _ESCAPE_CHARS
    return _Shown([prefix + escaped(start[:cut])], cut)


def _reading_on(read: ReadResult, lines: Sequence[str], shown: _Shown, first: int, column: int) -> list[str]:
    if shown.cut is not None:
        end = column + shown.cut
        return [
            f"[Characters {column:,} to {end:,} of {len(lines[0]):,} in line {first}. "
            f"Read on with offset={first - 1}, column={end}]"
        ]
    last = first + len(shown.rows) - 1
    if len(shown.rows) == len(lines) and read.next_offset is None:
        return []
    total = "" if read.total_lines is None else f" of {read.total_lines:,}"
    return [f"[Lines {first:,} to {last:,}{total}. Read on with offset={last}]"]


# --- commands --------------------------------------------------------------------------------------------------------


def command_output(response: ExecuteResponse) -> str:
    """The output of a command, with notes in brackets: no output, cut output, stopped, or its exit code if not 0.

    Output that has lines like notes stands between delimiters that it cannot know.
    """
    code = response.exit_code
    output = output_text(response.output)
    notes = [
        "" if output.strip() else "Only white space" if output else "No output",
        "Output was cut off" if response.truncated else "",
        "The command was stopped before it ended" if code is None else f"Exit code {code}" if code else "",
    ]
    shown = fenced("output", output) if output else []
    return "\n".join([*shown, *(f"[{note}]" for note in notes if note)])


OutputMode = Literal["files_with_matches", "content", "count"]


class ToolArguments(BaseModel):
    """The arguments of a tool. One that is null is left out, as some models write the default."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class LsArguments(ToolArguments):
    path: str = Field("/", description="Absolute path.")


class ReadArguments(ToolArguments):
    file_path: str = Field(description="Absolute path.")
    offset: int = Field(0, ge=0, description="Lines to skip.")
    limit: int = Field(500, ge=1, description="Most lines to read.")
    column: int = Field(0, ge=0, description="Characters of the first line to skip.")


class WriteArguments(ToolArguments):
    file_path: str = Field(description="Absolute path.")
    content: str = Field(description="The whole text.")
    overwrite: bool = Field(False, description="Replace an existing file.")


class EditArguments(ToolArguments):
    file_path: str = Field(description="Absolute path.")
    old_string: str = Field(description="The exact text to replace.")
    new_string: str = Field(description="What takes its place.")
    replace_all: bool = Field(False, description="Replace every occurrence.")


class GlobArguments(ToolArguments):
    pattern: str = Field(description="The glob pattern.")
    path: str = Field("/", description="Directory to search.")


class GrepArguments(ToolArguments):
    pattern: str = Field(description="The text to find.")
    path: str = Field("/", description="Directory or file to search.")
    glob: str = Field("", description="Search only files such as `*.py`.")
    output_mode: OutputMode = Field("files_with_matches", description="Paths, numbered lines, or counts.")
    regex: bool = Field(False, description="The pattern is a regular expression; `(?i)` ignores case.")
    context_lines: int = Field(0, ge=0, description="Lines around a match.")
    max_count: int = Field(1000, ge=1, description="Most matches.")


class DeleteArguments(ToolArguments):
    file_path: str = Field(description="Absolute path.")


class MoveArguments(ToolArguments):
    source: str = Field(description="What to move.")
    destination: str = Field(description="Its new path.")
    overwrite: bool = Field(False, description="Replace an existing file.")


class ExecuteArguments(ToolArguments):
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
"""The names of all tools, in the order of `filesystem_tools`."""
FILE_TOOLS: Final = frozenset(TOOL_NAMES) - {"execute"}
"""The tools that limit the size of their results."""


def filesystem_tools(
    backend: BACKEND_TYPES,
    *,
    descriptions: Mapping[str, str] | None = None,
    max_result_chars: int = MAX_RESULT_CHARS,
    max_media_bytes: int = MAX_MEDIA_BYTES,
    execute: bool | None = None,
    max_execute_timeout: float = MAX_EXECUTE_SECONDS,
) -> list[BaseTool]:
    """Make the tools `ls read_file write_file edit_file glob grep delete move`, and `execute` where `backend` executes.

    `move` is left out if a class of the backend overrides `write` alone: moving would bypass the rules in that `write`.
    Each tool works async and sync. A failure is a `ToolMessage` with `status="error"` that says what to do next.
    `descriptions` replace the default descriptions, by name of the tool. No result of a file tool is longer than
    `max_result_chars`; images, audio, video and PDF of up to `max_media_bytes` are content blocks, other binary files
    a note. `execute=True` or `execute=False` adds or leaves out the tool `execute`, whether or not `backend` executes.
    A command that names a timeout gets at most `max_execute_timeout` seconds, and never more than `backend` allows.
    Raises ValueError for a description of a tool that does not exist, and for a timeout that is not positive.
    """
    check_number("max_execute_timeout", max_execute_timeout)
    given = descriptions or {}
    unknown = sorted(set(given) - set(TOOL_NAMES))
    if unknown:
        raise ValueError(f"no such tool: {', '.join(unknown)}; there are {', '.join(TOOL_NAMES)}")
    files = backend_from(backend)
    operations = FileOperations(files, max_result_chars, max_media_bytes, max_execute_timeout)
    executes = supports_execute(files) if execute is None else execute
    left_out = {"move": not offers_move(files), "execute": not executes}
    names = [name for name in TOOL_NAMES if not left_out.get(name, False)]
    return [_tool(operations, name, given.get(name) or PROMPTS[name]) for name in names]


class _Calls(NamedTuple):
    """One operation as a sync and an async function."""

    backend: BackendProtocol
    operation: Callable[..., Coroutine[Any, Any, Any]]
    name: str

    def call(self, **given: Any) -> Any:
        bound = partial(self.operation, **given)
        return call_sync(self.backend, bound, f"The sync form of the tool {self.name}", "its async form (ainvoke)")

    async def acall(self, **given: Any) -> Any:
        return await self.operation(**given)


def _tool(operations: FileOperations, name: str, description: str) -> BaseTool:
    return tool_of(operations.backend, getattr(operations, name), name, description, _ARGUMENTS[name])


def tool_of(
    backend: BackendProtocol,
    operation: Callable[..., Coroutine[Any, Any, Any]],
    name: str,
    description: str,
    arguments: type[BaseModel],
    **options: Any,
) -> BaseTool:
    """Make a tool, async and sync, of an operation that waits for `backend`; a ToolException of it is its result."""
    calls = _Calls(backend, operation, name)
    return StructuredTool(
        name=name,
        description=description,
        args_schema=arguments,
        func=calls.call,
        coroutine=calls.acall,
        handle_tool_error=_error_text,
        handle_validation_error=wrong_arguments,
        **options,
    )


def _error_text(error: ToolException) -> str:
    return str(error)


def wrong_arguments(error: Any) -> str:
    """The error text for a call with wrong arguments, with the reason for each argument."""
    if not isinstance(error, ValidationError):
        return f"Error: The arguments are wrong: {error}"
    wrong = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in error.errors())
    return f"Error: The arguments are wrong. {wrong}. Correct them and call the tool again."


def offers_move(backend: BackendProtocol) -> bool:
    """Whether `backend` and all its inner backends offer `move` to a model."""
    inner = (each for each in backend.inner_backends() if isinstance(each, BackendProtocol))
    return backend.offers_move and all(map(offers_move, inner))
