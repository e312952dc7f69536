"""Reads and changes the items of one namespace of a LangGraph store, without trust in what the store returns.

A store may fail after it has written, return other items than those asked for, or return fewer at once than there are.
So only items of the namespace are accepted, a listing holds all items or is an error, and after a failed change the
store is read again, so that the error reports what happened.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from langgraph.store.base import BaseStore, GetOp, Item, PutOp, SearchOp

from deepfs._drivers import FAILURES
from deepfs._langgraph import private as _langgraph
from deepfs.backends.namespace import Namespace
from deepfs.backends.store.tables import OvertakenError, Put, put_if_unchanged
from deepfs.errors import BackendError, DeepFSError
from deepfs.text.flat_tree import ChangedError, PartlyDoneError

_ALL: Final = 2**31 - 1
"""The page size: one page holds everything, if the store allows it. Paging by offset loses rows while others write."""
_MOST_KEYS: Final = 10_000
"""The most keys to ask for at once: each may be a parameter of one statement, and databases limit parameters."""
_LOOKS: Final = 3
"""The most times to look whether a single page holds everything, while other tasks change the store."""
_PASSES: Final = 10
"""The most times that all pages are read until two readings agree."""


# --- reading ---------------------------------------------------------------------------------------------------------


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


# --- changing --------------------------------------------------------------------------------------------------------


async def change(store: BaseStore, namespace: Namespace, puts: Sequence[Put], *, compares: bool) -> None:
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
