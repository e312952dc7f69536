"""What is in a file, and changing it: cat, head, write, edit, patch, diff."""

import os
import shlex
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio
from anyio import to_thread

from deepfs.backends.gathering import batched, gather_each
from deepfs.cli.screen import Screen, safe
from deepfs.cli.session import Place, Session
from deepfs.errors import AlreadyExistsError, BinaryFileError, DeepFSError, ErrorCode, error_about
from deepfs.text import paths
from deepfs.text.diff import unified
from deepfs.text.lines import decode, version
from deepfs.text.patches import FilePatch, parse_patch, parse_unified
from deepfs.text.visible import visible

__all__ = [
    "apply_patch",
    "compare",
    "edit_file",
    "edit_in_editor",
    "show_beginning",
    "show_files",
    "write_diff",
    "write_file",
]

_READ_BYTES: Final = 256 * 1024
_MOST_IN_MEMORY: Final = 8 * 1024 * 1024
_STDIN: Final = "-"


# --- reading ---------------------------------------------------------------------------------------------------------


async def show_files(session: Session, addresses: Sequence[str], *, numbers: bool) -> None:
    """Write the contents of files, one after another.

    Args:
        session: The session.
        addresses: The addresses; `-` is the standard input.
        numbers: Whether lines are numbered.
    """
    line = 1
    for text in addresses:
        try:
            async with aclosing(_chunks_of(await _source(session, text))) as chunks:
                if numbers:
                    line = await _write_numbered(session, chunks, line)
                else:
                    async for chunk in chunks:
                        session.screen.bytes(chunk)
        except DeepFSError as error:
            session.failed(error)


async def _source(session: Session, text: str) -> Place | None:
    return None if text == _STDIN else await session.place(text)


async def _chunks_of(place: Place | None) -> AsyncGenerator[bytes, None]:
    """The bytes of a file, or of the standard input. An error names the file as the user did."""
    if place is None:
        while chunk := await to_thread.run_sync(os.read, sys.stdin.fileno(), _READ_BYTES):
            yield chunk
        return
    try:
        async with aclosing(place.backend.adownload_stream(place.path)) as chunks:
            async for chunk in chunks:
                yield chunk
    except DeepFSError as error:
        raise error.renamed(place.shown) from None


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line + b"\n"
    if rest:
        yield rest


async def _write_numbered(session: Session, chunks: AsyncIterator[bytes], number: int) -> int:
    """Write lines with their numbers, from `number` on. Returns the number that comes next."""
    async for line in _lines(chunks):
        session.screen.raw(session.screen.styled(f"{number:>6}\t", "dim"))
        session.screen.bytes(line)
        number += 1
    return number


async def show_beginning(session: Session, addresses: Sequence[str], *, lines: int, size: int | None) -> None:
    """Write the first lines of files. No more of a file is fetched than needed.

    Args:
        session: The session.
        addresses: The addresses; `-` is the standard input.
        lines: How many lines.
        size: How many bytes instead; None for lines.
    """
    for number, text in enumerate(addresses):
        try:
            async with aclosing(_chunks_of(await _source(session, text))) as chunks:
                first = await anext(chunks, b"")
                if len(addresses) > 1:
                    session.screen.line(f"{chr(10) * (number > 0)}==> {session.screen.name(text)} <==")
                if size is None:
                    await _write_lines(session, first, chunks, lines)
                else:
                    await _write_bytes(session, first, chunks, size)
        except DeepFSError as error:
            session.failed(error)


async def _write_bytes(session: Session, chunk: bytes, rest: AsyncIterator[bytes], size: int) -> None:
    while chunk and size > 0:
        session.screen.bytes(chunk[:size])
        size -= len(chunk)
        chunk = await anext(rest, b"") if size > 0 else b""


async def _write_lines(session: Session, chunk: bytes, rest: AsyncIterator[bytes], lines: int) -> None:
    while chunk and lines > 0:
        whole = chunk.split(b"\n", lines)
        ends = len(whole) > lines
        session.screen.bytes(b"".join(line + b"\n" for line in whole[:lines]) if ends else chunk)
        lines -= len(whole) - 1
        chunk = await anext(rest, b"") if lines > 0 else b""


