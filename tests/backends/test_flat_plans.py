"""Plans alone, and plans that run on a storage that compares tags and on a storage that fails."""

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.flat import AsyncStorage, BlockingStorage, InlineStorage, StorageBackend
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import (
    BackendError,
    DeepFSError,
    IsDirectoryError,
    NotDirectoryError,
    NotFoundError,
    PermissionDeniedError,
)
from deepfs.operations import Delete, Edit, ListTree, Ls, Move, Write
from deepfs.search.request import FileFilter, GlobRequest, GrepRequest, SearchRequest
from deepfs.storage import plans as plans
from deepfs.storage.runners import Apply, Children, Find, Get, GetEach, List, Page, Plan, Stat, Together, Work
from deepfs.testing import BackendConformance
from deepfs.testing.suite import gather
from deepfs.text.flat_tree import Change, ChangedError, DecodedFiles, FileStat, FileTree, TaggedFiles, stat_of, stats_of
from deepfs.text.records import size_of
from deepfs.threads.deadline import Deadline
from deepfs.types import FileDataV2
from support.flat_trees import FileAndDirectory
from support.raw import file_of, raw_bytes

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


def test_listing_and_globbing_fetch_no_content() -> None:
    storage = holding("/d/a.txt", "/d/e/b.txt")
    assert played(plans.ls(Terms(), Ls("/d")), storage)[1] == [Children("/d/")]
    assert played(plans.list_tree(Terms(), ListTree("/d")), storage)[1] == [Stat(["/d"]), List("/d/")]
    request = GlobRequest("*.txt", "/d")
    found, asked = played(plans.glob(Terms(), request, FileFilter(request)), storage)
    assert ([info.path for info in found.matches], asked) == (["/d/a.txt", "/d/e/b.txt"], [List("/d/")])


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


def test_changes_carry_their_condition_sizes_and_tag() -> None:
    storage = holding("/a", "/b", size=5)
    _, asked = played(plans.move(Terms(), Move("/a", "/b", True)), storage)
    replaced, deleted = asked[-1].changes
    assert (replaced.condition, replaced.size_after, replaced.origin) == ("version", 5, 1)
    assert (deleted.condition, deleted.size_after, deleted.origin) == ("version", 0, 1)
    _, asked = played(plans.write(Terms(), Write("/c", "four", True)), storage)
    [created] = asked[-1].changes
    assert (created.condition, created.size_after) == ("create", 4)
    assert Change("/a", file_of(b"x"), None).condition == "replace"


@pytest.mark.parametrize(
    ("count", "size", "batches"), [(600, 1, [256, 256, 88]), (10, 3 * MIB, [2] * 5), (3, 9 * MIB, [1, 1, 1])]
)
def test_a_grep_fetches_in_bounded_batches(count: int, size: int, batches: list[int]) -> None:
    storage = holding(*(f"/{number:04}.txt" for number in range(count)), "/other.md", size=size)
    result, asked = played(grep_plan("/", "*.txt"), storage)
    assert [len(request.paths) for request in asked if isinstance(request, GetEach)] == batches
    assert len(result.matches) == count


def test_a_grep_with_enough_matches_fetches_no_more() -> None:
    storage = holding(*(f"/{number:04}.txt" for number in range(600)))
    result, asked = played(grep_plan("/", max_count=10), storage)
    assert [type(request) for request in asked] == [List, GetEach]
    assert (len(result.matches), result.truncated) == (10, True)


def test_a_grep_of_one_file_and_of_a_file_deleted_meanwhile() -> None:
    storage = holding("/a.txt", "/b.txt")
    result, _ = played(grep_plan("/a.txt"), storage)
    assert [match.path for match in result.matches] == ["/a.txt"]
    plan = grep_plan("/")
    assert isinstance(next(plan), List)
    work = plan.send(storage.list("/"))
    assert isinstance(work, Work)
    assert plan.send(work.run(Deadline())) == GetEach(["/a.txt", "/b.txt"])
    del storage.files["/a.txt"]
    work = plan.send(storage.get(["/a.txt", "/b.txt"]))
    assert isinstance(work, Work)
    with pytest.raises(StopIteration) as end:
        plan.send(work.run(Deadline()))
    assert [match.path for match in end.value.value.matches] == ["/b.txt"]
    with pytest.raises(NotFoundError):
        played(grep_plan("/none"), storage)


