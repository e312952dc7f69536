"""How files differ, what they were, and what happens to them: diff, patch, history, restore, undo, watch."""

import sys
from collections.abc import Collection
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import click
from anyio import to_thread

from deepfs.cli.screen import human_size, safe
from deepfs.cli.session import (
    ADDRESS,
    AddressedPlace,
    Session,
    address_argument,
    directory_argument,
    error_text,
    in_session,
    json_option,
    not_empty,
    run_command,
    snapshots_option,
)
from deepfs.errors import DeepFSError, ErrorCode, quote
from deepfs.storage.gathering import gather_each, in_batches
from deepfs.text import paths
from deepfs.text.diff import quote_label, unified_diff
from deepfs.text.patches import FilePatch, parse_patch
from deepfs.text.unified import parse_unified

if TYPE_CHECKING:
    from deepfs.policy.history import HistoryBackend

# --- diff and patch ---------------------------------------------------------------------------------------------------

_NO_FILE: Final = "/dev/null"
_AT_ONCE: Final = 32


@click.command()
@click.argument("file", required=False)
@click.option("-d", "--directory", "address", metavar="ADDRESS", default="", help="What paths in the patch start at.")
@click.option(
    "-p",
    "--strip",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="How many leading parts of the names in a unified diff to leave off, as a/ and b/; by default what differs.",
)
def patch(file: str | None, address: str, strip: int | None) -> None:
    """Apply a unified diff, or a patch as OpenAI's models write it: all of it or nothing.

    FILE is a file of this machine; by default the patch is read from the standard input. Lines that a unified diff
    names must be in the file as they are; binary files and links are not patched.
    """
    import deepfs.middleware.patching  # noqa: F401 - Here, since it would block the event loop later.

    run_command(lambda session: _apply_patch(session, address, file, strip))


async def _apply_patch(session: Session, address: str, file: str | None, strip: int | None) -> None:
    from deepfs.middleware.patching import apply_patches

    place = await session.place(address)
    content = await (to_thread.run_sync(sys.stdin.buffer.read) if file is None else anyio.Path(file).read_bytes())
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ValueError("the patch is no text in UTF-8") from None
    is_v4a = text.lstrip().startswith("*** Begin Patch")
    patches = await to_thread.run_sync(parse_patch if is_v4a else partial(parse_unified, strip=strip), text)
    patches = await gather_each(partial(_place_patch, place), patches)
    session.screen.line(await apply_patches(place.backend, patches))


async def _place_patch(place: AddressedPlace, patch: FilePatch) -> FilePatch:
    """`patch` with paths of the backend, and the one of two names that a file has."""
    path, other, move_to, copy_of = (
        None if name is None else paths.join(place.path, paths.normalize(name)[1:])
        for name in (patch.path, patch.other_path, patch.move_to, patch.copy_of)
    )
    names = [name for name in (path, other) if name is not None]
    if len(names) > 1:  # As GNU patch chooses: of those that are there the shortest.
        reads = await gather_each(lambda name: place.backend.aread(name, 0, 1), names)
        there = [name for name, read in zip(names, reads, strict=True) if read.code is not ErrorCode.FILE_NOT_FOUND]
        names = sorted(there or names, key=lambda name: (name.count("/"), len(paths.name(name)), len(name)))
    return patch._replace(path=names[0], other_path=None, move_to=move_to, copy_of=copy_of)


@click.command()
@click.argument("old", type=ADDRESS, metavar="ADDRESS", callback=not_empty)
@click.argument("new", type=ADDRESS, metavar="[ADDRESS]", required=False, callback=not_empty)
@click.option("-q", "--brief", is_flag=True, help="Write only which files differ.")
@snapshots_option
@json_option
@in_session(trouble=2, pages=True)
async def diff(session: Session, old: str, new: str | None, brief: bool, storage: str | None) -> None:
    """Compare two files or two trees; show what a workspace changed; compare a tree with a snapshot.

    \b
    With one ADDRESS, that is a workspace, or a place in one; a path is its SQLite file.
    With --in STORAGE, the arguments are a tree and the name of a snapshot of it.

    The exit status is 0 if they are the same, 1 if not, and 2 after an error.
    """
    if storage is not None:
        if new is None or brief or session.as_json:
            raise ValueError("--in goes with a tree and the name of a snapshot, and without -q and --json")
        _write_diff(session, await (await session.snapshots(old, storage)).adiff(new))
        return
    if new is None:
        place, workspace = await session.workspace(old)
        if not brief and not session.as_json:
            _write_diff(session, await workspace.adiff(place.path))
            return
        for change in await workspace.achanges(place.path):
            session.status = 1
            if session.as_json:
                session.json(change)
            else:
                came = f"  (from {session.screen.name(change.moved_from)})" if change.moved_from else ""
                session.screen.line(f"{change.kind:<8} {session.screen.name(change.path)}{came}")
        return
    first, second = _Side(await session.place(old)), _Side(await session.place(new))
    await first.list()
    await second.list()
    names = sorted({*first.names, *second.names})
    for some in in_batches(names, lambda name: 1, most_bytes=_AT_ONCE, most_items=_AT_ONCE):
        contents = zip(await gather_each(first.content, some), await gather_each(second.content, some), strict=True)
        for name, (before, after) in zip(some, contents, strict=True):
            runs = first.is_executable(name), second.is_executable(name)
            if before != after or (name and None not in runs and runs[0] != runs[1]):
                session.status = 1
                sides = (first.title(name), before), (second.title(name), after)
                _write_difference(session, *sides, brief=brief, is_alone=not name, runs=runs)