# --- writing ---------------------------------------------------------------------------------------------------------


async def write_file(
    session: Session, address: str, text: str | None, *, overwrite: bool, if_match: str | None
) -> None:
    """Make a file of a text or of the standard input.

    Args:
        session: The session.
        address: The address of the file.
        text: The text; None for the standard input, which may hold any bytes of any number.
        overwrite: Whether a file that is there is replaced.
        if_match: The version that it must have; None for any.
    """
    place = await session.place(address, creates=True)
    chunks = _chunks_of(None)
    start = b"" if text is None else text.encode()
    while text is None and len(start) <= _MOST_IN_MEMORY and (chunk := await anext(chunks, b"")):
        start += chunk
    content = decode(start) if len(start) <= _MOST_IN_MEMORY else None
    if content is not None:
        result = await place.backend.awrite(place.path, content, overwrite=overwrite, if_match=if_match)
        session.check(result, place)
        return
    if not overwrite and (await place.backend.als(place.path)).code is not ErrorCode.FILE_NOT_FOUND:
        raise AlreadyExistsError(place.path).renamed(place.shown)
    if if_match is not None:
        raise ValueError("--if-match goes with texts of up to 8 MiB only")

    async def all_chunks() -> AsyncGenerator[bytes, None]:
        yield start
        async for chunk in chunks:
            yield chunk

    outcome = await place.backend.aupload_stream(place.path, all_chunks())
    if outcome.error is not None:
        raise error_about(outcome.error, place.address.shown, f"it cannot be stored ({outcome.error})")


async def edit_file(
    session: Session, address: str, old: str, new: str, *, everywhere: bool, if_match: str | None
) -> None:
    """Replace a text in a file.

    Args:
        session: The session.
        address: The address of the file.
        old: The text, which must be in one place only unless `everywhere` is set.
        new: What takes its place.
        everywhere: Whether it is replaced everywhere.
        if_match: The version that the file must have; None for any.
    """
    place = await session.place(address)
    result = await place.backend.aedit(place.path, old, new, everywhere, if_match=if_match)
    if not session.check(result, place):
        return
    if session.as_json:
        session.json({"path": place.address.shown, "occurrences": result.occurrences})
    else:
        count = result.occurrences or 0
        session.screen.line(f"{session.screen.name(place.address.shown)}: {count} replaced")


async def edit_in_editor(session: Session, address: str) -> None:
    """Open a text file in the user's editor, and store what the editor leaves.

    The file changes only if nobody else has changed it meanwhile; otherwise the text stays in a file, which is told.

    Args:
        session: The session.
        address: The address of the file; it is made if it is not there.
    """
    place = await session.place(address, creates=True)
    before = await _text_of(place)
    after, kept = await to_thread.run_sync(_edited, before or "", paths.name(place.path))
    if after == before:
        session.screen.line("nothing changed")
        return
    if before is None:
        result = await place.backend.awrite(place.path, after)
    else:
        result = await place.backend.awrite(place.path, after, overwrite=True, if_match=version(before))
    if not result.ok:
        await to_thread.run_sync(kept.write_text, after)
        session.screen.note(f"deepfs edit: your text is in {kept}")
    session.check(result, place)


async def _text_of(place: Place) -> str | None:
    """The whole text of a file; None if there is none. Raises for what is no text."""
    [download] = await place.backend.adownload_files([place.path])
    if download.error == ErrorCode.FILE_NOT_FOUND:
        return None
    if download.error is not None:
        raise error_about(download.error, place.address.shown, f"it cannot be read ({download.error})")
    text = decode(download.content or b"")
    if text is None:
        raise BinaryFileError(place.address.shown)
    return text


