"""Stores that fail, cap their answers or answer wrongly: results report what happened, partial changes included."""

import copy
from collections.abc import Iterable
from typing import Any

import anyio.from_thread
import anyio.to_thread
import hypothesis
import pytest
from hypothesis import strategies as st
from langgraph.store.base import Op, Result
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from deepfs.backends.store import StoreBackend
from deepfs.testing.model import Model, above, is_under, normal
from deepfs.testing.statemachine import Step, agree, concrete, of_backend, of_model, programs
from support.counts import few_or_many
from support.faulty_store import FAULTS, FaultyStore
from support.files import content_of, stored

pytestmark = pytest.mark.anyio

SPACE = ("fs",)


def over(store: Any) -> StoreBackend:
    return StoreBackend(store, namespace=SPACE)


def raw(store: InMemoryStore) -> dict[str, bytes | None]:
    return {key: content_of(item.value) for key, item in store._data[SPACE].items()}


# --- outcomes --------------------------------------------------------------------------------------------------------


async def test_a_change_that_took_effect_succeeds_although_the_store_raised() -> None:
    inner = InMemoryStore()
    store = FaultyStore(inner)
    backend = over(store)
    store.fault = "after"
    assert (await backend.awrite("/d/x", "1")).ok
    assert (await backend.awrite("/d/x", "2")).code == "already_exists"
    for change in (
        lambda: backend.aedit("/d/x", "1", "11", replace_all=True),
        lambda: backend.awrite("/d/x", "3", overwrite=True),
        lambda: backend.acopy("/d", "/e"),
        lambda: backend.adelete("/d/x"),
    ):
        store.fault = "after"
        result = await change()
        assert result.ok, result.error
        assert store.fault is None
    assert raw(inner) == {"/e/x": b"3"}
    store.fault = "after"
    assert [upload.error for upload in await backend.aupload_files([("/u/1", b"1"), ("/u/2", b"2")])] == [None, None]


# --- listings --------------------------------------------------------------------------------------------------------

MANY = [f"/dir/{number:03}.txt" for number in range(150)]


async def capped(cap: int = 100, store: type[FaultyStore] = FaultyStore) -> tuple[InMemoryStore, FaultyStore]:
    inner = InMemoryStore()
    for path in MANY:
        await inner.aput(SPACE, path, stored(b"needle"))
    await inner.aput((*SPACE, "child"), "/dir/none.txt", stored(b"needle"))
    return inner, store(inner, cap)


@pytest.mark.parametrize("cap", [1, 149, 150, 151])
async def test_operations_cover_all_files_of_a_store_that_caps_its_answers(cap: int) -> None:
    inner, store = await capped(cap)
    assert [info.path for info in (await over(store).als("/dir")).entries or ()] == MANY
    assert [info.path for info in (await over(store).aglob("*.txt")).matches or ()] == MANY
    assert [match.path for match in (await over(store).agrep("needle")).matches or ()] == MANY
    assert (await over(store).acopy("/dir", "/copy")).ok
    assert (await over(store).amove("/dir", "/moved")).ok
    assert sorted(raw(inner)) == sorted(path.replace("dir", to) for path in MANY for to in ("copy", "moved"))
    assert (await over(store).adelete("/moved")).ok
    assert (await over(store).adelete("/copy")).ok
    assert raw(inner) == {}


class LosesRows(FaultyStore):
    """Drops one row of each page, a different one each time, as if others changed files all the time."""

    turn = 0

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        answers = await super().abatch(ops)
        self.turn += 1
        for answer in answers:
            if isinstance(answer, list) and len(answer) > 40:
                del answer[self.turn % len(answer)]
        return answers


async def test_incomplete_listings_are_an_error_and_nothing_changes() -> None:
    inner, store = await capped(100, LosesRows)
    backend = over(store)
    for result in (
        await backend.adelete("/dir"),
        await backend.amove("/dir", "/to"),
        await backend.acopy("/dir", "/to"),
        await backend.als("/dir"),
        await backend.aglob("*"),
        await backend.agrep("needle"),
    ):
        assert result.code == "backend_error"
    assert sorted(raw(inner)) == MANY


class Malformed(InMemoryStore):
    """Returns `answer` instead of a list of results."""

    answer: Any = None

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return self.answer


async def test_a_malformed_answer_of_the_store_gives_a_failed_result() -> None:
    store = Malformed()
    backend = over(store)
    for store.answer in (None, [], [None, None], 7, [7], [[7]], [[None]], ["x"], [{"key": "/a"}]):
        for result in (
            await backend.als("/"),
            await backend.aread("/a"),
            await backend.awrite("/a", "x"),
            await backend.aedit("/a", "x", "y"),
            await backend.adelete("/a"),
            await backend.amove("/a", "/b"),
            await backend.agrep("x"),
        ):
            assert not result.ok, store.answer


# --- random programs -------------------------------------------------------------------------------------------------

PROGRAM = 20
"""The minimal number of steps in a program."""


def _after(files: dict[str, bytes], step: Step) -> dict[str, bytes]:
    """The files after a step."""
    model = Model()
    model.files = dict(files)
    of_model(model, step)
    return model.files


