"""Plans alone, and plans that run on a storage that compares tags and on a storage that fails."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.flat import InlineStorage, StorageBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.operations import Delete, Edit, Move, Write
from deepfs.search.request import FileFilter, GlobRequest, GrepRequest, SearchRequest
from deepfs.storage import plans as plans
from deepfs.storage.runners import Apply, Get, GetEach, List, Page, Plan, Stat, Work
from deepfs.text.flat_tree import Change, ChangedError, FileStat, TaggedFiles
from deepfs.text.records import size_of
from deepfs.threads.deadline import Deadline
from deepfs.types import FileDataV2
from support.raw import file_of

MIB = 1024 * 1024


class Tagged(InlineStorage):
    """In-memory files, each with its revision as the tag; `apply` checks the condition and tag of every change."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[FileDataV2, int]] = {}
        self.revision = 0
        self.asked: list[Any] = []

    def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        return {path: self._stat(path) for path in paths if path in self.files}

    def _stat(self, path: str) -> FileStat:
        data, tag = self.files[path]
        return FileStat(size_of(data), data.modified_at, data.created_at, tag)

    def get(self, paths: Sequence[str]) -> TaggedFiles:
        found = {path: self.files[path] for path in paths if path in self.files}
        return TaggedFiles({path: data for path, (data, _) in found.items()}, {p: tag for p, (_, tag) in found.items()})

    def list(self, prefix: str, limit: int | None = None) -> Mapping[str, FileStat]:
        inside = sorted(path for path in self.files if path.startswith(prefix))
        return {path: self._stat(path) for path in inside[:limit]}

    def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            tag = self.files[change.path][1] if change.path in self.files else None
            if tag != change.origin or (change.condition == "create") != (tag is None):
                raise ChangedError(change.path)
        for change in changes:
            self.revision += 1
            self.files.pop(change.path, None)
            if change.after is not None:
                self.files[change.path] = change.after, self.revision


class Terms:
    """The parts of a backend that plans use."""

    _max_bytes = 10 * MIB
    _reads_before_change = False
    _asks_together = False
    _finds = False

    def _check_storable(self, path: str, data: FileDataV2) -> None:
        """Anything can be stored."""

    def _before_apply(self, changes: Sequence[Change]) -> Sequence[Change]:
        return changes


def grep_plan(path: str, glob: str | None = None, max_count: int | None = None) -> Plan[Any]:
    request = GrepRequest("x", path, glob, max_count=max_count)
    return plans.grep(Terms(), request, FileFilter(request))


def played(plan: Plan[Any], storage: Tagged) -> tuple[Any, list[Any]]:
    """The result of a plan, and its requests except for Work."""
    asked: list[Any] = []
    answer = None
    try:
        while True:
            request = plan.send(answer)
            if isinstance(request, Work):
                answer = request.run(Deadline())
            else:
                asked.append(request)
                answer = storage._answer(request)
    except StopIteration as end:
        return end.value, asked


def holding(*paths: str, size: int = 1) -> Tagged:
    storage = Tagged()
    storage.files = {path: (file_of(b"x" * size), 1) for path in paths}
    return storage


# --- requests of plans ---


def test_changes_fetch_content_only_if_they_need_it() -> None:
    def kinds(plan: Plan[Any]) -> list[type]:
        return [type(request) for request in played(plan, holding("/d/a.txt", "/b.txt"))[1]]

    terms = Terms()
    assert kinds(plans.write(terms, Write("/n/x", "", False))) == [Stat, List, Apply]
    assert kinds(plans.write(terms, Write("/b.txt", "", True))) == [Stat, Apply]
    assert kinds(plans.delete(terms, Delete("/b.txt"))) == [Stat, Apply]
    assert kinds(plans.delete(terms, Delete("/d"))) == [Stat, List, Apply]
    assert kinds(plans.edit(terms, Edit("/b.txt", "x", "y"))) == [Get, Apply]
    assert kinds(plans.move(terms, Move("/d", "/e", False))) == [Get, List, Get, Stat, List, Apply]
    assert kinds(plans.move(terms, Move("/b.txt", "/b.txt", False))) == [Stat]


