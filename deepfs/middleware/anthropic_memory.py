"""The tool `memory` of Anthropic (`memory_20250818`), which keeps notes under `/memories` of a backend.

The commands and the texts of the answers are those of its documentation.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from langchain_core.tools import BaseTool, ToolException
from pydantic import Field

from deepfs.backends.protocol import BACKEND_TYPES, BackendProtocol, as_backend, offers_move
from deepfs.errors import DeepFSError, ErrorCode
from deepfs.middleware.approved import (
    WHOLE_FILE,
    ChangedSinceApprovalError,
    delete_as_approved,
    edit_as_approved,
    is_shown_change,
    move_as_approved,
    write_as_approved,
)
from deepfs.middleware.arguments import ToolArguments
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.rendering import MAX_RESULT_CHARS
from deepfs.middleware.tools import tool_of
from deepfs.policy.permissions import PermissionedBackend
from deepfs.policy.rules import FilesystemPermission
from deepfs.sync import call_sync
from deepfs.text import paths
from deepfs.text.entries import TreeEntry
from deepfs.text.lines import BOM, version
from deepfs.text.visible import display_path, escape_controls, one_line
from deepfs.types import Result

if TYPE_CHECKING:
    from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool

__all__ = ["MEMORIES", "async_memory_tool_of_sdk", "memory_function", "memory_tool", "memory_tool_of_sdk"]


def insert_lines(text: str, line: int, new: str) -> str:
    """`text` with the lines `new` after the line number `line`. Raises ToolException if there is no such line."""
    *whole, last = text.split("\n")
    lines = [*(f"{each}\n" for each in whole), *([last] if last else [])]
    if not 0 <= line <= len(lines):
        bounds = f"It should be within the range of lines of the file: [0, {len(lines)}]"
        raise ToolException(f"Error: Invalid `insert_line` parameter: {line}. {bounds}")
    end = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"
    block = "".join(f"{each}{end}" for each in new.replace("\r\n", "\n").removesuffix("\n").split("\n"))
    before = "".join(lines[:line])
    joint = end if before and not before.endswith("\n") else ""
    return f"{before}{joint}{block}{''.join(lines[line:])}"


def lines_of(text: str) -> list[str]:
    """The lines of a text without their ends."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def lines_with(text: str, wanted: str) -> Iterator[int]:
    """The numbers of the lines in which `wanted` starts, at most twenty."""
    text, wanted = text.replace("\r\n", "\n"), wanted.replace("\r\n", "\n")
    place = text.find(wanted)
    for _ in range(20):
        if place < 0:
            return
        yield text.count("\n", 0, place) + 1
        place = text.find(wanted, place + 1)


def line_range(given: Sequence[int] | None, total: int) -> tuple[int, int]:
    """The first and the last line of a `view_range`, of `total` lines. Raises ToolException if it is no such range."""
    if not given:
        return 1, total
    first, last = given[0], given[1] if len(given) > 1 else -1
    last = total if last == -1 else min(last, total)
    if first < 1 or (first > last and total):
        bounds = f"It should be two line numbers from 1 to {total}, the second -1 for the end"
        raise ToolException(f"Error: Invalid `view_range` parameter: {list(given)}. {bounds}")
    return first, last


def page(lines: Sequence[str], first: int, last: int) -> str:
    """The numbered lines from `first` to `last`; a note tells how to go on if they are too long for one result."""
    rows: list[str] = []
    room = MAX_RESULT_CHARS - 200
    for number, line in enumerate(lines[first - 1 : last], first):
        row = f"{number:6}\t{escape_controls(line[:room])}"
        if len(row) > room and rows:
            return "\n".join([*rows, f"[Lines {first} to {number - 1} of {len(lines)}. {_advise_range(number)}]"])
        if len(row) > room:
            more = f" {_advise_range(number + 1)}" if number < last else ""
            return f"{row[:room]}\n[Line {number} is cut: it has {len(line):,} characters.{more}]"
        rows.append(row)
        room -= len(row) + 1
    return "\n".join(rows)


