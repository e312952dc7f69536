"""Files in a LangGraph store, and an index of them that this process keeps between operations.

A store finds items by namespace only, so it takes a listing of everything to find out whether a path is a directory.
This process lists once, then applies its own changes to the index; a directory that another process made meanwhile is
not known here until the next listing. A listing reads all values: for large trees there are `SqliteBackend` and
`PostgresBackend`.

What the store returns is not trusted. It may fail after it has written, return other items than those asked for, or
return fewer at once than there are. So only items of the namespace are accepted, a listing holds all items or is an
error, and after a failed change the store is read again, so that the error reports what happened.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from langgraph.store.base import BaseStore, GetOp, Item, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from deepfs._deprecated import warn_deprecated
from deepfs._drivers import FAILURES
from deepfs._langgraph import private as _langgraph
from deepfs.backends.flat import RecordStorageBackend, records_of
from deepfs.backends.namespace import (
    Namespace,
    NamespaceFactory,
    check_namespace,
    choice_in,
    encode_namespace,
    fixed_or_chosen,
)
from deepfs.backends.protocol import Capabilities
from deepfs.backends.store.tables import (
    OvertakenError,
    Put,
    identify,
    is_identified,
    put_if_unchanged,
    select_inside,
    select_keys,
    select_values,
    storage_of,
)
from deepfs.backends.watching import run_and_report
from deepfs.errors import BackendError, DeepFSError
from deepfs.storage.runners import AsyncStorage, Kind, Listing, Plan, Storage
from deepfs.sync import is_inline
from deepfs.text import paths
from deepfs.text.entries import StoragePlace, flat_place
from deepfs.text.flat_tree import (
    Change,
    ChangedError,
    DecodedFiles,
    Directories,
    FileStat,
    FileTree,
    PartlyDoneError,
    stats_of,
)
from deepfs.threads.forks import ForkSafeLock
from deepfs.threads.locks import path_locks
from deepfs.types import FileFormat

__all__ = ["NamespaceFactory", "StoreBackend"]

T = TypeVar("T")

_MOST_IN_BATCH = 500
"""The most single reads that are made together: each is a parameter of one statement, and databases limit these."""
_MAX_NAMESPACES = 1024
"""Namespaces remembered for one storage; the one that was first seen longest ago is forgotten first."""


class _Index:
    """The known directories of one namespace, shared by all backends over it; None while they are not known."""

    def __init__(self) -> None:
        self.directories: Directories | None = None
        self.changes = 0
        """How often something changed here. A listing that began before the last change may lack it."""


class _Indexes:
    """The indexes of one storage, a store or a database."""

    def __init__(self) -> None:
        self.used: WeakValueDictionary[Namespace, _Index] = WeakValueDictionary()
        """All that are remembered here or used by a backend: there must not be two for one namespace."""
        self.recent: deque[_Index] = deque(maxlen=_MAX_NAMESPACES)

    def index(self, namespace: Namespace) -> _Index:
        index = self.used.get(namespace)
        if index is None:
            index = self.used.setdefault(namespace, _Index())
            self.recent.append(index)
        return index


_indexes: WeakKeyDictionary[Any, _Indexes] = WeakKeyDictionary()
_guards: WeakKeyDictionary[BaseStore, ForkSafeLock] = WeakKeyDictionary()
"""The lock of each store that never suspends: several threads may use it at once, each without an event loop."""


class _StoreFiles(AsyncStorage):
    """The items of one namespace of a store, as files; what is found out here would cost too much in each operation."""

    def __init__(self, store: BaseStore, namespace: Namespace, file_format: FileFormat) -> None:
        storage = storage_of(store)
        self.store = store
        self.namespace = namespace
        self.locks = path_locks((storage, namespace))
        self.apply_waits = not _langgraph.never_suspends(store)
        self._index = _indexes.setdefault(storage, _Indexes()).index(namespace)
        self._stored_namespace = encode_namespace(namespace)
        self._format = file_format
        # SQL may read the tables of LangGraph's own stores, unmodified, and change them as they do.
        self._selects = _langgraph.reads_plainly(store)
        self._compares = _langgraph.writes_plainly(store)
        self._guard: AbstractContextManager[None] = (
            nullcontext() if self.apply_waits else _guards.setdefault(store, ForkSafeLock())
        )
        self._reads: list[None] = []
        """An item for each read of a single file by SQL that is under way."""

    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        found = await self.get(paths)
        return stats_of(found) if found else {}

    async def get(self, paths: Sequence[str]) -> DecodedFiles:
        store, namespace, reads = self.store, self._stored_namespace, self._reads
        found: dict[str, Any] | None = None
        if self._selects and len(paths) == 1 and 0 < len(reads) < _MOST_IN_BATCH:
            # While others read, the queue of the store makes one statement of what several want.
            found = await fetch_in_batch(store, namespace, paths[0])
        elif self._selects:
            reads.append(None)  # Atomic, as is the removal: several threads may use the store.
            try:
                found = await select_values(store, namespace, paths)
            finally:
                reads.pop()
        if found is None:
            with self._guard:
                found = await fetch(store, namespace, paths)
        return DecodedFiles(found)

    async def list(self, prefix: str, limit: int | None = None) -> Listing:
        index = self._index
        if limit is not None:
            # Whether the directory exists, which costs nothing where the index has no such directory.
            if index.directories is None and self._selects:
                changes = index.changes
                directories = Directories(await select_keys(self.store, self._stored_namespace))
                if index.changes == changes:
                    index.directories = directories
            if index.directories is not None and (prefix[:-1] or "/") not in index.directories:
                return {}
            if self._selects:
                return dict.fromkeys(await select_keys(self.store, self._stored_namespace, prefix, limit), FileStat())
        if self._selects:
            changes = index.changes
            inside = "" if prefix == "/" else prefix  # At the root, keys that are no paths are listed as well.
            found = await select_inside(self.store, self._stored_namespace, inside)
            if found is not None:
                return self._tree(found, changes, is_whole=not inside)
        with self._guard:
            changes = index.changes
            return self._tree(await list_all(self.store, self._stored_namespace), changes, is_whole=True)

    def _tree(self, found: Mapping[Any, Any], changes: int, *, is_whole: bool) -> FileTree:
        """The tree of a listing that began after `changes` changes; its directories are remembered."""
        tree = FileTree(DecodedFiles(found))
        if is_whole and self._index.changes == changes:
            self._index.directories = tree.directories
        elif self._index.directories is not None:
            for key in found:
                self._index.directories.add(key)
        return tree

    async def apply(self, changes: Sequence[Change]) -> None:
        records = records_of(changes, self._format)
        puts = [Put(change.path, change.origin, records[change.path]) for change in changes]
        index = self._index
        try:
            with self._guard:
                await change_items(self.store, self._stored_namespace, puts, compares=self._compares)
                index.changes += 1
                if index.directories is not None:
                    index.directories.apply(changes)
        except BaseException:
            index.changes += 1
            index.directories = None  # Something may be stored that is not in it.
            raise


class StoreBackend(RecordStorageBackend):
    """Files in a LangGraph `BaseStore`, by its async methods only.

    Over `AsyncPostgresStore` and `AsyncSqliteStore` changes are conditional on what was read, so no edit is lost,
    whichever process or store object made it. Other stores have no compare-and-set: there edits exclude one another
    only within this process and for one store object.

    Args:
        store: The store; None is the one that the graph was compiled with. Older code passes the runtime, whose store
            is used, with a DeprecationWarning.
        namespace: A name, a tuple of names, or a factory of these that gets the `Runtime` of the running node (None
            outside a graph). Any identity of a user is a name. Only items of exactly this namespace are seen. None is
            the assistant's legacy namespace, with a DeprecationWarning.
        file_format: `"v2"`, or `"v1"` for the older form that holds text only. Both are read.
        max_file_size_mb: The largest file, in units of 1,048,576 bytes, that is read whole or searched.

    Raises:
        TypeError: `store` is no store, or another argument is of another type.
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
        namespace: str | Namespace | NamespaceFactory | None = None,
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
        chosen = ("assistant_id", _legacy_namespace) if namespace is None else ("namespace", namespace)
        self._namespace = fixed_or_chosen(*chosen, check_namespace)
        self._choice = choice_in(self._namespace)
        self._given_namespace = namespace if namespace is None or callable(namespace) else self._namespace()

    def _store(self) -> BaseStore:
        return self._given_store if self._given_store is not None else _langgraph.current_store()

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

    async def _identify_files(self) -> _StoreFiles:
        """The files of one operation, in an identified store: all backends over one database share locks and index.

        Those of the last operation are taken again, if it had the same store and namespace.
        """
        store, namespace, last = self._store(), self._namespace(), self._last
        if last is not None and last.store is store and last.namespace == namespace:
            return last
        if not is_identified(store):
            await identify(store)
        self._last = files = _StoreFiles(store, namespace, self._file_format)
        return files

    @asynccontextmanager
    async def _hold(self, *held: str) -> AsyncIterator[None]:
        async with (await self._identify_files()).locks.hold(*held):
            yield

    async def _look(self, plan: Callable[[], Plan[T]], kind: Kind = "look") -> T:
        return await (await self._identify_files()).carry_out(plan(), kind)

    async def _attempt(self, plan: Callable[[], Plan[T]], *held: str) -> T:
        files = await self._identify_files()
        if is_inline():
            with files.locks.hold_blocking(*held):
                return await run_and_report(files, plan(), self._scope)
        async with files.locks.hold(*held):
            return await run_and_report(files, plan(), self._scope)

    def _storage(self) -> Storage:
        return _StoreFiles(self._store(), self._namespace(), self._file_format)


