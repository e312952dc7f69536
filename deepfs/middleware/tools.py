"""The filesystem tools of an agent: what each does, and which are offered over a backend."""

import re
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import inf
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, ToolException

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.protocol import (
    BACKEND_TYPES,
    BackendProtocol,
    SandboxBackendProtocol,
    as_backend,
    offers_move,
    supports_execute,
)
from deepfs.errors import AlreadyExistsError, DeepFSError, ErrorCode, NotSupportedError
from deepfs.middleware._messages import media_block
from deepfs.middleware.approved import (
    delete_as_approved,
    edit_as_approved,
    edit_each_as_approved,
    move_as_approved,
    write_as_approved,
)
from deepfs.middleware.arguments import (
    ARGUMENTS,
    TOOL_NAMES,
    FsToolName,
    TextEdit,
    ToolArguments,
    wrong_arguments,
)
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.rendering import (
    ERROR_CHARS,
    MAX_RESULT_CHARS,
    MIN_CHARS,
    WHOLE_LINE,
    WINDOW,
    Advice,
    Advisor,
    TextPlace,
    ToolAnswer,
    command_output,
    into_directory,
    matches,
    no_file,
    no_line,
    number_lines,
    page_entries,
    page_rows,
    plain_error,
    render_error,
    render_rows,
)
from deepfs.operations import Grep
from deepfs.search.globs import literal_brackets
from deepfs.search.query import MAX_LINE, compile_query
from deepfs.sync import call_sync, in_thread_if_large
from deepfs.text import paths
from deepfs.text.arguments import check_integer, check_number
from deepfs.text.lines import check_text, line_count
from deepfs.text.media import MAX_MEDIA_BYTES
from deepfs.text.records import read_text
from deepfs.text.visible import display_path, one_line
from deepfs.types import (
    EditResult,
    ExecuteResponse,
    GrepMatch,
    GrepResult,
    ReadResult,
    Result,
    error_behind,
    error_from,
    replace_fields,
)

__all__ = [
    "MAX_MEDIA_BYTES",
    "MAX_RESULT_CHARS",
    "FileTool",
    "ToolFailure",
    "ToolLimits",
    "filesystem_tools",
]


def not_offered(backend: BackendProtocol) -> set[str]:
    """The tools that a model cannot use over the backend, known without a call."""
    changes = _offers_changes(backend)
    offered = {
        "write_file": changes,
        "edit_file": changes,
        "delete": changes and backend.capabilities.deletes,
        "move": changes and offers_move(backend),
        "apply_patch": changes,
        "memory": changes,
        "execute": supports_execute(backend),
    }
    return {name for name, is_offered in offered.items() if not is_offered}


def _offers_changes(backend: BackendProtocol) -> bool:
    """Whether `backend` and, if it passes calls on, one of its inner backends take changes."""
    inner = list(_inner(backend))
    return backend.offers_changes and (not inner or any(map(_offers_changes, inner)))


def _inner(backend: BackendProtocol) -> Iterator[BackendProtocol]:
    return (each for each in backend.inner_backends() if isinstance(each, BackendProtocol))


def longest_command(backend: BackendProtocol) -> float:
    """The most seconds of a command; infinite if it is not known."""
    while not isinstance(backend, SandboxBackendProtocol):
        inner = backend.executor if isinstance(backend, CompositeBackend) else next(_inner(backend), None)
        if inner is None:
            return inf
        backend = inner
    return backend.command_timeout


def about_commands(backend: BackendProtocol) -> str:
    """Where commands start, and what they see of mounts, as a part of the description of `execute`."""
    mount, others = "/", ""
    is_plain = True
    while not isinstance(backend, SandboxBackendProtocol):
        if isinstance(backend, CompositeBackend):
            mount, others = _around_commands(backend, is_plain)
            backend = backend.executor
        elif (inner := next(_inner(backend), None)) is not None:
            backend, is_plain = inner, False
        else:
            return ""
    place = backend.working_directory
    if place is None:
        return others
    if place == "/":
        start = f"the directory that the file tools call `{mount}`: its `{paths.join(mount, 'a/b')}` is `a/b` there"
        return f" Commands start in {start}.{others}"
    return f" Commands start in {display_path(place)}.{others}"