def test_a_grep_searches_a_file_and_foreign_files_beneath_it() -> None:
    result, _ = played(grep_plan("/x"), holding("/x", "/x/y", "/xy"))
    assert [match.path for match in result.matches] == ["/x", "/x/y"]


@pytest.mark.parametrize("has_contents", [True, False])
def test_a_glob_lists_foreign_files_beneath_a_file(has_contents: bool) -> None:
    class WithContents(Tagged):
        def list(self, prefix: str, limit: int | None = None) -> FileTree:  # type: ignore[override]
            return FileTree({path: data for path, (data, _) in self.files.items()})

    storage = WithContents() if has_contents else Tagged()
    storage.files = holding("/x", "/x/y", "/z").files
    request = GlobRequest("**", "/x")
    result, _ = played(plans.glob(Terms(), request, FileFilter(request)), storage)
    assert [match.path for match in result.matches] == ["/x/y"]
    of_file = GlobRequest("**", "/z")
    with pytest.raises(NotDirectoryError):
        played(plans.glob(Terms(), of_file, FileFilter(of_file)), storage)


def test_a_malformed_record_is_found_without_decoding_it() -> None:
    files = TaggedFiles(DecodedFiles({"/bad": {"no": "file"}}), {"/bad": 1})
    assert "/bad" in files
    assert stats_of(files)["/bad"] == FileStat()
    with pytest.raises(KeyError):
        stats_of(files)["/none"]


# --- a storage that compares tags ---


class RemoteFiles(AsyncStorage):
    """Tagged files behind async methods; other tasks may change them at each await."""

    def __init__(self, tagged: Tagged) -> None:
        self._tagged = tagged

    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        await anyio.lowlevel.checkpoint()
        return self._tagged.stat(paths)

    async def get(self, paths: Sequence[str]) -> Mapping[str, FileDataV2]:
        found = self._tagged.get(paths)
        await anyio.lowlevel.checkpoint()
        return found

    async def list(self, prefix: str, limit: int | None = None) -> Mapping[str, FileStat]:
        await anyio.lowlevel.checkpoint()
        return self._tagged.list(prefix, limit)

    async def apply(self, changes: Sequence[Change]) -> None:
        self._tagged.apply(changes)


class TaggedBackend(StorageBackend):
    """A backend that shares no lock with others over the same files, like backends in several processes."""

    def __init__(self, tagged: Tagged) -> None:
        super().__init__()
        self.tagged = tagged

    def _storage(self) -> RemoteFiles:
        return RemoteFiles(self.tagged)


@pytest.mark.suite_parts("Concurrency", "Cancellation", "Transfer", "Moving")
class TestTaggedBackend(BackendConformance, FileAndDirectory):
    """The suite, on a storage whose listings have no contents and that compares only tags."""

    @pytest.fixture
    def backend(self) -> TaggedBackend:
        self.tagged = Tagged()
        return TaggedBackend(self.tagged)

    async def raw_put(self, path: str, data: bytes) -> None:
        self.tagged.revision += 1
        self.tagged.files[path] = file_of(data), self.tagged.revision

    async def raw_peek(self, path: str) -> bytes | None:
        return raw_bytes(self.tagged.files[path][0]) if path in self.tagged.files else None


@pytest.mark.anyio
async def test_a_change_refused_by_the_storage_is_planned_again() -> None:
    tagged = Tagged()
    backends = [TaggedBackend(tagged) for _ in range(20)]
    assert (await backends[0].awrite("/log", "".join(f"<{number}>\n" for number in range(20)))).ok
    edits = [lambda number=number: backends[number].aedit("/log", f"<{number}>", f"({number})") for number in range(20)]
    assert [result.error for result in await gather(edits)] == [None] * 20
    assert tagged.files["/log"][0].content == "".join(f"({number})\n" for number in range(20))
    writes = [lambda number=number: backends[number].awrite("/new", str(number)) for number in range(20)]
    assert sorted(str(result.code) for result in await gather(writes)) == ["None", *["already_exists"] * 19]


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


