"""The guards that the other tests rely on work, and the servers are real."""

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import psycopg
import pytest
from blockbuster import BlockingError
from langgraph.store.base import BaseStore

from support.network import NetworkError
from support.postgres import PostgresServer

pytestmark = pytest.mark.both_loops

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["pytester"]


@pytest.mark.anyio
class TestBlockingGuard:
    async def test_a_blocking_call_on_the_loop_is_an_error(self) -> None:
        blocking: list[Callable[[], object]] = [  # They look the functions up after the guard has replaced them.
            lambda: time.sleep(0),
            lambda: os.stat("/"),
            lambda: os.open("/", os.O_RDONLY),
            lambda: Path(__file__).read_bytes(),
            lambda: open(__file__),  # noqa: SIM115
        ]
        for call in blocking:
            with pytest.raises(BlockingError):
                call()

    async def test_a_worker_thread_may_block(self) -> None:
        await anyio.to_thread.run_sync(time.sleep, 0)


class TestNetworkGuard:
    def test_connecting_beyond_this_machine_is_an_error(self) -> None:
        with socket.socket() as sock, pytest.raises(NetworkError, match=r"192\.0\.2\.1"):
            sock.connect(("192.0.2.1", 80))

    @pytest.mark.anyio
    async def test_connecting_from_an_event_loop_is_an_error(self) -> None:
        with pytest.RaisesGroup(NetworkError):
            await anyio.connect_tcp("192.0.2.1", 80)

    def test_sending_a_datagram_is_an_error(self) -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as sock, pytest.raises(NetworkError):
            sock.sendto(b"x", ("192.0.2.1", 9))

    def test_resolving_a_name_is_an_error(self) -> None:
        with pytest.raises(NetworkError, match=r"example\.invalid"):
            socket.getaddrinfo("example.invalid", 80)

    def test_the_loopback_interface_is_allowed(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
            assert client.getpeername() == server.getsockname()


def test_a_skipped_test_is_a_failure(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]")
    pytester.makeconftest("from support.no_skips import *")
    pytester.makepyfile(
        test_skips="""
            import pytest

            @pytest.mark.skip
            def test_marked(): ...

            def test_called():
                pytest.skip("no")

            @pytest.mark.xfail
            def test_expected():
                assert False

            @pytest.mark.xfail(reason="why", strict=True)
            def test_that_does_not_run():
                pytest.skip("no")

            @pytest.mark.xfail(reason="why", strict=True)
            def test_deviation():
                assert False
        """,
        test_module="import pytest; pytest.importorskip('no_such_module')",
    )
    result = pytester.runpytest_subprocess("--continue-on-collection-errors")
    result.assert_outcomes(failed=3, errors=2, xfailed=1)


class TestPostgres:
    def test_each_test_has_a_database_of_its_own(self, postgres_server: PostgresServer, postgres_dsn: str) -> None:
        with psycopg.connect(postgres_dsn) as connection:
            connection.execute("CREATE TABLE mine (x int)")
            assert connection.execute("SELECT current_database()").fetchone() != ("postgres",)
        with postgres_server.database() as other, psycopg.connect(postgres_server.dsn(other)) as connection:
            assert connection.execute("SELECT to_regclass('mine')").fetchone() == (None,)


@pytest.mark.anyio
class TestStores:
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture(params=["sqlite_store", "postgres_store"])
    def store(self, request: pytest.FixtureRequest) -> BaseStore:
        return request.getfixturevalue(request.param)

    async def test_stores_work_under_the_guards(self, store: BaseStore) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(store.aput, ("space",), str(number), {"value": number})
        found = await store.asearch(("space",), limit=100)
        assert sorted(item.value["value"] for item in found) == list(range(20))
        await store.adelete(("space",), "0")
        assert await store.aget(("space",), "0") is None
