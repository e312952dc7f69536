"""What is in files, and changing it: cat, head, tail, write, edit, mkdir, rm."""

import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final

import click
from anyio import to_thread

from deepfs.backends._trees import kind_at, list_present
from deepfs.cli.session import (
    AddressedPlace,
    Session,
    address_argument,
    describe_error,
    error_text,
    files_argument,
    if_match_option,
    in_session,
    interruptible,
    json_option,
    reason_text,
)
from deepfs.config.urls import MACHINE
from deepfs.errors import BinaryFileError, DeepFSError, ErrorCode, error_about, quote
from deepfs.text import paths
from deepfs.text.entries import EntryChange, Relation, relation
from deepfs.text.lines import decode, version
from deepfs.types import error_from

_READ_BYTES: Final = 256 * 1024
_MOST_IN_MEMORY: Final = 8 * 1024 * 1024
_STDIN: Final = "-"
_NO_MATTER: Final = (ErrorCode.UNSUPPORTED, ErrorCode.ALREADY_EXISTS)
"""How it may fail to make a directory if only files shall be put there."""
_LONGEST_NAME: Final = 60
"""Characters of the name of a file for the editor: at most 240 bytes."""


# --- reading ---------------------------------------------------------------------------------------------------------


@click.command()
@files_argument
@click.option("-n", "--number", "numbers", is_flag=True, help="Number the lines.")
@in_session(pages=True)
async def cat(session: Session, files: tuple[str, ...], numbers: bool) -> None:
    """Write the contents of files; - is the standard input."""
    line = 1
    for text in files:
        try:
            async with aclosing(await _chunks_of(session, text)) as chunks:
                async for part in _lines(chunks) if numbers else chunks:
                    if numbers:
                        session.screen.raw(session.screen.style(f"{line:>6}\t", "dim"))
                        line += 1
                    session.screen.bytes(part)
        except DeepFSError as error:
            session.report(error)


async def _chunks_of(session: Session, text: str) -> AsyncGenerator[bytes, None]:
    """The bytes of the file at an address, or of the standard input."""
    return _read_input() if text == _STDIN else (await session.place(text)).chunks()


async def _read_input() -> AsyncGenerator[bytes, None]:
    while chunk := await to_thread.run_sync(os.read, sys.stdin.fileno(), _READ_BYTES):
        yield chunk


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    parts: list[bytes] = []  # Of a line whose end is not there yet; joined once, since a line may be of any length.
    async for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield b"".join([*parts, end, b"\n"])
            parts = []
        parts.append(rest)
    if last := b"".join(parts):
        yield last


@click.command()
@files_argument
@click.option(
    "-n", "--lines", metavar="N", type=click.IntRange(0), default=10, show_default=True, help="How many lines."
)
@click.option("-c", "--bytes", "size", metavar="N", type=click.IntRange(0), help="How many bytes instead.")
@in_session()
async def head(session: Session, files: tuple[str, ...], lines: int, size: int | None) -> None:
    """Write the first lines of files. No more of a file is fetched than needed."""

    async def write(chunks: AsyncGenerator[bytes, None], first: bytes) -> None:
        await _write_start(session, first, chunks, *((lines, b"\n") if size is None else (size, b"")))

    await _under_headings(session, files, write)


async def _under_headings(
    session: Session, files: Sequence[str], write: Callable[[AsyncGenerator[bytes, None], bytes], Awaitable[None]]
) -> None:
    """Write a part of each file, beneath its name if there are several. `write` gets the chunks, the first apart."""
    for number, text in enumerate(files):
        try:
            async with aclosing(await _chunks_of(session, text)) as chunks:
                first = await anext(chunks, b"")
                if len(files) > 1:
                    session.screen.line(f"{chr(10) * (number > 0)}==> {session.screen.name(text)} <==")
                await write(chunks, first)
        except DeepFSError as error:
            session.report(error)


async def _write_start(session: Session, chunk: bytes, rest: AsyncIterator[bytes], left: int, unit: bytes) -> None:
    """Write the first `left` lines, or bytes if `unit` is empty."""
    while chunk and left > 0:
        if unit:
            *lines, end = chunk.split(unit, left)
            part = chunk if len(lines) < left else chunk[: len(chunk) - len(end)]
            left -= len(lines)
        else:
            part, left = chunk[:left], left - len(chunk)
        session.screen.bytes(part)
        chunk = await anext(rest, b"") if left > 0 else b""


