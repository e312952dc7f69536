"""The tools of the reference filesystem server, by name, arguments and form of results, over any backend.

A client that was set up for `@modelcontextprotocol/server-filesystem` keeps its configuration. What differs on purpose:
a listing is sorted, files above a limit are refused, an edit keeps the line ends of a file and never overwrites what
others changed meanwhile, and an error says what to do next.
"""

from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from json import dumps
from posixpath import join, normpath
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote

from langchain_core.tools import ToolException
from mcp.server.mcpserver.tools import Tool
from mcp_types import TextContent, ToolAnnotations
from msgspec import Struct
from pydantic import BaseModel, Field, StringConstraints

from deepfs.backends.protocol import BackendProtocol, offers_move
from deepfs.errors import DeepFSError, ErrorCode, TooLargeError, error_about
from deepfs.mcp.resources import fetch
from deepfs.mcp.settings import McpSettings
from deepfs.mcp.tools import BoundedCalls, Reply, block_of, changes, make_tool, output_schema, reads, select_tools
from deepfs.middleware.rendering import Advisor
from deepfs.middleware.tools import ToolFailure, not_offered
from deepfs.search.globs import compile_tree
from deepfs.sync import in_thread, yield_to_loop
from deepfs.text import paths
from deepfs.text.diff import TextDiff
from deepfs.text.entries import EntryChange
from deepfs.text.media import OCTET_STREAM, mime_type
from deepfs.text.visible import display_path
from deepfs.types import FileInfo, Result, error_from

_Operation = TypeVar("_Operation", bound=Callable[..., Awaitable[Any]])

# --- arguments -------------------------------------------------------------------------------------------------------

_Patterns: TypeAlias = Annotated[
    list[Annotated[str, StringConstraints(max_length=1_000)]],
    Field(max_length=100, description="Globs of what to leave out."),
]


class _Path(BaseModel):
    path: str


class _Read(BaseModel):
    path: str
    head: int | None = Field(None, ge=0, description="Only this many lines from the start.")
    tail: int | None = Field(None, ge=0, description="Only this many lines from the end.")


class _ReadMany(BaseModel):
    paths: list[str] = Field(min_length=1, description="The paths of the files.")


class _Write(BaseModel):
    path: str
    content: str


class _Replacement(BaseModel):
    oldText: str = Field(description="The text to replace.")  # noqa: N815
    newText: str = Field(description="What takes its place.")  # noqa: N815


class _Edit(BaseModel):
    path: str
    edits: list[_Replacement]
    dryRun: bool = Field(False, description="Only show the changes.")  # noqa: N815


class _Sizes(BaseModel):
    path: str
    sortBy: Literal["name", "size"] = Field("name", description="The order of the entries.")  # noqa: N815


class _Tree(BaseModel):
    path: str
    excludePatterns: _Patterns = []  # noqa: N815


class _Search(BaseModel):
    path: str
    pattern: str
    excludePatterns: _Patterns = []  # noqa: N815


class _Move(BaseModel):
    source: str
    destination: str


class _Nothing(BaseModel):
    pass


# --- results ---------------------------------------------------------------------------------------------------------


class TextAnswer(Struct):
    """The text of a result, as data."""

    content: str


class MediaAnswer(Struct):
    """The block of a result, as data."""

    content: list[dict[str, Any]]


_UNITS: Final = ("B", "KB", "MB", "GB", "TB")