def _write_diff(session: Session, diff: str) -> None:
    session.status = int(bool(diff))
    session.screen.diff(diff)


class _Side:
    """One side of a comparison."""

    def __init__(self, place: AddressedPlace) -> None:
        self._place = place
        self._modes: dict[str, int | None] = {}

    @property
    def names(self) -> Collection[str]:
        """The files, relative to the place; a file itself has the name ""."""
        return self._modes.keys()

    async def list(self) -> None:
        """Find the files."""
        try:
            listing = await self._place.backend.alist_tree(self._place.path)
        except DeepFSError as error:
            raise error.with_paths(self._place.display) from None
        self._modes = {
            "" if entry.path == self._place.path else paths.relative(entry.path, self._place.path): entry.mode
            for entry in listing.entries
            if entry.kind == "file"
        }

    def is_executable(self, name: str) -> bool | None:
        """Whether a file can be run; None if that is not known, or it is not on this side."""
        mode = self._modes.get(name)
        return None if mode is None else bool(mode & 0o111)

    def title(self, name: str) -> str:
        """What the user calls a file."""
        return self._place.display(self._path(name))

    def _path(self, name: str) -> str:
        return paths.join(self._place.path, name) if name else self._place.path

    async def content(self, name: str) -> bytes | None:
        """The content of a file; None if it is not on this side."""
        if name not in self.names:
            return None
        return b"".join([chunk async for chunk in self._place._replace(path=self._path(name)).chunks()])


def _write_difference(
    session: Session,
    old: tuple[str, bytes | None],
    new: tuple[str, bytes | None],
    *,
    brief: bool,
    is_alone: bool,
    runs: tuple[bool | None, bool | None],
) -> None:
    """Write how a file differs; in a tree with the head that git writes, since an empty file has nothing else."""
    (old_title, before), (new_title, after) = old, new
    screen = session.screen
    if session.as_json:
        change = "added" if before is None else "removed" if after is None else "changed"
        session.json({"path": new_title if before is None else old_title, "change": change})
    elif brief:
        only = new_title if before is None else old_title
        both = f"Files {screen.name(quote_label(old_title))} and {screen.name(quote_label(new_title))} differ"
        screen.line(both if before is not None and after is not None else f"Only {screen.name(quote_label(only))}")
    else:
        head = ""
        if not is_alone:
            if old_title == new_title:
                old_title, new_title = (f"{side}/{old_title.lstrip('/')}" for side in "ab")
            head = f"diff --git {quote_label(old_title, spaces=True)} {quote_label(new_title, spaces=True)}\n"
            head += _mode_lines(before, after, *runs)
        titles = _NO_FILE if before is None else old_title, _NO_FILE if after is None else new_title
        screen.diff(head + unified_diff(before or b"", after or b"", *titles, spaces=not is_alone))


def _mode_lines(before: bytes | None, after: bytes | None, ran: bool | None, runs: bool | None) -> str:
    """What git writes of a file that is on one side only, or that can be run on one side only."""
    old_mode, new_mode = ("100755" if each else "100644" for each in (ran, runs))
    if before is None:
        return f"new file mode {new_mode}\n" + ("" if after else "index 0000000..e69de29\n")
    if after is None:
        return f"deleted file mode {old_mode}\n" + ("" if before else "index e69de29..0000000\n")
    if ran is None or runs is None or ran == runs:
        return ""
    return f"old mode {old_mode}\nnew mode {new_mode}\n"


# --- what was and what happens ----------------------------------------------------------------------------------------


async def _open_history(session: Session, address: str) -> "tuple[AddressedPlace, HistoryBackend]":
    from deepfs.policy.history import HistoryBackend

    place = await session.place(address)
    if not isinstance(place.backend, HistoryBackend):
        raise ValueError(
            "no history is kept here: describe the tree in a TOML file with a table [history], and name it by --on"
        )
    return place, place.backend