def _advise_range(line: int) -> str:
    return f"View on with view_range [{line}, -1]"


def cut_list(text: str) -> str:
    """A listing without the last rows, if it is too long for one result, and the number of these."""
    if len(text) <= MAX_RESULT_CHARS:
        return text
    kept = text[: text.rfind("\n", 0, MAX_RESULT_CHARS - 100)]
    return f"{kept}\n[{text.count(chr(10)) - kept.count(chr(10)):,} more entries: view a directory in it]"


def size_text(size: int) -> str:
    """A number of bytes in the manner of `du -h`, such as `4.0K`."""
    value, unit = float(size), "B"
    for unit in "BKMG":
        if value < 1024 or unit == "G":
            break
        value /= 1024
    return f"{value:.{0 if unit == 'B' else 1}f}{unit}"


MEMORIES: Final = "/memories"
_DEFINITION: Final = {"type": "memory_20250818", "name": "memory"}
_MAX_LINES: Final = 999_999
_LEVELS: Final = 2
_AROUND: Final = 2
"""Lines shown before and after an edit."""
_ATTEMPTS: Final = 5
_RULES: Final = (
    FilesystemPermission(operations=["read", "write"], paths=[MEMORIES, f"{MEMORIES}/**"], mode="allow"),
    FilesystemPermission(operations=["read", "write", "execute"], paths=["/**"], mode="deny"),
)
"""They hold for what links lead to as well."""


def _optional(description: str) -> Any:
    """A field that a command may not need. By the factory, the schema for models has plain types and no default."""
    return Field(default_factory=lambda: None, description=description)


Command = Literal["view", "create", "str_replace", "insert", "delete", "rename"]


class MemoryArguments(ToolArguments):
    tool = "memory"
    command: Command
    path: str = _optional("A path under /memories; not for rename.")
    view_range: list[int] = _optional("For view: first and last line; -1 is the end.")
    file_text: str = _optional("For create.")
    old_str: str = _optional("For str_replace: the exact text.")
    new_str: str = _optional("For str_replace: what takes its place.")
    insert_line: int = _optional("For insert: the line after which.")
    insert_text: str = _optional("For insert.")
    old_path: str = _optional("For rename.")
    new_path: str = _optional("For rename.")


def memory_tool(backend: BACKEND_TYPES) -> BaseTool:
    """Make Anthropic's tool `memory` over the directory `/memories` of `backend`.

    Claude gets it as the tool `memory_20250818` that it was trained on, other models as a tool with arguments. Nothing
    outside of `/memories` is read or changed. The tool works async and sync.

    Args:
        backend: The backend of the files, of any protocol, or a factory of one.

    Returns:
        The tool.

    Raises:
        TypeError: If `backend` is not a backend.
    """
    files = as_backend(backend)
    commands = _Commands(files)

    async def memory(command: str, **arguments: Any) -> str:
        return await commands.run(command, arguments)

    extras = {"provider_tool_definition": _DEFINITION}
    return tool_of(files, memory, "memory", PROMPTS["memory_tool"], MemoryArguments, extras=extras)


def memory_function(backend: BACKEND_TYPES) -> Callable[..., Coroutine[Any, Any, str]]:
    """Make an async function `memory` that does what the tool of `memory_tool` does, for other frameworks.

    A failed command returns the text of its error.

    Args:
        backend: The backend of the files, of any protocol, or a factory of one.

    Returns:
        The function. Its docstring and its types describe the tool to a model.

    Raises:
        TypeError: If `backend` is not a backend.
    """
    commands = _Commands(as_backend(backend))

    async def memory(
        command: Command,
        path: str | None = None,
        view_range: list[int] | None = None,
        file_text: str | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: int | None = None,
        insert_text: str | None = None,
        old_path: str | None = None,
        new_path: str | None = None,
    ) -> str:
        edit = {"old_str": old_str, "new_str": new_str, "insert_line": insert_line, "insert_text": insert_text}
        given = {"path": path, "view_range": view_range, "file_text": file_text, **edit}
        try:
            return await commands.run(command, {**given, "old_path": old_path, "new_path": new_path})
        except ToolException as error:
            return str(error)

    memory.__doc__ = PROMPTS["memory_tool"]
    return memory