class BlockingFiles(BlockingStorage):
    """Tagged files whose methods run in worker threads; every Exception counts as a failure of the driver."""

    failures = (Exception,)

    def __init__(self, tagged: Tagged) -> None:
        self._tagged = tagged

    def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        return self._tagged.stat(paths)

    def get(self, paths: Sequence[str]) -> TaggedFiles:
        return self._tagged.get(paths)

    def list(self, prefix: str, limit: int | None = None) -> Mapping[str, FileStat]:
        return self._tagged.list(prefix, limit)

    def apply(self, changes: Sequence[Change]) -> None:
        self._tagged.apply(changes)


class BlockingBackend(StorageBackend):
    def __init__(self, tagged: Tagged) -> None:
        super().__init__()
        self.tagged = tagged

    def _storage(self) -> BlockingFiles:
        return BlockingFiles(self.tagged)


@pytest.mark.anyio
async def test_deepfs_errors_do_not_count_as_failures_of_the_driver() -> None:
    changed = ChangedByOthers()
    changed.files["/a"] = file_of(b"a"), 0
    backend = BlockingBackend(changed)
    assert (await backend.aedit("/a", "a", "b")).error is None
    assert (await backend.aread("/none")).code == "file_not_found"
    assert (await backend.awrite("/a", "c")).code == "already_exists"


# --- a storage that fails, and one that refuses ---


class Failing(Tagged):
    """Tagged files whose primitives in `broken` fail."""

    failures = (ConnectionError,)
    broken: frozenset[str] = frozenset()

    def _check(self, name: str) -> None:
        if name in self.broken:
            raise ConnectionError("lost, at an address that nobody needs to know")

    def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        self._check("stat")
        return super().stat(paths)

    def get(self, paths: Sequence[str]) -> TaggedFiles:
        self._check("get")
        return super().get(paths)

    def list(self, prefix: str, limit: int | None = None) -> Mapping[str, FileStat]:
        self._check("list")
        return super().list(prefix, limit)

    def apply(self, changes: Sequence[Change]) -> None:
        self._check("apply")
        super().apply(changes)


class FailingBackend(StorageBackend):
    """A backend over failing files; records every change before it is stored, and refuses more bytes than `limit`."""

    is_synchronous = True
    limit = 10**9

    def __init__(self) -> None:
        super().__init__()
        self.failing = Failing()
        self.seen: list[tuple[str, int]] = []

    def _storage(self) -> Failing:
        return self.failing

    def _before_apply(self, changes: Sequence[Change]) -> Sequence[Change]:
        self.seen += [(change.path, change.size_after) for change in changes]
        if sum(change.size_after for change in changes) > self.limit:
            raise PermissionDeniedError("/", "no room is left")
        return changes


FAILED = "Error: The storage failed (ConnectionError)"


@pytest.mark.anyio
@pytest.mark.parametrize("broken", ["stat", "get", "list", "apply"])
async def test_an_error_of_any_primitive_is_a_result(broken: str) -> None:
    backend = FailingBackend()
    assert (await backend.awrite("/a", "one")).ok
    assert (await backend.awrite("/d/b", "one")).ok
    backend.failing.broken = frozenset([broken])
    results = [
        await backend.als("/"),
        await backend.als("/a"),
        await backend.aread("/a"),
        await backend.aread("/none"),
        await backend.aglob("*"),
        await backend.agrep("one"),
        await backend.awrite("/n", "x"),
        await backend.awrite("/a", "x", overwrite=True),
        await backend.aedit("/a", "one", "two"),
        await backend.acopy("/d", "/e"),
        await backend.amove("/d", "/f"),
        await backend.adelete("/d"),
    ]
    failed = [result.error for result in results if result.code == "backend_error"]
    assert failed == [FAILED] * len(failed)
    assert len(failed) >= 4
    uploads = await backend.aupload_files([("/u/1", b"1"), ("..", b""), ("/u/2", b"2")])
    expected = None if broken == "get" else "backend_error"
    assert [upload.error for upload in uploads] == [expected, "invalid_path", expected]
    downloads = await backend.adownload_files(["/none", ".."])
    expected = "backend_error" if broken in ("get", "list") else "file_not_found"
    assert [download.error for download in downloads] == [expected, "invalid_path"]


