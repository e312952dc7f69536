"""RedisBackend over connections that break and servers that crash: no change is lost, and none is made twice."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from deepfs.backends.redis import RedisBackend
from deepfs.backends.redis.scripts import APPLY
from deepfs.storage.runners import RetryPolicy
from deepfs.testing.suite import gather
from support.cutting_proxy import CuttingProxy, proxied
from support.redis_server import RedisKeys, RedisServer, fresh_redis_namespace, running_redis

pytestmark = pytest.mark.anyio

SECRET = "s3cr3t"
POLICY = RetryPolicy(first_delay=0.001, longest_delay=0.05, attempts=8)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[CuttingProxy]:
    async with proxied(redis_server.socket) as proxy:
        yield proxy


@pytest.fixture
def keys(redis_server: RedisServer) -> RedisKeys:
    return RedisKeys(redis_server, fresh_redis_namespace())


@pytest.fixture
async def backend(proxy: CuttingProxy, keys: RedisKeys) -> AsyncIterator[RedisBackend]:
    url = f"redis://127.0.0.1:{proxy.port}/0"
    async with RedisBackend(url, keys.namespace, retries=POLICY) as backend:
        assert (await backend.als("/")).ok
        yield backend


@pytest.fixture
async def other(keys: RedisKeys) -> AsyncIterator[RedisBackend]:
    """A backend whose connections do not break."""
    async with RedisBackend(keys.server.url, keys.namespace) as other:
        yield other


Call = Callable[[RedisBackend, int], Awaitable[Any]]

CALLS: dict[str, Call] = {
    "create": lambda backend, n: backend.awrite(f"/new/{n}", f"{n}"),
    "edit": lambda backend, n: backend.aedit("/log", "|", f"{n},|"),
    "overwrite": lambda backend, n: backend.awrite("/log", f"{n},", overwrite=True),
    "upload": lambda backend, n: backend.aupload_files([(f"/up/{n}/a", b"\0"), (f"/up/{n}/b", b"text")]),
    "delete": lambda backend, n: backend.adelete(f"/gone/{n}"),
    "move": lambda backend, n: backend.amove(f"/{n - 1}", f"/{n}"),
}
STEPS = {"create": 1, "edit": 13, "overwrite": 1, "upload": 7, "delete": 7, "move": 19}
"""How many bytes lie between two cuts of answers. Those of an edit hold the content, which each edit makes longer."""
STEP_OF_REQUESTS = 67


@pytest.mark.parametrize("direction", ["answer", "request"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_connection_that_is_cut_at_any_byte_loses_and_repeats_no_change(
    backend: RedisBackend, other: RedisBackend, proxy: CuttingProxy, name: str, direction: Any
) -> None:
    """Each operation succeeds, since it is sent again, unless it was made."""
    await other.awrite("/log", "|")
    await other.awrite("/-1/f", "x")
    gone = [(f"/gone/{each}", b"x") for each in range(300 if name == "delete" else 0)]
    assert {each.error for each in await other.aupload_files(gone)} <= {None}
    number, step = 0, STEPS[name] if direction == "answer" else STEP_OF_REQUESTS
    while True:
        proxy.cut(number * step, direction)
        outcome = await CALLS[name](backend, number)
        assert {each.error for each in (outcome if isinstance(outcome, list) else [outcome])} == {None}
        if proxy.relent():
            break
        number += 1
    assert number > 2
    assert proxy.cuts >= number
    if name == "edit":
        assert (await other.aread("/log")).unwrap().content == "".join(f"{n}," for n in range(number + 1)) + "|"
    elif name == "create":
        listed = (await other.als("/new")).entries or ()
        assert sorted(int(entry.path[5:]) for entry in listed) == list(range(number + 1))
    elif name == "upload":
        found = await other.adownload_files([f"/up/{number}/a", f"/up/{number}/b"])
        assert [each.content for each in found] == [b"\0", b"text"]
    elif name == "delete":
        assert len((await other.als("/gone")).entries or ()) == 299 - number
    elif name == "move":
        assert [entry.path for entry in (await other.als("/")).entries or ()] == [f"/{number}/", "/log"]


async def test_reads_are_sent_again(backend: RedisBackend, proxy: CuttingProxy) -> None:
    assert (await backend.awrite("/d/a", "text\n" * 50)).ok
    for offset in range(0, 400, 13):
        proxy.cut(offset)
        results = [
            await backend.aread("/d/a"),
            await backend.als("/d"),
            await backend.agrep("text"),
            await backend.aglob("*"),
        ]
        assert [result.error for result in results] == [None] * 4
        proxy.relent()
    assert proxy.cuts > 20


async def test_a_request_that_arrives_late_changes_nothing(
    backend: RedisBackend, other: RedisBackend, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the one that was sent in its place made the change, or was refused."""
    assert (await other.awrite("/log", "|")).ok
    run = backend._client._run
    sent: dict[bytes, Callable[[], Awaitable[Any]]] = {}

    async def lose_first(script: Any, keys: Any, *given: Any) -> Any:
        if script is APPLY and keys[1] not in sent:
            sent[keys[1]] = partial(run, script, keys, *given)
            raise ConnectionResetError  # It is still on its way.
        return await run(script, keys, *given)

    monkeypatch.setattr(backend._client, "_run", lose_first)
    assert (await backend.aedit("/log", "|", "once,|")).ok
    assert (await backend.awrite("/a", "x", overwrite=True)).ok
    assert (await backend.awrite("/log", "x")).code == "already_exists"
    assert (await backend.adelete("/a")).ok
    assert (await backend.awrite("/a", "x")).ok
    assert (await other.adelete("/log")).ok
    assert (await other.adelete("/a")).ok
    assert len(sent) == 5
    for send in sent.values():
        await send()
    assert (await other.als("/")).entries == []