def _around_commands(composite: CompositeBackend, is_plain: bool) -> tuple[str, str]:
    """The path under which a composite has the files of its commands, and what these see of its other files.

    Where a layer may have rules, the directories of this machine are not named: commands would get around the rules.
    """
    executor = composite.executor
    mount = next((route for route, each in composite.routes.items() if each is executor), "/")
    if mount != "/":
        return paths.normalize(mount), f" They see no files outside of `{mount}`."
    on_host = is_plain and isinstance(executor, SandboxBackendProtocol) and executor.commands_on_host
    places = {
        route: getattr(each, "host_directory", None) if on_host else None for route, each in composite.routes.items()
    }
    reached = [f" `{one_line(route)}` is {display_path(place)} for them." for route, place in places.items() if place]
    unseen = [f"`{one_line(route)}`" for route, place in places.items() if not place]
    return mount, "".join(reached) + (f" They do not see {', '.join(unseen)}." if unseen else "")


ResultT = TypeVar("ResultT", bound=Result)

MAX_EXECUTE_SECONDS: Final = 3_600
"""As in deepagents."""
GLOB_TRUNCATION_NOTE: Final = (
    "The search was stopped before its end, so there may be more files: narrow the path or the pattern"
)
MAX_GREP_COUNT: Final = 1_000
"""As in deepagents."""
_MAX_GLOB_ROWS: Final = 1_000
_READ_LIMIT: Final = ARGUMENTS["read_file"].model_fields["limit"].default
_TEXT_ALONE: Final = "[This is the text of a document, without its pictures and layout; it cannot be edited here]"
_MAX_LONG_LINES: Final = 20
"""The most lines of one search result that are read again to show the part around the match."""
_MAX_WORK: Final = 50_000_000
"""The most bytes, times the instructions of the expression, that are searched again for places in lines."""


class ToolLimits(NamedTuple):
    """The most that a result shows, and that a call may ask for."""

    chars: int = MAX_RESULT_CHARS
    media_bytes: int = MAX_MEDIA_BYTES
    execute_seconds: float = MAX_EXECUTE_SECONDS
    grep_count: int | None = MAX_GREP_COUNT
    """The most matches of a search that names no number; None for all."""


FILE_TOOLS: Final = frozenset(TOOL_NAMES) - {"execute"}
"""The tools that limit the size of their results."""


_AT_LINE: Final = re.compile(r"(?P<path>.+?):(?P<line>[1-9]\d{0,8})(?::\d+)?", re.DOTALL)
"""A path and a line, as searches, compilers and tracebacks name a place."""


class ToolFailure(ToolException):
    """A failed operation, for programs too. The arguments are attributes as well.

    Args:
        text: The text for a model, which says what to do next.
        code: What failed.
        message: The text of the error alone.
        path: The path that the error is about; None if there is none.
    """

    def __init__(self, text: str, code: ErrorCode | None, message: str, path: str | None) -> None:
        super().__init__(text)
        self.code: ErrorCode = code or ErrorCode.BACKEND_ERROR
        self.message: str = message
        self.path: str | None = path