class _Commands:
    """The commands of the memory tool. Each returns the text for the model, and raises ToolException if it fails.

    Args:
        backend: The backend with the directory `/memories`.
    """

    def __init__(self, backend: BackendProtocol) -> None:
        self.backend: BackendProtocol = PermissionedBackend(backend, _RULES)

    async def run(self, command: str, arguments: Mapping[str, Any]) -> str:
        """Run a command by its name. Arguments of other commands are left out."""
        names = _ARGUMENTS.get(command)
        if names is None:
            raise ToolException(f"Error: There is no command {one_line(command)}. Use one of: {', '.join(_ARGUMENTS)}.")
        given = {name: arguments[name] for name in names if arguments.get(name) is not None}
        missing = [name for name in names if name not in given and name not in _OPTIONAL]
        if missing:
            raise ToolException(f"Error: {command} needs {' and '.join(missing)}. Call it again with all arguments.")
        run: Callable[..., Coroutine[Any, Any, str]] = getattr(self, command)
        try:
            return await run(**given)
        except DeepFSError as error:
            raise ToolException(escape_controls(str(error))) from None

    async def view(self, path: str, view_range: Sequence[int] | None = None) -> str:
        """Show a directory, two levels deep, or the numbered lines of a file."""
        path = _inside(path)
        read = await self.backend.aread(path, 0, WHOLE_FILE)
        if read.code is ErrorCode.IS_DIRECTORY or (read.code is ErrorCode.FILE_NOT_FOUND and path == MEMORIES):
            return await self._list_directory(path, is_empty=read.code is ErrorCode.FILE_NOT_FOUND)
        _check(read, f"The path {display_path(path)} does not exist. Please provide a valid path.")
        if read.file_data is not None and read.file_data.encoding == "base64":
            raise ToolException(f"Error: {display_path(path)} is not a text file.")
        lines = lines_of(read.file_data.content if read.file_data else "")
        if len(lines) > _MAX_LINES:
            raise ToolException(f"File {display_path(path)} exceeds maximum line limit of 999,999 lines.")
        first, last = line_range(view_range, len(lines))
        return f"Here's the content of {display_path(path)} with line numbers:\n{page(lines, first, last)}"

    async def _list_directory(self, path: str, *, is_empty: bool) -> str:
        entries = [] if is_empty else (await self.backend.alist_tree(path)).entries
        visible = [entry for entry in entries if entry.path == path or _is_shown(entry, path)]
        sizes = {path: 0, **{entry.path: 0 for entry in visible}}
        for entry in entries:
            for above in {entry.path, *paths.ancestors(entry.path)} & sizes.keys():
                sizes[above] += entry.size or 0
        kinds = {entry.path: entry.kind for entry in entries}
        rows = [
            f"{size_text(size)}\t{display_path(name)}{'/' if kinds.get(name) == 'directory' and name != path else ''}"
            for name, size in sorted(sizes.items())
        ]
        header = f"Here're the files and directories up to {_LEVELS} levels deep in {display_path(path)}"
        return cut_list(f"{header}, excluding hidden items and node_modules:\n" + "\n".join(rows))

    async def create(self, path: str, file_text: str) -> str:
        """Create a file that is not there yet."""
        if path.endswith("/"):
            raise _place_error(f"Error: {display_path(path)} is a directory")
        path = _inside(path, is_file=True)
        result = await write_as_approved(self.backend, path, file_text, overwrite=False)
        if result.code is ErrorCode.ALREADY_EXISTS:
            raise ToolException(f"Error: File {display_path(path)} already exists")
        _check(result)
        return f"File created successfully at: {display_path(path)}"

    async def str_replace(self, path: str, old_str: str, new_str: str = "") -> str:
        """Replace a text that is in the file once."""
        if not old_str:
            raise ToolException("Error: old_str is empty. Give the exact text to replace, or use insert.")
        path = _inside(path, is_file=True)
        before = await self._text(path)
        result = await edit_as_approved(self.backend, path, old_str, new_str, False)
        quoted = f"`{one_line(old_str, 500)}`"
        if result.code is ErrorCode.NO_MATCH:
            missing = f"old_str {quoted} did not appear verbatim in {display_path(path)}"
            raise ToolException(f"No replacement was performed, {missing}.")
        if result.code is ErrorCode.AMBIGUOUS_MATCH:
            numbers = ", ".join(map(str, lines_with(before, old_str)))
            several = f"Multiple occurrences of old_str {quoted} in lines: {numbers}"
            raise ToolException(f"No replacement was performed. {several}. Please ensure it is unique")
        _check(result)
        line = next(lines_with(before, old_str), 1)
        lines = lines_of(await self._text(path))
        last = min(len(lines), line + new_str.count("\n") + _AROUND)
        return "The memory file has been edited.\n" + page(lines, max(1, line - _AROUND), last)

    async def insert(self, path: str, insert_line: int, insert_text: str) -> str:
        """Insert lines after the line `insert_line`; 0 is the start."""
        path = _inside(path, is_file=True)
        for _ in range(_ATTEMPTS):
            result = await self._insert(path, insert_line, insert_text)
            if result.code is not ErrorCode.CONFLICT:
                break
        _check(result)
        return f"The file {display_path(path)} has been edited."

    async def _insert(self, path: str, line: int, text: str) -> Result:
        read = await self.backend.aread(path, 0, WHOLE_FILE)
        _check(read, f"Error: The path {display_path(path)} does not exist")
        before = read.file_data.content if read.file_data else ""
        if read.file_data is not None and read.file_data.encoding == "base64":
            raise ToolException(f"Error: {display_path(path)} is not a text file.")
        after = insert_lines(before, line, text)
        if not is_shown_change(path, read.version, before, after):
            raise ToolException(str(ChangedSinceApprovalError(path)))
        bom = BOM if version(BOM + before) == read.version else ""
        return await self.backend.awrite(path, bom + after, overwrite=True, if_match=read.version)

    async def delete(self, path: str) -> str:
        """Delete a file, or a directory with all that is in it."""
        path = _inside(path)
        if path == MEMORIES:
            raise ToolException(f"Error: Cannot delete the {MEMORIES} directory itself")
        _check(await delete_as_approved(self.backend, path), f"Error: The path {display_path(path)} does not exist")
        return f"Successfully deleted {display_path(path)}"

    async def rename(self, old_path: str, new_path: str) -> str:
        """Move a file or a directory to a path at which nothing is."""
        source, destination = _inside(old_path), _inside(new_path, is_file=True)
        if source == MEMORIES:
            raise ToolException(f"Error: Cannot rename the {MEMORIES} directory itself")
        if not offers_move(self.backend):
            raise ToolException("Error: Files cannot be renamed here. Create the new file and delete the old one.")
        there = await self.backend.aread(destination, 0, 1)
        if there.ok or there.code is ErrorCode.IS_DIRECTORY:
            raise ToolException(f"Error: The destination {display_path(destination)} already exists")
        result = await move_as_approved(self.backend, source, destination, overwrite=False)
        if result.code is ErrorCode.ALREADY_EXISTS:
            raise ToolException(f"Error: The destination {display_path(destination)} already exists")
        _check(result, f"Error: The path {display_path(source)} does not exist")
        return f"Successfully renamed {display_path(source)} to {display_path(destination)}"

    async def _text(self, path: str) -> str:
        read = await self.backend.aread(path, 0, WHOLE_FILE)
        _check(read, f"Error: The path {display_path(path)} does not exist. Please provide a valid path.")
        return "" if read.file_data is None or read.file_data.encoding == "base64" else read.file_data.content


