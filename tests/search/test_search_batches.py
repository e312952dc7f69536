"""Searches of one batch find the same as single searches, and read each file once."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deepfs.disk import Disk
from deepfs.errors import DeepFSError, PermissionDeniedError
from deepfs.search import disk as engines
from deepfs.search.disk import LocalSearch
from deepfs.search.gitignore import IgnoreOption
from deepfs.search.request import GlobRequest, GrepRequest, SearchRequest
from deepfs.search.ripgrep import Ripgrep, RipgrepError, RipgrepRun, find_ripgrep
from support import trees
from support.files import everything_in
from support.searches import Collecting as CollectingCall
from support.searches import one_by_one, run_alone
from support.trees import MAX_BYTES, many


def in_sub(path: str, *, is_dir: bool) -> bool:
    """Hides a part of the tree."""
    return path.startswith("/sub/a")


GREPS: list[SearchRequest] = [
    GrepRequest(text, None, glob, max_count=max_count, hidden=hidden, **options)
    for text, options in [
        ("needle", {}),
        ("e", {}),
        ("absent", {}),
        ("日本", {"context_lines": 1}),
        ("n..dle", {"regex": True}),
        ("NEEDLE", {"ignore_case": True}),
    ]
    for glob, max_count, hidden in [
        *((glob, max_count, None) for glob in (None, "**/*.txt", "sub/**") for max_count in (None, 2, 7)),
        (None, None, in_sub),
        (None, 3, in_sub),
    ]
]
GLOBS: list[SearchRequest] = [GlobRequest(pattern) for pattern in ("**", "**/*.txt", "sub/*", ".*", "absent")]


class Collecting(CollectingCall):
    """A call that collects its result, in a form that can be compared."""

    @property
    def answer(self) -> tuple[object, ...]:
        return () if self.outcome is None else fields_of(self.outcome)


def fields_of(answer: Callable[[], Any]) -> tuple[object, ...]:
    """The fields of a result, or the text of the error."""
    try:
        result = answer()
    except DeepFSError as error:
        return (str(error),)
    return (result.matches, result.truncated, getattr(result, "skipped", 0))


def local_search(
    root: Path, *, ripgrep: bool = False, ignore: IgnoreOption = None, disk: type[Disk] = Disk
) -> LocalSearch:
    return LocalSearch(disk(str(root)), max_bytes=MAX_BYTES, ignore=ignore, ripgrep=ripgrep)


def alone(searcher: LocalSearch, search: SearchRequest, root: str = "/") -> tuple[object, ...]:
    return fields_of(lambda: run_alone(searcher, search, root=root))


def together(searcher: LocalSearch, searches: list[SearchRequest], root: str = "/") -> list[tuple[object, ...]]:
    calls = [Collecting(search) for search in searches]
    searcher.run_batch(calls, root)  # type: ignore[arg-type]
    return [call.answer for call in calls]


# --- the same results ------------------------------------------------------------------------------------------------


@pytest.fixture(name="trap", scope="module")
def _trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.trap(tmp_path_factory.mktemp("trap"))


@pytest.fixture
def all_by_ripgrep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use ripgrep even for few files."""
    monkeypatch.setattr(engines, "FEW", 1)


@pytest.mark.usefixtures("all_by_ripgrep")
@pytest.mark.parametrize("ignore", [None, "git"], ids=str)
def test_searches_of_a_batch_find_the_same_as_alone(trap: Path, ignore: IgnoreOption) -> None:
    here, helped = (local_search(trap, ripgrep=ripgrep, ignore=ignore) for ripgrep in (False, True))
    for root in ("/", "/sub"):
        searches = [*GREPS, *GLOBS]
        expected = [alone(here, search, root) for search in searches]
        assert len({everything_in(answer) for answer in expected}) > 5
        assert together(here, searches, root) == expected
        assert together(helped, searches, root) == expected


