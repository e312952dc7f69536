"""Foreign items among the files, keys that are not paths and values that are not files, do not break operations."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from deepfs.backends.flat import FlatBackend
from deepfs.backends.store import StoreBackend
from deepfs.text.flat_tree import Change
from deepfs.types import FileDataV2
from support.files import stored

pytestmark = pytest.mark.anyio

FOREIGN_KEYS: dict[str, Any] = {
    "no slash": "notes.md",
    "no slash, nested": "dir/notes.md",
    "parent": "/dir/../x",
    "dot": "/./x",
    "end": "/dir/x/",
    "double": "/dir//x",
    "empty": "",
    "root": "/",
    "NUL": "/dir/a\0b",
    "surrogate": "/dir/\ud800",
    "long name": f"/dir/{'x' * 256}",
    "long path": "/dir" + "/y" * 3000,
    "tilde": "~/x",
    "drive": "C:/x",
    "backslash": "\\dir\\x",
    "spaces": " ",
    "number": 7,
    "none": None,
    "bytes": b"/dir/x",
}
NO_FILES: dict[str, Any] = {
    "empty": {},
    "number": {"content": 7},
    "none": {"content": None},
    "lines": {"content": ["a", 7]},
    "huge integers": {"content": {"0": 10**100}},
    "negative": {"content": {"0": -1}},
    "encoding": {"content": "x", "encoding": ["utf-8"]},
    "base64": {"content": "====", "encoding": "base64"},
    "no base64": {"content": "é", "encoding": "base64"},
    "date": {"content": "x", "modified_at": 7},
    "surrogate": {"content": "\ud800"},
    "foreign": {"memory": "the user likes tea", "score": float("nan")},
}


class TableBackend(FlatBackend):
    """A backend as users write them, over a table into which other programs write too."""

    def __init__(self, table: dict[Any, FileDataV2]) -> None:
        super().__init__()
        self.table = table

    async def _fetch(self, wanted: Sequence[str]) -> Mapping[str, FileDataV2]:
        return {path: self.table[path] for path in wanted if path in self.table}

    async def _fetch_all(self) -> Mapping[str, FileDataV2]:
        return dict(self.table)

    async def _commit(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.after is None:
                self.table.pop(change.path, None)
            else:
                self.table[change.path] = change.after


class Holding:
    """A backend whose storage is filled and inspected directly, not through the backend."""

    def __init__(self, kind: str, records: Mapping[Any, Any]) -> None:
        self.store = InMemoryStore()
        self.table = {key: FileDataV2(value["content"]) for key, value in records.items() if kind == "table"}
        for key, value in records.items():
            self.store.put(("fs",), key, value)
        self.backend: FlatBackend = StoreBackend(self.store, namespace=("fs",))
        if kind == "table":
            self.backend = TableBackend(self.table)
        self.kind = kind

    def keys(self) -> set[Any]:
        return set(self.table) if self.kind == "table" else set(self.store._data["fs",])


@pytest.fixture(params=["store", "table"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_keys_that_are_not_paths_are_skipped_and_kept(kind: str) -> None:
    for key in FOREIGN_KEYS.values():
        await _check_skipped(kind, str(key) if kind == "store" else key)  # The store converts its keys to str.


async def _check_skipped(kind: str, key: Any) -> None:
    holding = Holding(kind, {key: stored(b"needle"), "/dir/a.txt": stored(b"needle"), "/b.txt": stored(b"b")})
    backend = holding.backend
    assert [info.path for info in (await backend.als("/")).entries or ()] == ["/b.txt", "/dir/"]
    assert [info.path for info in (await backend.als("/dir")).entries or ()] == ["/dir/a.txt"]
    assert [info.path for info in (await backend.aglob("**")).matches or ()] == ["/b.txt", "/dir/a.txt"]
    assert [info.path for info in (await backend.aglob("*", "/dir")).matches or ()] == ["/dir/a.txt"]
    found = await backend.agrep("needle")
    assert ([match.path for match in found.matches or ()], found.skipped) == (["/dir/a.txt"], 1)
    assert (await backend.agrep("needle", "/dir")).skipped == 0
    assert (await backend.agrep("needle", glob="*.txt")).skipped == 0
    assert (await backend.acopy("/dir", "/copy")).ok
    assert (await backend.amove("/dir", "/moved")).ok
    assert (await backend.awrite("/new/x.txt", "x")).ok
    assert (await backend.aupload_files([("/new/y.txt", b"y")]))[0].error is None
    assert (await backend.aedit("/new/x.txt", "x", "z")).ok
    assert (await backend.adelete("/copy")).ok
    assert holding.keys() == {key, "/b.txt", "/moved/a.txt", "/new/x.txt", "/new/y.txt"}
    for path in ("/moved", "/new", "/b.txt"):
        assert (await backend.adelete(path)).ok
    assert (await backend.als("/")).entries == []
    assert holding.keys() == {key}


async def test_operations_on_values_that_are_not_files_give_results() -> None:
    for value in NO_FILES.values():
        await _check_results(value)


async def _check_results(value: Any) -> None:
    holding = Holding("store", {"/dir/bad": value, "/dir/good": stored(b"needle")})
    backend = holding.backend
    assert [info.path for info in (await backend.als("/dir")).entries or ()] == ["/dir/bad", "/dir/good"]
    assert all((info.size or 0) >= 0 for info in (await backend.als("/dir")).entries or ())
    assert len((await backend.aglob("**")).matches or ()) == 2
    assert [match.path for match in (await backend.agrep("needle")).matches or ()] == ["/dir/good"]
    for result in (
        await backend.aread("/dir/bad"),
        await backend.aread_raw("/dir/bad"),
        await backend.aedit("/dir/bad", "a", "b"),
        await backend.acopy("/dir/bad", "/copied"),
        await backend.amove("/dir", "/moved"),
        await backend.adownload_files(["/dir/bad", "/dir/good"]),
    ):
        assert result is not None
    assert (await backend.awrite("/x", "x", if_match="none")).code == "conflict"
    for directory in [info.path for info in (await backend.als("/")).entries or () if info.is_dir]:
        assert (await backend.adelete(directory)).ok
    await backend.adelete("/copied")
    assert holding.keys() == set()