_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "view": ("path", "view_range"),
    "create": ("path", "file_text"),
    "str_replace": ("path", "old_str", "new_str"),
    "insert": ("path", "insert_line", "insert_text"),
    "delete": ("path",),
    "rename": ("old_path", "new_path"),
}
_OPTIONAL: Final = frozenset({"view_range", "new_str"})


def _inside(path: str, *, is_file: bool = False) -> str:
    """The normalised path. Raises ToolException unless it is under `/memories`."""
    try:
        normal = paths.normalize(path)
    except DeepFSError as error:
        raise _place_error(str(error)) from None
    if paths.is_beneath(normal, MEMORIES) or (normal == MEMORIES and not is_file):
        return normal
    place = "is a directory" if normal == MEMORIES else f"is not under {MEMORIES}"
    raise _place_error(f"Error: {display_path(normal)} {place}")


def _place_error(error: str) -> ToolException:
    return ToolException(f"{error}. Name a path such as {MEMORIES}/notes.md.")


def _check(result: Result, missing: str = "") -> None:
    if result.code is ErrorCode.FILE_NOT_FOUND and missing:
        raise ToolException(missing)
    if result.error is not None:
        raise ToolException(escape_controls(result.error))


def _is_shown(entry: TreeEntry, directory: str) -> bool:
    names = paths.relative(entry.path, directory).split("/")
    return len(names) <= _LEVELS and not any(name.startswith(".") or name == "node_modules" for name in names)