async def test_a_change_of_another_between_a_lost_answer_and_the_look_is_not_taken_for_ours(
    backend: RedisBackend, other: RedisBackend, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has another version by then; the outcome is still there."""
    assert (await backend.awrite("/log", "|")).ok
    run, seen = backend._client._run, 0

    async def meanwhile(script: Any, *given: Any) -> Any:
        nonlocal seen
        seen += script is APPLY
        if script is APPLY and seen == 1:
            proxy.cut(0)
        elif script is APPLY and seen == 2:
            assert (await other.aedit("/log", "|", "other,|")).ok
        return await run(script, *given)

    monkeypatch.setattr(backend._client, "_run", meanwhile)
    assert (await backend.aedit("/log", "|", "own,|")).ok
    assert proxy.cuts == 1
    assert (await other.aread("/log")).unwrap().content == "own,other,|"


async def test_an_outcome_that_stays_unknown_is_told_as_unknown(
    backend: RedisBackend, other: RedisBackend, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = backend._client._run

    async def lose(*given: Any) -> Any:
        proxy.cut(0)
        try:
            return await run(*given)
        finally:
            proxy.is_open = False

    monkeypatch.setattr(backend._client, "_run", lose)
    result = await backend.awrite("/a", "x")
    assert result.code == "backend_error"
    assert "it is not known whether the change was made" in (result.error or "")
    assert (await other.aread("/a")).ok


async def test_a_server_that_does_not_answer_is_a_clear_error_until_it_is_back(
    backend: RedisBackend, proxy: CuttingProxy, keys: RedisKeys
) -> None:
    assert (await backend.awrite("/a", "x")).ok
    unreachable = RedisBackend(f"redis://u:{SECRET}@127.0.0.1:1/0", "a", retries=RetryPolicy(attempts=1))
    for result in (await unreachable.aread("/a"), await unreachable.awrite("/b", "x")):
        assert (result.code, result.error) == ("backend_error", "Error: The server failed: connection refused")
    await unreachable.aclose()
    proxy.is_open = False
    proxy.break_all()
    for result in (await backend.aread("/a"), await backend.awrite("/b", "x"), await backend.agrep("x")):
        assert result.code == "backend_error"
        assert str(proxy.port) not in (result.error or "")
    proxy.is_open = True
    assert (await backend.amove("/a", "/c")).error is None
    assert [info.path for info in (await backend.aglob("**")).matches or ()] == ["/c"]


async def test_operations_that_are_cancelled_leave_nothing(backend: RedisBackend, other: RedisBackend) -> None:
    """What is under way when the caller gives up is done or not, and its connection answers nobody else."""
    assert (await other.awrite("/log", "".join(f"<{n}>" for n in range(200)))).ok

    async def give_up(number: int) -> None:
        with anyio.move_on_after(number * 0.0001):
            await backend.aedit("/log", f"<{number}>", f"({number})")
        with anyio.move_on_after(number * 0.00005):
            await backend.aread(f"/none-{number}")

    await gather([partial(give_up, number) for number in range(200)])
    content = (await backend.aread("/log")).unwrap().content
    assert content == (await other.aread("/log")).unwrap().content
    assert all((f"<{n}>" in content) != (f"({n})" in content) for n in range(200))
    assert (await backend.als("/")).entries == (await other.als("/")).entries
    with anyio.fail_after(5):
        assert (await backend.awrite("/log", "free", overwrite=True)).ok


async def test_a_watch_goes_on_where_it_was_after_a_break(
    backend: RedisBackend, other: RedisBackend, proxy: CuttingProxy
) -> None:
    events = backend.awatch("/")
    assert (await anext(events)).kind == "resync"
    for number in range(5):
        proxy.break_all()
        assert (await other.awrite(f"/{number}", "1")).ok
        with anyio.fail_after(10):
            event = await anext(events)
        assert (event.path, event.kind) == (f"/{number}", "created")
    await events.aclose()


# --- a server that crashes -------------------------------------------------------------------------------------------


@pytest.fixture
def crashing() -> Iterator[RedisServer]:
    with running_redis("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.mark.needs("redis-server")
@pytest.mark.parametrize("crashes", [20])
async def test_a_server_that_crashes_in_the_middle_of_many_operations(crashing: RedisServer, crashes: int) -> None:
    """It is killed, and started again: all that was acknowledged is there, once."""
    files, rounds = 50, 20
    policy = RetryPolicy(attempts=200, first_delay=0.02, longest_delay=0.1)
    done = 0
    async with RedisBackend(crashing.url, "t", retries=policy) as backend:
        for number in range(files):
            assert (await backend.awrite(f"/log/{number}", "|")).ok

        async def work(number: int) -> None:
            nonlocal done
            for turn in range(rounds):
                if turn % 5 == 4:
                    result: Any = await backend.awrite(f"/new/{number}/{turn}", "x")
                else:
                    result = await backend.aedit(f"/log/{number}", "|", f"{turn},|")
                assert result.error is None
                done += 1

        async def crash() -> None:
            for number in range(crashes):
                while done < number * files * rounds // crashes:  # noqa: ASYNC110
                    await anyio.sleep(0.001)
                await anyio.to_thread.run_sync(crashing.kill)
                await anyio.to_thread.run_sync(crashing.start)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(crash)
            await gather([partial(work, number) for number in range(files)])
        assert done == 1000
        expected = "".join(f"{turn}," for turn in range(rounds) if turn % 5 != 4) + "|"
        found = await backend.adownload_files([f"/log/{number}" for number in range(files)])
        assert {each.content for each in found} == {expected.encode()}
        assert len((await backend.aglob("**", "/new")).matches or ()) == files * rounds // 5
