"""Files in a LangGraph store, and an index of them that this process keeps between operations.

A store finds items by namespace only, so it takes a listing of everything to find out whether a path is a directory.
This process lists once, then applies its own changes to the index; a directory that another process made meanwhile is
not known here until the next listing. If the database can be read by SQL, listings transfer keys, sizes and times, but
no values.
"""

from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from deepfs._deprecated import warn_deprecated
from deepfs._langgraph import private as _langgraph
from deepfs.backends import _store_listing as sql
from deepfs.backends._store_items import change as change_items
from deepfs.backends._store_items import fetched, fetched_in_batch, listed
from deepfs.backends._store_tables import Put, can_compare, identify, is_identified, storage_of
from deepfs.backends.flat import RecordStorageBackend, records_of
from deepfs.backends.flat_requests import Plan
from deepfs.backends.flat_storage import AsyncStorage, Kind, Listing, Storage
from deepfs.backends.namespace import (
    Namespace,
    NamespaceFactory,
    checked_legacy_namespace,
    checked_namespace,
    namespace_from,
    stored_namespace,
)
from deepfs.backends.older_protocols import adapters
from deepfs.backends.protocol import Capabilities
from deepfs.errors import BackendError
from deepfs.sync import is_inline
from deepfs.text import paths
from deepfs.text.entries import StoragePlace, flat_place
from deepfs.text.flat_tree import Change, DecodedFiles, Directories, FileStat, FileTree, StatTree, stats_of
from deepfs.threads.forks import ForkSafeLock
from deepfs.threads.locks import path_locks
from deepfs.types import FileFormat

__all__ = ["NamespaceFactory", "StoreBackend", "StoreIndex", "index_of"]

T = TypeVar("T")

_MOST_IN_BATCH = 500
"""The most single reads that are made together: each is a parameter of one statement, and databases limit these."""
_MAX_NAMESPACES = 1024
"""Namespaces remembered for one storage; the one that was first seen longest ago is forgotten first."""


class StoreIndex:
    """The known directories and sizes of one namespace. `directories` is None while they are not known."""

    def __init__(self) -> None:
        self.directories: Directories | None = None
        self.known: sql.Known = sql.Known()
        self._changes = 0

    def listing_starts(self) -> int:
        """Return a mark to pass to `listed` with the result of the listing."""
        return self._changes

    def listed(self, mark: int, directories: Directories) -> None:
        """Store the directories of a listing, unless it may lack changes that were made meanwhile.

        Args:
            mark: What `listing_starts` returned before the listing.
            directories: The directories that the listing implies.
        """
        if self._changes == mark:
            self.directories = directories

    def found(self, keys: Iterable[str]) -> None:
        """Add items that a listing of a part of the namespace has found.

        Args:
            keys: Their keys.
        """
        if self.directories is not None:
            for key in keys:
                self.directories.add(key)

    def changed(self, changes: Sequence[Change]) -> None:
        """Record changes of this process.

        Args:
            changes: The changes, which have been made.
        """
        self._changes += 1
        self.known.follow([change.path for change in changes])
        if self.directories is not None:
            self.directories.apply(changes)

    def forget(self) -> None:
        """Forget what is known, and ignore listings under way, since there may be changes that are not recorded."""
        self._changes += 1
        self.directories = None
        self.known.forget()


class _Indexes:
    """The indexes of one storage."""

    def __init__(self) -> None:
        self.recent: dict[Namespace, StoreIndex] = {}
        """Kept, in the order in which they were first needed."""
        self.used: WeakValueDictionary[Namespace, StoreIndex] = WeakValueDictionary()
        """All that are kept here or by a backend: there must not be two for one namespace."""

    def index(self, namespace: Namespace) -> StoreIndex:
        found = self.used.get(namespace)
        if found is None:
            found = self.used.setdefault(namespace, StoreIndex())
        if namespace not in self.recent:
            if len(self.recent) >= _MAX_NAMESPACES:
                self.recent.pop(next(iter(self.recent)))
            self.recent[namespace] = found
        return found


_indexes: WeakKeyDictionary[Any, _Indexes] = WeakKeyDictionary()


def index_of(storage: object, namespace: Namespace) -> StoreIndex:
    """The index that all backends over `storage`, a store or a database, and `namespace` share."""
    indexes = _indexes.get(storage)
    if indexes is None:
        indexes = _indexes.setdefault(storage, _Indexes())
    return indexes.index(namespace)


class _Guard:
    """The lock of a store that never suspends, which several threads may use at once, each without an event loop."""

    lock: AbstractContextManager[Any] = nullcontext()