@click.command()
@files_argument
@click.option("-n", "--lines", metavar="[+]N", default="10", show_default=True, help="How many; +N starts at line N.")
@click.option("-c", "--bytes", "size", metavar="[+]N", help="How many bytes instead; +N starts at byte N.")
@in_session()
async def tail(session: Session, files: tuple[str, ...], lines: str, size: str | None) -> None:
    """Write the last lines of files. `watch` tells what changes afterwards."""
    unit, given = (b"\n", lines) if size is None else (b"", size)
    found = re.fullmatch(r"([+-]?)(\d{1,18})", given)
    if found is None:
        raise click.UsageError(f"{given!r} is no number of {'lines' if unit else 'bytes'}")
    starts, count = found[1] == "+", int(found[2])

    async def write(chunks: AsyncGenerator[bytes, None], first: bytes) -> None:
        if starts:
            await _write_from(session, first, chunks, max(count - 1, 0), unit)
        else:
            session.screen.bytes(await _end(first, chunks, count, unit))

    await _under_headings(session, files, write)


async def _write_from(session: Session, chunk: bytes, rest: AsyncIterator[bytes], left: int, unit: bytes) -> None:
    """Write what follows the first `left` lines, or bytes if `unit` is empty."""
    while chunk:
        if unit:
            parts = chunk.split(unit, left)
            left, chunk = left - (len(parts) - 1), parts[left] if len(parts) > left else b""
        else:
            left, chunk = max(left - len(chunk), 0), chunk[left:]
        session.screen.bytes(chunk)
        chunk = await anext(rest, b"")


async def _end(chunk: bytes, rest: AsyncIterator[bytes], count: int, unit: bytes) -> bytes:
    """The last lines, or bytes if `unit` is empty. No more chunks are held than that needs."""
    held, total = deque[tuple[bytes, int]](), 0
    while chunk:
        held.append((chunk, chunk.count(unit) if unit else len(chunk)))
        total += held[-1][1]
        while total - held[0][1] > count:  # The end of the last line does not begin another one.
            total -= held.popleft()[1]
        chunk = await anext(rest, b"")
    content = b"".join(chunk for chunk, _ in held)
    if not unit:
        return content[max(len(content) - count, 0) :]
    place = len(content) - content.endswith(unit)
    while count > 0 and place >= 0:
        count, place = count - 1, content.rfind(unit, 0, place)
    return content[place + 1 :] if place < len(content) - 1 else b""


# --- writing ---------------------------------------------------------------------------------------------------------


@click.command()
@address_argument
@click.argument("text", required=False)
@click.option("-f", "--force", is_flag=True, help="Replace a file that is there.")
@if_match_option
@in_session()
async def write(session: Session, address: str, text: str | None, force: bool, if_match: str | None) -> None:
    """Make a file of a text, or of the standard input."""
    place = await session.place(address, creates=True)
    chunks = _read_input()
    start = b"" if text is None else text.encode()
    while text is None and len(start) <= _MOST_IN_MEMORY and (chunk := await anext(chunks, b"")):
        start += chunk
    content = decode(start) if len(start) <= _MOST_IN_MEMORY else None
    if content is not None:
        result = await place.backend.awrite(place.path, content, overwrite=force, if_match=if_match)
        if result.code is ErrorCode.ALREADY_EXISTS and not force:
            session.report(f"{place.quoted} already exists; -f replaces it")
        else:
            session.check(result, place)
        return
    if not force and (await place.backend.als(place.path)).code is not ErrorCode.FILE_NOT_FOUND:
        session.report(f"{place.quoted} already exists; -f replaces it")
        return
    if if_match is not None:
        raise ValueError("--if-match goes with texts of up to 8 MiB only")

    async def all_chunks() -> AsyncGenerator[bytes, None]:
        yield start
        async for chunk in chunks:
            yield chunk

    outcome = await place.backend.aupload_stream(place.path, all_chunks())
    if outcome.error is not None:
        raise error_about(outcome.error, place.address.shown, f"it cannot be stored ({outcome.error})")