class FileOperations:
    """The operations, one method for each tool; a failure raises a ToolException that says what to do next."""

    def __init__(
        self,
        backend: BackendProtocol,
        limits: ToolLimits = ToolLimits(),  # noqa: B008
        offered: Collection[str] = TOOL_NAMES,
    ) -> None:
        self.backend = backend
        self._advisor = Advisor(backend, offered)
        self._chars = max(limits.chars, MIN_CHARS)
        self._limits = limits

    async def ls(self, path: str, offset: int, limit: int) -> ToolAnswer:
        result = await self.backend.als(path)
        failed = await self._partial("ls", result, result.entries, path)
        skipped = f"{result.skipped:,} names are no text (UTF-8) and are not shown" if result.skipped else ""
        page = page_entries(result.entries or (), offset, limit, self._chars, skipped, failed)
        return ToolAnswer(page.text or f"[{_absolute(path)} is empty]", result, page.shown)

    async def read_file(self, file_path: str, offset: int, limit: int, column: int) -> ToolAnswer:
        asked = offset
        if offset < 0:
            offset = await self._from_end(file_path, offset)
        read = await self.backend.aread(file_path, offset, limit)
        if read.code is ErrorCode.FILE_NOT_FOUND and not offset and (found := _AT_LINE.fullmatch(file_path)):
            around = await self.backend.aread(found["path"], max(0, int(found["line"]) - 1 - limit // 2), limit)
            if around.ok:
                file_path, read, offset = found["path"], around, max(0, (around.start_line or 1) - 1)
        has_commands = "execute" in self._advisor.offered
        other_ways = "Look into it with execute" if has_commands else "Go on without it, and say so"
        if read.code is ErrorCode.TOO_LARGE:
            return ToolAnswer(f"[{one_line(read.error or '')}. {other_ways}]", read)
        data = (await self._check_done("read_file", read, file_path)).file_data
        if data is not None and data.encoding == "base64":
            from deepfs.middleware.documents import document_kind, document_text

            shown = media_block(_from_root(file_path), data, self._limits.media_bytes)
            is_part = (asked, limit, column) != (0, _READ_LIMIT, 0)
            kind = document_kind(file_path, data.content) if is_part or isinstance(shown, str) else ""
            if kind:
                try:
                    text = await document_text(_from_root(file_path), data.content, kind)
                except DeepFSError as error:
                    if isinstance(shown, str) or not isinstance(error, NotSupportedError):
                        shown = one_line(plain_error(error))
                else:
                    return await self._document(file_path, read, text, asked, limit, column)
            return ToolAnswer(f"[{shown}. {other_ways}]" if isinstance(shown, str) else shown, read)
        return await self._numbered(file_path, read, offset, column, self._chars)

    async def _document(
        self, file_path: str, read: ReadResult, text: str, offset: int, limit: int, column: int
    ) -> ToolAnswer:
        """A part of the text of a document, of which `read` has the bytes."""
        assert read.file_data is not None
        path = _from_root(file_path)
        try:
            offset = offset if offset >= 0 else max(0, line_count(text) + offset)
            page = await in_thread_if_large(len(text), partial(read_text, path, text, offset, limit, at=read.file_data))
        except DeepFSError as error:
            raise await self._failure("read_file", error) from None
        page = replace_fields(page, version=read.version)
        answer = await self._numbered(file_path, page, offset, column, self._chars - len(_TEXT_ALONE) - 1)
        return answer._replace(content=f"{answer.content}\n{_TEXT_ALONE}")

    async def _numbered(self, file_path: str, read: ReadResult, offset: int, column: int, chars: int) -> ToolAnswer:
        try:
            return number_lines(_from_root(file_path), read, offset, column, chars)
        except DeepFSError as error:
            raise await self._failure("read_file", error, Advice("Give a smaller column.")) from None

    async def _from_end(self, file_path: str, offset: int) -> int:
        """The lines to skip for an offset that counts from the end."""
        begun = await self.backend.aread(file_path, 0, 1)
        if begun.total_lines is None and begun.next_offset is not None:
            raise ToolException("Error: It is not known how many lines the file has. Give an offset of 0 or more.")
        return max(0, (begun.total_lines or begun.end_line or 0) + offset)

    async def write_file(self, file_path: str, content: str, overwrite: bool) -> ToolAnswer:
        if file_path.strip("/") and file_path.endswith("/"):
            named = f"Error: {display_path(file_path)} ends in '/', as a directory does"
            raise ToolException(f"{named}. Add the name of a file to the path; its directories are made with it.")
        written = await write_as_approved(self.backend, file_path, content, overwrite=overwrite)
        done = await self._check_done("write_file", written, file_path)
        return ToolAnswer(f"Wrote {_absolute(done.path or file_path)}", done)

    async def edit_file(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool, edits: Sequence[TextEdit]
    ) -> ToolAnswer:
        if edits:
            return await self._edit_each(file_path, edits)
        if not old_string:
            raise ToolException("Error: old_string is empty. To write the whole file, use write_file with overwrite.")
        if old_string == new_string:
            raise ToolException("Error: old_string and new_string are the same. Give the new text, or go on.")
        result = await edit_as_approved(self.backend, file_path, old_string, new_string, replace_all)
        return _edited(file_path, await self._check_done("edit_file", result, file_path))

    async def _edit_each(self, file_path: str, edits: Sequence[TextEdit]) -> ToolAnswer:
        asked = [(edit.old_string, edit.new_string, edit.replace_all) for edit in edits]
        result, wrong = await edit_each_as_approved(self.backend, file_path, asked)
        try:
            done = await self._check_done("edit_file", result, file_path)
        except ToolFailure as failure:
            if not wrong:
                raise
            text = f"{failure} This was edit {wrong} of {len(edits)}; nothing was changed."
            raise ToolFailure(text, failure.code, failure.message, failure.path) from None
        return _edited(file_path, done)

    async def glob(self, pattern: str, path: str, offset: int) -> ToolAnswer:
        result = await self.backend.aglob(pattern, path)
        failed = await self._partial("glob", result, result.matches, path, _in_brackets(result, pattern))
        rows = [display_path(info.path) for info in result.matches or ()]
        stopped = GLOB_TRUNCATION_NOTE if result.truncated else ""
        page = page_rows(rows, offset, _MAX_GLOB_ROWS, self._chars, stopped, failed)
        return ToolAnswer(page.text or no_file(_absolute(path), pattern), result, page.shown)

    async def grep(
        self,
        pattern: str,
        path: str,
        glob: str,
        output_mode: str,
        context_lines: int,
        max_count: int,
        **options: Any,
    ) -> ToolAnswer:
        in_content = output_mode == "content"
        lines, most = context_lines if in_content else 0, max_count or self._limits.grep_count
        # Without a path, rules that deny the root leave what they allow beneath it.
        where = None if path == "/" else path
        request = Grep(pattern, where, glob or None, context_lines=lines, max_count=most, **options)
        result: GrepResult = await self.backend.arun(request)
        better = _in_brackets(result, glob)
        if request.regex and result.code is ErrorCode.INVALID_PATTERN:
            better = Advice("Correct the pattern, or set regex=false to find plain text.")
        elif request.regex and result.code is ErrorCode.UNSUPPORTED:
            better = Advice("Set regex=false to find plain text.")
        failed = await self._partial("grep", result, result.matches, path, better)
        found = result.matches or ()
        places = await self._places(found, partial(_finder, request)) if in_content else {}
        rows = matches(result, output_mode, lambda match: places.get((match.path, match.line), TextPlace(match.text)))
        advice = "narrow path, glob or pattern"
        more = ""
        if result.truncated and most is not None and len(found) >= most:
            more = f"There are more matches than {most:,}: {advice}, or raise max_count"
        elif result.truncated:
            more = f"The search was stopped before its end, so there may be more matches: {advice}"
        skipped = ""
        if result.skipped:
            number = "1 file was" if result.skipped == 1 else f"{result.skipped:,} files were"
            skipped = f"{number} not searched: binary, too large or not readable"
        if not rows and not failed:
            is_whole = not skipped and not result.truncated
            rows = [no_line(request, _absolute(path), is_whole=is_whole)]
        return ToolAnswer(render_rows(rows, self._chars, more, skipped, failed, advice=advice), result)

    async def delete(self, file_path: str) -> ToolAnswer:
        done = await self._check_done("delete", await delete_as_approved(self.backend, file_path), file_path)
        return ToolAnswer(f"Deleted {_absolute(done.path or file_path)}", done)

    async def move(self, source: str, destination: str, overwrite: bool) -> ToolAnswer:
        if destination.strip("/") and destination.endswith("/") and (await self.backend.aread(source, 0, 1)).ok:
            named = f"Error: {display_path(destination)} ends in '/', as a directory does"
            raise ToolException(f"{named}. {into_directory(source, destination).text}")
        moved = await move_as_approved(self.backend, source, destination, overwrite=overwrite)
        error = error_behind(moved)
        is_directory = isinstance(error, AlreadyExistsError) and error.is_directory
        is_directory |= moved.code is ErrorCode.IS_DIRECTORY
        better = into_directory(source, destination) if is_directory else None
        done = await self._check_done("move", moved, source, destination, better=better)
        return ToolAnswer(f"Moved {_absolute(source)} to {_absolute(done.path or destination)}", done)

    async def execute(self, command: str, timeout: float) -> ToolAnswer:
        if not supports_execute(self.backend):
            raise ToolException("Error: This filesystem does not run commands. Use the file tools.")
        sandbox = cast("SandboxBackendProtocol", self.backend)
        longest = min(self._limits.execute_seconds, longest_command(self.backend))
        try:
            check_text(command, "command")
            done = await sandbox.aexecute(command, timeout=min(timeout, longest) or None)
        except DeepFSError as error:
            raise await self._failure("execute", error) from error
        output = command_output(done, longest)
        reached = done.exit_code is not None and timeout > longest
        return ToolAnswer(f"{output}\n[The timeout was {longest:g} s, the maximum]" if reached else output, done)

    # --- failures ---

    async def _partial(self, tool: str, result: Result, found: object, path: str, better: Advice | None = None) -> str:
        """The error of a search that found something nevertheless, or `""`; raises it if nothing was found."""
        if not found:
            await self._check_done(tool, result, path, better=better)
        return one_line(result.error or "", ERROR_CHARS)

    async def _check_done(self, tool: str, result: ResultT, *paths: str, better: Advice | None = None) -> ResultT:
        """Return the result of an operation. Raises ToolException if it failed; the first path had to exist."""
        if result.error is None:
            return result
        error = error_from(result)
        is_known = better or result.code is not None
        text = await self._advisor.advise(tool, error, *paths, better=better) if is_known else render_error(error)
        raise ToolFailure(text, result.code, result.error, paths[0] if error.is_foreign else error.path)

    async def _failure(self, tool: str, error: DeepFSError, better: Advice | None = None) -> ToolFailure:
        text = await self._advisor.advise(tool, error, better=better)
        return ToolFailure(text, error.code, str(error), error.path)

    # --- matches in long lines ---

    async def _places(
        self, found: Sequence[GrepMatch], make_finder: Callable[[], Callable[[str], int | None]]
    ) -> dict[tuple[str, int], TextPlace]:
        """Where the matches in long lines are; the first lines that were cut before their match are read whole."""
        long = [match for match in found if len(match.text) > WHOLE_LINE]
        if not long:
            return {}
        find, places, cut = make_finder(), {}, 0
        for match in long:
            place = TextPlace(match.text, find(match.text))
            is_near_end = place.start is None or place.start > MAX_LINE - WINDOW
            if is_near_end and len(match.text) >= MAX_LINE and cut < _MAX_LONG_LINES:
                cut += 1
                data = (await self.backend.aread(match.path, match.line - 1, 1)).file_data
                line = data.content if data is not None and data.encoding == "utf-8" else match.text
                place = TextPlace(line, find(line))
            places[match.path, match.line] = place
        return places


def _edited(file_path: str, done: EditResult) -> ToolAnswer:
    times = "1 occurrence" if done.occurrences == 1 else f"{done.occurrences or 'all'} occurrences"
    return ToolAnswer(f"Replaced {times} in {_absolute(done.path or file_path)}", done)


def _in_brackets(result: Result, pattern: str) -> Advice | None:
    """What to do about a refused glob whose brackets may belong to a name."""
    hint = literal_brackets(pattern) if result.code is ErrorCode.INVALID_PATTERN else ""
    return Advice(f"{hint}.") if hint else None


def _absolute(path: str) -> str:
    """A path for a line of a prompt, as the tools take it."""
    return display_path(_from_root(path))


def _from_root(path: str) -> str:
    return path if path.startswith("/") else f"/{path.removeprefix('./')}"


def _finder(request: Grep) -> Callable[[str], int | None]:
    """A function that returns where the first match in a line starts; None if that is not known."""
    try:
        regexp = compile_query(request).regexp
    except DeepFSError:  # The backend reads the pattern in its own way.
        return lambda line: None
    work = _MAX_WORK

    def find(line: str) -> int | None:
        nonlocal work
        content = line.encode("utf-8", "surrogatepass")
        work -= len(content) * (regexp.programsize if regexp else 1)
        if work < 0:
            return None
        if regexp is None:
            return None if (start := line.find(request.pattern)) < 0 else start
        match = regexp.search(content)
        return None if match is None else len(content[: match.start()].decode("utf-8", "ignore"))

    return find


def filesystem_tools(
    backend: BACKEND_TYPES,
    *,
    descriptions: Mapping[str, str] | None = None,
    max_result_chars: int = MAX_RESULT_CHARS,
    max_media_bytes: int = MAX_MEDIA_BYTES,
    execute: bool | None = None,
    max_execute_timeout: float = MAX_EXECUTE_SECONDS,
    grep_max_count: int | None = MAX_GREP_COUNT,
    tools: Sequence[FsToolName] | Literal["all"] | None = None,
) -> list[BaseTool]:
    """Make the tools `ls read_file write_file edit_file glob grep delete move`, and `execute` where `backend` executes.

    Tools that change files are left out where `backend` refuses all changes, `delete` where it cannot delete, and
    `move` if a class of the backend overrides `write` alone: moving would bypass the rules in that `write`.
    Each tool works async and sync. A failure is a `ToolMessage` with `status="error"` that says what to do next.

    Args:
        backend: The backend of the files, of any protocol, or a factory of one.
        descriptions: Descriptions by name of the tool, which replace the default ones.
        max_result_chars: The longest result of a file tool, in characters.
        max_media_bytes: The largest image, audio, video or PDF that is shown as a content block. Of a larger PDF and
            of a Word document the text is shown; other binary files are notes.
        execute: True adds the tool `execute`, False leaves it out, whether or not `backend` executes; None goes by
            `backend`.
        max_execute_timeout: The most seconds of a command whose call names a timeout. The limit of `backend` holds
            besides.
        grep_max_count: The most matches of a search whose call names no number; None is no limit.
        tools: The names of the tools to make; None and `"all"` are all of them.

    Returns:
        The tools, in the order of the names above.

    Raises:
        TypeError: If `backend` is not a backend, or a limit is not a number.
        ValueError: For a tool that does not exist, and for a timeout or a count that is not positive.
    """
    limits = ToolLimits(max_result_chars, max_media_bytes, max_execute_timeout, grep_max_count)
    files = as_backend(backend)
    hidden = not_offered(files) - ({"execute"} if execute else set()) | ({"execute"} if execute is False else set())
    return [tool for tool in make_tools(files, limits, descriptions, tools, hidden) if tool.name not in hidden]


class FileTool(NamedTuple):
    """A file tool: what a model is told of it, and what it does."""

    name: str
    description: str
    arguments: type[ToolArguments]
    call: Callable[..., Coroutine[Any, Any, ToolAnswer]]
    """Takes the validated arguments by name. Raises ToolException, mostly a ToolFailure."""


def make_tools(
    files: BackendProtocol,
    limits: ToolLimits,
    descriptions: Mapping[str, str] | None = None,
    tools: Sequence[FsToolName] | Literal["all"] | None = None,
    hidden: Collection[str] | None = None,
) -> list[BaseTool]:
    """Make the chosen tools, as `file_tools` does, for LangChain."""
    return [
        tool_of(
            files, _for_langchain(tool), tool.name, tool.description, tool.arguments, _FORMS.get(tool.name, "content")
        )
        for tool in file_tools(files, limits, descriptions, tools, hidden)
    ]


def _for_langchain(tool: FileTool) -> Callable[..., Coroutine[Any, Any, Any]]:
    """What a file tool does, with the result of LangChain: what the model reads, and of a command the outcome.

    deepagents has the outcome in `ToolMessage.artifact` as well.
    """

    async def call(**given: Any) -> Any:
        answer = await tool.call(**given)
        if tool.name not in _FORMS:
            return answer.content
        done = cast("ExecuteResponse", answer.result)
        code = {} if done.exit_code is None else {"exit_code": done.exit_code}
        return answer.content, {"truncated": done.truncated, **code}

    return call


_FORMS: Final[Mapping[str, Literal["content_and_artifact"]]] = {"execute": "content_and_artifact"}


def file_tools(
    files: BackendProtocol,
    limits: ToolLimits,
    descriptions: Mapping[str, str] | None = None,
    tools: Sequence[FsToolName] | Literal["all"] | None = None,
    hidden: Collection[str] | None = None,
) -> list[FileTool]:
    """Make the chosen tools, but no `move` where it would bypass an override.

    Advice names none of those in `hidden`, which the caller offers to no model; None is those of `not_offered`.
    """
    check_number("max_execute_timeout", limits.execute_seconds)
    if limits.grep_count is not None:
        check_integer("grep_max_count", limits.grep_count)
        if limits.grep_count < 1:
            raise ValueError(f"grep_max_count must be positive or None, not {limits.grep_count}")
    given, chosen = descriptions or {}, TOOL_NAMES if tools is None or tools == "all" else tools
    unknown = sorted({*given, *chosen}.difference(TOOL_NAMES))
    if unknown:
        raise ValueError(f"no such tool: {', '.join(unknown)}; there are {', '.join(TOOL_NAMES)}")
    usual = {**PROMPTS, "execute": f"{PROMPTS['execute']}{about_commands(files)}"}
    names = [name for name in TOOL_NAMES if name in chosen and (name != "move" or offers_move(files))]
    operations = FileOperations(files, limits, {*names}.difference(not_offered(files) if hidden is None else hidden))
    return [
        FileTool(name, given.get(name) or usual[name], ARGUMENTS[name], getattr(operations, name)) for name in names
    ]


def tool_of(
    backend: BackendProtocol,
    operation: Callable[..., Coroutine[Any, Any, Any]],
    name: str,
    description: str,
    arguments: type[ToolArguments],
    response_format: Literal["content", "content_and_artifact"] = "content",
    extras: dict[str, Any] | None = None,
) -> BaseTool:
    """Make a tool, async and sync, of an operation that waits for `backend`; a ToolException of it is its result."""

    def call(**given: Any) -> Any:
        waits = f"The sync form of the tool {name}"
        return call_sync(backend, partial(operation, **given), waits, "its async form (ainvoke)")

    return Tool(
        name=name,
        description=description,
        args_schema=arguments,
        func=call,
        coroutine=operation,
        response_format=response_format,
        extras=extras,
    )


class Tool(StructuredTool):
    """A tool whose schema for models is that of all tools with the same name, description and arguments.

    LangChain makes one for each object, at the first turn of an agent: about 240 kB, and 15 ms on the event loop. At
    each call, it also looks in the schema for arguments that LangGraph fills in, of which file tools have none, and
    compiles the annotations of `_run` and `_arun`, which are texts in its own class.
    """

    handle_tool_error: Any = True
    handle_validation_error: Any = wrong_arguments

    @property
    def tool_call_schema(self) -> Any:
        """As of LangChain's class."""
        if not isinstance(self.args_schema, type):
            return super().tool_call_schema
        return _call_schema(self.name, self.description, self.args_schema)

    def _filter_injected_args(self, tool_input: dict[str, Any]) -> dict[str, Any]:
        return super()._filter_injected_args(tool_input) if self._own_schema() is None else {**tool_input}

    def _parse_input(self, tool_input: Any, tool_call_id: str | None) -> Any:
        schema = self._own_schema()
        if schema is None or isinstance(tool_input, str):
            return super()._parse_input(tool_input, tool_call_id)
        given = schema.model_validate(tool_input)
        return {name: getattr(given, name) for name in schema.model_fields}

    def _own_schema(self) -> type[ToolArguments] | None:
        """The schema of a file tool; None if a copy has another one, or a function with arguments to fill in."""
        is_own = self.args_schema in ARGUMENTS.values() and not getattr(self, "_injected_args_keys", True)
        return cast("type[ToolArguments]", self.args_schema) if is_own else None

    def _run(self, *args: Any, config: RunnableConfig, run_manager: Any = None, **given: Any) -> Any:
        return super()._run(*args, config=config, run_manager=run_manager, **given)

    async def _arun(self, *args: Any, config: RunnableConfig, run_manager: Any = None, **given: Any) -> Any:
        return await super()._arun(*args, config=config, run_manager=run_manager, **given)


@lru_cache(256)
def _call_schema(name: str, description: str, arguments: Any) -> Any:
    return StructuredTool(name=name, description=description, args_schema=arguments).tool_call_schema
