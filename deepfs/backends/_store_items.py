"""The items of one namespace of a LangGraph store, whatever the store answers.

A store may fail after it has written, give other items than those asked for, or fewer at once than there are. Read here
is only what is an item of the namespace; a listing holds all items or is an error; and after a failed change the store
is read again, so that what is told of it is what happened.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from langgraph.store.base import BaseStore, GetOp, Item, PutOp, SearchOp

from deepfs._langgraph import private as _langgraph
from deepfs.backends._store_tables import OvertakenError, Put, can_compare, put_if_unchanged
from deepfs.backends.namespace import Namespace
from deepfs.errors import BackendError
from deepfs.text.flat_tree import ChangedError, PartlyDoneError

__all__ = ["change", "fetched", "listed"]

_ALL: Final = 2**31 - 1
"""One page holds everything, where the store allows: paging by offset loses rows while others write."""
_MOST_KEYS: Final = 10_000
"""Keys asked for at once: each may be a parameter of one statement, and databases limit these."""
_PASSES: Final = 10
"""How often all pages are read until two readings agree."""


# --- reading ---------------------------------------------------------------------------------------------------------


async def fetched(store: BaseStore, namespace: Namespace, keys: Sequence[str]) -> dict[str, Any]:
    """Those of the items with these keys that there are: their values by key."""
    if len(keys) > _MOST_KEYS:
        first = await fetched(store, namespace, keys[:_MOST_KEYS])
        return first | await fetched(store, namespace, keys[_MOST_KEYS:])
    answers = await _langgraph.batch(store, [GetOp(namespace, key) for key in keys])
    items = _items(_checked([item for item in answers if item is not None]), namespace)
    return {key: items[key] for key in keys if key in items}


async def listed(store: BaseStore, namespace: Namespace) -> dict[Any, Any]:
    """The values of all items of the namespace by key. BackendError where the store does not give all."""
    rows = await _page(store, namespace, 0)
    if rows and not _langgraph.lists_all(store) and await _is_cut(store, namespace, rows):
        return await _paged(store, namespace)
    return _items(rows, namespace)


_most: WeakKeyDictionary[BaseStore, int] = WeakKeyDictionary()
"""The most items that a store was seen to give at once: where it gives fewer, these are all."""


async def _is_cut(store: BaseStore, namespace: Namespace, rows: Sequence[Any]) -> bool:
    """Whether a store that gave these items at once has more, or cannot be trusted to have given all."""
    keys = _keys(rows)
    if len(set(keys)) < len(keys):
        return True
    if len(keys) < _most.get(store, 0):
        return False
    # From the last one on there is just this one. Anything else, none included, tells that there are more, or that rows
    # have moved; and one that gives a single item at once is asked what comes after it.
    last = SearchOp(namespace, limit=2, offset=len(keys) - 1)
    found, more = await _langgraph.batch(store, [last, SearchOp(namespace, limit=1, offset=len(keys))])
    if more or _keys(_checked(found)) != keys[-1:]:
        return True
    _most[store] = len(keys)
    return False


async def _paged(store: BaseStore, namespace: Namespace) -> dict[Any, Any]:
    """All items, page by page, as soon as two readings agree: a page may repeat rows of another or lose some."""
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
        # A row that comes twice is no step forward: rather is one read again than one passed over.
        offset, before = offset + max(1, len(seen.union(keys)) - len(seen)), keys
        seen.update(keys)
    return found


def _keys(rows: Iterable[Any]) -> list[tuple[Any, Any]]:
    return [(tuple(row.namespace), row.key) for row in rows]


async def _page(store: BaseStore, namespace: Namespace, offset: int, limit: int = _ALL) -> list[Any]:
    [rows] = await _langgraph.batch(store, [SearchOp(namespace, limit=limit, offset=offset)])
    return _checked(rows)


def _checked(rows: object) -> list[Any]:
    """`rows` as items; a store may be of any make."""
    if isinstance(rows, list | tuple) and all(map(_is_item, rows)):
        return list(rows)
    raise BackendError(None, "The store gave an answer that is no list of items.")


def _is_item(given: object) -> bool:
    if isinstance(given, Item) and type(given.key) is str:
        return True
    namespace, key = getattr(given, "namespace", None), getattr(given, "key", [])
    return isinstance(namespace, tuple | list) and isinstance(key, Hashable) and hasattr(given, "value")


def _items(rows: Iterable[Any], namespace: Namespace) -> dict[Any, Any]:
    """The values of those rows that are of this namespace.

    The search is by prefix: namespaces below this one, and on older stores beside it, come along.
    """
    return {row.key: row.value for row in rows if tuple(row.namespace) == namespace}


# --- changing --------------------------------------------------------------------------------------------------------


async def change(store: BaseStore, namespace: Namespace, puts: Sequence[Put]) -> None:
    """Store the changes, those that add before those that remove; where the table can be reached, all at once.

    Raises ChangedError, with nothing stored, where a record is another by now than the one that was read and the table
    tells; BackendError where the store failed and, as it shows afterwards, did nothing; PartlyDoneError where it did
    some of it, or where that cannot be told. A change that took effect is a success, however the store answered.
    """
    if can_compare(store):
        try:
            if await _put_compared(store, namespace, puts):
                return
        except BackendError as error:
            await _look(store, namespace, puts, puts, error)
            return
    await _put(store, namespace, puts)


_COMPARISONS: Final = 2
"""What changed and changed back between comparing and reading is no reason to do without."""


async def _put_compared(store: BaseStore, namespace: Namespace, puts: Sequence[Put]) -> bool:
    """Store what is as it was read, and return True; ChangedError where anything did change.

    False, with nothing stored, for what is as it was read, and yet not for the database, such as numbers that Python
    does not hold exactly.
    """
    for _ in range(_COMPARISONS):
        try:
            await put_if_unchanged(store, namespace, puts)
        except OvertakenError:
            raise
        except ChangedError:
            found = await fetched(store, namespace, [put.path for put in puts])
            if any(found.get(put.path) != put.before for put in puts):
                raise
        else:
            return True
    return False


async def _put(store: BaseStore, namespace: Namespace, puts: Sequence[Put]) -> None:
    added = [put for put in puts if put.after is not None]
    removed = [put for put in puts if put.after is None]
    for part in filter(None, (added, removed)):
        try:
            await _langgraph.batch(store, [PutOp(namespace, put.path, put.after) for put in part])
        except BackendError as error:
            await _look(store, namespace, puts, part, error)


async def _look(
    store: BaseStore, namespace: Namespace, puts: Sequence[Put], part: Sequence[Put], error: BackendError
) -> None:
    """After a failure of unknown outcome: return if all of `part` took effect, raise `error` if nothing did."""
    try:
        found = await fetched(store, namespace, [put.path for put in puts])
    except BackendError:
        raise PartlyDoneError("{cause} and cannot be read: it is not known what took effect", (), error) from error
    done = {put.path for put in puts if found.get(put.path) == put.after}
    undone = {put.path for put in puts if found.get(put.path) == put.before} - done
    if all(put.path in done for put in part):
        return
    if len(undone) == len(puts):
        raise error
    unknown = len(puts) - len(done) - len(undone)
    told = f", of {unknown} it is not known, since others changed these files as well" if unknown else ""
    raise PartlyDoneError(f"{{cause}}: of {len(puts)} changes {len(done)} took effect{told}", done, error) from error
