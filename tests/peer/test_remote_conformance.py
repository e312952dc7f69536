"""The shipped suite over the real SDKs of sandboxes, which talk to local implementations of the services."""

from collections.abc import AsyncIterator, Iterable
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from deepfs.sandboxes.remote import RemoteSandbox
from deepfs.testing.conformance.at_once import CancellationConformance, ConcurrencyConformance
from deepfs.testing.conformance.surface import SyncParity, TransferConformance
from support.machines import Machine
from support.sandboxes import raw_peek, raw_put, three_of
from support.services import Maker, open_service

T = TypeVar("T")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The SDKs need asyncio."""
    return "asyncio"


_numbers = count()


@pytest.mark.needs("boxes of bubblewrap")
class _OverService(CancellationConformance, ConcurrencyConformance, TransferConformance):
    """What the SDKs differ in: how commands and bytes get there and back. What runs in the sandbox is the same for all
    sandboxes over commands, for which another class runs the whole suite."""

    service: str
    root: Path

    @pytest.fixture(scope="class")
    @classmethod
    async def machine(cls, tmp_path_factory: pytest.TempPathFactory) -> Machine:
        return Machine(tmp_path_factory.mktemp(cls.service))

    @pytest.fixture(scope="class")
    @classmethod
    async def make(cls, machine: Machine) -> AsyncIterator[Maker]:
        """One sandbox for all tests, with one root per backend: starting a sandbox takes longer than most tests."""
        async with open_service(cls.service, machine) as make:
            yield make

    @pytest.fixture
    async def backend(self, machine: Machine, make: Maker) -> RemoteSandbox[Any]:
        backend = make(f"/tmp/{next(_numbers)}")
        self.root = machine.at(backend.sandbox_path("/"))
        return backend

    @pytest.fixture
    async def second_backend(self, make: Maker, backend: RemoteSandbox[Any]) -> RemoteSandbox[Any]:
        return make(backend.sandbox_path("/"))

    def some(self, cases: Iterable[T]) -> list[T]:
        return three_of(cases)

    async def raw_put(self, path: str, data: bytes) -> None:
        await raw_put(self.root, path, data)

    async def raw_peek(self, path: str) -> bytes | None:
        return await raw_peek(self.root, path)


class TestModal(_OverService):
    service = "modal"


class TestDaytona(_OverService):
    service = "daytona"


class TestDeno(_OverService):
    service = "deno"
    test_sync_on_the_event_loop = SyncParity.test_sync_on_the_event_loop_works_or_names_the_async_method