def _legacy_namespace(runtime: object) -> Namespace:
    return _langgraph.legacy_namespace()


def _store_of(given: BaseStore | object | None) -> BaseStore | None:
    """`given` if it is a store, or the store of a runtime; None if there is none."""
    if given is None or isinstance(given, BaseStore):
        return given
    if isinstance(given, type) or not hasattr(given, "store"):
        raise TypeError(f"store must be a BaseStore of LangGraph, not {given!r}")
    warn_deprecated("StoreBackend(runtime) is deprecated: StoreBackend() finds the runtime by itself")
    store = getattr(given, "store", None)
    return store if isinstance(store, BaseStore) else None


_ALL: Final = 2**31 - 1
"""The page size: one page holds everything, if the store allows it. Paging by offset loses rows while others write."""
_MOST_KEYS: Final = 10_000
"""The most keys to ask for at once: each may be a parameter of one statement, and databases limit parameters."""
_LOOKS: Final = 3
"""The most times to look whether a single page holds everything, while other tasks change the store."""
_PASSES: Final = 10
"""The most times that all pages are read until two readings agree."""


# --- reading items ---------------------------------------------------------------------------------------------------


async def fetch(store: BaseStore, namespace: Namespace, keys: Sequence[str]) -> dict[str, Any]:
    """The values of the items with these keys, by key; missing items are left out."""
    if len(keys) > _MOST_KEYS:
        first = await fetch(store, namespace, keys[:_MOST_KEYS])
        return first | await fetch(store, namespace, keys[_MOST_KEYS:])
    answers = await _langgraph.batch(store, [GetOp(namespace, key) for key in keys])
    found: dict[str, Any] = {}
    item: Any
    for item in answers:
        if item is not None:
            _check_item(item)
            if tuple(item.namespace) == namespace:
                found[item.key] = item.value
    return {key: found[key] for key in keys if key in found} if found else found


