"""What a workspace changed, and how that is merged into a tree that others changed meanwhile.

A merge compares three versions of each file: what was below when the workspace changed it first, what the workspace
has, and what the target has now. Nothing is stored unless the target still has the version that was compared. What was
stored is taken out of the workspace afterwards, so a merge that ends half-way can be repeated: what the target has
already is done.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode, NotDirectoryError, NotFoundError
from deepfs.storage.gathering import in_batches
from deepfs.text import paths, records
from deepfs.text.diff import git_diff, merge_texts
from deepfs.text.entries import EntryChange, files_of, use_file_mode
from deepfs.text.lines import decode, version
from deepfs.types import ContentChange
from deepfs.workspaces.entries import NO_FILE, Entry

__all__ = ["MergeConflict", "MergeResult", "Strategy", "WorkspaceChange"]

Strategy: TypeAlias = Literal["keep", "refuse", "mine", "theirs"]
_CHANGED: Final = frozenset({ErrorCode.CONFLICT, ErrorCode.ALREADY_EXISTS, ErrorCode.FILE_NOT_FOUND})
"""The errors of a change that say that the target is not what was compared."""
_IN_THE_WAY: Final = frozenset({ErrorCode.IS_DIRECTORY, ErrorCode.NOT_A_DIRECTORY})
_BATCH_BYTES: Final = 16 * 1024 * 1024
_ATTEMPTS: Final = 20
"""How often a merge compares anew while others change the same files."""
_LONGEST: Final = 200
"""The longest name, in bytes, of a file in the directory of conflicts without what is added to it."""
_TOLD: Final = (12, 32)
"""How much of a version the name of a copy tells, and how much where another file has that name."""


class WorkspaceChange(Struct, frozen=True):
    """A file that a workspace changed."""

    path: str
    kind: Literal["created", "edited", "deleted", "moved"]
    size: int | None = None
    """The size in bytes that it has now; None for a deleted file."""
    version: str | None = None
    """The version that it has now; None for a deleted file."""
    base_version: str | None = None
    """The version that was below when it was changed first; None for a file that was not there."""
    moved_from: str | None = None
    """Where a moved file was."""


class MergeConflict(Struct, frozen=True):
    """A file that the workspace and the target changed in the same place. Both sides are kept."""

    path: str
    base_version: str | None
    """The version that both changed; None for no file, as for the next two."""
    mine: str | None
    """The version in the workspace."""
    theirs: str | None
    """The version in the target."""
    kept: Sequence[str] = ()
    """The paths of copies of both sides in the target."""


class MergeResult(Struct):
    """What became of a merge."""

    merged: list[str]
    """The files that the target now has as the workspace has them, or with the changes of both."""
    conflicts: list[MergeConflict]
    """The files that both changed. They are as they were on both sides, and are still changes of the workspace."""
    refused: dict[str, str]
    """The codes of errors by path: rules, a quota or a failure did not let these files change."""

    @property
    def ok(self) -> bool:
        """Whether everything was merged."""
        return not self.conflicts and not self.refused


# --- looking ---------------------------------------------------------------------------------------------------------


async def list_changes(entries: Mapping[str, Entry], lower: BackendProtocol) -> list[WorkspaceChange]:
    """The changes that the entries are, by path."""
    sources = {entry.source: path for path, entry in entries.items() if entry.source is not None}
    changes: list[WorkspaceChange] = []
    for path, entry in sorted(entries.items()):
        if entry.data is not None:
            now = version(records.content_bytes(entry.data, path))
            if now != entry.base_version:
                kind: Literal["created", "edited"] = "created" if entry.base_version is None else "edited"
                size = records.size_of(entry.data)
                changes.append(WorkspaceChange(path, kind, size, now, entry.base_version))
        elif entry.source is not None:
            before = entries[entry.source].base_version if entry.source in entries else None
            changes.append(WorkspaceChange(path, "moved", None, before, entry.base_version, entry.source))
        elif path not in sources:
            changes.append(WorkspaceChange(path, "deleted", base_version=entry.base_version))
    moved = [change for change in changes if change.moved_from is not None]
    contents = await read_files(lower, [change.moved_from or "" for change in moved])
    sizes = {change.path: len(contents[change.moved_from or ""] or b"") for change in moved}
    return [replace(change, size=sizes.get(change.path, change.size)) for change in changes]


async def show_changes(entries: Mapping[str, Entry], lower: BackendProtocol) -> str:
    """The changes as one unified diff, with the headings of git."""
    parts: list[str] = []
    changes = await list_changes(entries, lower)
    below = await read_files(lower, [change.path for change in changes if change.kind in ("edited", "deleted")])
    for change in changes:
        if change.moved_from is not None:
            names = f"rename from {change.moved_from[1:]}\nrename to {change.path[1:]}\n"
            parts.append(f"diff --git a{change.moved_from} b{change.path}\nsimilarity index 100%\n{names}")
            continue
        entry = entries[change.path]
        before = None if change.kind == "created" else below.get(change.path) or b""
        if entry.base is not None:
            before = records.content_bytes(entry.base)
        parts.append(git_diff(change.path, before, None if entry.data is None else records.content_bytes(entry.data)))
    return "".join(parts)


async def read_files(backend: BackendProtocol, wanted: Sequence[str]) -> dict[str, bytes | None]:
    """The contents of files; None where there is no file. Raises the error of a file that cannot be read."""
    found: dict[str, bytes | None] = {}
    for start in range(0, len(wanted), 256):
        for download in await backend.adownload_files(list(wanted[start : start + 256])):
            found[download.path] = None if download.error in NO_FILE else download.unwrap()
    return found


def choose_entries(entries: Mapping[str, Entry], chosen: Iterable[str] | None) -> dict[str, Entry]:
    """The entries at and under the `chosen` paths, all for None. A move is chosen by either of its ends."""
    if chosen is None:
        return {**entries}
    tops = {paths.normalize(path) for path in chosen}
    moved_to = {entry.source: path for path, entry in entries.items() if entry.source in entries}
    found: set[str] = set()
    pending = [path for path in entries if paths.is_within(path, tops)]
    while pending:  # A file may have been moved to where another was moved from.
        path = pending.pop()
        if path in entries and path not in found:
            found.add(path)
            pending += [end for end in (entries[path].source, moved_to.get(path)) if end is not None]
    return {path: entries[path] for path in found}


# --- merging ---------------------------------------------------------------------------------------------------------


class _Comparison(Struct):
    """How the files of a workspace compare with those of the target."""

    changes: list[ContentChange]
    """What is to be stored: deletions last."""
    done: set[str]
    """The files of which nothing is to be stored."""
    conflicts: list[MergeConflict]


async def merge_entries(
    entries: Mapping[str, Entry],
    lower: BackendProtocol,
    target: BackendProtocol,
    *,
    strategy: Strategy,
    conflicts_in: str | None,
) -> MergeResult:
    """Store the entries of a workspace over `lower` in `target`."""
    left = {**entries}
    moves = {entry.source: path for path, entry in entries.items() if entry.source is not None}
    deleted = [path for path, entry in entries.items() if not entry.is_file]
    merged: set[str] = set()
    for attempt in range(1, _ATTEMPTS + 1):
        compared = await _compare(left, lower, target, strategy, conflicts_in)
        if strategy == "refuse" and compared.conflicts:
            return MergeResult(sorted(merged), compared.conflicts, {})
        outcomes = await _store(target, compared.changes, moves, deleted)
        merged |= compared.done | {path for path, error in outcomes.items() if error is None and path in left}
        left = {path: entry for path, entry in left.items() if path not in merged}
        failed = {path: error for path, error in outcomes.items() if error is not None}
        refused = {path: error for path, error in failed.items() if error not in _CHANGED}
        if refused.keys() - entries.keys():  # The copies of a conflict cannot be stored; the workspace has its side.
            conflicts_in = None
        elif refused or not failed or attempt == _ATTEMPTS:
            break
    await _remove_empty_directories(target, merged.intersection(deleted))
    conflicts = [replace(each, kept=[path for path in each.kept if path not in failed]) for each in compared.conflicts]
    return MergeResult(sorted(merged), conflicts, refused or failed)


async def _compare(
    entries: Mapping[str, Entry],
    lower: BackendProtocol,
    target: BackendProtocol,
    strategy: Strategy,
    conflicts_in: str | None,
) -> _Comparison:
    compared = _Comparison([], set(), [])
    moves = {entry.source: path for path, entry in entries.items() if entry.source is not None}
    theirs_at = await read_files(target, [*{**entries, **moves}])
    moved = theirs_at if target is lower else await read_files(lower, [*moves])
    removals: list[ContentChange] = []
    sides: dict[str, dict[str, bytes | None]] = {}
    for path, entry in sorted(entries.items()):
        theirs, base = theirs_at[path], entry.base_version
        mine = moved[entry.source] if entry.source is not None else None
        if entry.data is not None:
            mine = records.content_bytes(entry.data, path)
        elif path in moves and target is lower:
            base = _version(theirs)  # What others changed in it is moved along.
        my_version = _version(mine)
        if entry.source is not None and mine is None and entry.source in entries:
            my_version = entries[entry.source].base_version  # It was moved before, or others deleted it.
        is_as_before = entry.data is not None and my_version == entry.base_version
        if is_as_before or my_version == _version(theirs):
            compared.done.add(path)
            continue
        is_stored = _version(theirs) == base
        if not is_stored and (united := _unite(entry, mine, theirs)) is not None:
            if united == theirs:
                compared.done.add(path)
                continue
            is_stored, mine = True, united
        if (is_stored or strategy == "mine") and (mine is not None or my_version is None):
            change = ContentChange(path, mine, if_match=_version(theirs))
            (removals if mine is None else compared.changes).append(change)
        elif strategy == "theirs":
            compared.done.add(path)
        else:
            compared.conflicts.append(MergeConflict(path, entry.base_version, my_version, _version(theirs)))
            sides[path] = {"mine": mine, "theirs": theirs}
    # Nothing goes from where it was before it is where it was moved to.
    unmoved = {conflict.path for conflict in compared.conflicts}
    compared.changes += [change for change in removals if moves.get(change.path) not in unmoved]
    compared.done -= {source for source, path in moves.items() if path in unmoved}
    if conflicts_in is not None and sides and strategy != "refuse":
        kept, copies = await _keep_sides(target, conflicts_in, sides, entries)
        compared.changes[:0] = copies
        compared.conflicts = [replace(conflict, kept=kept[conflict.path]) for conflict in compared.conflicts]
    return compared


def _version(content: bytes | None) -> str | None:
    return None if content is None else version(content)


def _unite(entry: Entry, mine: bytes | None, theirs: bytes | None) -> bytes | None:
    """The text with the changes of both sides; None where they conflict, or one side is no text."""
    if entry.base is None or mine is None or theirs is None:
        return None
    base, my_text, their_text = records.text_of(entry.base, entry.path), decode(mine), decode(theirs)
    if base is None or my_text is None or their_text is None:
        return None
    united = merge_texts(base, my_text, their_text)
    return None if united is None else united.encode()


async def _keep_sides(
    target: BackendProtocol,
    directory: str,
    sides: Mapping[str, Mapping[str, bytes | None]],
    entries: Collection[str],
) -> tuple[dict[str, list[str]], list[ContentChange]]:
    """The paths of copies of both sides of each conflict, and the changes that make those that are not there yet.

    A repeated merge finds them: their names tell versions. One that was changed since then is left as it is.
    """
    wanted: list[tuple[str, bytes, list[str]]] = []
    for path, contents in sides.items():
        short = paths.name(path).encode()[:_LONGEST].decode(errors="ignore")
        for side, content in contents.items():
            if content is not None:
                names = [f"{short}.{side}-{version(content)[:length]}" for length in _TOLD]
                beside = [paths.relative(paths.join(paths.parent(path), name), "/") for name in names]
                wanted.append((path, content, [paths.join(directory, each) for each in beside]))
    there = await read_files(target, list({place for _, _, places in wanted for place in places}))
    kept: dict[str, list[str]] = {path: [] for path in sides}
    copies: dict[str, ContentChange] = {}
    for path, content, places in wanted:
        free = [place for place in places if place not in entries and there[place] in (None, content)]
        for place in sorted(free, key=lambda place: there[place] is None)[:1]:
            kept[path].append(place)
            if there[place] is None:
                copies[place] = ContentChange(place, content)
    return kept, [*copies.values()]


async def _store(
    target: BackendProtocol, changes: Sequence[ContentChange], moves: Mapping[str, str], deleted: Collection[str]
) -> dict[str, str | None]:
    """Make changes, in one step where the target can; return what became of each path: None or the code of an error."""
    # A file may take the place of a directory whose files are deleted, or the other way round. One change is always
    # made in one step, and may still find a directory that an interrupted merge left empty.
    if len(changes) > 1:
        in_order = sorted(changes, key=lambda change: change.content is not None)
        whole = await _change(target, in_order, all_or_none=True)
        if set(whole.values()) != {ErrorCode.UNSUPPORTED.value}:
            return whole
    modes = await _find_modes(target, changes, moves)
    outcomes: dict[str, str | None] = {}
    for mode in {*modes.values(), None}:
        with use_file_mode(mode):
            outcomes |= await _change(
                target, [each for each in changes if each.content is not None and modes.get(each.path) == mode]
            )
    stays = {moves[path] for path in moves if outcomes.get(moves[path]) is not None}
    outcomes |= await _change(
        target, [change for change in changes if change.content is None and moves.get(change.path) not in stays]
    )
    again = [change for change in changes if outcomes.get(change.path) in _IN_THE_WAY]
    if not again:
        return outcomes
    await _remove_empty_directories(target, deleted)
    return outcomes | await _change(target, again)


async def _find_modes(
    target: BackendProtocol, changes: Sequence[ContentChange], moves: Mapping[str, str]
) -> dict[str, int]:
    """The modes that files which are moved have where they are now, where the target has modes."""
    stored = {change.path for change in changes if change.content is not None}
    modes: dict[str, int] = {}
    for source, path in moves.items():
        if path in stored:
            with suppress(NotFoundError, NotDirectoryError):
                for each in (await target.alist_tree(source)).entries:
                    if each.path == source and each.mode is not None:
                        modes[path] = each.mode & 0o777
    return modes


async def _change(
    target: BackendProtocol, changes: Sequence[ContentChange], *, all_or_none: bool = False
) -> dict[str, str | None]:
    outcomes: dict[str, str | None] = {}
    most = sys.maxsize if all_or_none else _BATCH_BYTES
    for batch in in_batches(changes, lambda change: len(change.content or b""), most_bytes=most):
        for outcome in await target.achange_files(batch, all_or_none=all_or_none):
            outcomes[outcome.path] = outcome.error
    return outcomes


async def _remove_empty_directories(target: BackendProtocol, deleted: Collection[str]) -> None:
    """Remove the directories that deletions have left empty, where the target keeps such."""
    if not target.capabilities.keeps_empty_directories:
        return
    above = {directory for path in deleted for directory in paths.ancestors(path)}
    for directory in sorted(above, key=len, reverse=True):
        listing = await target.als(directory)
        if listing.ok and all(each.is_dir for each in listing.entries or ()):
            tree = (await target.alist_tree(directory)).entries
            if not files_of(tree):
                await target.achange_entries([EntryChange(each.path, "remove_directory") for each in reversed(tree)])