@dataclass(frozen=True)
class RefusesEverySecond:
    """An access check that refuses about half of the files, links to them included."""

    def check(self, path: str, role: str, shown: str) -> None:
        if len(path) % 2:
            raise PermissionDeniedError(shown)


def test_a_batch_under_a_judge_finds_the_same_as_alone(trap: Path) -> None:
    searcher, judge = local_search(trap), RefusesEverySecond()

    def checked(*searches: SearchRequest) -> list[tuple[object, ...]]:
        calls = [Collecting(search) for search in searches]
        searcher.run_batch(calls, "/", access=judge)  # type: ignore[arg-type]
        return [call.answer for call in calls]

    expected = [checked(search)[0] for search in [*GREPS, *GLOBS]]
    assert checked(*GREPS, *GLOBS) == expected
    assert expected != together(searcher, [*GREPS, *GLOBS])
    found = [info.path for call in GLOBS for info in checked(call)[0][0]]  # type: ignore[attr-defined]
    assert found
    assert [path for path in found if len(path) % 2 and not (trap / path[1:]).is_symlink()] == []


@pytest.mark.usefixtures("all_by_ripgrep")
def test_if_ripgrep_fails_settled_results_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, found = many(tmp_path, 1000), find_ripgrep()
    assert found is not None
    early, late = (Collecting(GrepRequest(text)) for text in ("needle", "a"))
    told_early: list[str] = []

    class Failing(Ripgrep):
        def search(self, *args: Any, **options: Any) -> Any:
            run = super().search(*args, **options)
            monkeypatch.setattr(run, "_end", partial(fail, run))
            return run

    def fail(run: RipgrepRun) -> int:
        early.deadline.cancel()
        while not early.answer:
            run._deadline.check()
        told_early.append(everything_in(early.answer))
        raise RipgrepError("told to fail")

    monkeypatch.setattr(engines, "find_ripgrep", lambda: Failing(found._program))
    local_search(root, ripgrep=True).run_batch([early, late], "/")  # type: ignore[arg-type]
    assert told_early == [everything_in(early.answer)]
    assert "needle" in told_early[0]


# --- each file once --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("all_by_ripgrep")
def test_a_search_does_without_ripgrep_while_others_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name).write_text("needle")
    started: list[RipgrepRun] = []
    start = RipgrepRun.__enter__

    def counted(run: RipgrepRun) -> RipgrepRun:
        started.append(run)
        return start(run)

    monkeypatch.setattr(RipgrepRun, "__enter__", counted)
    searcher, search = local_search(tmp_path, ripgrep=True), GrepRequest("needle")
    for _ in range(2):  # A place is given back.
        with ExitStack() as others:
            for _ in range(engines._MOST_PROCESSES):
                others.enter_context(engines._processes)
            found = alone(searcher, search)
            assert not started
        assert alone(searcher, search) == found
        assert started.pop()
    assert len(found[0]) == 3  # type: ignore[arg-type]


# --- independent searches --------------------------------------------------------------------------------------------


class Slow(Disk):
    """Delays the walk at each file."""

    def walk_runs(self, *args: Any, **options: Any) -> Any:
        for run in one_by_one(super().walk_runs(*args, **options)):
            time.sleep(0.002)
            yield run


@pytest.mark.parametrize("place", [0, 1])
def test_a_cancelled_search_does_not_wait_for_the_others(tmp_path: Path, place: int) -> None:
    searcher = local_search(many(tmp_path, 400), disk=Slow)
    asks = [Collecting(GrepRequest("needle")), Collecting(GlobRequest("**"))]
    cancelled = asks[place]
    timer = threading.Timer(0.1, cancelled.deadline.cancel)
    timer.start()
    searcher.run_batch(asks, "/")  # type: ignore[arg-type]
    other = asks[1 - place]
    assert other.settled_at > cancelled.settled_at
    assert other.answer == alone(local_search(tmp_path), other.request)