@pytest.mark.anyio
async def test_every_change_passes_before_apply_with_its_sizes() -> None:
    backend = FailingBackend()
    await backend.awrite("/a", "one")
    await backend.aedit("/a", "one", "three")
    await backend.acopy("/a", "/d/b")
    await backend.amove("/d", "/e")
    await backend.aupload_files([("/a", b"1"), ("/u", b"22")])
    await backend.adelete("/e")
    assert backend.seen == [
        *[("/a", 3), ("/a", 5), ("/d/b", 5), ("/e/b", 5), ("/d/b", 0)],
        *[("/a", 1), ("/u", 2), ("/e/b", 0)],
    ]
    backend.limit = 10
    assert (await backend.awrite("/big", "x" * 11)).code == "permission_denied"
    uploads = await backend.aupload_files([("/1", b"x" * 6), ("/2", b"x" * 6)])
    assert [upload.error for upload in uploads] == ["permission_denied"] * 2
    assert sorted(backend.failing.files) == ["/a", "/u"]


@pytest.mark.anyio
async def test_an_error_not_declared_as_a_storage_failure_is_raised() -> None:
    backend = FailingBackend()
    backend.failing.files["/a"] = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        await backend.aread("/a")


def test_stat_of_a_file_and_the_type_of_changed_error() -> None:
    assert stat_of(file_of(b"\0abc")).size == 4
    assert issubclass(ChangedError, DeepFSError)
    assert not issubclass(ChangedError, BackendError)


# --- candidates, and several requests at once ---


class Finding(Tagged):
    """Names the files of a search in pages of two; those whose path has `hint` are candidates of any search."""

    hint = ""
    gives_up_after: str | None = None
    as_of: str | None = None

    def find(self, request: SearchRequest, files: FileFilter, after: str | None) -> Page:
        candidates = [path for path in sorted(self.files) if path > (after or "") and self.hint in path][:2]
        gives_up = self.gives_up_after is not None and self.gives_up_after in candidates
        last = candidates[-1] if len(candidates) == 2 else None
        return Page(
            self.stat(candidates), last, skipped=1, truncated=gives_up, as_of="now" if request.fresh else self.as_of
        )


class FindingTerms(Terms):
    _finds = True


def finding(*paths: str) -> Finding:
    storage = Finding()
    storage.files = holding(*paths).files
    return storage


def found(storage: Finding, request: GlobRequest | GrepRequest) -> tuple[Any, list[type]]:
    plan: Any = plans.glob if isinstance(request, GlobRequest) else plans.grep
    result, asked = played(plan(FindingTerms(), request, FileFilter(request)), storage)
    return result, [type(each) for each in asked]


def test_candidates_come_in_pages_and_are_checked() -> None:
    storage = finding("/d/a.txt", "/d/b.md", "/d/c.txt", "/d/sub/d.txt", "/e.txt")
    result, asked = found(storage, GlobRequest("*.txt", "/d"))
    assert ([info.path for info in result.matches], result.truncated) == (
        ["/d/a.txt", "/d/c.txt", "/d/sub/d.txt"],
        False,
    )
    assert asked == [Find, Find, Find]
    result, asked = found(storage, GrepRequest("x", "/d", "*.txt"))
    assert [match.path for match in result.matches] == ["/d/a.txt", "/d/c.txt", "/d/sub/d.txt"]
    assert (result.skipped, result.truncated) == (3, False)
    assert asked == [Find, GetEach, Find, GetEach, Find]


def test_a_search_that_has_enough_asks_for_no_more_pages() -> None:
    storage = finding(*(f"/{number}" for number in range(8)))
    result, asked = found(storage, GrepRequest("x", max_count=1))
    assert ([match.path for match in result.matches], result.truncated, asked) == (["/0"], True, [Find, GetEach])


