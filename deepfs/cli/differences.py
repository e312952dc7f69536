"""Differences of files: diff, patch."""

import sys
from collections.abc import Collection
from functools import partial
from typing import Final

import anyio
import click
from anyio import to_thread

from deepfs.cli.session import ADDRESS, AddressedPlace, Session, in_session, json_option, not_empty, run_command
from deepfs.errors import DeepFSError, ErrorCode
from deepfs.storage.gathering import gather_each, in_batches
from deepfs.text import paths
from deepfs.text.diff import quote_label, unified_diff
from deepfs.text.patches import FilePatch, parse_patch
from deepfs.text.unified import parse_unified


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
@click.argument("new", type=ADDRESS, metavar="ADDRESS", callback=not_empty)
@click.option("-q", "--brief", is_flag=True, help="Write only which files differ.")
@json_option
@in_session(trouble=2, pages=True)
async def diff(session: Session, old: str, new: str, brief: bool) -> None:
    """Compare two files or two trees.

    The exit status is 0 if they are the same, 1 if not, and 2 after an error.
    """
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


_NO_FILE: Final = "/dev/null"
_AT_ONCE: Final = 32
