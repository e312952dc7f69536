"""What is where: ls, tree, du, stat."""

from collections.abc import Iterator, Sequence

import click

from deepfs.backends._trees import kind_at
from deepfs.cli.screen import count_noun, human_size
from deepfs.cli.session import (
    AddressedPlace,
    Session,
    addresses_argument,
    directory_argument,
    files_argument,
    hidden_option,
    in_session,
    json_option,
)
from deepfs.errors import DeepFSError, ErrorCode, NotFoundError
from deepfs.storage.gathering import gather_each
from deepfs.text import paths
from deepfs.text.entries import TreeEntry
from deepfs.types import FileInfo, LsResult


def _name(entry: FileInfo) -> str:
    return paths.name(entry.path.rstrip("/")) + ("/" if entry.is_dir else "")


def _without_hidden(entries: Sequence[FileInfo] | None, *, hidden: bool) -> list[FileInfo]:
    """The entries, by default without those whose name starts with a dot."""
    return [entry for entry in entries or () if hidden or not _name(entry).startswith(".")]


# --- ls --------------------------------------------------------------------------------------------------------------


@click.command()
@addresses_argument
@click.option("-l", "--long", is_flag=True, help="Show sizes and times.")
@click.option("-h", "--human-readable", "human", is_flag=True, help="With -l, write sizes as 1.5K and 20M.")
@click.option("-t", "by_time", is_flag=True, help="Sort by time, the newest first.")
@click.option("-R", "--recursive", is_flag=True, help="List what is in directories, too.")
@hidden_option
@json_option
@in_session(trouble=2)
async def ls(session: Session, addresses: tuple[str, ...], recursive: bool, hidden: bool, **style: bool) -> None:
    """List directories."""
    places = [await session.place(text) for text in addresses or [""]]
    results = await gather_each(lambda place: place.backend.als(place.path), places)
    is_first = True
    for place, title, result in zip(places, session.titles(places), results, strict=True):
        entries = await _entries_of(session, place, result, hidden=hidden)
        if entries is None:
            continue
        found = {place.path: entries}
        if recursive and result.ok:
            found |= await find_levels(session, place, depth=None, hidden=hidden)
        named = place._replace(address=place.address._replace(shown=title))
        pending = [place.path]
        while pending:
            path = pending.pop()
            listed = sorted(found[path], key=_time, reverse=True) if style["by_time"] else found[path]
            if (recursive or len(places) > 1) and result.ok and not session.as_json:
                session.screen.line(("" if is_first else "\n") + session.screen.name(named.display(path)) + ":")
            _write_entries(session, place, listed, names=result.ok, long=style["long"], human=style["human"])
            is_first = False
            pending += [entry.path[:-1] for entry in reversed(listed) if entry.is_dir and entry.path[:-1] in found]


def _time(entry: FileInfo) -> str:
    return entry.modified_at or ""


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
    session: Session, place: AddressedPlace, entries: list[FileInfo], *, names: bool, long: bool, human: bool
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
        size = "-" if entry.is_dir or entry.size is None else human_size(entry.size) if human else str(entry.size)
        time = "" if entry.modified_at is None else entry.modified_at[:16].replace("T", " ")
        details = f"{size:>8}  {time:<16}  " if long else ""
        screen.line(details + (screen.style(name, style) if style else name))


# --- tree ------------------------------------------------------------------------------------------------------------


@click.command()
@directory_argument
@click.option("-L", "--depth", metavar="N", type=click.IntRange(1), help="Show so many levels.")
@hidden_option
@json_option
@in_session(trouble=2, pages=True)
async def tree(session: Session, address: str, depth: int | None, hidden: bool) -> None:
    """Draw a directory with all beneath it."""
    place = await session.place(address)
    found = await find_levels(session, place, depth=depth, hidden=hidden)
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


async def find_levels(
    session: Session, place: AddressedPlace, *, depth: int | None, hidden: bool, trouble: int = 2
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
            if session.check(result, place, status=trouble):
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


# --- stat ------------------------------------------------------------------------------------------------------------


@click.command()
@files_argument
@json_option
@in_session()
async def stat(session: Session, files: tuple[str, ...]) -> None:
    """Show what is known of files and directories; --if-match takes the version."""
    for text in files:
        place = await session.place(text)
        try:
            facts = await _facts(place)
        except DeepFSError as error:
            session.report(error.with_paths(place.display))
            continue
        if session.as_json:
            session.json(facts)
            continue
        for name, fact in facts.items():
            session.screen.line(f"{name:>12}: {session.screen.name(str(fact))}")


async def _facts(place: AddressedPlace) -> dict[str, str | int]:
    """What is known of what is at a place."""
    kind = await kind_at(place.backend, place.path)
    if kind is None:
        raise NotFoundError(place.path)
    facts: dict[str, str | int | None] = {"path": place.display(place.path), "type": kind}
    beside = await place.backend.als(paths.parent(place.path))
    for entry in beside.entries or ():
        if entry.path.rstrip("/") == place.path:
            facts |= {"size": None if entry.is_dir else entry.size, "modified_at": entry.modified_at}
    if kind == "file":
        listing = await place.backend.alist_tree(place.path)
        facts["mode"] = next((f"{each.mode:04o}" for each in listing.entries if each.mode is not None), None)
        facts["version"] = (await place.backend.aread(place.path, 0, 1)).version
    return {name: fact for name, fact in facts.items() if fact is not None}


# --- du --------------------------------------------------------------------------------------------------------------


@click.command()
@addresses_argument
@click.option(
    "-d", "--depth", metavar="N", type=click.IntRange(0), default=0, help="Tell so many levels of directories, too."
)
@click.option("-b", "--bytes", "exact", is_flag=True, help="Write sizes as numbers of bytes.")
@click.option(
    "-h", "--human-readable", is_flag=True, expose_value=False, help="Write them as 1.5K; this is the default."
)
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
