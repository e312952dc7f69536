"""The guards that the other tests rely on work, and the servers are real."""

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest
from blockbuster import BlockingError

from support.network import NetworkError

pytestmark = pytest.mark.both_loops

if TYPE_CHECKING:
    from collections.abc import Callable


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

    def test_the_loopback_interface_is_allowed(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
            assert client.getpeername() == server.getsockname()