class Player:
    """Runs programs on a backend over a faulty store, each in its own namespace, and checks the stored files."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.played = 0
        self.happened: dict[str, int] = {}
        self.programs = 0

    async def play(self, program: list[Step], faults: list[str | None], cap: int | None) -> None:
        self.programs += 1
        self.space = ("fs", str(self.programs))
        self.store = FaultyStore(self.inner, cap)
        self.backend = StoreBackend(self.store, namespace=self.space)
        await self.inner.aput((*self.space, "child"), "/a/foreign", stored(b"x"))
        model = Model()
        earlier: list[dict[str, bytes]] = []
        for number, step in enumerate(program):
            self.played += 1
            before, step = dict(model.files), concrete(model, step)
            model = await self._step(model, earlier, step, faults[number % len(faults)])
            if any(up in model.files for path in model.files for up in above(path)):
                return  # A stale listing hid a directory, so the model cannot continue.
            if "stale" in self.store.happened:
                await self.backend.als("/")  # Replaces the cached stale listing.
            if model.files != before:
                earlier.append(before)

    async def raw(self) -> dict[str, bytes]:
        rows = await self.inner.asearch(self.space, limit=10_000)
        return {row.key: content_of(row.value) or b"" for row in rows if row.namespace == self.space}

    async def _step(self, model: Model, earlier: list[dict[str, bytes]], step: Step, fault: str | None) -> Model:
        before, after = dict(model.files), copy.deepcopy(model)
        expected = of_model(after, step)
        self.store.fault, self.store.happened = fault, []
        actual = await of_backend(self.backend, step)
        self.store.fault = None
        raw = await self.raw()
        message = f"{step!r} with {self.store.happened}: {actual!r}, not {expected!r}; {before} became {raw}"
        for happened in self.store.happened:
            self.happened[happened] = self.happened.get(happened, 0) + 1
        if set(self.store.happened) <= {"foreign", "repeat"}:
            assert agree(actual, expected), message
            assert raw == after.files, message
        else:
            # A stale listing may be older than several changes, so it may show the files of any earlier step.
            shown = earlier if "stale" in self.store.happened else []
            ends = [before, after.files, *(_after(files, step) for files in shown)]
            self._check_stored(step, before, raw, actual, after, expected, ends, message)
        if "stale" not in self.store.happened:
            assert not any(up in raw for path in raw for up in above(path)), message
        model.files = raw
        return model

    def _check_stored(
        self,
        step: Step,
        before: dict[str, bytes],
        raw: dict[str, bytes],
        actual: Any,
        after: Model,
        expected: Any,
        ends: list[dict[str, bytes]],
        message: str,
    ) -> None:
        """Check that the stored files agree with the result, for one of the listings that the store may have given."""
        happened = set(self.store.happened)
        if step.operation in ("upload_files", "change_files") and isinstance(actual, list):
            self._check_batch(step, before, raw, actual, message)
        elif actual == {"backend_error"}:
            if not happened & {"half", "blind"}:
                assert raw == before, message
            assert all(any(raw.get(path) == end.get(path) for end in ends) for path in {*before, *raw}), message
            if step.operation == "move":
                source = normal(step.arguments["src"])
                gone = [path for path in before if (path == source or is_under(path, source)) and path not in raw]
                assert all(before[path] in raw.values() for path in gone), message
        elif isinstance(actual, set):
            assert raw == before, message
        elif "stale" in happened:
            assert all(any(raw.get(path) == end.get(path) for end in ends) for path in {*before, *raw}), message
        else:
            assert agree(actual, expected), message
            assert raw == after.files, message

    def _check_batch(self, step: Step, before: Any, raw: Any, actual: list[Any], message: str) -> None:
        wanted: dict[str, bytes | None] = {}  # None is deleted.
        for (path, data, *_), error in zip(step.arguments["files"], actual, strict=True):
            if error is None or error == "backend_error":
                wanted[normal(path)] = data
        for (path, *_), error in zip(step.arguments["files"], actual, strict=True):
            if error is None:
                assert raw.get(normal(path)) == wanted[normal(path)], message
            elif error == "backend_error" and "blind" not in self.store.happened:
                assert raw.get(normal(path)) == before.get(normal(path)), message
        assert {path: data for path, data in raw.items() if path not in wanted} == {
            path: data for path, data in before.items() if path not in wanted
        }, message


@pytest.fixture(params=["memory", "sqlite"])
def inner(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Hypothesis warns because a database driver uses `random` on the loop while another thread draws a program.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("steps", few_or_many(300, 10_000))
async def test_stored_files_agree_with_the_reported_results(inner: str, steps: int) -> None:
    if inner == "memory":
        await play(Player(InMemoryStore()), steps)
    else:
        async with AsyncSqliteStore.from_conn_string(":memory:") as store:
            await play(Player(store), steps)


async def play(player: Player, steps: int) -> None:
    faults = st.permutations((*FAULTS, None, None, None))

    @hypothesis.settings(
        max_examples=-(-steps // PROGRAM) * 20,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(programs(), faults, st.sampled_from((None, 2, 3, 5)))
    def run(program: list[Step], faults: list[str | None], cap: int | None) -> None:
        # Some faults need a listing of several pages, which not every 300 steps have.
        if player.played < steps or not player.happened.keys() >= set(FAULTS):
            anyio.from_thread.run(player.play, program, faults, cap)

    await anyio.to_thread.run_sync(run)
    assert player.played >= steps
    assert player.happened.keys() >= set(FAULTS), player.happened
    print(f"{player.played} steps, faults: {player.happened}")