# --- anthropic's SDK ---


def memory_tool_of_sdk(backend: BACKEND_TYPES) -> "BetaAbstractMemoryTool":
    """Make a memory tool for `client.beta.messages.tool_runner` of Anthropic's SDK, over `/memories` of `backend`.

    Args:
        backend: The backend of the files, of any protocol, or a factory of one.

    Returns:
        The tool.

    Raises:
        ModuleNotFoundError: If the package anthropic is missing.
        TypeError: If `backend` is not a backend.
    """
    from anthropic.lib.tools import BetaAbstractMemoryTool

    files = as_backend(backend)
    run = _sdk_command(_Commands(files))

    class MemoryTool(BetaAbstractMemoryTool):
        def execute(self, command: Any) -> Any:
            return call_sync(files, partial(run, command), "The memory tool", "async_memory_tool_of_sdk")

        view = create = str_replace = insert = delete = rename = execute

    return MemoryTool()


def async_memory_tool_of_sdk(backend: BACKEND_TYPES) -> "BetaAsyncAbstractMemoryTool":
    """Make the memory tool for the asynchronous client of Anthropic's SDK, over `/memories` of `backend`.

    Args:
        backend: The backend of the files, of any protocol, or a factory of one.

    Returns:
        The tool.

    Raises:
        ModuleNotFoundError: If the package anthropic is missing.
        TypeError: If `backend` is not a backend.
    """
    from anthropic.lib.tools import BetaAsyncAbstractMemoryTool

    run = _sdk_command(_Commands(as_backend(backend)))

    class AsyncMemoryTool(BetaAsyncAbstractMemoryTool):
        async def execute(self, command: Any) -> Any:
            return await run(command)

        view = create = str_replace = insert = delete = rename = execute

    return AsyncMemoryTool()


def _sdk_command(commands: _Commands) -> Callable[[Any], Coroutine[Any, Any, str]]:
    from anthropic.lib.tools import ToolError

    async def run(command: Any) -> str:
        given = command.model_dump(exclude_none=True)
        try:
            return await commands.run(given.pop("command", ""), given)
        except ToolException as error:
            raise ToolError(str(error)) from None
        except TypeError as error:
            raise ToolError(f"Error: The arguments are wrong: {error}") from None

    return run