def test_a_storage_that_gives_up_truncates_the_result() -> None:
    storage = finding(*(f"/{number}" for number in range(8)))
    storage.gives_up_after = "/2"
    for request in (GlobRequest("*"), GrepRequest("x")):
        result, asked = found(storage, request)
        assert ([match.path for match in result.matches], result.truncated) == (["/0", "/1", "/2", "/3"], True)
        assert asked.count(Find) == 2


def test_a_search_without_candidates_still_says_what_is_missing() -> None:
    storage = finding("/d/a.txt", "/f")
    storage.hint = "no candidate"
    for request in (GlobRequest("*", "/d"), GrepRequest("x", "/d"), GlobRequest("*"), GrepRequest("x")):
        assert found(storage, request)[0].matches == []
    for missing in (GlobRequest("*", "/gone"), GrepRequest("x", "/gone")):
        with pytest.raises(NotFoundError):
            found(storage, missing)
    with pytest.raises(NotDirectoryError):
        found(storage, GlobRequest("*", "/f"))
    assert found(storage, GrepRequest("y", "/f"))[0].matches == []


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
    for fresh in (
        await tree.arun(GrepRequest("x", fresh=True)),
        await tree.arun(GlobRequest("*", fresh=True)),
    ):
        assert fresh.as_of == "now"
    with pytest.raises(TypeError, match="fresh"):
        await tree.agrep("x", fresh=True)  # type: ignore[call-arg]


class TogetherTerms(Terms):
    _asks_together = True


def test_what_can_be_asked_at_once_is_asked_at_once() -> None:
    def kinds(plan: Plan[Any]) -> list[type]:
        return [type(request) for request in played(plan, holding("/d/a.txt", "/b.txt"))[1]]

    terms = TogetherTerms()
    assert kinds(plans.write(terms, Write("/n/x", "", False))) == [Together, Apply]
    assert kinds(plans.write(terms, Write("/b.txt", "", True))) == [Together, Apply]
    uploads = [("/n", b"1"), ("/b.txt", b"2"), ("/m", b"3")]
    targets = [path for path, _ in uploads]
    assert kinds(plans.upload(terms, uploads, targets)) == [Stat, Together, Apply]
    for path in ("/d", "/"):
        with pytest.raises(IsDirectoryError):
            kinds(plans.write(terms, Write(path, "", True)))
    [refused], _ = played(plans.upload(terms, [("/d", b"")], ["/d"]), holding("/d/a.txt"))
    assert isinstance(refused, IsDirectoryError)


def test_batches_name_the_files_that_are_asked_for_next() -> None:
    storage = holding(*(f"/{number:04}" for number in range(600)))
    request = GrepRequest("x")
    _, asked = played(plans.grep(TogetherTerms(), request, FileFilter(request)), storage)
    gets = [each for each in asked if isinstance(each, GetEach)]
    assert [(len(each.paths), len(each.ahead)) for each in gets] == [(256, 344), (256, 88), (88, 0)]
    assert list(gets[0].ahead[:88]) == list(gets[1].paths[:88])


class Slow(AsyncStorage):
    """Answers only once `together` primitives wait at the same time."""

    def __init__(self, together: int) -> None:
        self._waiting, self._together, self._all = 0, together, anyio.Event()

    async def _meet(self) -> None:
        self._waiting += 1
        if self._waiting == self._together:
            self._all.set()
        await self._all.wait()

    async def stat(self, paths: Sequence[str]) -> Mapping[str, FileStat]:
        await self._meet()
        if "/bad" in paths:
            raise BackendError("/bad", "It failed.")
        return {}

    async def get(self, paths: Sequence[str]) -> Mapping[str, FileDataV2]:
        raise NotImplementedError

    async def list(self, prefix: str, limit: int | None = None) -> Mapping[str, FileStat]:
        await self._meet()
        return {}

    async def apply(self, changes: Sequence[Change]) -> None:
        """Stores nothing."""


class Concurrent(StorageBackend):
    _asks_together = True

    def _storage(self) -> Slow:
        return Slow(together=2)


@pytest.mark.anyio
async def test_an_async_storage_is_asked_at_once_and_its_error_is_the_result() -> None:
    with anyio.fail_after(10):
        assert (await Concurrent().awrite("/a", "x")).ok
        assert (await Concurrent().awrite("/bad", "x")).code == "backend_error"
