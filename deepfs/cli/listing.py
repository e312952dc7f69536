"""What is where: ls, tree, glob, du."""

from collections.abc import Iterator, Sequence

import click

from deepfs.cli.options import (
    addresses_argument,
    directory_argument,
    hidden_option,
    json_option,
    run_command,
)
from deepfs.cli.screen import counted, human_size
from deepfs.cli.session import Place, Session
from deepfs.errors import ErrorCode, NotFoundError
from deepfs.storage.gathering import gather_each
from deepfs.text import paths
from deepfs.text.entries import TreeEntry
from deepfs.types import FileInfo, LsResult

__all__ = ["disk_usage", "du", "find_files", "glob", "list_directories", "ls", "show_tree", "tree"]


def _name(entry: FileInfo) -> str:
    return paths.name(entry.path.rstrip("/")) + ("/" if entry.is_dir else "")


def _shown(entries: Sequence[FileInfo] | None, *, hidden: bool) -> list[FileInfo]:
    """The entries, by default without those whose name starts with a dot."""
    return [entry for entry in entries or () if hidden or not _name(entry).startswith(".")]


# --- ls --------------------------------------------------------------------------------------------------------------


@click.command()
@addresses_argument
@click.option("-l", "--long", is_flag=True, help="Show sizes and times.")
@hidden_option
@json_option
def ls(addresses: tuple[str, ...], long: bool, hidden: bool, json: bool) -> None:
    """List directories."""
    run_command(lambda on: list_directories(on, addresses or [""], long=long, hidden=hidden), trouble=2, json=json)


async def list_directories(session: Session, addresses: Sequence[str], *, long: bool, hidden: bool) -> None:
    """List directories, and the files that are named themselves.

    Args:
        session: The session.
        addresses: The addresses.
        long: Whether sizes and times are shown.
        hidden: Whether names that start with a dot are listed.
    """
    places = [await session.place(text) for text in addresses]
    results = await gather_each(lambda place: place.backend.als(place.path), places)
    titles = session.titles(places)
    for number, (place, title, result) in enumerate(zip(places, titles, results, strict=True)):
        entries = await _listed(session, place, result, hidden=hidden)
        if entries is None:
            continue
        if len(places) > 1 and result.ok and not session.as_json:
            session.screen.line(("\n" if number else "") + session.screen.name(title) + ":")
        _write_entries(session, place, entries, long=long, names=result.ok)


async def _listed(session: Session, place: Place, result: LsResult, *, hidden: bool) -> list[FileInfo] | None:
    """The entries of a directory, or a file itself. None, and the error is told, if neither is there."""
    if result.code is ErrorCode.NOT_A_DIRECTORY:
        beside = await place.backend.als(paths.parent(place.path))
        found = [entry for entry in beside.entries or () if entry.path == place.path]
        if found:
            return found
    if not session.check(result, place, status=2):
        return None
    if result.skipped:
        session.failed(f"{place.address.shown}: {result.skipped} names are not UTF-8 and are not listed", status=2)
    return _shown(result.entries, hidden=hidden)


def _write_entries(session: Session, place: Place, entries: list[FileInfo], *, long: bool, names: bool) -> None:
    """Write the entries of a directory by their names, a file as it was named."""
    screen = session.screen
    if session.as_json:
        for entry in entries:
            session.json({**entry, "path": place.shown(entry.path)})
        return
    shown = [screen.name(_name(entry) if names else place.shown(entry.path)) for entry in entries]
    styles = ["directory" if entry.is_dir else None for entry in entries]
    if not long and screen.is_terminal:
        screen.columns(shown, styles)
        return
    for entry, name, style in zip(entries, shown, styles, strict=True):
        details = f"{_size(entry):>8}  {_time(entry):<16}  " if long else ""
        screen.line(details + (screen.styled(name, style) if style else name))


def _size(entry: FileInfo) -> str:
    return "-" if entry.is_dir or entry.size is None else human_size(entry.size)


def _time(entry: FileInfo) -> str:
    return "" if entry.modified_at is None else entry.modified_at[:16].replace("T", " ")


# --- tree ------------------------------------------------------------------------------------------------------------