def _edited(text: str, name: str) -> tuple[str, Path]:
    """The text after the user has edited it, and the path of a file where it may be kept."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with TemporaryDirectory(prefix="deepfs-") as directory:
        file = Path(directory, safe(name) or "text")
        file.write_bytes(text.encode())
        subprocess.run([*shlex.split(editor), str(file)], check=True)
        return file.read_bytes().decode(), Path(f"{directory}.txt")


async def apply_patch(session: Session, address: str, file: str | None) -> None:
    """Apply a patch to the files of a backend: all of it, or nothing if a part does not fit.

    Args:
        session: The session.
        address: The address whose backend has the files; the paths of the patch are paths in it.
        file: The patch on this machine; None for the standard input. Both unified diffs and the V4A format of OpenAI's
            models are read.
    """
    from deepfs.middleware.apply_patch import apply_patches

    place = await session.place(address)
    content = await (to_thread.run_sync(sys.stdin.buffer.read) if file is None else anyio.Path(file).read_bytes())
    text = content.decode()
    patches = parse_patch(text) if text.lstrip().startswith("*** Begin Patch") else parse_unified(text)
    session.screen.line(await apply_patches(place.backend, [_within(patch, place) for patch in patches]))


def _within(patch: FilePatch, place: Place) -> FilePatch:
    move_to = None if patch.move_to is None else paths.join(place.path, paths.normalize(patch.move_to)[1:])
    return patch._replace(path=paths.join(place.path, paths.normalize(patch.path)[1:]), move_to=move_to)


# --- comparing -------------------------------------------------------------------------------------------------------


async def compare(session: Session, first: str, second: str, *, brief: bool) -> None:
    """Write how two files or two trees differ, as a unified diff. The status is 1 if they do.

    Args:
        session: The session.
        first: The address of the old one.
        second: The address of the new one.
        brief: Whether only the names of files that differ are written.
    """
    old, new = _Side(await session.place(first)), _Side(await session.place(second))
    await old.list()
    await new.list()
    for names in batched(sorted({*old.names, *new.names}), lambda name: 1, most_bytes=_AT_ONCE, most_items=_AT_ONCE):
        contents = zip(await gather_each(old.content, names), await gather_each(new.content, names), strict=True)
        for name, (before, after) in zip(names, contents, strict=True):
            if before != after:
                session.status = 1
                _write_difference(session, (old.title(name), before), (new.title(name), after), brief=brief)


class _Side:
    """One side of a comparison."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.names: set[str] = set()
        """The files, relative to the place; a file itself has the name ""."""

    async def list(self) -> None:
        """Find the files."""
        try:
            listing = await self._place.backend.alist_tree(self._place.path)
        except DeepFSError as error:
            raise error.renamed(self._place.shown) from None
        files = (entry.path for entry in listing.entries if entry.kind == "file")
        self.names = {"" if path == self._place.path else paths.relative(path, self._place.path) for path in files}

    def title(self, name: str) -> str:
        """What the user calls a file."""
        return self._place.shown(self._path(name))

    def _path(self, name: str) -> str:
        return paths.join(self._place.path, name) if name else self._place.path

    async def content(self, name: str) -> bytes | None:
        """The content of a file; None if it is not on this side."""
        if name not in self.names:
            return None
        place = self._place._replace(path=self._path(name))
        return b"".join([chunk async for chunk in _chunks_of(place)])


def _write_difference(
    session: Session, old: tuple[str, bytes | None], new: tuple[str, bytes | None], *, brief: bool
) -> None:
    (old_title, before), (new_title, after) = old, new
    screen = session.screen
    if session.as_json:
        change = "added" if before is None else "removed" if after is None else "changed"
        session.json({"path": new_title if before is None else old_title, "change": change})
    elif brief:
        only = new_title if before is None else old_title
        both = f"Files {screen.name(old_title)} and {screen.name(new_title)} differ"
        screen.line(both if before is not None and after is not None else f"Only {screen.name(only)}")
    else:
        titles = _NO_FILE if before is None else old_title, _NO_FILE if after is None else new_title
        write_diff(screen, unified(before or b"", after or b"", *titles))


def write_diff(screen: Screen, diff: str) -> None:
    """Write a unified diff, in colours where they are shown.

    Args:
        screen: Where to.
        diff: The diff.
    """
    for line in StringIO(diff, newline="\n"):
        text = visible(line) if screen.is_terminal else line
        style = _STYLE_OF.get(text[:1])
        screen.raw(screen.styled(text.removesuffix("\n"), style) + "\n" if style else text)


_STYLE_OF: Final = {"@": "hunk", "+": "added", "-": "removed"}
_NO_FILE: Final = "/dev/null"
_AT_ONCE: Final = 32