@click.command()
@files_argument
@click.option("-p", "--parents", is_flag=True, help="Make those above, too; one that is there is no error.")
@in_session()
async def mkdir(session: Session, files: tuple[str, ...], parents: bool) -> None:
    """Make directories.

    Databases and object stores keep no empty ones: there, a directory is what files lie in, and -p does nothing.
    """
    for text in files:
        place = await session.place(text)
        try:
            error = await _make_directory(place, parents=parents)
        except DeepFSError as failed:
            error = describe_error(failed.with_paths(place.display))
        if error is not None:
            session.report(f"cannot create directory {place.quoted}: {error}")


async def _make_directory(place: AddressedPlace, *, parents: bool) -> str | None:
    """Make a directory; returns why it cannot be made."""
    backend = place.backend
    if not parents and backend.capabilities.keeps_empty_directories:
        above = await kind_at(backend, paths.parent(place.path))
        if above != "directory":
            return error_text(ErrorCode.FILE_NOT_FOUND if above is None else ErrorCode.NOT_A_DIRECTORY)
    for path in [*paths.ancestors(place.path), place.path] if parents else [place.path]:
        kind = await kind_at(backend, path)
        if kind == "file" or (kind == "directory" and not parents):
            return error_text(ErrorCode.ALREADY_EXISTS if path == place.path else ErrorCode.NOT_A_DIRECTORY)
        if kind is None:
            [made] = await backend.achange_entries([EntryChange(path, "make_directory")])
            if made.error == ErrorCode.UNSUPPORTED and not parents:
                return "no empty directory is kept there; it is there once a file is in it"
            if made.error is not None and not (parents and made.error in _NO_MATTER):
                return error_text(made.error)
    return None


@click.command()
@address_argument
@click.argument("old", required=False)
@click.argument("new", required=False)
@click.option("-a", "--all", "everywhere", is_flag=True, help="Replace the text everywhere, not in one place only.")
@if_match_option
@json_option
@in_session()
async def edit(
    session: Session, address: str, old: str | None, new: str | None, everywhere: bool, if_match: str | None
) -> None:
    """Replace the text OLD by NEW in a file; without them, open the file in $EDITOR."""
    if old is None:
        await _edit_in_editor(session, address)
        return
    if new is None:
        raise click.UsageError("Missing argument 'NEW': what takes the place of OLD.")
    place = await session.place(address)
    result = await place.backend.aedit(place.path, old, new, everywhere, if_match=if_match)
    if not session.check(result, place):
        return
    if session.as_json:
        session.json({"path": place.address.shown, "occurrences": result.occurrences})
    else:
        count = "all" if result.occurrences is None else result.occurrences
        session.screen.line(f"{session.screen.name(place.address.shown)}: {count} replaced")


async def _edit_in_editor(session: Session, address: str) -> None:
    """Open a text file in the user's editor, and store what the editor leaves.

    The file changes only if nobody else has changed it meanwhile; otherwise the text stays in a file, which is told.
    """
    place = await session.place(address, creates=True)
    before = await _text_of(place)
    file = await to_thread.run_sync(_make_file, before or "", paths.name(place.path))
    is_stored = False
    try:
        await _run_editor(file)
        is_stored = await _store_edited(session, place, before, file)
    finally:
        if await to_thread.run_sync(_is_kept, file, before or "", is_stored):
            session.screen.note(f"deepfs edit: your text is in {file}")


async def _store_edited(session: Session, place: AddressedPlace, before: str | None, file: Path) -> bool:
    """Store what the editor left. Returns whether it is stored now; if not, the error is reported."""
    after = decode(await to_thread.run_sync(file.read_bytes))
    if after is None:
        raise ValueError("what the editor left is no text in UTF-8, so it is not stored")
    if after == before:
        session.screen.line("nothing changed")
        return True
    if before is None:
        result = await place.backend.awrite(place.path, after)
    else:
        result = await place.backend.awrite(place.path, after, overwrite=True, if_match=version(before))
    return session.check(result, place)


async def _text_of(place: AddressedPlace) -> str | None:
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


def _make_file(text: str, name: str) -> Path:
    """A file of a text in a directory that only this user can read.

    A long name loses its beginning, and every name what a shell reads: before 8.3.3, click starts editors by one.
    """
    file = Path(mkdtemp(prefix="deepfs-"), re.sub(r"[^\w. -]", "_", name)[-_LONGEST_NAME:] or "text")
    file.write_bytes(text.encode())
    return file