@click.command()
@directory_argument
@click.option("-L", "--depth", type=click.IntRange(1), help="Show so many levels.")
@hidden_option
@json_option
def tree(address: str, depth: int | None, hidden: bool, json: bool) -> None:
    """Draw a directory with all beneath it."""
    run_command(lambda on: show_tree(on, address, depth=depth, hidden=hidden), trouble=2, json=json, pages=True)


async def show_tree(session: Session, address: str, *, depth: int | None, hidden: bool) -> None:
    """Draw a directory with all beneath it.

    Args:
        session: The session.
        address: The address of the directory.
        depth: How many levels are shown; None for all.
        hidden: Whether names that start with a dot are shown.
    """
    place = await session.place(address)
    found = await _levels(session, place, depth=depth, hidden=hidden)
    if not session.as_json and place.path in found:
        session.screen.line(session.screen.styled(session.screen.name(place.address.shown or "."), "directory"))
    for prefix, entry in _branches(found, place.path):
        if session.as_json:
            session.json({**entry, "path": place.shown(entry.path)})
            continue
        name = session.screen.name(_name(entry))
        session.screen.line(prefix + (session.screen.styled(name, "directory") if entry.is_dir else name))
    if not session.as_json and place.path in found:
        inside = [entry for entries in found.values() for entry in entries]
        directories = sum(bool(entry.is_dir) for entry in inside)
        session.screen.line(f"\n{counted(directories, 'directory')}, {counted(len(inside) - directories, 'file')}")


async def _levels(session: Session, place: Place, *, depth: int | None, hidden: bool) -> dict[str, list[FileInfo]]:
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
                found[path] = _shown(result.entries, hidden=hidden)
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
def glob(pattern: str, addresses: tuple[str, ...], json: bool) -> None:
    """Find files whose paths match a pattern, such as '*.py' or 'src/**/*.{ts,tsx}'.

    The exit status is 0 if there are any, 1 if not, and 2 after an error.
    """
    run_command(lambda on: find_files(on, pattern, addresses or [""]), trouble=2, json=json)


async def find_files(session: Session, pattern: str, addresses: Sequence[str]) -> None:
    """Write the files whose paths match a pattern; without any, the status is 1.

    Args:
        session: The session.
        pattern: The pattern.
        addresses: The addresses of directories.
    """
    places = [await session.place(text) for text in addresses]
    results = await gather_each(lambda place: place.backend.aglob(pattern, place.path), places)
    session.status = 1
    for place, result in zip(places, results, strict=True):
        if not session.check(result, place, status=2):
            continue
        for entry in result.matches or ():
            session.status = session.status if session.status == 2 else 0
            path = place.shown(entry.path)
            session.json({**entry, "path": path}) if session.as_json else session.screen.line(session.screen.name(path))
        if result.truncated:
            session.failed(f"{place.address.shown}: there are more; the search ended early", status=2)


# --- du --------------------------------------------------------------------------------------------------------------


@click.command()
@addresses_argument
@click.option("-d", "--depth", type=click.IntRange(0), default=0, help="Tell so many levels of directories, too.")
@click.option("-b", "--bytes", "exact", is_flag=True, help="Write sizes as numbers of bytes.")
@json_option
def du(addresses: tuple[str, ...], depth: int, exact: bool, json: bool) -> None:
    """Tell how many bytes the files under a place hold."""
    run_command(lambda on: disk_usage(on, addresses or [""], depth=depth, exact=exact), json=json)


async def disk_usage(session: Session, addresses: Sequence[str], *, depth: int, exact: bool) -> None:
    """Write how many bytes the files under a place hold, and under its directories.

    Args:
        session: The session.
        addresses: The addresses.
        depth: How many levels of directories beneath the place are told as well.
        exact: Whether sizes are numbers of bytes.
    """
    for text in addresses:
        place = await session.place(text)
        listing = await place.backend.alist_tree(place.path)
        for path, size in _sizes(listing.entries, place.path, depth):
            shown = place.shown(path)
            if session.as_json:
                session.json({"path": shown, "size": size})
            else:
                told = str(size) if exact else human_size(size)
                session.screen.line(f"{told:<8}{session.screen.name(shown)}")
        if listing.omission is not None:
            session.failed(f"{shown}: {listing.omission.count} entries are not counted: {listing.omission.reason}")


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