def _size(size: int) -> str:
    """A size as `512 B` or `1.50 KB`."""
    power = min(max(size.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{size / 1024**power:.2f} {_UNITS[power]}" if power else f"{size} B"


def _date(time: str) -> str:
    """A time in ISO 8601 in the form in which JavaScript shows it."""
    return f"{datetime.fromisoformat(time).astimezone(UTC):%a %b %d %Y %H:%M:%S GMT+0000 (Coordinated Universal Time)}"


def _name(info: FileInfo) -> str:
    return info.path.rstrip("/").rpartition("/")[2]


def _sort(entries: Sequence[FileInfo]) -> list[FileInfo]:
    return sorted(entries, key=lambda info: info.path.rstrip("/"))


def _row(info: FileInfo, *, size: bool = False) -> str:
    """A row of a listing."""
    kind = "[DIR]" if info.is_dir else "[FILE]"
    if not size:
        return f"{kind} {_name(info)}"
    return f"{kind} {_name(info):<30} {'' if info.is_dir else _size(info.size or 0).rjust(10)}"


def _format_diff(path: str, before: str, after: str) -> str:
    """A unified diff between enough backticks, in the form of jsdiff."""
    head = [f"Index: {path}", "=" * 67, f"--- {path}\toriginal", f"+++ {path}\tmodified"]
    diff = "\n".join([*head, *TextDiff(before, after, _CONTEXT_LINES).rows()])
    ticks = "```"
    while ticks in diff:
        ticks += "`"
    return f"{ticks}diff\n{diff}\n{ticks}\n\n"


_CONTEXT_LINES: Final = 4
_MOST_LEVELS: Final = 200
"""The levels of a tree in JSON, which writers and readers nest calls for."""


# --- edits -----------------------------------------------------------------------------------------------------------


def _replace(text: str, edit: _Replacement) -> str | None:
    """The text after an edit; None if the text to replace is not there."""
    old, new = edit.oldText.replace("\r\n", "\n"), edit.newText.replace("\r\n", "\n")
    if old in text:
        return text.replace(old, new, 1)
    changed = _edit_lines(text.split("\n"), old.split("\n"), new.split("\n"))
    return None if changed is None else "\n".join(changed)


def _edit_lines(lines: list[str], old: list[str], new: list[str]) -> list[str] | None:
    """The lines with `old` replaced by `new`, whatever white space is around lines; None if `old` is not there."""
    # A search in one text takes linear time, which comparing lists of lines at each line would not.
    stripped, wanted = ("".join(f"\n{line.strip()}" for line in each) + "\n" for each in (lines, old))
    at = stripped.find(wanted)
    if at < 0:
        return None
    start = stripped.count("\n", 0, at)
    indent = _indent(lines[start])
    placed = [
        _indent_line(line, indent, old[number] if number < len(old) else "", number == 0)
        for number, line in enumerate(new)
    ]
    return [*lines[:start], *placed, *lines[start + len(old) :]]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _indent_line(line: str, indent: str, replaced: str, is_first: bool) -> str:
    """A new line, indented as the first replaced one, and by what it is indented more than the line it replaces."""
    if is_first:
        return indent + line.lstrip()
    if not _indent(line) or not _indent(replaced):
        return line
    return indent + " " * max(0, len(_indent(line)) - len(_indent(replaced))) + line.lstrip()


# --- patterns --------------------------------------------------------------------------------------------------------


async def _matcher(patterns: Sequence[str], *, anywhere: bool = False) -> Callable[[str], bool]:
    """A test of relative paths. With `anywhere`, a pattern without `*` is also the name of something at any depth."""
    globs = [pattern.strip("/") for pattern in patterns if pattern.strip("/")]
    written = [f"/{pattern[:-2]}*/**" if pattern.endswith("/**") else f"/{pattern}" for pattern in globs]
    written += [f"/**/{pattern}" for pattern in globs if anywhere and "*" not in pattern]
    trees = []
    for pattern in written:
        trees.append(compile_tree(pattern))  # Takes milliseconds.
        await yield_to_loop()
    return lambda path: any(tree.matches(f"/{path}") for tree in trees)


# --- the tools -------------------------------------------------------------------------------------------------------


class _ReferenceTool(NamedTuple):
    annotations: ToolAnnotations
    description: str
    arguments: type[BaseModel]
    operation: Callable[["_ReferenceFiles", Any], Awaitable["str | Reply"]]


_TOOLS: Final[dict[str, _ReferenceTool]] = {}


def _tool(annotations: ToolAnnotations, description: str) -> Callable[[_Operation], _Operation]:
    """Offer a method as the tool of its name; it takes its arguments as one value."""

    def register(operation: _Operation) -> _Operation:
        arguments = operation.__annotations__["given"]
        _TOOLS[operation.__name__] = _ReferenceTool(annotations, description, arguments, operation)
        return operation

    return register


class _ReferenceFiles:
    """The tools, one method for each."""

    def __init__(self, backend: BackendProtocol, settings: McpSettings) -> None:
        self._backend = backend
        self._limits = settings.limits
        self._roots = [paths.normalize(root) for root in settings.allowed_directories]
        self._advisor = Advisor(backend, ())

    def _path(self, given: str) -> str:
        """The path in the tree. A relative one starts at the first allowed directory. Raises DeepFSError."""
        if given.startswith("~") or "\0" in given:
            return paths.normalize(given)
        path = paths.normalize(normpath(join(self._roots[0], given)))
        if any(root == "/" or path == root or path.startswith(f"{root}/") for root in self._roots):
            return path
        allowed = ", ".join(self._roots)
        raise error_about(ErrorCode.PERMISSION_DENIED, path, f"it is outside the allowed directories: {allowed}")

    async def _require_done(self, tool: str, result: Result, path: str) -> None:
        if result.error is not None:
            raise await self._failure(tool, error_from(result), path)

    async def _failure(self, tool: str, error: DeepFSError, path: str) -> ToolFailure:
        text = await self._advisor.advise(tool, error, path)
        return ToolFailure(text, error.code, str(error), error.path or path)

    async def _bytes(self, tool: str, path: str) -> bytes:
        try:
            return await fetch(self._backend, path, self._limits.max_file_bytes)
        except DeepFSError as error:
            raise await self._failure(tool, error, path) from None

    async def _text(self, path: str) -> str:
        return (await self._bytes("read_file", path)).decode(errors="replace")

    def _check_length(self, text: str, path: str) -> str:
        most = self._limits.max_file_bytes
        if len(text) > most:
            raise TooLargeError.because(path, f"the result has more than {most:,} characters; ask for less")
        return text

    @_tool(
        reads("Read File (Deprecated)"),
        "Reads a text file, or its first or last lines. Deprecated: use read_text_file.",
    )
    async def read_file(self, given: _Read) -> str:
        return await self.read_text_file(given)

    @_tool(
        reads("Read Text File"),
        "Reads a file as text, whatever its extension. `head` or `tail` gives only its first or last lines.",
    )
    async def read_text_file(self, given: _Read) -> str:
        if given.head and given.tail:
            raise ToolException("Error: head and tail cannot be given together. Give one of them.")
        text = await self._text(self._path(given.path))
        if given.tail:  # Behind a line end at the end of the text there is an empty line.
            return "\n".join(text.replace("\r\n", "\n").split("\n")[-given.tail :])
        if given.head:
            lines = text.split("\n")
            return "\n".join(lines[: -1 if lines[-1] == "" else None][: given.head])
        return text

    @_tool(
        reads("Read Media File"),
        "Reads a file as a block in base64 with its MIME type: an image, audio, or else a resource.",
    )
    async def read_media_file(self, given: _Path) -> Reply:
        path = self._path(given.path)
        content = await self._bytes("read_file", path)
        block = block_of(f"file://{quote(path)}", b64encode(content).decode(), mime_type(path) or OCTET_STREAM)
        return Reply([block], MediaAnswer([block.model_dump(by_alias=True, mode="json", exclude_none=True)]))

    @_tool(
        reads("Read Multiple Files"),
        "Reads several text files at once, each under its path. A file that cannot be read has an error there.",
    )
    async def read_multiple_files(self, given: _ReadMany) -> str:
        texts: list[str] = []
        size = 0
        for path in given.paths:
            try:
                texts.append(f"{path}:\n{await self._text(self._path(path))}\n")
            except (ToolException, DeepFSError) as error:
                texts.append(f"{path}: Error - {str(error).removeprefix('Error: ')}")
            size += len(texts[-1])
            if size > self._limits.max_file_bytes:
                break
        return self._check_length("\n---\n".join(texts), given.paths[-1])

    @_tool(
        changes("Write File", idempotent=True), "Writes a text file. An existing file is replaced without a question."
    )
    async def write_file(self, given: _Write) -> str:
        path = self._path(given.path)
        await self._require_done("write_file", await self._backend.awrite(path, given.content, overwrite=True), path)
        return f"Successfully wrote to {given.path}"

    @_tool(
        changes("Edit File"),
        "Replaces texts in a file, one after the other, and shows the changes as a diff. `dryRun` only shows them.",
    )
    async def edit_file(self, given: _Edit) -> str:
        path = self._path(given.path)
        # The version comes before the content: what changes in between makes the write fail.
        read = await self._backend.aread(path, 0, 1)
        await self._require_done("edit_file", read, path)
        try:
            before = (await self._bytes("edit_file", path)).decode()
        except UnicodeDecodeError:
            raise error_about(ErrorCode.BINARY_FILE, path, "it is no text in UTF-8") from None
        after, diff = await _edit_text(path, before, given.edits)
        if not given.dryRun and after != before:
            written = await self._backend.awrite(path, after, overwrite=True, if_match=read.version)
            await self._require_done("edit_file", written, path)
        return diff

    @_tool(
        changes("Create Directory", idempotent=True, destructive=False),
        "Makes a directory, with those above it. One that is there stays as it is.",
    )
    async def create_directory(self, given: _Path) -> str:
        path = self._path(given.path)
        for directory in [*paths.ancestors(path), path]:
            listed = await self._backend.als(directory)
            if listed.ok or directory == "/":
                continue
            if listed.code is not ErrorCode.FILE_NOT_FOUND:
                await self._require_done("ls", listed, directory)
            [made] = await self._backend.achange_entries([EntryChange(directory, "make_directory")])
            # Where directories are no more than parts of paths, there is no need to make them.
            if made.error not in (None, ErrorCode.ALREADY_EXISTS.value, ErrorCode.UNSUPPORTED.value):
                raise error_about(str(made.error), directory, "the directory cannot be made")
        return f"Successfully created directory {given.path}"

    async def _entries(self, path: str) -> list[FileInfo]:
        listed = await self._backend.als(path)
        if not listed.entries:
            await self._require_done("ls", listed, path)
        return _sort(listed.entries or [])

    @_tool(reads("List Directory"), "Lists what is in a directory, marked as [FILE] or [DIR].")
    async def list_directory(self, given: _Path) -> str:
        path = self._path(given.path)
        return self._check_length("\n".join(map(_row, await self._entries(path))), path)

    @_tool(
        reads("List Directory with Sizes"),
        "Lists what is in a directory, marked as [FILE] or [DIR], with sizes and their sum.",
    )
    async def list_directory_with_sizes(self, given: _Sizes) -> str:
        path = self._path(given.path)
        entries = await self._entries(path)
        files = [info for info in entries if not info.is_dir]
        if given.sortBy == "size":
            entries = sorted(entries, key=lambda info: -(info.size or 0))
        else:
            entries = sorted(entries, key=lambda info: (_name(info).casefold(), _name(info)))
        total = _size(sum(info.size or 0 for info in files))
        summary = ["", f"Total: {len(files)} files, {len(entries) - len(files)} directories", f"Combined size: {total}"]
        return self._check_length("\n".join([*(_row(info, size=True) for info in entries), *summary]), path)

    @_tool(
        reads("Directory Tree"),
        "Shows all that is beneath a directory as JSON: `name`, `type`, and `children` of a directory.",
    )
    async def directory_tree(self, given: _Tree) -> str:
        path, nodes = self._path(given.path), dict[str, list[dict[str, Any]]]()
        tree = nodes[path] = []
        async with aclosing(self._walk(path, await _matcher(given.excludePatterns, anywhere=True))) as walk:
            async for info in walk:
                plain = info.path.rstrip("/")
                if paths.relative(plain, path).count("/") >= _MOST_LEVELS:
                    raise TooLargeError.because(
                        plain, f"more than {_MOST_LEVELS} levels; name a directory further down"
                    )
                node: dict[str, Any] = {"name": _name(info), "type": "directory" if info.is_dir else "file"}
                if info.is_dir:
                    node["children"] = nodes[plain] = []
                nodes[paths.parent(plain)].append(node)
        return self._check_length(dumps(tree, indent=2, ensure_ascii=False), path)

    async def _walk(self, path: str, excludes: Callable[[str], bool]) -> AsyncGenerator[FileInfo, None]:
        """All that lies beneath a directory, each directory before its content. Links are not followed."""
        left, seen = [*reversed(await self._without_links(path, await self._entries(path)))], 0
        while left:
            info = left.pop()
            plain = info.path.rstrip("/")
            if excludes(paths.relative(plain, path)):
                continue
            seen += 1
            if seen > self._limits.max_listed:
                most = self._limits.max_listed
                raise TooLargeError.because(path, f"more than {most:,} entries are beneath it; name a directory in it")
            yield info
            if info.is_dir:
                listed = await self._backend.als(plain)
                left += reversed(await self._without_links(plain, _sort(listed.entries or [])))

    async def _without_links(self, path: str, entries: Sequence[FileInfo]) -> list[FileInfo]:
        """The entries of a directory, with each link to a directory as a file: links may lead round in circles."""
        inner = [info.path.rstrip("/") for info in entries if info.is_dir]
        if not inner:
            return [*entries]
        top, *real = await self._backend.aresolve_paths([path, *inner])
        links = {
            f"{each}/"
            for each, target in zip(inner, real, strict=True)
            if target is not None and target != join(top or path, each.rpartition("/")[2])
        }
        return [FileInfo(info.path.rstrip("/"), False) if info.path in links else info for info in entries]

    @_tool(changes("Move File"), "Moves or renames a file or a directory. It fails if something is at the destination.")
    async def move_file(self, given: _Move) -> str:
        source, destination = self._path(given.source), self._path(given.destination)
        if source == destination:
            raise _is_there(destination)
        moved = await self._backend.amove(source, destination)
        if moved.code is ErrorCode.ALREADY_EXISTS:
            raise _is_there(destination)
        await self._require_done("move", moved, source)
        return f"Successfully moved {given.source} to {given.destination}"

    @_tool(
        reads("Search Files"),
        "Finds files and directories beneath a directory by a glob for their relative path: `*.md` in the directory "
        "itself, `**/*.md` at any depth.",
    )
    async def search_files(self, given: _Search) -> str:
        path, matches = self._path(given.path), await _matcher([given.pattern])
        found: list[str] = []
        async for info in self._walk(path, await _matcher(given.excludePatterns)):
            plain = info.path.rstrip("/")
            if matches(paths.relative(plain, path)):
                found.append(plain)
        return self._check_length("\n".join(found), path) or "No matches found"

    @_tool(reads("Get File Info"), "Tells the size, the times and the kind of a file or a directory.")
    async def get_file_info(self, given: _Path) -> str:
        path = self._path(given.path)
        read = await self._backend.aread(path, 0, 1)
        is_directory = read.code is ErrorCode.IS_DIRECTORY
        if not is_directory and read.code is not ErrorCode.TOO_LARGE:
            await self._require_done("read_file", read, path)
        above = await self._backend.als(paths.parent(path))
        info = next((each for each in above.entries or () if each.path.rstrip("/") == path), FileInfo(path))
        created = read.file_data.created_at if read.file_data else None
        told = {
            "size": info.size,
            "created": created and _date(created),
            "modified": info.modified_at and _date(info.modified_at),
            "isDirectory": str(is_directory).lower(),
            "isFile": str(not is_directory).lower(),
        }
        return "\n".join(f"{key}: {value}" for key, value in told.items() if value is not None)

    @_tool(reads("List Allowed Directories"), "Lists the directories whose files these tools reach.")
    async def list_allowed_directories(self, given: _Nothing) -> str:
        return "\n".join(["Allowed directories:", *self._roots])


def _is_there(path: str) -> ToolFailure:
    """The failure of a move, which has no argument to replace what is there."""
    text = f"Error: Something is at {display_path(path)} already. Choose another destination."
    return ToolFailure(text, ErrorCode.ALREADY_EXISTS, text, path)


async def _edit_text(path: str, before: str, edits: Sequence[_Replacement]) -> tuple[str, str]:
    """The text after all edits, one after the other, with the line ends that it had, and the diff.

    Raises ToolException if an edit does not fit.
    """
    is_windows = "\r\n" in before and before.count("\r\n") == before.count("\n")
    text = after = before.replace("\r\n", "\n") if is_windows else before
    for edit in edits:
        # A call can be stopped between two steps in a thread, but not within one.
        changed = await in_thread(partial(_replace, after, edit))
        if changed is None:
            shown = edit.oldText if len(edit.oldText) <= 1_000 else f"{edit.oldText[:1_000]}…"
            raise ToolException(
                f"Error: The file does not have this text:\n{shown}\nRead the file again and copy the text exactly."
            )
        after = changed
    diff = await in_thread(partial(_format_diff, path, text.replace("\r\n", "\n"), after.replace("\r\n", "\n")))
    return after.replace("\n", "\r\n") if is_windows else after, diff


# --- directories of this machine -------------------------------------------------------------------------------------


def at_own_paths(directories: Sequence[str]) -> BackendProtocol:
    """Directories of this machine as one tree in which each has the path that it has on the machine."""
    from deepfs.backends.composite import CompositeBackend
    from deepfs.backends.filesystem import FilesystemBackend
    from deepfs.backends.memory import MemoryBackend
    from deepfs.policy.limits import ReadOnlyBackend

    if "/" in directories:
        return FilesystemBackend("/")
    mounts = {f"{directory}/": FilesystemBackend(directory) for directory in directories}
    return CompositeBackend(ReadOnlyBackend(MemoryBackend()), mounts)


# --- registration ----------------------------------------------------------------------------------------------------


def reference_tools(backend: BackendProtocol, settings: McpSettings, calls: BoundedCalls) -> list[Tool]:
    """The reference server's tools that make sense over a backend. Raises ValueError for a name that does not exist."""
    wanted = select_tools(settings, _TOOLS)
    if "write_file" in not_offered(backend):
        wanted -= {name for name, kind in _TOOLS.items() if not kind.annotations.read_only_hint}
    if not offers_move(backend):
        wanted.discard("move_file")
    files = _ReferenceFiles(backend, settings)
    return [_serve(files, settings, calls, name, kind) for name, kind in _TOOLS.items() if name in wanted]


def _serve(files: _ReferenceFiles, settings: McpSettings, calls: BoundedCalls, name: str, kind: _ReferenceTool) -> Tool:
    return make_tool(
        calls,
        name,
        settings.descriptions.get(name, kind.description),
        partial(_reply, files, kind),
        parameters=kind.arguments.model_json_schema(),
        output=output_schema(MediaAnswer if name == "read_media_file" else TextAnswer),
        annotations=kind.annotations,
    )


async def _reply(files: _ReferenceFiles, kind: _ReferenceTool, arguments: dict[str, Any]) -> Reply:
    answer = await kind.operation(files, kind.arguments.model_validate(arguments))
    return answer if isinstance(answer, Reply) else Reply([TextContent(text=answer)], TextAnswer(answer))
