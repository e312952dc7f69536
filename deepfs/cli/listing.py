"""What is where: ls, tree, glob, du, grep."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import groupby
from typing import Any, TypeAlias

import click
from msgspec.structs import replace

from deepfs.cli.screen import count_noun, human_size
from deepfs.cli.session import (
    AddressedPlace,
    Session,
    addresses_argument,
    directory_argument,
    hidden_option,
    in_session,
    json_option,
)
from deepfs.errors import ErrorCode, NotFoundError
from deepfs.operations import Grep
from deepfs.storage.gathering import gather_each
from deepfs.text import paths
from deepfs.text.entries import TreeEntry
from deepfs.text.visible import visible
from deepfs.types import FileInfo, GrepMatch, GrepResult, LsResult


def _name(entry: FileInfo) -> str:
    return paths.name(entry.path.rstrip("/")) + ("/" if entry.is_dir else "")


def _without_hidden(entries: Sequence[FileInfo] | None, *, hidden: bool) -> list[FileInfo]:
    """The entries, by default without those whose name starts with a dot."""
    return [entry for entry in entries or () if hidden or not _name(entry).startswith(".")]


# --- ls --------------------------------------------------------------------------------------------------------------


@click.command()
@addresses_argument
@click.option("-l", "--long", is_flag=True, help="Show sizes and times.")
@hidden_option
@json_option
@in_session(trouble=2)
async def ls(session: Session, addresses: tuple[str, ...], long: bool, hidden: bool) -> None:
    """List directories."""
    places = [await session.place(text) for text in addresses or [""]]
    results = await gather_each(lambda place: place.backend.als(place.path), places)
    titles = session.titles(places)
    for number, (place, title, result) in enumerate(zip(places, titles, results, strict=True)):
        entries = await _entries_of(session, place, result, hidden=hidden)
        if entries is None:
            continue
        if len(places) > 1 and result.ok and not session.as_json:
            session.screen.line(("\n" if number else "") + session.screen.name(title) + ":")
        _write_entries(session, place, entries, long=long, names=result.ok)


async def _entries_of(
    session: Session, place: AddressedPlace, result: LsResult, *, hidden: bool
) -> list[FileInfo] | None:
    """The entries of a directory, or a file itself. None, and the error is reported, if neither is there."""
    if result.code is ErrorCode.NOT_A_DIRECTORY:
        beside = await place.backend.als(paths.parent(place.path))
        found = [entry for entry in beside.entries or () if entry.path == place.path]
        if found:
            return found
    if not session.check(result, place, status=2):
        return None
    if result.skipped:
        session.report(f"{place.address.shown}: {result.skipped} names are not UTF-8 and are not listed", status=2)
    return _without_hidden(result.entries, hidden=hidden)


def _write_entries(
    session: Session, place: AddressedPlace, entries: list[FileInfo], *, long: bool, names: bool
) -> None:
    """Write the entries of a directory by their names, a file as it was named."""
    screen = session.screen
    if session.as_json:
        for entry in entries:
            session.json({**entry, "path": place.display(entry.path)})
        return
    shown = [screen.name(_name(entry) if names else place.display(entry.path)) for entry in entries]
    styles = ["directory" if entry.is_dir else None for entry in entries]
    if not long and screen.is_terminal:
        screen.columns(shown, styles)
        return
    for entry, name, style in zip(entries, shown, styles, strict=True):
        size = "-" if entry.is_dir or entry.size is None else human_size(entry.size)
        time = "" if entry.modified_at is None else entry.modified_at[:16].replace("T", " ")
        details = f"{size:>8}  {time:<16}  " if long else ""
        screen.line(details + (screen.style(name, style) if style else name))


# --- tree ------------------------------------------------------------------------------------------------------------


@click.command()
@directory_argument
@click.option("-L", "--depth", type=click.IntRange(1), help="Show so many levels.")
@hidden_option
@json_option
@in_session(trouble=2, pages=True)
async def tree(session: Session, address: str, depth: int | None, hidden: bool) -> None:
    """Draw a directory with all beneath it."""
    place = await session.place(address)
    found = await _levels(session, place, depth=depth, hidden=hidden)
    if not session.as_json and place.path in found:
        session.screen.line(session.screen.style(session.screen.name(place.address.shown or "."), "directory"))
    for prefix, entry in _branches(found, place.path):
        if session.as_json:
            session.json({**entry, "path": place.display(entry.path)})
            continue
        name = session.screen.name(_name(entry))
        session.screen.line(prefix + (session.screen.style(name, "directory") if entry.is_dir else name))
    if not session.as_json and place.path in found:
        inside = [entry for entries in found.values() for entry in entries]
        directories = sum(bool(entry.is_dir) for entry in inside)
        session.screen.line(
            f"\n{count_noun(directories, 'directory')}, {count_noun(len(inside) - directories, 'file')}"
        )


async def _levels(
    session: Session, place: AddressedPlace, *, depth: int | None, hidden: bool
) -> dict[str, list[FileInfo]]:
    """The entries of each directory, level by level; the directories of a level are listed at the same time.

    Links to directories are not entered: they may lead in a circle.
    """
    found: dict[str, list[FileInfo]] = {}
    real = dict(zip([place.path], await place.backend.aresolve_paths([place.path]), strict=True))
    level = [place.path]
    while level and (depth is None or depth > 0):
        results = await gather_each(place.backend.als, level)
        below: list[str] = []
        for path, result in zip(level, results, strict=True):
            if session.check(result, place, status=2):
                found[path] = _without_hidden(result.entries, hidden=hidden)
                below += [entry.path.rstrip("/") for entry in found[path] if entry.is_dir]
        resolved = dict(zip(below, await place.backend.aresolve_paths(below), strict=True)) if below else {}
        level = [path for path in below if resolved[path] == _beneath(real[paths.parent(path)], path)]
        real = resolved
        depth = None if depth is None else depth - 1
    return found


def _beneath(directory: str | None, path: str) -> str | None:
    """Where an entry lies whose directory lies in `directory`, if it is no link."""
    return None if directory is None else paths.join(directory, paths.name(path))


def _branches(found: dict[str, list[FileInfo]], top: str) -> Iterator[tuple[str, FileInfo]]:
    """The entries beneath a directory, each with the lines that are drawn before it. Trees may be of any depth."""
    pending = [("", entry) for entry in reversed(found.get(top, []))]
    lasts = {entries[-1].path for entries in found.values() if entries}
    while pending:
        indent, entry = pending.pop()
        is_last = entry.path in lasts
        yield indent + ("└── " if is_last else "├── "), entry
        indent += "    " if is_last else "│   "
        pending += [(indent, each) for each in reversed(found.get(entry.path.rstrip("/"), []) if entry.is_dir else [])]


# --- glob ------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("pattern")
@addresses_argument
@json_option
@in_session(trouble=2)
async def glob(session: Session, pattern: str, addresses: tuple[str, ...]) -> None:
    """Find files whose paths match a pattern, such as '*.py' or 'src/**/*.{ts,tsx}'.

    The exit status is 0 if there are any, 1 if not, and 2 after an error.
    """
    places = [await session.place(text) for text in addresses or [""]]
    results = await gather_each(lambda place: place.backend.aglob(pattern, place.path), places)
    session.status = 1
    for place, result in zip(places, results, strict=True):
        if not session.check(result, place, status=2):
            continue
        for entry in result.matches or ():
            session.status = session.status if session.status == 2 else 0
            path = place.display(entry.path)
            session.json({**entry, "path": path}) if session.as_json else session.screen.line(session.screen.name(path))
        if result.truncated:
            session.report(f"{place.address.shown}: there are more; the search ended early", status=2)


# --- du --------------------------------------------------------------------------------------------------------------


@click.command()
@addresses_argument
@click.option("-d", "--depth", type=click.IntRange(0), default=0, help="Tell so many levels of directories, too.")
@click.option("-b", "--bytes", "exact", is_flag=True, help="Write sizes as numbers of bytes.")
@json_option
@in_session()
async def du(session: Session, addresses: tuple[str, ...], depth: int, exact: bool) -> None:
    """Tell how many bytes the files under a place hold."""
    for text in addresses or [""]:
        place = await session.place(text)
        listing = await place.backend.alist_tree(place.path)
        for path, size in _sizes(listing.entries, place.path, depth):
            shown = place.display(path)
            if session.as_json:
                session.json({"path": shown, "size": size})
            else:
                amount = str(size) if exact else human_size(size)
                session.screen.line(f"{amount:<8}{session.screen.name(shown)}")
        if listing.omission is not None:
            session.report(f"{shown}: {listing.omission.count} entries are not counted: {listing.omission.reason}")


def _sizes(entries: Sequence[TreeEntry], top: str, depth: int) -> list[tuple[str, int]]:
    """The bytes beneath `top` and beneath the directories to a depth, the deepest directories first."""
    if not entries:
        raise NotFoundError(top)
    sizes = {
        entry.path.rstrip("/") or "/": 0
        for entry in entries
        if entry.path == top or (entry.kind == "directory" and _depth(entry.path, top) <= depth)
    }
    for entry in entries:
        for path in {entry.path, *paths.ancestors(entry.path), top}.intersection(sizes):
            sizes[path] += entry.size or 0
    return sorted(sizes.items(), key=lambda item: (-_depth(item[0], top), item[0]))


def _depth(path: str, top: str) -> int:
    return 0 if path == top else path.removeprefix(top.rstrip("/")).count("/")


# --- grep ------------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("pattern")
@addresses_argument
@click.option("-F", "--fixed-strings", "literal", is_flag=True, help="The pattern is a text, no regular expression.")
@click.option("-i", "--ignore-case", is_flag=True, help="Ignore case.")
@click.option("-g", "--glob", metavar="GLOB", help="Search the files that match; by default all but dot files.")
@click.option("-C", "--context", "around", type=click.IntRange(0), default=0, help="Show lines around matches.")
@click.option("-m", "--max-count", "most", type=click.IntRange(1), help="End after so many matches.")
@click.option("-l", "--files-with-matches", "files", is_flag=True, help="Write the names of files only.")
@click.option("-c", "--count", "counts", is_flag=True, help="Write the number of matching lines of each file.")
@click.option("-q", "--quiet", is_flag=True, help="Write nothing; the exit status tells.")
@json_option
@in_session(trouble=2, pages=True)
async def grep(
    session: Session,
    pattern: str,
    addresses: tuple[str, ...],
    literal: bool,
    ignore_case: bool,
    glob: str | None,
    around: int,
    most: int | None,
    files: bool,
    counts: bool,
    quiet: bool,
) -> None:
    """Find the lines of text files that match a regular expression (RE2).

    The exit status is 0 if there are any, 1 if not, and 2 after an error.
    """
    shows_lines = not (quiet or files or counts)
    request = Grep(
        pattern,
        glob=glob,
        # A text that is its own regular expression is searched as a text, which is faster.
        regex=not literal and re.escape(pattern) != pattern,
        ignore_case=ignore_case,
        context_lines=around if shows_lines else 0,
        max_count=1 if quiet else most,
    )
    places = [await session.place(text) for text in addresses or [""]]
    results: list[GrepResult] = await gather_each(
        lambda place: place.backend.arun(replace(request, path=place.path)), places
    )
    session.status = 0 if any(result.matches for result in results) else 1
    for place, title, result in zip(places, session.titles(places), results, strict=True):
        named = place._replace(address=place.address._replace(shown=title))
        matches = result.matches or []
        if shows_lines and session.as_json:
            for match in matches:
                session.json({**match, "path": named.display(match.path)})
        elif shows_lines and matches:
            highlight = _highlighter(session, request)
            session.screen.raw("".join(_rows(session, named, matches, highlight, has_context=around > 0)))
        elif not quiet:
            _write_files(session, named, matches, counts=counts and not files)
        if not session.check(result, place, status=2):
            continue
        if result.truncated and most is None and not quiet:
            session.report(f"{title}: there are more matches; the search ended early", status=2)
        if result.skipped:
            session.screen.note(f"deepfs grep: {title}: {result.skipped} files could not be searched")


def _write_files(session: Session, place: AddressedPlace, matches: Sequence[GrepMatch], *, counts: bool) -> None:
    """Write the names of the files, with `counts` also how many of their lines match."""
    for path, count in Counter(match.path for match in matches).items():
        shown = place.display(path)
        if session.as_json:
            session.json({"path": shown, "count": count} if counts else {"path": shown})
        else:
            name = session.screen.style(session.screen.name(shown), "path")
            session.screen.line(f"{name}:{count}" if counts else name)


_Highlight: TypeAlias = Callable[[str, bool], str]
"""What makes a line of a text, and of whether it matches."""


def _rows(
    session: Session, place: AddressedPlace, matches: Sequence[GrepMatch], highlight: _Highlight, *, has_context: bool
) -> Iterator[str]:
    """The rows: with `path:line:` before each in a pipe, beneath a heading for each file on a terminal."""
    screen = session.screen
    for number, (path, found) in enumerate(groupby(matches, key=lambda match: match.path)):
        name = screen.style(screen.name(place.display(path)), "path")
        if screen.is_terminal:
            yield f"{chr(10) * (number > 0)}{name}\n"
        lines: dict[int, tuple[str, bool]] = {}
        for match in found:
            for each in (*(match.context_before or ()), *(match.context_after or ())):
                lines.setdefault(each.line, (each.text, False))
            lines[match.line] = match.text, True
        last = 0
        for line, (text, matches_here) in sorted(lines.items()):
            if has_context and 0 < last < line - 1:
                yield "--\n"
            last, mark = line, ":" if matches_here else "-"
            head = "" if screen.is_terminal else f"{name}{mark}"
            yield f"{head}{screen.style(str(line), 'line')}{mark}{highlight(text, matches_here)}\n"


def _highlighter(session: Session, request: Grep) -> _Highlight:
    """What makes a line safe to show on a terminal, with what matched in a colour."""
    screen = session.screen
    if not screen.is_terminal and not screen.is_coloured:
        return lambda text, matches: text
    try:
        # On lines that others wrote, Python's own engine could take forever for an expression.
        engine: Any = import_module("re2") if request.regex else re
    except ImportError:  # The backend searches by itself.
        return lambda text, matches: visible(text)
    wanted = request.pattern if request.regex else re.escape(request.pattern)
    find = engine.compile(f"(?i){wanted}" if request.ignore_case else wanted).finditer

    def highlight(text: str, matches: bool) -> str:
        parts, done = [], 0
        for found in find(text) if matches else ():
            start, end = found.span()
            parts += [visible(text[done:start]), screen.style(visible(text[start:end]), "match")]
            done = end
        return "".join([*parts, visible(text[done:])])

    return highlight