@click.command()
@address_argument
@click.argument("version", type=int, required=False)
@click.option("--diff", "compares", is_flag=True, help="Write how the present file differs from the version.")
@json_option
@in_session(pages=True)
async def history(session: Session, address: str, version: int | None, compares: bool) -> None:
    """List the earlier versions of a file, or write the content of one.

    Needs a tree whose TOML file has a table [history].
    """
    place, backend = await _open_history(session, address)
    if version is not None and compares:
        session.screen.diff(await backend.adiff(place.path, version))
    elif version is not None:
        session.screen.bytes(await backend.aread_version(place.path, version))
    else:
        versions = await backend.ahistory(place.path)
        for each in versions:
            if session.as_json:
                session.json({"number": each.number, "saved_at": each.saved_at, "size": each.size})
                continue
            size = "-" if each.size is None else human_size(each.size)
            when = each.saved_at[:19].replace("T", " ")
            session.screen.line(f"{each.number:>6}  {size:>8}  {when}")
        if not versions:
            session.report(f"{place.address.shown}: there are no earlier versions")


@click.command()
@address_argument
@click.argument("version", metavar="VERSION|NAME")
@snapshots_option
@click.option("--only", metavar="PATH", multiple=True, help="A file or directory of the snapshot. May be repeated.")
@json_option
@in_session()
async def restore(session: Session, address: str, version: str, storage: str | None, only: tuple[str, ...]) -> None:
    """Give a file the content of an earlier version, which `history` lists; or make a tree what a snapshot has.

    With --in STORAGE, the arguments are a tree and the name of a snapshot. The tree as it was is kept as another one.
    """
    if storage is not None:
        restored = await (await session.snapshots(address, storage)).arestore(version, chosen=only or None)
        if session.as_json:
            session.json(restored)
        for path in () if session.as_json else restored.changed:
            session.screen.line(f"{session.screen.name(path)}: restored")
        for path, code in restored.refused.items():
            session.report(f"{quote(path)}: {error_text(code)}")
        return
    if only or not version.isdecimal():
        raise click.UsageError("a version is a number; the name of a snapshot goes with --in STORAGE")
    place, backend = await _open_history(session, address)
    result = await backend.arestore(place.path, int(version))
    if session.check(result, place):
        session.screen.line(f"{session.screen.name(place.address.shown)}: version {version} restored")


@click.command()
@click.argument("change", required=False)
@click.option("--run", metavar="RUN", help="Undo all that a run of an agent changed, or another undo.")
@click.option("--list", "lists", is_flag=True, help="List the latest changes, newest first.")
@click.option(
    "-n", "limit", metavar="N", type=click.IntRange(1), default=20, show_default=True, help="The most to list."
)
@click.option("--force", is_flag=True, help="Bring back what others changed since, too.")
@json_option
@in_session(pages=True)
async def undo(session: Session, change: str | None, run: str | None, lists: bool, limit: int, force: bool) -> None:
    """Undo a change, all changes of a run, or the latest change with its run. An undo can be undone.

    Needs a tree whose TOML file has a table [history].
    """
    _, backend = await _open_history(session, "/")
    if lists:
        for each in await backend.achanges(run=run, limit=limit):
            if session.as_json:
                session.json(each)
                continue
            more = f" and {len(each.paths) - 1:,} more" if len(each.paths) > 1 else ""
            by = f"  (run {safe(each.run)})" if each.run else ""
            session.screen.line(f"{each.id}  {each.operation:<12}  {session.screen.name(each.paths[0])}{more}{by}")
        return
    if change is None and run is None:
        latest = await backend.achanges(limit=1)
        if not latest:
            raise ValueError("there is no change to undo")
        change, run = (None, latest[0].run) if latest[0].run else (latest[0].id, None)
    done = await backend.aundo(run, change=change, force=force)
    if session.as_json:
        session.json(done)
    for path in () if session.as_json else done.paths:
        session.screen.line(f"{session.screen.name(path)}: undone")
    for path, code in done.conflicts.items():
        session.report(f"{quote(path)}: {error_text(code)}")


@click.command()
@directory_argument
@json_option
@in_session()
async def watch(session: Session, address: str) -> None:
    """Tell changes of files as they happen, until Ctrl-C."""
    place = await session.place(address)
    async with aclosing(place.backend.awatch(place.path)) as events:
        async for event in events:
            shown = place.display(event.path)
            if session.as_json:
                session.json({"path": shown, "kind": event.kind, "version": event.version})
            else:
                session.screen.line(f"{event.kind:<9}{session.screen.name(shown)}")
            session.screen.flush()