_guards: WeakKeyDictionary[BaseStore, _Guard] = WeakKeyDictionary()


def _guard_of(store: BaseStore) -> _Guard:
    guard = _guards.get(store)
    if guard is None:
        guard = _Guard()
        guard.lock = ForkSafeLock()
        guard = _guards.setdefault(store, guard)
    return guard


class _StoreFiles(AsyncStorage):
    """The items of one namespace of a store, as files; what is found out here would cost too much in each operation."""

    def __init__(self, store: BaseStore, namespace: Namespace, file_format: FileFormat) -> None:
        storage = storage_of(store)
        self.store = store
        self.namespace = namespace
        self.is_identified = is_identified(store)
        self.locks = path_locks((storage, namespace))
        self.apply_waits = not _langgraph.never_suspends(store)
        self._index = index_of(storage, namespace)
        self._stored_namespace = stored_namespace(namespace)
        self._format = file_format
        self._by_sql = sql.can_list(store)
        self._compares = can_compare(store)
        self._guard = _Guard() if self.apply_waits else _guard_of(store)
        self._reads: list[None] = []
        """An item for each read by SQL that is under way."""

    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        if self._by_sql:
            return await sql.stats_at(self.store, self._stored_namespace, paths, self._index.known)
        with self._guard.lock:
            found = await fetched(self.store, self._stored_namespace, paths)
        return stats_of(DecodedFiles(found)) if found else {}

    async def get(self, paths: Sequence[str]) -> DecodedFiles:
        if self._by_sql:
            return DecodedFiles(await self._values(paths))
        with self._guard.lock:
            return DecodedFiles(await fetched(self.store, self._stored_namespace, paths))

    async def _values(self, paths: Sequence[str]) -> dict[str, Any]:
        """The values at `paths`; a single one is read together with others if others are being read."""
        reads = self._reads
        if len(paths) == 1 and 0 < len(reads) < _MOST_IN_BATCH:
            read = fetched_in_batch(self.store, self._stored_namespace, paths[0])
        else:
            read = sql.values(self.store, self._stored_namespace, paths)
        reads.append(None)  # Atomic, as is the removal: several threads may use the store.
        try:
            return await read
        finally:
            reads.pop()

    async def list(self, prefix: str, limit: int | None = None) -> Listing:
        if limit is not None:
            known = self._index.directories
            return {} if known is not None and prefix[:-1] not in known else await self._directory(prefix, limit)
        return await self._stats(prefix) if self._by_sql else await self._files()

    async def _directory(self, prefix: str, limit: int) -> Listing:
        """Items of the directory `prefix`, at least one if it exists; not read if no index has such a directory."""
        index = self._index
        if index.directories is None and self._by_sql:
            mark = index.listing_starts()
            index.listed(mark, Directories(await sql.keys(self.store, self._stored_namespace)))
        if index.directories is not None and prefix.rstrip("/") not in index.directories:
            return {}
        if self._by_sql:
            return dict.fromkeys(await sql.keys(self.store, self._stored_namespace, prefix, limit), FileStat())
        return await self._files()

    async def _stats(self, prefix: str) -> FileTree:
        mark = self._index.listing_starts()
        # At the root, keys that are no paths must be listed as well.
        found = await sql.stats(self.store, self._stored_namespace, "" if prefix == "/" else prefix, self._index.known)
        tree = StatTree(found)
        if prefix == "/":
            self._index.listed(mark, tree.directories)
        else:
            self._index.found(found)
        return tree

    async def _files(self) -> FileTree:
        with self._guard.lock:
            mark = self._index.listing_starts()
            tree = FileTree(DecodedFiles(await listed(self.store, self._stored_namespace)))
            self._index.listed(mark, tree.directories)
            return tree

    async def apply(self, changes: Sequence[Change]) -> None:
        records = records_of(changes, self._format)
        puts = [Put(change.path, change.origin, records[change.path]) for change in changes]
        index = self._index
        index.known.under_way += 1
        try:
            with self._guard.lock:
                await change_items(self.store, self._stored_namespace, puts, compares=self._compares)
                index.changed(changes)
        except BaseException:
            index.forget()
            raise
        finally:
            index.known.under_way -= 1