@pytest.mark.parametrize(
    ("count", "size", "batches"), [(600, 1, [256, 256, 88]), (10, 3 * MIB, [2] * 5), (3, 9 * MIB, [1, 1, 1])]
)
def test_a_grep_fetches_in_bounded_batches(count: int, size: int, batches: list[int]) -> None:
    storage = holding(*(f"/{number:04}.txt" for number in range(count)), "/other.md", size=size)
    result, asked = played(grep_plan("/", "*.txt"), storage)
    assert [len(request.paths) for request in asked if isinstance(request, GetEach)] == batches
    assert len(result.matches) == count


# --- a storage that compares tags ---


class ChangedByOthers(Tagged):
    """Another process changes the file just before the first `apply`."""

    is_changed = False

    def apply(self, changes: Sequence[Change]) -> None:
        if not self.is_changed:
            self.is_changed = True
            self.revision += 1
            self.files[changes[0].path] = file_of(b"theirs a"), self.revision
        super().apply(changes)


class InlineBackend(StorageBackend):
    is_synchronous = True

    def __init__(self, storage: Tagged) -> None:
        super().__init__()
        self.storage = storage

    def _storage(self) -> Tagged:
        return self.storage


def test_a_refused_change_is_planned_again_without_an_event_loop() -> None:
    backend = InlineBackend(ChangedByOthers())
    assert backend.write("/new", "mine").code == "already_exists"
    backend.storage = changed = ChangedByOthers()
    changed.files["/a"] = file_of(b"a"), 0
    assert backend.edit("/a", "a", "b").error is None
    assert changed.files["/a"][0].content == "theirs b"


def test_an_error_not_declared_as_a_failure_of_the_storage_is_raised() -> None:
    backend = InlineBackend(Tagged())
    backend.storage.files["/a"] = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        backend.read("/a")


def test_a_declared_failure_of_the_storage_is_a_result_that_shows_only_its_type() -> None:
    class Lost(Tagged):
        failures = (ConnectionError,)

        def get(self, paths: Sequence[str]) -> TaggedFiles:
            raise ConnectionError("lost, at an address that nobody needs to know")

    read = InlineBackend(Lost()).read("/a")
    assert (read.code, read.error) == ("backend_error", "Error: The storage failed (ConnectionError)")


# --- candidates, and several requests at once ---


class Finding(Tagged):
    """Every file is a candidate of any search; the listing is as old as `as_of`."""

    as_of: str | None = None

    def find(self, request: SearchRequest, files: FileFilter, after: str | None) -> Page:
        as_of = "now" if request.fresh else self.as_of
        return Page(self.stat(sorted(self.files)), None, skipped=0, truncated=False, as_of=as_of)


def finding(*paths: str) -> Finding:
    storage = Finding()
    storage.files = holding(*paths).files
    return storage


@pytest.mark.anyio
async def test_results_carry_the_time_of_the_listing_that_they_rest_on() -> None:
    class Indexed(StorageBackend):
        _finds = True

        def __init__(self, as_of: str | None) -> None:
            super().__init__()
            self.storage = finding("/a")
            self.storage.as_of = as_of

        def _storage(self) -> Finding:
            return self.storage

    newer, older = Indexed("2026-02-02"), Indexed("2026-01-01")
    tree = WrapperBackend(CompositeBackend(newer, {"/m/": older, "/n/": Indexed(None)}))
    assert [(await tree.aglob("*", path)).as_of for path in ("/", "/m", "/n")] == ["2026-01-01", "2026-01-01", None]
    assert [(await tree.agrep("x", path)).as_of for path in ("/", "/m", "/n")] == ["2026-01-01", "2026-01-01", None]
    for fresh in (await tree.arun(GrepRequest("x", fresh=True)), await tree.arun(GlobRequest("*", fresh=True))):
        assert fresh.as_of == "now"
    with pytest.raises(TypeError, match="fresh"):
        await tree.agrep("x", fresh=True)  # type: ignore[call-arg]