async def fetch_in_batch(store: BaseStore, namespace: Namespace, key: str) -> dict[str, Any]:
    """The value of one item by its key, read together with others; empty if the item is missing."""
    item: Any = await _langgraph.get_in_batch(store, namespace, key)
    if item is None:
        return {}
    _check_item(item)
    return {key: item.value} if item.key == key and tuple(item.namespace) == namespace else {}


_most: WeakKeyDictionary[BaseStore, int] = WeakKeyDictionary()
"""The most items that each store has returned at once: if it returns fewer, these are all."""


async def list_all(store: BaseStore, namespace: Namespace) -> dict[Any, Any]:
    """The values of all items of the namespace, by key. Raises BackendError if the store does not return all."""
    rows = await _page(store, namespace)
    if not rows or _langgraph.lists_all(store) or (_are_different(rows) and len(rows) < _most.get(store, 0)):
        return _items(rows, namespace)
    for _ in range(_LOOKS):
        # A page that begins near the end of the first one would go on beyond it, if the store had cut that one. Both
        # are asked for in one batch, since others may change the store meanwhile. The last item alone does not show
        # anything about a store that returns a single item at once.
        last = max(1, len(rows) - 1)
        pages = [SearchOp(namespace, limit=_ALL), SearchOp(namespace, limit=_ALL, offset=last)]
        rows, rest = map(_check_items, await _langgraph.batch(store, pages))
        if _keys(rest) == _keys(rows)[last:] and _are_different(rows):
            _most[store] = max(len(rows), _most.get(store, 0))
            return _items(rows, namespace)
    return await _read_pages(store, namespace)


def _are_different(rows: Sequence[Any]) -> bool:
    return len(set(_keys(rows))) == len(rows)


async def _read_pages(store: BaseStore, namespace: Namespace) -> dict[Any, Any]:
    """All items, read in pages until two readings agree: a page may repeat rows of another, and rows may be missed."""
    before: dict[Any, Any] | None = None
    for _ in range(_PASSES):
        now = await _all_pages(store, namespace)
        if before is not None and before.keys() == now.keys():
            return now
        before = now
    raise BackendError(
        None, "The store gives its items in pages, and these did not agree: others are changing many files. Try again."
    )