class StoreBackend(RecordStorageBackend):
    """Files in a LangGraph `BaseStore`, by its async methods only.

    Over `AsyncPostgresStore` and `AsyncSqliteStore` changes are conditional on what was read, so no edit is lost,
    whichever process or store object made it. Other stores have no compare-and-set: there edits exclude one another
    only within this process and for one store object.

    Args:
        store: The store; None is the one that the graph was compiled with. Older code passes the runtime, whose store
            is used, with a DeprecationWarning.
        namespace: A tuple, or a factory that gets the `Runtime` of the running node (None outside a graph). Its
            components hold letters, digits and `-_.@+:~`. Only items of exactly this namespace are seen. None is the
            assistant's legacy namespace, with a DeprecationWarning.
        file_format: `"v2"`, or `"v1"` for the older form that holds text only. Both are read.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.

    Raises:
        TypeError: `store` is no store, or `max_file_size_mb` is no number.
        ValueError: For a namespace or a format that cannot be used.
    """

    capabilities: Capabilities = Capabilities(durable=True)
    _shown = ("store=_store_class", "namespace=_given_namespace")
    is_synchronous: bool = True
    _reads_before_change = True

    def __init__(
        self,
        store: BaseStore | object | None = None,
        *,
        namespace: Namespace | NamespaceFactory | None = None,
        file_format: FileFormat = "v2",
        max_file_size_mb: int = 10,
    ) -> None:
        super().__init__(file_format=file_format, max_file_size_mb=max_file_size_mb)
        if namespace is None:
            warn_deprecated(
                "StoreBackend without a namespace is deprecated: all users of an assistant share its files. "
                "Pass namespace=(...) or a factory.",
                is_risk=True,
            )
        self._given_store = _store_of(store)
        given = self._given_store
        self._store_class = None if given is None else type(given)  # The repr of the store may show a connection.
        self.is_synchronous = type(self).is_synchronous and given is not None and _langgraph.never_suspends(given)
        self._last: _StoreFiles | None = None
        self._given_namespace = namespace if namespace is None or callable(namespace) else checked_namespace(namespace)

    def _store(self) -> BaseStore:
        return self._given_store if self._given_store is not None else _langgraph.current_store()

    def _namespace(self) -> Namespace:
        given = self._given_namespace
        if given is None:
            return checked_legacy_namespace(_langgraph.legacy_namespace())
        return namespace_from(given, adapters().context()) if callable(given) else given

    def _scope(self) -> tuple[Hashable, Namespace]:
        return storage_of(self._store()), self._namespace()

    async def astorage_place(self, path: str) -> StoragePlace:
        if not is_identified(self._store()):
            await identify(self._store())
        scope = self._scope()
        # The items of an InMemoryStore are in no other store, but several stores may use one database.
        in_memory = isinstance(self._store(), InMemoryStore)
        return flat_place(scope, paths.normalize(path), storage=("store", scope[0]), is_sole=in_memory)

    def bound_to_this_thread(self) -> bool:
        try:
            store = self._store()
        except BackendError:
            return False
        return _langgraph.runs_loop_of(store)

    def _files(self) -> _StoreFiles:
        """The files of one operation: those of the last one, if it had the same store and namespace."""
        store, namespace, last = self._store(), self._namespace(), self._last
        if last is not None and last.store is store and last.namespace == namespace:
            return last
        files = _StoreFiles(store, namespace, self._file_format)
        if files.is_identified:
            self._last = files
        return files

    async def _identified(self, files: _StoreFiles) -> _StoreFiles:
        """The same files, but with their store identified: all backends over one database share locks and index."""
        if files.is_identified:
            return files
        await identify(files.store)
        return _StoreFiles(files.store, files.namespace, self._file_format)

    @asynccontextmanager
    async def _hold(self, *held: str) -> AsyncIterator[None]:
        async with (await self._identified(self._files())).locks.hold(*held):
            yield

    async def _look(self, plan: Callable[[], Plan[T]], kind: Kind = "look") -> T:
        files = self._files()
        if not files.is_identified:
            files = await self._identified(files)
        return await files.carry_out(plan(), kind)

    async def _attempt(self, plan: Callable[[], Plan[T]], *held: str) -> T:
        files = self._files()
        if not files.is_identified:
            files = await self._identified(files)
        if is_inline():
            with files.locks.hold_blocking(*held):
                return await self._carry_out(files, plan())
        async with files.locks.hold(*held):
            return await self._carry_out(files, plan())

    def _storage(self) -> Storage:
        return self._files()


def _store_of(given: BaseStore | object | None) -> BaseStore | None:
    """`given` if it is a store, or the store of a runtime; None if there is none."""
    if given is None or isinstance(given, BaseStore):
        return given
    if isinstance(given, type) or not hasattr(given, "store"):
        raise TypeError(f"store must be a BaseStore of LangGraph, not {given!r}")
    warn_deprecated("StoreBackend(runtime) is deprecated: StoreBackend() finds the runtime by itself")
    store = getattr(given, "store", None)
    return store if isinstance(store, BaseStore) else None
