"""A copy of a tree that costs nothing: what is changed in it is kept apart, and what lies below stays as it is."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar, get_args

from msgspec import Struct
from msgspec.structs import replace

from deepfs import operations as ops
from deepfs.backends.flat import StorageBackend
from deepfs.backends.protocol import (
    BACKEND_TYPES,
    BackendProtocol,
    Capabilities,
    SandboxBackendProtocol,
    SyncCommands,
    as_backend,
)
from deepfs.backends.watching import merge_watches, run_and_report, watch_storage
from deepfs.errors import DeepFSError, ErrorCode, NotDirectoryError, NotFoundError, NotSupportedError
from deepfs.policy.keeping import without_directory
from deepfs.search.request import FileFilter, GlobRequest, GrepRequest, GrepScan, PathFilter, SearchRequest, glob_result
from deepfs.storage import plans
from deepfs.storage.gathering import gather_each, in_batches
from deepfs.storage.runners import Apply, AsyncStorage, Plan, Storage
from deepfs.text import flat_tree, paths, records
from deepfs.text.entries import TreeListing, check_transferable, join_omissions, list_implied
from deepfs.text.flat_tree import Change, ChangedError, Directories, FileStat, FileTree, StatTree, TaggedFiles, stat_of
from deepfs.text.lines import version
from deepfs.types import (
    ChangeEvent,
    ExecuteResponse,
    FileDataV2,
    FileInfo,
    GlobResult,
    GrepResult,
    WriteResult,
    error_from,
    replace_fields,
)
from deepfs.workspaces.commands import copy_to_sandbox, note_lost, run_on_copy
from deepfs.workspaces.entries import NO_FILE, Entries, Entry, HeldEntries, StoredEntries
from deepfs.workspaces.merging import (
    MergeResult,
    Strategy,
    WorkspaceChange,
    choose_entries,
    list_changes,
    merge_entries,
    read_files,
    show_changes,
)

__all__ = ["OverlayBackend", "fork"]

T = TypeVar("T")

_MOVED: Final = FileDataV2("")
"""Stands for the content of a file that is moved, in the change that moves it: the storage finds it by its source."""
_BATCH_BYTES: Final = 8 * 1024 * 1024
_BATCH_FILES: Final = 256


class _Seen(Struct, frozen=True):
    """What a plan saw of a file: its entry, or the file below."""

    path: str
    entry: Entry | None = None
    below: FileDataV2 | None = None


class _OverlayFiles(AsyncStorage):
    """The files of a workspace, for one operation: those of its entries, and those below at other paths.

    Without `below` it has only the files of the entries.
    """

    def __init__(self, lower: BackendProtocol, entries: Entries, *, below: bool = True) -> None:
        self._lower = lower
        self._entries = entries
        self._shows_below = below

    # --- looking ---

    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        found: dict[str, FileStat] = {}
        for path, seen in (await self._see(paths)).items():
            data = seen.below if seen.entry is None or seen.entry.data is None else seen.entry.data
            found[path] = replace(FileStat() if data is None else stat_of(data), tag=seen)
        return found

    async def get(self, paths: Sequence[str]) -> TaggedFiles:
        seen = await self._see(paths)
        files = {
            path: file
            for path, each in seen.items()
            if (file := each.entry.data if each.entry and each.entry.data else each.below) is not None
        }
        return TaggedFiles(files, seen)

    async def _see(self, wanted: Sequence[str]) -> dict[str, _Seen]:
        """What is at these paths, with the content."""
        entries = await self._entries.get(wanted)
        seen = {path: _Seen(path, entry) for path, entry in entries.items() if entry.data is not None}
        sources = {path: entry.source for path, entry in entries.items() if entry.source is not None}
        if self._shows_below:
            sources |= {path: path for path in wanted if path not in entries}
        files = await gather_each(self._read_below, sources.values())
        for path, file in zip(sources, files, strict=True):
            if file is not None:
                seen[path] = _Seen(path, entries.get(path), file)
        return {path: seen[path] for path in wanted if path in seen}

    async def _read_below(self, path: str) -> FileDataV2 | None:
        """The file below at `path`; None if there is none."""
        read = await self._lower.aread_raw(path)
        if read.ok:
            return read.data if isinstance(read.data, FileDataV2) else None
        if read.code in NO_FILE:
            return None
        if read.code is not ErrorCode.TOO_LARGE:
            raise error_from(read)
        [download] = await self._lower.adownload_files([path])
        return records.new_file(download.unwrap())

    async def get_each(self, paths: Sequence[str], ahead: Sequence[str]) -> TaggedFiles:
        entries = await self._entries.get(paths)
        files: dict[str, FileDataV2 | DeepFSError] = {}
        seen: dict[str, _Seen] = {}
        sources: dict[str, str] = {}
        for path in paths:
            entry = entries.get(path)
            if entry is not None and entry.data is not None:
                files[path], seen[path] = entry.data, _Seen(path, entry)
            elif entry is not None and entry.source is not None:
                sources[path] = entry.source
            elif entry is None and self._shows_below:
                sources[path] = path
        for path, file in zip(sources, await self._lower.adownload_files([*sources.values()]), strict=True):
            if file.content is not None:
                files[path] = below = records.new_file(file.content)
                seen[path] = _Seen(path, entries.get(path), below)
            elif file.error not in NO_FILE:
                try:
                    file.unwrap()
                except DeepFSError as error:
                    files[path] = error.with_paths(partial(_rename, {sources[path]: path}))
        return TaggedFiles(files, seen)

    async def list(self, prefix: str, limit: int | None = None) -> FileTree:
        directory = prefix.rstrip("/") or "/"
        entries = await self._entries.beneath(directory)
        files = await self._own_stats(entries)
        if not self._shows_below or (files and limit is not None):
            return StatTree(files)
        if limit is not None:
            is_here = await self._list_below(directory) is not None
            is_here = is_here and await self._shows_directory(directory, entries, _changed_directories(entries))
            return StatTree({}, Directories([f"{prefix}_"] if is_here else ()))
        try:
            listing = await self._lower.alist_tree(directory)
        except (NotFoundError, NotDirectoryError):
            return StatTree(files)
        for each in listing.entries:
            if each.path not in entries and each.kind != "directory" and each.path != directory:
                files[each.path] = FileStat(each.size)
        if listing.entries[0].kind != "directory":  # Two clients may have made a file and a directory of this path.
            async with aclosing(self._walk_below(directory)) as below:
                files |= {each.path: FileStat(each.size) async for each in below if each.path not in entries}
        return StatTree(files)

    async def children(self, prefix: str) -> FileTree:
        directory = prefix.rstrip("/") or "/"
        entries = await self._entries.beneath(directory)
        files = await self._own_stats(entries)
        shown = list(files)
        changed = _changed_directories(entries)
        below = await self._list_below(directory)
        for each in below or ():
            path = each.path.rstrip("/")
            if path in entries:
                continue
            if not each.is_dir:
                files[path] = FileStat(each.size, each.modified_at)
                shown.append(path)
            elif await self._shows_directory(path, entries, changed):
                shown.append(f"{path}/_")
        if below is not None and not entries:  # It may be empty.
            shown.append(f"{prefix}_")
        if not files and not await self._shows_directory(directory, entries, changed):
            return StatTree(files)  # What is left of a deleted directory are directories without files.
        return StatTree(files, Directories(shown))

    async def list_own(self, entries: Mapping[str, Entry]) -> dict[str, int | None]:
        """The sizes of the files of the entries."""
        return {path: stat.size for path, stat in (await self._own_stats(entries)).items()}

    async def _own_stats(self, entries: Mapping[str, Entry]) -> dict[str, FileStat]:
        """The stats of the files of the entries."""
        stats: dict[str, FileStat] = {}
        moved: dict[str, str] = {}
        for path, entry in entries.items():
            if entry.data is not None:
                stats[path] = replace(stat_of(entry.data), tag=_Seen(path, entry))
            elif entry.source is not None:
                moved[path] = entry.source
        infos: dict[str, FileInfo] = {}
        for directory in {paths.parent(source) for source in moved.values()}:
            infos |= {info.path: info for info in await self._list_below(directory) or ()}
        for path, source in moved.items():
            info = infos.get(source)
            if info is not None:
                stats[path] = FileStat(info.size, info.modified_at, tag=_Seen(path, entries[path]))
        return stats

    async def _list_below(self, directory: str) -> Sequence[FileInfo] | None:
        """What lies directly in a directory below; None if there is no such directory."""
        listing = await self._lower.als(directory)
        if listing.ok:
            return listing.entries or ()
        if listing.code in NO_FILE:
            return None
        raise error_from(listing)

    async def _shows_directory(self, directory: str, entries: Mapping[str, Entry], changed: set[str]) -> bool:
        """Whether a directory that is below is here, too: where something in it was changed, only with a file in it."""
        return directory not in changed or await self._find_file(directory, entries)

    async def _find_file(self, directory: str, entries: Mapping[str, Entry]) -> bool:
        """Whether a file without an entry is under a directory below."""
        async with aclosing(self._walk_below(directory)) as files:
            async for file in files:
                if file.path not in entries:
                    return True
        return False

    async def _walk_below(self, directory: str) -> AsyncGenerator[FileInfo, None]:
        """The files under a directory below, those directly in it first."""
        found = await self._list_below(directory) or ()
        for each in found:
            if not each.is_dir:
                yield each
        for each in found:
            if each.is_dir:
                async with aclosing(self._walk_below(each.path.rstrip("/"))) as files:
                    async for file in files:
                        yield file

    # --- changing ---

    async def apply(self, changes: Sequence[Change]) -> None:
        before = dict(await self._entries.get([change.path for change in changes]))
        bases = await self._find_bases([change for change in changes if change.path not in before])
        after: dict[str, Entry | None] = {}
        for change in changes:
            _check_unchanged(change, before.get(change.path))
            entry = before.get(change.path) or bases.get(change.path) or Entry(change.path)
            if change.after is not None and change.path in before and not entry.is_file:
                await self._check_no_link(change.path)
            data, source = change.after, None
            if data is _MOVED:
                data, source = await self._find_moved(change.source)
            stays = data is not None or source is not None or entry.base_version is not None
            after[change.path] = replace(entry, data=data, source=source) if stays else None
        await self._entries.put(after, before)

    async def _check_no_link(self, path: str) -> None:
        """Raise if a link was deleted at `path`: a merge would write a new file there to where it leads."""
        if self._lower.capabilities.has_links and await self._lower.aresolve_paths([path]) != [path]:
            raise NotSupportedError(path, "a link was deleted there, which a workspace cannot replace by a file")

    async def _find_bases(self, changes: Sequence[Change]) -> dict[str, Entry]:
        """The entries, as if nothing had changed yet, of those of the changed files that are below."""
        found: dict[str, Entry] = {}
        unread: list[tuple[str, int]] = []
        for change in changes:
            if isinstance(change.origin, _Seen) and change.origin.below is not None:
                below = change.origin.below
                is_text = records.text_of(below, change.path) is not None
                known = version(records.content_bytes(below))
                found[change.path] = Entry(change.path, base=below if is_text else None, base_version=known)
            elif change.origin is not None or change.seen is not None:
                unread.append((change.path, (change.seen.size if change.seen else None) or 0))
        for batch in in_batches(unread, lambda each: each[1], most_bytes=_BATCH_BYTES, most_items=_BATCH_FILES):
            for download in await self._lower.adownload_files([path for path, _ in batch]):
                if download.content is not None:
                    found[download.path] = Entry(download.path, base_version=version(download.content))
                elif download.error not in NO_FILE:
                    download.unwrap()
        return found

    async def _find_moved(self, seen: _Seen) -> tuple[FileDataV2 | None, str | None]:
        """The content of a file that is moved, or where it is below."""
        if seen.entry is None:
            return None, seen.path
        return seen.entry.data, seen.entry.source


def _changed_directories(entries: Iterable[str]) -> set[str]:
    """The directories that have an entry somewhere under them."""
    return {directory for path in entries for directory in ("/", *paths.ancestors(path))}


def _check_unchanged(change: Change, entry: Entry | None) -> None:
    """Raise ChangedError if `entry` is not what the plan of a change has seen."""
    seen = change.origin.entry if isinstance(change.origin, _Seen) else None
    saw_nothing = change.condition == "create" and entry is not None and not entry.is_file
    if entry != seen and not saw_nothing:
        raise ChangedError(change.path)


def _rename(names: Mapping[str, str], path: str) -> str:
    return names.get(path, path)


class OverlayBackend(StorageBackend, SyncCommands):
    """A copy of a tree that costs nothing. What is changed in it is kept apart; `lower` is only read.

    A file that was not changed here is as it is in `lower` now. Reads and searches pass on to `lower`, with its
    indexes, and leave out what was changed; nothing is copied before it is changed, and a move copies no content.

    The workspace has files only: a directory without files is here as long as it is in `lower`, and cannot be made.

    Args:
        lower: The tree. One of an older protocol, or a factory, is adapted.
        upper: The backend that keeps what was changed; None is the memory of this object.
        directory: The directory in `upper` that holds it, which nothing else may change; it is no part of the tree.
            Objects with equal `lower`, `upper` and directory, also of other processes, are one workspace.
        commands: Makes the sandbox for a command, such as the class `BubblewrapSandbox`: each command runs in a new one
            on a copy of the files, and what it changed is brought back. Without it, commands are not run.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.

    Raises:
        TypeError: `lower` or `upper` is no backend.
        ValueError: For a size that is not positive, and if `upper` is `lower` and `directory` is `/`.
    """

    _shown = ("lower",)
    _is_transactional = True
    judges_results = True

    def __init__(
        self,
        lower: BACKEND_TYPES,
        upper: BACKEND_TYPES | None = None,
        *,
        directory: str = "/",
        commands: Callable[[], SandboxBackendProtocol] | None = None,
        max_file_size_mb: int = 10,
    ) -> None:
        super().__init__(max_file_size_mb=max_file_size_mb)
        self.lower: BackendProtocol = as_backend(lower)
        self.upper: BackendProtocol | None = None if upper is None else as_backend(upper)
        if self.upper is self.lower:
            if paths.normalize(directory) == "/":
                raise ValueError("changes that are kept in the tree itself need a directory")
            self.lower = without_directory(self.lower, paths.normalize(directory))
        self._entries: Entries = HeldEntries() if self.upper is None else StoredEntries(self.upper, directory)
        self.directory: str = directory
        self._place: Hashable = None
        self._make_sandbox = commands
        below = self.lower.capabilities
        above = Capabilities() if self.upper is None else self.upper.capabilities
        self.capabilities: Capabilities = Capabilities(
            keeps_created_at=below.keeps_created_at,
            durable=above.durable,
            executes=commands is not None,
            watches=below.watches and self.upper is None,
            has_links=below.has_links,
            atomic_between_processes=above.atomic_between_processes,
        )
        self.is_synchronous: bool = self.lower.is_synchronous and (self.upper is None or self.upper.is_synchronous)

    def inner_backends(self) -> Sequence[object]:
        return (self.lower,) if self.upper is None else (self.lower, self.upper)

    def bound_to_this_thread(self) -> bool:
        return any(each.bound_to_this_thread() for each in (self.lower, self.upper) if each is not None)

    async def aclose(self) -> None:
        """Close nothing: `lower` and `upper` belong to the caller."""

    def _storage(self) -> Storage:
        return _OverlayFiles(self.lower, self._entries)

    def _scope(self) -> Hashable:
        return self if self._place is None else ("overlay", self._place)

    def _hold(self, *held: str) -> AbstractAsyncContextManager[None]:
        return super()._hold(*held) if self.upper is None else self._hold_stored(*held)

    @asynccontextmanager
    async def _hold_stored(self, *held: str) -> AsyncIterator[None]:
        if self._place is None and self.upper is not None:
            self._place = (await self.upper.astorage_place(self.directory)).keys
        async with super()._hold(*held):
            yield

    async def run(self, operation: ops.Operation) -> Any:
        if isinstance(operation, ops.ResolvePaths):
            return await self.lower.arun(operation)
        if not self.capabilities.has_links:
            return await self._run(operation)
        names = await self._resolve(operation)
        if not names:
            return await self._run(operation)
        answer = await self._run(operation.at(partial(_rename, names)))
        back = {other: path for path, other in names.items()}
        return operation.outward(answer, lambda path: _rename_beneath(back, path))

    async def _resolve(self, operation: ops.Operation) -> dict[str, str]:
        """The paths of an operation that lead through links below, and where they lead within `lower`."""
        given = list(dict.fromkeys(operation.paths))
        try:
            normal = [paths.normalize(path) for path in given]
        except DeepFSError:
            return {}
        # A link is deleted and moved itself.
        itself = isinstance(operation, ops.Delete | ops.Copy)
        asked = [paths.parent(path) if itself else path for path in normal]
        names: dict[str, str] = {}
        for path, known, real in zip(given, normal, await self.lower.aresolve_paths(asked), strict=True):
            if real is None:
                continue
            if itself:
                real = paths.join(real, paths.name(known))
            elif real != known and known in await self._entries.get([known]):
                continue  # The link was deleted here.
            if real != known:
                names[path] = real
        return names

    # --- looking at changes, and merging them ---

    async def achanges(self, path: str = "/") -> list[WorkspaceChange]:
        """List the files that were changed here, by path.

        Args:
            path: A file or directory; by default everything.

        Returns:
            One record for each file: created, edited, deleted, or moved and not edited.

        Raises:
            DeepFSError: The entries, or a moved file, cannot be read.
        """
        return await list_changes(choose_entries(await self._entries.beneath("/"), [path]), self.lower)

    async def adiff(self, path: str | Iterable[str] = "/") -> str:
        """Show the changes as one unified diff, as git does.

        Args:
            path: A file or directory, or several; by default everything.

        Returns:
            The diff; empty if nothing was changed. Of binary files it says that they differ.

        Raises:
            DeepFSError: As `achanges`.
        """
        chosen = [path] if isinstance(path, str) else path
        return await show_changes(choose_entries(await self._entries.beneath("/"), chosen), self.lower)

    async def amerge(
        self,
        into: BACKEND_TYPES | None = None,
        *,
        paths: Iterable[str] | None = None,
        strategy: Strategy = "keep",
        conflicts: str | None = "/conflicts",
    ) -> MergeResult:
        """Make the changes of this workspace in a tree, also where others changed it meanwhile.

        Texts that both sides changed are merged by lines. Files are stored only if they still are what was compared.
        Where the tree has transactions, all is stored in one step, or nothing. Otherwise files come before deletions,
        and a merge that was interrupted is completed by a second call. Rules, a quota and a history of the tree treat
        the merge as any other change.

        Args:
            into: The tree; None is `lower`, and then what was merged is no longer a change of this workspace.
            paths: Files and directories; None is everything. A move belongs to both its ends.
            strategy: For files that both sides changed in the same place, or deleted and changed: `"keep"` leaves both
                as they are, `"mine"` takes that of the workspace, `"theirs"` that of the tree, and `"refuse"` merges
                nothing at all if there is such a file.
            conflicts: The directory of the tree where copies of both sides of a conflict are kept; None keeps none.

        Returns:
            What was merged, the conflicts, and the files that the tree refused.

        Raises:
            ValueError: For another strategy.
            TypeError: `into` is no backend.
            DeepFSError: A file cannot be read. What was merged until then stays merged.
        """
        if strategy not in get_args(Strategy):
            raise ValueError(f"strategy is one of {', '.join(get_args(Strategy))}, not {strategy!r}")
        target = self.lower if into is None else as_backend(into)
        async with self._hold("/"):
            entries = await self._keep_overwritten(choose_entries(await self._entries.beneath("/"), paths))
            result = await merge_entries(entries, self.lower, target, strategy=strategy, conflicts_in=conflicts)
            if target is self.lower:
                await self._entries.put(dict.fromkeys(result.merged), entries)
        return result

    async def _keep_overwritten(self, entries: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """Copy moved files whose old place has another file here: their content would be gone during a merge.

        So are those that take the place of a directory whose files are deleted, or the other way round: the deletions
        come first. Those that others deleted are deleted here, too: that other file would look like them.
        """
        deleted = {path for path, entry in entries.items() if not entry.is_file}
        above = {directory for path in deleted for directory in paths.ancestors(path)}
        moved = {path: each.source for path, each in entries.items() if each.source is not None}
        contents = await read_files(self.lower, [*moved.values()])
        changed: dict[str, Entry | None] = {}
        for path, source in moved.items():
            content, old = contents[source], changed.get(source) or entries.get(source)
            if old is None:
                continue
            if old.is_file or path in above or not deleted.isdisjoint(paths.ancestors(path)):
                data = None if content is None else records.new_file(content)
                changed[path] = replace(changed.get(path) or entries[path], data=data, source=None)
            known = old.base_version if content is None else version(content)
            # What others changed is moved along, also if this merge is interrupted and repeated. It must not look as
            # if nothing had been moved here.
            if known not in (old.base_version, entries[path].base_version):
                changed[source] = replace(old, base=None, base_version=known)
        await self._entries.put(changed, entries)
        return {**entries, **{path: entry for path, entry in changed.items() if entry is not None}}

    async def adiscard(self, paths: Iterable[str] | None = None) -> list[str]:
        """Undo changes of this workspace: the files are as they are in `lower` again.

        Args:
            paths: Files and directories; None is everything. A move belongs to both its ends.

        Returns:
            The paths of the files that had been changed.

        Raises:
            DeepFSError: The entries cannot be changed.
        """
        async with self._hold("/"):
            entries = choose_entries(await self._entries.beneath("/"), paths)
            await self._entries.put(dict.fromkeys(entries), entries)
        return sorted(entries)

    # --- operations ---

    async def _run(self, operation: ops.Operation) -> Any:
        match operation:
            case ops.Read(path) | ops.ReadRaw(path) | ops.DownloadStream(path):
                return await self._read(operation, paths.normalize(path))
            case GlobRequest() | GrepRequest():
                return await self._search(operation)
            case ops.Delete(path) | ops.Copy(path):
                return await self._change_tree(operation.at(paths.normalize), paths.normalize(path))
            case ops.ListTree(path):
                return await self._list_tree(paths.normalize(path))
            case ops.Execute() if self._make_sandbox is not None:
                return await self._execute(operation, self._make_sandbox)
            case ops.Watch(path) if self.capabilities.watches:
                top = paths.normalize(path)
                return merge_watches(
                    top, [partial(self._watch_below, top), partial(watch_storage, self._scope, top, self._hold(top))]
                )
        return await super().run(operation)

    async def _read(self, operation: Any, path: str) -> Any:
        """Read a file. What was not changed is read below, by windows or in chunks where `lower` can."""
        entry = (await self._entries.get([path])).get(path)
        below = path if entry is None else entry.source
        if below is not None:
            if isinstance(operation, ops.DownloadStream):
                return operation.outward(await self.lower.arun(replace(operation, path=below)), lambda _: path)
            answer = await self.lower.arun(replace(operation, path=below))
            if answer.code not in NO_FILE or not await self._entries.beneath(path):
                return operation.outward(answer, lambda _: path)
        return await super().run(operation)

    async def _list_tree(self, path: str) -> TreeListing:
        """List a tree: what was not changed is as it is below, with its modes and links."""
        entries = await self._entries.beneath(path)
        own = await _OverlayFiles(self.lower, self._entries).list_own(entries)
        try:
            below = await self.lower.alist_tree(path)
        except (NotFoundError, NotDirectoryError):
            below = TreeListing([])
        left = [each for each in below.entries if each.path not in entries]
        files = [each for each in left if each.kind != "directory"]
        implied = list_implied(path, [*((each.path, each.size) for each in files), *own.items()])
        known = {each.path: each for each in left}
        # Without entries, there may be directories without files.
        listed = [known.get(each.path, each) for each in implied.entries] if entries else left
        if not listed:
            raise NotFoundError(path)
        return TreeListing(listed, join_omissions(below.omission, implied.omission))

    async def _execute(self, operation: ops.Execute, make: Callable[[], SandboxBackendProtocol]) -> ExecuteResponse:
        """Run a command on a copy, while nothing else changes this workspace."""
        async with self._hold("/"), make() as sandbox:
            answer, changes = await run_on_copy(sandbox, operation, await copy_to_sandbox(self, sandbox))
            storing = ops.ChangeFiles(changes)
            outcomes = await run_and_report(self._storage(), plans.change_files(self, storing, {}), self._scope)
            failed = [change.path for number, change in enumerate(changes) if outcomes[number] is not None]
            return note_lost(answer, failed, "others changed them meanwhile, or they could not be stored")

    async def _change_tree(self, operation: ops.Delete | ops.Copy, path: str) -> Any:
        """Delete, copy or move what is at a path."""
        if isinstance(operation, ops.Copy) or self.capabilities.has_links:
            await self._check_whole(operation, path)
        try:
            if isinstance(operation, ops.Move):
                return await self._change(partial(_move, self, operation), *operation.paths)
            return await super().run(operation)
        except NotFoundError as error:
            if error.path != path or not (await self.als(path)).ok:
                raise
            raise NotSupportedError(path, "it has no files, and a workspace changes files only") from error

    async def _check_whole(self, operation: ops.Delete | ops.Copy, src: str) -> None:
        """Raise if something is below that this workspace cannot copy, move or delete: links, what rules hide."""
        if isinstance(operation, ops.Delete):
            real = (await self.lower.aresolve_paths([src]))[0]
            if real not in (None, src) and (await self.lower.als(real)).ok:
                raise NotSupportedError(src, "it is a link to a directory, and a workspace changes files only")
            return
        try:
            listing = await self.lower.alist_tree(src)
        except (NotFoundError, NotDirectoryError):
            return
        entries = await self._entries.beneath(src)
        left = [each for each in listing.entries if each.path not in entries]
        check_transferable(TreeListing(left, listing.omission), src, moves=isinstance(operation, ops.Move))

    async def _watch_below(self, top: str) -> AsyncGenerator[ChangeEvent, None]:
        async with aclosing(self.lower.awatch(top)) as events:
            async for event in events:
                if event.kind == "resync" or not await self._entries.get([event.path]):
                    yield event

    # --- searching ---

    async def _search(self, request: GlobRequest | GrepRequest) -> Any:
        files = FileFilter(request)
        if isinstance(request, GrepRequest):
            GrepScan(request, files)  # Raises for a pattern that is refused.
        entries = await self._entries.beneath(files.root)
        below = await self._search_below(request, entries)
        own = await self._search_own(request, files)
        if below.error is not None and below.code not in NO_FILE:
            return below
        found = [each for each in (below, own) if each is not None and each.ok]
        matches: list[Any] = [match for each in found for match in each.matches or ()]
        if not matches:
            await self._look(partial(_check_root, self, request, files), "search")
        if isinstance(request, GlobRequest):
            result: Any = glob_result(sorted(matches, key=lambda info: info.path))
        else:
            matches.sort(key=lambda match: (match.path, match.line))
            most = len(matches) if request.max_count is None else max(0, request.max_count)
            skipped = sum(each.skipped for each in found if isinstance(each, GrepResult))
            result = GrepResult(matches=matches[:most], truncated=len(matches) > most, skipped=skipped)
        for each in found:
            if each.truncated:
                result = replace_fields(each, matches=result.matches) if isinstance(each, GlobResult) else result
                result.truncated = True
        return result

    async def _search_below(self, request: Any, entries: Mapping[str, Entry]) -> Any:
        """Search what lies below and was not changed."""
        if not entries:
            return await self.lower.arun(request)
        hides: PathFilter | None = request.hidden

        def hidden(path: str, *, is_dir: bool) -> bool:
            return path in entries or (hides is not None and hides(path, is_dir=is_dir))

        asked = replace(request, hidden=hidden)
        while True:
            answer = await self.lower.arun(asked)
            if answer.matches is None:
                return answer
            shown = [match for match in answer.matches if match.path not in entries]
            most = getattr(asked, "max_count", None)
            if (
                not answer.truncated
                or most is None
                or len(shown) >= request.max_count
                or len(shown) == len(answer.matches)
            ):
                answer.matches = shown
                return answer
            # Below, something passes on no filter: what was changed took the place of other matches.
            asked = replace(asked, max_count=most + len(answer.matches) - len(shown))

    async def _search_own(self, request: Any, files: FileFilter) -> Any:
        """Search the files that were changed; None if none is at or under the root of the search."""
        plan = plans.glob if isinstance(request, GlobRequest) else plans.grep
        storage = _OverlayFiles(self.lower, self._entries, below=False)
        storage.scope = self._scope()
        try:
            return await storage.look(lambda: plan(self, request, files), "search")
        except (NotFoundError, NotDirectoryError):
            return None


def _check_root(backend: OverlayBackend, request: SearchRequest, files: FileFilter) -> Plan[None]:
    """Raise unless the root of a search that found nothing is there."""
    root = files.root
    if root == "/" or (yield from plans.holds_files(root)):
        return
    if isinstance(request, GlobRequest):
        raise (yield from plans.no_directory_error(root))
    yield from plans._get_existing(root)


def _move(backend: OverlayBackend, operation: ops.Move) -> Plan[WriteResult]:
    """Move a file or a directory, without the contents of files that were not changed."""
    src, dst = operation.src, operation.dst
    files, chosen = yield from plans.subtree(src, contents=False)
    if src == dst:
        return WriteResult(path=dst)
    targets, found = yield from plans.check_relocation(backend, operation, chosen)
    added = [
        replace(flat_tree.change_of(targets[path], found, _MOVED), source=_source_of(path, files)) for path in chosen
    ]
    removed = [flat_tree.change_of(path, files, None) for path in chosen]
    yield Apply(backend._before_apply([*added, *removed]))
    return WriteResult(path=dst)


def _source_of(path: str, files: flat_tree.Found) -> _Seen:
    seen = files[path]
    tag = seen.tag if isinstance(seen, FileStat) else None
    return tag if isinstance(tag, _Seen) else _Seen(path)


def _rename_beneath(names: Mapping[str, str], path: str) -> str:
    """The name of a path, or of the nearest directory above it that has another name."""
    for above in (path, *reversed(paths.ancestors(path))):
        if above in names:
            return names[above] + path[len(above) :]
    return path


def fork(backend: BACKEND_TYPES, *, commands: Callable[[], SandboxBackendProtocol] | None = None) -> OverlayBackend:
    """Make a copy of a tree that costs nothing, of any size. Changes in it are kept in memory until they are merged.

    Args:
        backend: The tree.
        commands: Makes the sandbox for a command, as in `OverlayBackend`.

    Returns:
        The workspace.

    Raises:
        TypeError: `backend` is no backend.
    """
    return OverlayBackend(backend, commands=commands)
