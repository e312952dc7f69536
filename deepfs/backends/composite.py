"""Several backends mounted into one tree."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeAlias

from msgspec.structs import replace

from deepfs import operations as ops
from deepfs.backends._trees import End, are_one
from deepfs.backends.mounts import Mount, MountSearch, MountTable, await_uncancelled, logger
from deepfs.backends.protocol import (
    BACKEND_TYPES,
    BackendProtocol,
    Capabilities,
    SyncCommands,
    as_backend,
    close_each,
    supports_execute,
)
from deepfs.backends.transfer import copy_tree, move_tree
from deepfs.backends.watching import merge_watches
from deepfs.errors import (
    BackendError,
    DeepFSError,
    InvalidPathError,
    IsDirectoryError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
)
from deepfs.storage.gathering import gather
from deepfs.text import paths
from deepfs.text.arguments import check_number, check_string
from deepfs.text.entries import Omission, TreeEntry, TreeListing, join_omissions
from deepfs.types import ChangeEvent, ErrorCode, FileInfo, GlobResult, LsResult, WriteResult, item_at, replace_fields

__all__ = ["CompositeBackend", "GlobBackendResult", "mount_of"]

GlobBackendResult: TypeAlias = GlobResult | list[FileInfo]
"""What a glob of a mounted backend may answer."""


class CompositeBackend(BackendProtocol, SyncCommands):
    """Routes each path to the backend mounted at its longest prefix, and everything else to `default`.

    Mounts may lie at any depth. Each appears in the listing of the directory above it, and hides what the backends
    above store at or under its path. A search visits the mounts under the searched path concurrently; if one of them
    fails, the result has the matches of the others and an error that names the mount.

    Commands run in `default`, or in the mount named by `executor`. Backends of the first protocol (V1) and factories of
    backends, which are deprecated, are adapted.

    Args:
        default: The backend for all paths under no mount.
        routes: The mounts: an absolute path for each backend.
        artifacts_root: The directory in which middleware stores what it offloads.
        route_timeout: The most seconds that a search waits for one mount; None sets no limit.
        executor: The route of the backend that runs commands; None is `default`.

    Raises:
        ValueError: For a route that is relative, malformed, repeated or `/`, and for an `executor` that is no route.
        TypeError: For an argument of another type.
    """

    _shown = ("default", "routes")

    def __init__(
        self,
        default: BACKEND_TYPES,
        routes: Mapping[str, BACKEND_TYPES] | None = None,
        *,
        artifacts_root: str = "/",
        route_timeout: float | None = 120,
        executor: str | None = None,
    ) -> None:
        if route_timeout is not None:
            check_number("route_timeout", route_timeout)
        check_string("artifacts_root", artifacts_root)
        if executor is not None:
            check_string("executor", executor)
        if not isinstance(routes, Mapping | None):
            raise TypeError(f"routes must be a mapping of paths to backends, not {routes!r}")
        self.default: BackendProtocol = as_backend(default)
        self.routes: dict[str, BackendProtocol] = {path: as_backend(given) for path, given in (routes or {}).items()}
        self.artifacts_root: str = artifacts_root
        self._table = MountTable(self.default, self.routes)
        if executor is not None and executor not in self.routes:
            raise ValueError(f"executor must be one of the routes, not {executor!r}")
        self._executor = self.default if executor is None else self.routes[executor]
        self._executor_name = "the default backend" if executor is None else f"the backend mounted at {executor}"
        self._search = MountSearch(self._table, route_timeout)
        everywhere = [self.default, *self.routes.values()]
        self.is_synchronous: bool = type(self) is CompositeBackend and all(
            backend.is_synchronous for backend in everywhere
        )
        self.capabilities: Capabilities = Capabilities(
            keeps_empty_directories=self.default.capabilities.keeps_empty_directories,
            keeps_created_at=all(backend.capabilities.keeps_created_at for backend in everywhere),
            has_links=any(backend.capabilities.has_links for backend in everywhere),
            durable=all(backend.capabilities.durable for backend in everywhere),
            executes=self._executor.capabilities.executes,
            deletes=any(backend.capabilities.deletes for backend in everywhere),
            watches=all(backend.capabilities.watches for backend in everywhere),
            atomic_between_processes=all(backend.capabilities.atomic_between_processes for backend in everywhere),
        )

    @property
    def executor(self) -> BackendProtocol:
        """The backend for commands, which need not support them."""
        return self._executor

    def inner_backends(self) -> Sequence[object]:
        return (self.default, *self.routes.values())

    def bound_to_this_thread(self) -> bool:
        return any(backend.bound_to_this_thread() for backend in (self.default, *self.routes.values()))

    async def run(self, operation: ops.Operation) -> Any:
        match operation:
            case ops.Read() | ops.ReadRaw() | ops.Write() | ops.Edit() | ops.UploadStream() | ops.DownloadStream():
                mount, inner, _ = self._file_route(operation.path)
            case ops.Delete(path):
                mount, inner, path = self._route(path)
                self._check_no_mount_beneath(path)
            case ops.Glob():
                return await self._search.glob(operation)
            case ops.Grep():
                return await self._search.grep(operation)
            case ops.Ls(path):
                return await self._list(path)
            case ops.Move(src, dst, overwrite):
                return await self._move(src, dst, overwrite)
            case ops.Copy(src, dst, overwrite):
                return await self._copy(src, dst, overwrite)
            case ops.Batch():
                return await self._in_batches(operation)
            case ops.ResolvePaths(given):
                return await self._resolve(given)
            case ops.StoragePlaceOf(path):
                mount, inner, _ = self._route(path)
                return await mount.backend.astorage_place(inner)
            case ops.ListTree(path, deleting):
                return await self._list_tree(path, deleting)
            case ops.Watch(path):
                return self._watch(path)
            case ops.Execute():
                if not supports_execute(self._executor):
                    raise NotSupportedError(None, f"{self._executor_name} does not run commands")
                return await self._executor.arun(operation)
            case _:
                return await super().run(operation)
        inward = operation if operation.path == inner else replace(operation, path=inner)
        if isinstance(operation, ops.DownloadStream):
            return self._download_stream(mount, inward)
        answer: Any = inward.outward(await mount.ask(mount.backend.arun, inward), mount.outer)
        return item_at(answer, operation.path) if isinstance(operation, ops.UploadStream) else answer

    async def _resolve(self, given: list[str]) -> list[str | None]:
        found: list[str | None] = [None] * len(given)
        routed: dict[Mount, list[tuple[str, int]]] = defaultdict(list)
        for index, path in enumerate(given):
            with suppress(InvalidPathError):
                mount, inner, _ = self._route(path)
                routed[mount].append((inner, index))
        for mount, asked in routed.items():
            with suppress(DeepFSError):  # If a mount fails, its paths resolve to None; the other mounts are resolved.
                real = await mount.backend.aresolve_paths([inner for inner, _ in asked])
                for (_, index), path_there in zip(asked, real, strict=True):
                    found[index] = None if path_there is None else mount.outer(path_there)
        return found

    # --- whole trees ---

    async def _list_tree(self, path: str, deleting: bool) -> TreeListing:
        mount, inner, path = self._route(path)
        below = self._table.beneath(path)
        try:
            listings = [await self._list_mount(mount, inner, deleting)]
        except NotFoundError:
            if not below:
                raise
            listings = []
        omission: Omission | None = None
        for each in below:
            try:
                listings.append(await self._list_mount(each, "/", deleting))
            except DeepFSError as error:
                omission = join_omissions(omission, Omission(1, error.code, "a backend mounted in it cannot be listed"))
        entries = {entry.path: entry for listing in listings for entry in listing.entries}
        for up in {up for each in below for up in ("/", *paths.ancestors(each.prefix))}:
            if up == path or paths.is_beneath(up, path):
                entries[up] = TreeEntry(up, "directory")
        omission = join_omissions(omission, *(listing.omission for listing in listings))
        if deleting and (below or path == mount.prefix):
            omission = join_omissions(Omission(1, ErrorCode.PERMISSION_DENIED, "a backend is mounted in it"), omission)
        return TreeListing(sorted(entries.values(), key=lambda entry: entry.path), omission)

    async def _list_mount(self, mount: Mount, inner: str, deleting: bool) -> TreeListing:
        """The tree of one mount with paths of the composite, without entries that other mounts hide."""
        try:
            listing = await mount.ask(mount.backend.alist_tree, inner, deleting=deleting)
        except DeepFSError as error:
            raise mount.outer_error(error, inner) from error.__cause__
        entries = [replace(entry, path=mount.outer(entry.path)) for entry in listing.entries]
        return replace(listing, entries=[entry for entry in entries if self._table.owns(mount, entry.path)])

    # --- one path, one backend ---

    def _route(self, path: str) -> tuple[Mount, str, str]:
        """The mount of `path`, the path in its backend, and `path` normalised."""
        path = paths.normalize(path)
        mount = self._table.find(path)
        return mount, mount.inner(path), path

    def _check_no_mount_beneath(self, path: str) -> None:
        if self._table.has_beneath(path):
            # The error does not name the mount, which a rule may hide from the caller.
            raise PermissionDeniedError(path, "a backend is mounted beneath it")

    def _file_route(self, path: str) -> tuple[Mount, str, str]:
        """`_route` for a path that may be a file. Raises IsDirectoryError if a mount lies beneath it."""
        mount, inner, path = self._route(path)
        if self._table.has_beneath(path):
            raise IsDirectoryError(path)
        return mount, inner, path

    async def _copy(self, src: str, dst: str, overwrite: bool) -> WriteResult:
        mount, inner_src, src = self._route(src)
        target, inner_dst, dst = self._file_route(dst)
        if target is mount and not self._table.has_beneath(src):
            return await self._within(mount, ops.Copy(inner_src, inner_dst, overwrite))
        if await self._are_one(src, dst, moving=False):
            return await self._copy(dst, dst, overwrite)  # Changes nothing: its answer is that of a copy onto itself.
        keeps_empty = target.backend.capabilities.keeps_empty_directories
        return await copy_tree(self, src, dst, overwrite=overwrite, keeps_empty=keeps_empty)

    async def _move(self, src: str, dst: str, overwrite: bool) -> WriteResult:
        mount, inner_src, src = self._route(src)
        target, inner_dst, dst = self._file_route(dst)
        self._check_no_mount_beneath(src)
        if mount.prefix and inner_src == "/":
            raise PermissionDeniedError(src, "a mount cannot be moved")
        if target is mount:
            return await self._within(mount, ops.Move(inner_src, inner_dst, overwrite))
        if await self._are_one(src, dst, moving=True):
            # These change nothing: their answers say whether a move onto itself is permitted.
            stayed = await self._within(mount, ops.Move(inner_src, inner_src))
            return await self._within(target, ops.Move(inner_dst, inner_dst)) if stayed.ok else stayed
        keeps_empty = target.backend.capabilities.keeps_empty_directories
        return await move_tree(self, src, dst, overwrite=overwrite, keeps_empty=keeps_empty)

    async def _are_one(self, src: str, dst: str, *, moving: bool) -> bool:
        """Whether `src` and `dst`, in two mounts, are one place. Raises InvalidPathError if `dst` lies inside `src`."""
        (mount, inner_src, _), (target, inner_dst, _) = self._route(src), self._route(dst)
        beneath = [End(each.backend, "/") for each in self._table.beneath(src)]
        sources = [End(mount.backend, inner_src), *beneath]
        return await are_one(self, src, dst, sources, End(target.backend, inner_dst), moving=moving)

    async def _within(self, mount: Mount, operation: ops.Copy) -> WriteResult:
        result: WriteResult = operation.outward(await mount.ask(mount.backend.arun, operation), mount.outer)
        return result

    # --- many paths, many backends ---

    async def _list(self, path: str) -> LsResult:
        mount, inner, path = self._route(path)
        inward = ops.Ls(inner)
        listing = await mount.ask(mount.backend.arun, inward)
        mounted = self._table.children(path)
        if mounted and listing.code in (ErrorCode.FILE_NOT_FOUND, ErrorCode.NOT_A_DIRECTORY):
            listing = LsResult(entries=[])
        shown: LsResult = mount.outward(inward, listing)
        if not mounted:
            return shown
        entries = {info.path: info for info in shown.entries or () if info.path.rstrip("/") not in mounted}
        entries |= {f"{child}/": FileInfo(f"{child}/", is_dir=True) for child in mounted}
        return replace_fields(shown, entries=sorted(entries.values(), key=lambda info: info.path))

    # --- streams ---

    async def _download_stream(self, mount: Mount, operation: ops.Operation) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(await mount.backend.arun(operation)) as chunks:
                first = await mount.ask(anext, chunks, None)  # It opens the file; the others are read from that.
                if first is not None:
                    yield first
                async for chunk in chunks:
                    yield chunk
        except DeepFSError as error:
            raise mount.outer_error(error, *operation.paths) from error.__cause__

    async def _watch(self, path: str) -> AsyncGenerator[ChangeEvent, None]:
        """Watch all mounts at and under `path`. Raises NotSupportedError unless each of them declares `watches`."""
        mount, inner, path = self._route(path)
        parts = [(mount, inner), *((each, "/") for each in self._table.beneath(path))]
        if not all(each.backend.capabilities.watches for each, _ in parts):
            raise NotSupportedError(path, "not all backends at and under it tell of changes (`watches`)")
        sources = [partial(self._watch_mount, each, start) for each, start in parts]
        async with aclosing(merge_watches(path, sources) if len(sources) > 1 else sources[0]()) as events:
            async for event in events:
                yield event

    async def _watch_mount(self, mount: Mount, inner: str) -> AsyncGenerator[ChangeEvent, None]:
        """The events of one mount with paths of the composite, without those of files that other mounts hide."""
        try:
            async with aclosing(mount.backend.awatch(inner)) as events:
                async for event in events:
                    event = replace(event, path=mount.outer(event.path))
                    if self._table.owns(mount, event.path):
                        yield event
        except DeepFSError as error:
            raise mount.outer_error(error, inner) from error.__cause__

    async def aclose(self) -> None:
        await close_each([self.default, *self.routes.values()])

    # --- batches ---

    async def _in_batches(self, operation: ops.Batch) -> list[Any]:
        """One outcome for each item, in order. Each backend gets its items in one call, all concurrently."""
        outcomes: dict[int, Any] = {}
        parts: dict[Mount, list[tuple[int, ops.Batch]]] = defaultdict(list)
        for index, item in enumerate(operation.items):
            one = operation.only([item])
            try:
                mount, inner, _ = self._file_route(one.paths[0])
                parts[mount].append((index, one.at({one.paths[0]: inner}.__getitem__)))
            except DeepFSError as error:
                [outcomes[index]] = one.failed_result(error)

        if operation.is_whole and outcomes:
            return operation.refuse_others([outcomes.get(index) for index in range(len(operation.items))])
        if operation.is_whole and len(parts) > 1:
            raise NotSupportedError(None, "the paths are in several mounts, which have no common transaction")

        async def ask(mount: Mount) -> None:
            """Note the outcomes of a mount; if it raises, those of other mounts are still returned."""
            batch = operation.only([one.items[0] for _, one in parts[mount]])
            try:
                answer = await await_uncancelled(mount.ask(mount.backend.arun, batch))
            except Exception:
                logger.exception("the backend mounted at %s/ failed", mount.prefix)
                answer = batch.failed_result(BackendError(None, "the backend failed"))
            for (index, _), outcome in zip(parts[mount], answer, strict=True):
                outcomes[index] = item_at(outcome, given[index], mount.outer)

        given = operation.paths
        await gather([partial(ask, mount) for mount in parts])
        return [outcomes[index] for index in range(len(given))]


def mount_of(composite: CompositeBackend, path: str) -> tuple[BackendProtocol, str]:
    """Return the backend that `path` belongs to, and the path in it. Raises InvalidPathError."""
    mount, inner, _ = composite._route(path)
    return mount.backend, inner
