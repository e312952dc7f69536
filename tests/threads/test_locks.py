"""Locks on paths: which paths exclude each other, the order of grants, and that released locks are removed."""

import copy
import gc
import pickle
import random
import threading
import weakref
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepfs import FilesystemBackend
from deepfs.disk import file_locks
from deepfs.threads.locks import LockTable, PathLocks, Request, path_locks
from support.waiting import until_tasks_wait

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


@pytest.fixture
def locks() -> Iterator[PathLocks]:
    """Locks that must all be released at the end of the test."""
    locks = PathLocks()
    yield locks
    assert len(locks.table) == 0


def excludes(one: str, other: str) -> bool:
    """Whether two paths exclude each other; written independently of the code under test."""
    return (one + "/").replace("//", "/").startswith((other + "/").replace("//", "/")) or (
        len(one) < len(other) and excludes(other, one)
    )


def without_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that must not suspend."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


# --- the table -------------------------------------------------------------------------------------------------------


PATHS = st.lists(st.sampled_from("ab"), max_size=3).map(lambda names: "/" + "/".join(names))


@given(st.data())
def test_a_request_is_granted_exactly_when_no_earlier_one_excludes_it(data: st.DataObject) -> None:
    table = LockTable()
    line: list[tuple[Request, list[str]]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        if line and data.draw(st.booleans()):
            request, _ = line.pop(data.draw(st.integers(0, len(line) - 1)))
            table.leave(request)
        else:
            paths = data.draw(st.lists(PATHS, max_size=3))
            line.append((Request(paths), paths))
            table.enter(line[-1][0])
        for position, (request, paths) in enumerate(line):
            earlier = [path for _, those in line[:position] for path in those]
            assert request.is_granted is not any(excludes(path, other) for path in paths for other in earlier)
    for request, _ in line:
        table.leave(request)
    assert len(table) == 0


# --- tasks -----------------------------------------------------------------------------------------------------------


def test_locking_a_free_path_does_not_suspend(locks: PathLocks) -> None:
    async def hold() -> None:
        async with locks.hold("/a/b/c", "/a/d"), locks.hold("/e"):
            assert len(locks.table) > 0

    without_loop(hold())


async def test_a_cancelled_wait_is_removed_and_blocks_no_later_request(locks: PathLocks) -> None:
    passed: list[str] = []

    async def hold(path: str) -> None:
        async with locks.hold(path):
            passed.append(path)

    async with anyio.create_task_group() as group, locks.hold("/a/b"):
        async with anyio.create_task_group() as doomed:
            doomed.start_soon(hold, "/a")
            await until_tasks_wait()
            group.start_soon(hold, "/a/c")
            await until_tasks_wait()
            assert passed == []
            doomed.cancel_scope.cancel()
        await until_tasks_wait()
        assert passed == ["/a/c"]
    assert passed == ["/a/c"]


async def test_a_grant_just_before_the_wait_is_not_missed(locks: PathLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    first = locks.hold_blocking("/a")

    def released_meanwhile(*_: object) -> None:
        first.__exit__(None, None, None)

    first.__enter__()
    monkeypatch.setattr(LockTable, "drop_lost", released_meanwhile)
    with anyio.fail_after(10):
        async with locks.hold("/a"):
            pass


# --- threads ---------------------------------------------------------------------------------------------------------


class Watch:
    """Fails if two holders are inside whose paths exclude each other."""

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._inside: list[tuple[str, ...]] = []
        self.entries = 0

    @contextmanager
    def entered(self, paths: tuple[str, ...]) -> Iterator[None]:
        with self._guard:
            for others in self._inside:
                assert not any(excludes(path, other) for path in paths for other in others), (paths, others)
            self._inside.append(paths)
            self.entries += 1
        try:
            yield
        finally:
            with self._guard:
                self._inside.remove(paths)


def some_paths(chance: random.Random) -> tuple[str, ...]:
    return tuple("/" + "/".join(chance.choices("abc", k=chance.randint(1, 3))) for _ in range(chance.randint(1, 2)))


def test_mutual_exclusion_across_loops_and_threads(locks: PathLocks) -> None:
    watch = Watch()
    errors: list[BaseException] = []

    async def visit(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(20):
            paths = some_paths(chance)
            with anyio.move_on_after(chance.choice([0.0005, 10, 10])):
                async with locks.hold(*paths):
                    with watch.entered(paths):
                        await anyio.sleep(chance.choice([0, 0, 0.0002]))

    async def visitors(seed: int) -> None:
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(visit, seed + number)

    def visit_blocking(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(100):
            paths = some_paths(chance)
            with locks.hold_blocking(*paths), watch.entered(paths):
                pass

    def in_thread(kind: str, seed: int) -> None:
        try:
            if kind == "blocking":
                visit_blocking(seed)
            else:
                anyio.run(visitors, seed, backend=kind)
        except BaseException as error:
            errors.append(error)

    kinds = ["asyncio", "trio", "blocking"] * 2
    threads = [threading.Thread(target=in_thread, args=(kind, 100 * place)) for place, kind in enumerate(kinds)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []
    assert watch.entries > 400


# --- scopes ----------------------------------------------------------------------------------------------------------


async def test_equal_scopes_share_their_locks() -> None:
    async with path_locks(("disk", "/srv")).hold("/a"):
        with anyio.move_on_after(0.01) as waited:
            async with path_locks(("disk", "/srv")).hold("/a"):
                pytest.fail("held twice")
        assert waited.cancelled_caught
        async with path_locks(("disk", "/srv/other")).hold("/a"):
            pass


def test_copies_of_a_backend_share_its_locks(tmp_path: Path) -> None:
    backend = FilesystemBackend(tmp_path)
    for copied in (copy.copy(backend), copy.deepcopy(backend), pickle.loads(pickle.dumps(backend))):
        assert copied._locks is backend._locks is path_locks(("disk", str(tmp_path)))


def test_a_file_that_is_replaced_just_before_it_is_locked_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_text("old")
    try_lock = file_locks.try_lock

    def replaced(descriptor: int) -> bool:
        monkeypatch.setattr(file_locks, "try_lock", try_lock)
        other.write_text("another old")
        other.replace(file)
        return try_lock(descriptor)

    monkeypatch.setattr(file_locks, "try_lock", replaced)
    assert FilesystemBackend(tmp_path).edit("/a", "old", "new").ok
    assert file.read_text() == "another new"


def test_locks_do_not_keep_their_scope_alive() -> None:
    class Scope:
        pass

    scope = Scope()
    locks = path_locks(scope)
    with locks.hold_blocking("/a"):
        pass
    kept = weakref.ref(scope)
    del scope, locks
    gc.collect()
    assert kept() is None
