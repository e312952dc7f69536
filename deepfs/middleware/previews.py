"""What a tool call would change, shown to the person who is to approve it."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import chain, islice
from typing import Any, Final, NamedTuple, TypeAlias

import anyio
from langchain_core.tools import ToolException

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import DeepFSError, ErrorCode
from deepfs.middleware.approved import ABSENT, WHOLE_FILE, lines_digest, tree_version
from deepfs.middleware.rendering import plain_error
from deepfs.policy.permissions import as_approved
from deepfs.sync import in_thread_if_large, is_inline
from deepfs.text import paths
from deepfs.text.diff import TextDiff
from deepfs.text.edits import replace_each
from deepfs.text.entries import TreeListing, files_of
from deepfs.text.visible import display_path, one_line
from deepfs.types import ReadResult, error_from

_SECONDS: Final = 5.0
_ROWS: Final = 400
_CHARS: Final = 20_000
"""The most rows and characters of what a preview shows of files."""
_NOTES: Final = 50
"""The most notes behind those rows."""
_ENTRIES: Final = 50
"""The most entries of a directory that are shown."""

Arguments = Mapping[str, Any]


# --- tools that do what the file tools do ---


def equivalent_calls(name: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls of file tools that do what a call of one of `COMPOUND_TOOLS` does; for others, the call itself."""
    calls = COMPOUND_TOOLS.get(name)
    yield from [(name, {**arguments})] if calls is None else calls(arguments)