async def _all_pages(store: BaseStore, namespace: Namespace) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    seen: set[tuple[Any, Any]] = set()
    offset, before = 0, None
    while page := await _page(store, namespace, offset):
        keys = _keys(page)
        if keys == before:
            raise BackendError(None, "The store gives no more than a part of its items, the same for each offset.")
        found |= _items(page, namespace)
        # Repeated rows do not advance the offset: reading a row twice is better than missing one.
        offset, before = offset + max(1, len(seen.union(keys)) - len(seen)), keys
        seen.update(keys)
    return found


def _keys(rows: Iterable[Any]) -> list[tuple[Any, Any]]:
    return [(tuple(row.namespace), row.key) for row in rows]


async def _page(store: BaseStore, namespace: Namespace, offset: int = 0) -> list[Any]:
    [rows] = await _langgraph.batch(store, [SearchOp(namespace, limit=_ALL, offset=offset)])
    return _check_items(rows)


def _check_items(rows: object) -> list[Any]:
    """Return `rows` as a list. Raises BackendError unless they are items: a store may return anything."""
    if not isinstance(rows, list | tuple):
        raise _no_items()
    for row in rows:
        _check_item(row)
    return list(rows)


def _check_item(given: object) -> None:
    """Raise BackendError unless `given` is an item."""
    if isinstance(given, Item) and type(given.key) is str:
        return
    namespace, key = getattr(given, "namespace", None), getattr(given, "key", [])
    if not (isinstance(namespace, tuple | list) and isinstance(key, Hashable) and hasattr(given, "value")):
        raise _no_items()


def _no_items() -> BackendError:
    return BackendError(None, "The store gave an answer that is no list of items.")


def _items(rows: Iterable[Any], namespace: Namespace) -> dict[Any, Any]:
    """The values of the rows of this namespace, by key.

    A store searches by prefix, so it also returns items of namespaces below this one and, if it is older, beside it.
    """
    return {row.key: row.value for row in rows if tuple(row.namespace) == namespace}


# --- changing items --------------------------------------------------------------------------------------------------


async def change_items(store: BaseStore, namespace: Namespace, puts: Sequence[Put], *, compares: bool) -> None:
    """Store the changes, additions before removals; if the table can be reached by SQL (`compares`), as a whole.

    Raises ChangedError, with nothing stored, if the table shows that a record is not the one that was read;
    BackendError if the store failed, and reading it again shows that nothing was stored; PartlyDoneError if some
    changes were stored, or if that is not known. Changes that took effect are a success, even if the store failed.
    """
    if compares:
        try:
            if await _put_compared(store, namespace, puts):
                return
        except FAILURES as error:
            await _look(store, namespace, puts, puts, error)
            return
    removed = [put for put in puts if put.after is None]
    for part in ([put for put in puts if put.after is not None] if removed else puts, removed):
        if part:
            try:
                await _langgraph.batch(store, [PutOp(namespace, put.path, put.after) for put in part])
            except FAILURES as error:
                await _look(store, namespace, puts, part, error)


_COMPARISONS: Final = 2
"""How often to compare: a record may change, and change back before it is read to confirm the difference."""


async def _put_compared(store: BaseStore, namespace: Namespace, puts: Sequence[Put]) -> bool:
    """Store the changes and return True if the records are as they were read; raise ChangedError if any is not.

    Returns False, with nothing stored, if the records are as they were read, but not for the database, as with numbers
    that Python does not hold exactly.
    """
    for _ in range(_COMPARISONS):
        try:
            await put_if_unchanged(store, namespace, puts)
        except OvertakenError:
            raise
        except ChangedError:
            found = await fetch(store, namespace, [put.path for put in puts])
            if any(found.get(put.path) != put.before for put in puts):
                raise
        else:
            return True
    return False


async def _look(
    store: BaseStore, namespace: Namespace, puts: Sequence[Put], part: Sequence[Put], error: DeepFSError
) -> None:
    """Find out the outcome of a failed `part` of `puts`: return if all of it took effect.

    Raises `error` if none of `puts` took effect, else PartlyDoneError.
    """
    try:
        found = await fetch(store, namespace, [put.path for put in puts])
    except FAILURES:
        raise PartlyDoneError("{cause} and cannot be read: it is not known what took effect", (), error) from error
    done = {put.path for put in puts if found.get(put.path) == put.after}
    undone = {put.path for put in puts if found.get(put.path) == put.before} - done
    if all(put.path in done for put in part):
        return
    if len(undone) == len(puts):
        raise error
    unknown = len(puts) - len(done) - len(undone)
    remark = f", of {unknown} it is not known, since others changed these files as well" if unknown else ""
    raise PartlyDoneError(f"{{cause}}: of {len(puts)} changes {len(done)} took effect{remark}", done, error) from error
