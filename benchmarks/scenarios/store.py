"""Listing and searching 10,000 items of a LangGraph store in a PostgreSQL database."""

from collections.abc import AsyncIterator, Callable, Collection, Hashable
from contextlib import asynccontextmanager
from functools import partial
from itertools import cycle, islice
from typing import Any, Final

from deepagents.backends import StoreBackend as PeerBackend
from langgraph.store.base import BaseStore, PutOp

from benchmarks import inputs, stores
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.peers import grep_rows, listed_paths
from benchmarks.record import Race
from deepfs.backends import StoreBackend

TITLE: Final = "StoreBackend over 10,000 items in PostgreSQL"

_ITEMS: Final = 10_000
_NAMESPACE: Final = ("assistant", "files")
_STAMP: Final = "2026-01-01T00:00:00+00:00"
_LINES: Final = 20

Rows = Callable[[Any], Collection[Hashable]]


async def measure(bench: Bench) -> None:
    """Race `ls`, `glob` and `grep` over items that were put in one batch."""
    async with _filled_store() as store:
        ls = await _race(bench, store, "als", ("/src/0007",), listed_paths)
        glob = await _race(bench, store, "aglob", ("*.py",), listed_paths)
        grep = await _race(bench, store, "agrep", ("import",), grep_rows)
    for name, race in (("ls", ls), ("glob", glob), ("grep", grep)):
        claim = f"StoreBackend {name} over {_ITEMS:,} items in PostgreSQL"
        bench.at_least(f"{claim}: at least 5× deepagents", 5, race.ratios("deepagents", "deepfs"))
        bench.complete(f"{claim}: complete", race, "deepfs")
    bench.note(
        f"Each item holds {_LINES} lines of Django. All were put in one batch, as an import does, so they changed at "
        "one time; deepagents asks for pages of 100 by time of change, which PostgreSQL may cut differently each time."
    )


async def _race(bench: Bench, store: BaseStore, operation: str, args: tuple[str, ...], rows: Rows) -> Race:
    shown = f"await fs.{operation}({', '.join(map(repr, args))})"
    backends: dict[str, Any] = {
        "deepfs": StoreBackend(store, namespace=_NAMESPACE),
        "deepagents": PeerBackend(store=store, namespace=lambda _: _NAMESPACE),
    }
    contenders = [
        Contender(
            name=name,
            call=shown,
            run=partial(getattr(backend, operation), *args),
            rows=rows,
            may_lose=name == "deepagents",
            own=name == "deepfs",
        )
        for name, backend in backends.items()
    ]
    return await bench.race(f"{shown}, {_ITEMS:,} items", contenders, noun="rows", rounds=9, seconds=9)


# --- the store -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _filled_store() -> AsyncIterator[BaseStore]:
    async with stores.postgres_store() as (store, _):
        await store.abatch([PutOp(_NAMESPACE, path, value) for path, value in _items()])
        yield store


def _items() -> list[tuple[str, dict[str, Any]]]:
    """Pieces of Django's sources, 100 in each directory."""
    pieces = islice(cycle(_pieces()), _ITEMS)
    data = {"encoding": "utf-8", "created_at": _STAMP, "modified_at": _STAMP}
    return [
        (f"/src/{number // 100:04}/{number % 100:02}.py", {"content": text, **data})
        for number, text in enumerate(pieces)
    ]


def _pieces() -> list[str]:
    found = []
    for text in inputs.python_files().values():
        lines = text.splitlines(keepends=True)
        found += ["".join(lines[start : start + _LINES]) for start in range(0, len(lines), _LINES)]
    return found