def _patch_calls(arguments: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    from deepfs.text.patches import PatchError, parse_added_text, patch_sections

    try:
        sections = patch_sections(str(arguments.get("input")))
        contents = {each.path: parse_added_text(each.lines, each.path) for each in sections if each.action == "add"}
    except PatchError:  # The tool refuses it.
        return
    for patch in sections:
        if patch.action == "add":
            yield "write_file", {"file_path": patch.path, "content": contents[patch.path]}
        elif patch.action == "delete":
            yield "delete", {"file_path": patch.path}
        else:
            yield "edit_file", {"file_path": patch.path, "old_string": "", "new_string": ""}
        if patch.move_to:
            yield "move", {"source": patch.path, "destination": patch.move_to}


def _memory_calls(arguments: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    path = arguments.get("path")
    match arguments.get("command"):
        case "view":
            yield "read_file", {"file_path": path}
        case "create":
            yield "write_file", {"file_path": path, "content": arguments.get("file_text")}
        case "str_replace" | "insert":
            new = arguments.get("new_str") or arguments.get("insert_text")
            yield "edit_file", {"file_path": path, "old_string": arguments.get("old_str"), "new_string": new or ""}
        case "delete":
            yield "delete", {"file_path": path}
        case "rename":
            yield "move", {"source": arguments.get("old_path"), "destination": arguments.get("new_path")}


COMPOUND_TOOLS: Final = {"apply_patch": _patch_calls, "memory": _memory_calls}
"""The tools that do what several file tools do, and the calls of these to which a call of them is equal."""


# --- previews ---


class Preview(NamedTuple):
    """What a tool call would change."""

    text: str
    """A unified diff for each file, or what would go, with notes in brackets."""
    versions: dict[str, str]
    """The version of each path that it is made from; `""` where nothing is."""
    lines: dict[str, str]
    """By path, a digest of the lines that would be removed and added."""


async def preview_call(
    backend: BackendProtocol, name: str, arguments: Arguments, *, make: "PreviewMaker | None" = None
) -> Preview | None:
    """Compute what a call of a tool that changes files would change.

    The tools are `write_file`, `edit_file`, `delete`, `move`, `apply_patch` and `memory`. Nothing is changed.
    Rules of a PermissionedBackend that ask for approval let the reads pass, those that deny do not.
    Of a large change a part is shown, with a note of what is left out.

    Args:
        backend: Where the files are.
        name: The name of the tool.
        arguments: Its arguments.
        make: Makes the preview of another tool.

    Returns:
        The preview, with a note where it could not be made; None for another tool, or without the arguments.
    """
    if name == "memory":
        is_insert = arguments.get("command") == "insert"
        name, arguments = ("insert", arguments) if is_insert else next(equivalent_calls(name, arguments), ("", {}))
    elif name == "edit_file" and arguments.get("edits"):
        name = "edits"
    make, needed = (make, ()) if make is not None else _PREVIEWS.get(name, (None, ()))
    if make is None or any(arguments.get(argument) is None for argument in needed):  # Or a tool of the same name.
        return None
    page = PreviewPage()
    # A sync call of a backend that never waits has no event loop, and so no timeout.
    limit = nullcontext() if is_inline() else anyio.fail_after(_SECONDS)
    try:
        with as_approved(), limit:
            await make(page, backend, arguments)
    except TimeoutError:
        page.note(f"The files could not be read and compared within {_SECONDS:g} seconds")
    except (DeepFSError, ToolException) as error:
        page.note(f"This call would fail: {plain_error(str(error))}")
    except Exception as error:  # A preview that fails must not prevent the question.
        page.note(f"No preview could be made: {type(error).__name__}: {error}")
    return Preview(page.text(), page.versions, page.lines)


class PreviewPage:
    """The text of a preview, cut to a bounded size, and the versions that it was made from."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.lines: dict[str, str] = {}
        self._rows: list[str] = []
        self._rows_left, self._room = _ROWS, _CHARS
        self._notes_left = _NOTES

    def extend(self, rows: int, chars: int) -> None:
        """Make room for more rows and characters."""
        self._rows_left += rows
        self._room += chars

    def row(self, row: str) -> bool:
        """Add a row if there is room for it."""
        self._room -= len(row) + 1
        self._rows_left -= 1
        fits = self._room >= 0 and self._rows_left >= 0
        if fits:
            self._rows.append(row)
        return fits

    def note(self, text: str) -> None:
        """Add a note, also where there is no room for a row, unless there are too many."""
        row = f"[{one_line(text, 1_000)}]"
        if not self.row(row):
            self._notes_left -= 1
            self._rows += [row] if self._notes_left >= 0 else []

    async def diff(self, path: str, before: str, after: str, *, old: str | None = None, new: str | None = None) -> None:
        """Add the diff of a file. `old` and `new` are the names of both sides, if they are not `path`."""
        diff, self.lines[paths.normalize(path)] = await in_thread_if_large(
            len(before) + len(after), lambda: (TextDiff(before, after), lines_digest(before, after))
        )
        if not diff.added and not diff.removed:
            self.note("The text stays the same")
            return
        shown = display_path(path)
        self.note(f"{shown}: {_count(diff.added, 'line')} added, {_count(diff.removed, 'line')} removed")
        if not all(map(self.row, chain((f"--- {old or shown}", f"+++ {new or shown}"), diff.rows()))):
            self.note("The rest of this diff is not shown")

    def text(self) -> str:
        more = [f"[{_count(-self._notes_left, 'more note')} not shown]"] if self._notes_left < 0 else []
        return "\n".join([*self._rows, *more])


class _FoundFile(NamedTuple):
    """What is at a path."""

    text: str | None = None
    """The text of a file; None for other things."""
    size: int = 0
    is_absent: bool = False
    listing: TreeListing | None = None
    hidden: DeepFSError | None = None
    """Why it cannot be shown. It is not known whether the call would fail: it may have to read less, or nothing."""

    @property
    def is_binary(self) -> bool:
        return self.text is None and not self.is_absent and self.listing is None and self.hidden is None


async def _find(page: PreviewPage, backend: BackendProtocol, path: str) -> _FoundFile:
    """Read what is at a path, and keep its version. Raises DeepFSError for an invalid path."""
    path = paths.normalize(path)
    read = await backend.aread(path, 0, WHOLE_FILE)
    if read.code is ErrorCode.FILE_NOT_FOUND:
        page.versions[path] = ABSENT
        return _FoundFile(is_absent=True)
    if read.code is ErrorCode.IS_DIRECTORY:
        listing = await backend.alist_tree(path)
        page.versions[path] = tree_version(listing)
        return _FoundFile(listing=listing)
    if read.error is not None:
        begun = ReadResult()
        if read.code is ErrorCode.TOO_LARGE:
            begun = await backend.aread(path, 0, 1)  # The version of a long text comes with its first line, too.
        if begun.version is not None:
            page.versions[path] = begun.version
        return _FoundFile(hidden=error_from(read))
    if read.version is not None:
        page.versions[path] = read.version
    content = read.file_data.content if read.file_data else ""
    if read.file_data is not None and read.file_data.encoding == "base64":
        return _FoundFile(size=len(content.rstrip("=")) * 3 // 4)
    return _FoundFile(content)


# --- tools ---


async def _write(page: PreviewPage, backend: BackendProtocol, arguments: Arguments) -> None:
    path, content = str(arguments["file_path"]), str(arguments["content"])
    found = await _find(page, backend, path)
    if found.hidden is not None:
        _hide(page, "What is there now", found.hidden)
    elif not found.is_absent and not arguments.get("overwrite"):
        page.note("This call would fail: the file is there already, and overwrite is not set")
    if found.is_binary:
        page.note(f"It replaces a binary file of {found.size:,} bytes")
    if found.listing is not None:
        page.note("This call would fail: a directory is there")
    await page.diff(path, found.text or "", content, old="/dev/null" if found.is_absent else None)


async def _edit(page: PreviewPage, backend: BackendProtocol, arguments: Arguments) -> None:
    path = str(arguments["file_path"])
    edits = [
        (str(each["old_string"]), str(each["new_string"]), bool(each.get("replace_all")))
        for each in arguments.get("edits") or [arguments]
    ]
    found = await _find(page, backend, path)
    if found.hidden is not None:
        _hide(page, "The change", found.hidden)
    elif found.text is None:
        page.note("This call would fail: " + ("there is no such file" if found.is_absent else "it is no text file"))
    else:
        before = found.text
        made = await in_thread_if_large(len(before) * len(edits), lambda: [*replace_each(path, before, edits)])
        await page.diff(path, found.text, made[-1].content)


async def _delete(page: PreviewPage, backend: BackendProtocol, arguments: Arguments) -> None:
    path = str(arguments["file_path"])
    found = await _find(page, backend, path)
    if found.is_absent:
        page.note("This call would fail: nothing is there")
    elif found.text is not None:
        await page.diff(path, found.text, "", new="/dev/null")
    else:
        _describe(page, path, found, "is deleted")


async def _move(page: PreviewPage, backend: BackendProtocol, arguments: Arguments) -> None:
    source, destination = str(arguments["source"]), str(arguments["destination"])
    found = await _find(page, backend, source)
    if found.is_absent:
        page.note("This call would fail: nothing is at the source")
        return
    _describe(page, source, found, f"is moved to {display_path(destination)}")
    there = await _find(page, backend, destination)
    if there.is_absent:
        return
    if there.hidden is not None:
        _hide(page, "What is at the destination", there.hidden)
        return
    if there.listing is not None:
        page.note("A directory is at the destination")
    elif there.text is not None and found.text is not None:
        page.note("It replaces a file")
        await page.diff(destination, there.text, found.text)
    else:
        page.note(f"It replaces a file of {len(there.text.encode()) if there.text is not None else there.size:,} bytes")
    if not arguments.get("overwrite") and paths.normalize(source) != paths.normalize(destination):
        page.note("This call would fail: the destination is there already, and overwrite is not set")


def _describe(page: PreviewPage, path: str, found: _FoundFile, what: str) -> None:
    """Add a row for a file, or the entries of a directory with totals."""
    if found.hidden is not None:
        page.row(f"{display_path(path)} {what}")
        _hide(page, "It", found.hidden)
        return
    if found.listing is None:
        size = found.size if found.text is None else len(found.text.encode())
        page.row(f"{display_path(path)} ({_count(size, 'byte')}) {what}")
        return
    entries = found.listing.entries[1:]
    files = files_of(entries)
    size = sum(entry.size or 0 for entry in files)
    totals = f"files: {len(files):,}, directories: {len(entries) - len(files):,}, {_count(size, 'byte')}"
    page.row(f"{display_path(path)}/ {what} ({totals})")
    shown = 0
    for entry in islice(entries, _ENTRIES):
        bytes_there = "" if entry.size is None else f" ({_count(entry.size, 'byte')})"
        shown += page.row(f"  {display_path(entry.path)}{bytes_there}")
    if len(entries) > shown:
        page.note(f"{len(entries) - shown:,} more entries are not shown")
    if found.listing.omission is not None:
        page.note(f"{found.listing.omission.count:,} entries cannot be listed: {found.listing.omission.reason}")


def _hide(page: PreviewPage, what: str, reason: DeepFSError) -> None:
    """Add a note that something cannot be shown."""
    page.note(f"{what} cannot be shown: {plain_error(reason)}")


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


async def _patch(page: PreviewPage, backend: BackendProtocol, arguments: Arguments) -> None:
    from deepfs.middleware.patching import plan_changes
    from deepfs.text.patches import PatchError, parse_patch

    patch = str(arguments["input"])
    try:
        changes = await plan_changes(backend, await in_thread_if_large(len(patch), partial(parse_patch, patch)))
    except PatchError as error:
        raise ToolException(str(error)) from None
    for change in changes:
        page.versions[change.path] = change.version
        if change.is_binary:
            page.row(f"{display_path(change.path)} (binary) is {'moved' if change.move_to else 'deleted'}")
        elif change.before != change.after or not change.move_to:
            absent = {"add": {"old": "/dev/null"}, "delete": {"new": "/dev/null"}}.get(change.action, {})
            await page.diff(change.path, change.before, change.after, **absent)
        if change.move_to:
            page.row(f"{display_path(change.path)} is moved to {display_path(change.move_to)}")
        if change.is_fuzzy:
            page.note("Its context matches only without regard to white space")


async def _insert(page: PreviewPage, backend: BackendProtocol, arguments: Arguments) -> None:
    from deepfs.middleware.anthropic_memory import insert_lines

    path = str(arguments["path"])
    found = await _find(page, backend, path)
    if found.hidden is not None:
        raise found.hidden  # The tool reads all of the file as well.
    if found.text is None:
        page.note("This call would fail: there is no such text file")
        return
    after = insert_lines(found.text, int(arguments["insert_line"]), str(arguments["insert_text"]))
    await page.diff(path, found.text, after)


PreviewMaker: TypeAlias = Callable[[PreviewPage, BackendProtocol, Arguments], Awaitable[Any]]
_PREVIEWS: Final[Mapping[str, tuple[PreviewMaker, tuple[str, ...]]]] = {
    "write_file": (_write, ("file_path", "content")),
    "edit_file": (_edit, ("file_path", "old_string", "new_string")),
    "edits": (_edit, ("file_path", "edits")),
    "delete": (_delete, ("file_path",)),
    "move": (_move, ("source", "destination")),
    "apply_patch": (_patch, ("input",)),
    "insert": (_insert, ("path", "insert_line", "insert_text")),
}
"""The function for each tool, and the arguments that it needs."""