async def _run_editor(file: Path) -> None:
    """Run the user's editor. Ctrl-C is for the editor, which has the terminal meanwhile."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        await to_thread.run_sync(partial(click.edit, filename=str(file)))
    except click.ClickException as error:
        raise ValueError(f"nothing is stored: {error.format_message()}") from None
    finally:
        signal.signal(signal.SIGINT, before)


def _is_kept(file: Path, before: str, is_stored: bool) -> bool:
    """Whether the file is the only place of what the user wrote. If not, it is deleted."""
    with suppress(FileNotFoundError):
        if not is_stored and file.read_bytes() != before.encode():
            return True
    rmtree(file.parent, ignore_errors=True)
    return False


# --- rm ---------------------------------------------------------------------------------------------------------------


@click.command()
@files_argument
@click.option("-r", "-R", "--recursive", is_flag=True, help="Delete directories with all that is in them.")
@click.option("-f", "--force", is_flag=True, help="Say nothing of what is not there, and never ask.")
@click.option("-i", "--interactive", is_flag=True, help="Ask before each address.")
@click.option("--no-preserve-root", "root", is_flag=True, help="Delete all that is in a backend, if its root is given.")
@in_session()
async def rm(session: Session, files: tuple[str, ...], root: bool, **options: bool) -> None:
    """Delete files, and directories with -r."""
    number = await interruptible(partial(_remove_each, session, files, root, options))
    if number is not None:
        session.report("interrupted", status=128 + number)


class _RefusedRemovalError(Exception):
    """An address that is not removed; the text says why."""


async def _remove_each(session: Session, addresses: Sequence[str], root: bool, options: Mapping[str, bool]) -> None:
    for text in addresses:
        place = await session.place(text)
        try:
            if text.rstrip("/").rpartition("/")[2] in (".", ".."):
                raise _RefusedRemovalError(f"refusing to remove '.' or '..' directory: skipping {quote(text)}")
            if place.path == "/":
                await _check_root(session, place, root)
            await _remove(place, **options)
        except _RefusedRemovalError as refused:
            session.report(refused)
        except DeepFSError as error:
            session.report(f"cannot remove {place.quoted}: {describe_error(error)}")


async def _check_root(session: Session, place: AddressedPlace, is_asked_for: bool) -> None:
    """Refuse the root of this machine, by whatever name, and that of a backend if it is not asked for."""
    machine = await session.place(f"{MACHINE}#/")
    ends = await place.backend.astorage_place("/"), await machine.backend.astorage_place("/")
    if relation(*ends) is Relation.SAME:
        raise _RefusedRemovalError("refusing to remove '/', the root of this machine")
    if not is_asked_for:
        raise _RefusedRemovalError(
            f"it is dangerous to operate recursively on {place.quoted}, the root of a backend; "
            "use --no-preserve-root to do so"
        )


async def _remove(place: AddressedPlace, *, recursive: bool, force: bool, interactive: bool) -> None:
    kind = await kind_at(place.backend, place.path)
    if kind != "directory" or (await place.backend.aresolve_paths([place.path])) != [place.path]:
        entries = (await list_present(place.backend, place.path)).entries  # A link to a directory is none.
        kind = None if not entries else "directory" if entries[0].kind == "directory" else "file"
    if kind is None and force:
        return
    if kind is None or (kind == "directory" and not recursive):
        code = ErrorCode.FILE_NOT_FOUND if kind is None else ErrorCode.IS_DIRECTORY
        raise _RefusedRemovalError(f"cannot remove {place.quoted}: {error_text(code)}")
    if interactive and not force:
        print(f"deepfs rm: remove {kind} {place.quoted}? ", end="", file=sys.stderr, flush=True)
        if (await to_thread.run_sync(sys.stdin.readline)).strip().lower() not in ("y", "yes"):
            return
    wanted = [place.path]
    if place.path == "/":  # A root itself cannot be deleted.
        listing = await place.backend.als("/")
        if not listing.ok:
            raise error_from(listing)
        wanted = [entry.path.rstrip("/") for entry in listing.entries or ()]
    for path in wanted:
        result = await place.backend.adelete(path)
        if not result.ok and not (force and result.code is ErrorCode.FILE_NOT_FOUND):
            raise _RefusedRemovalError(f"cannot remove {quote(place.display(path))}: {reason_text(result)}")
