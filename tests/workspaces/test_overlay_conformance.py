"""A workspace passes the shipped suite and the state machine over each storage, and with each place for its entries."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.postgres import PostgresBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.sqlite import SqliteBackend
from deepfs.backends.state import StateBackend
from deepfs.testing import BackendConformance, BackendStateMachine, BackendSuite
from deepfs.testing.suite import assert_ok
from deepfs.workspaces.overlay import OverlayBackend
from support.flat_trees import FileAndDirectory
from support.graphs import InNode
from support.object_stores import RawObjects, S3Server
from support.postgres_files import fresh_namespace, peek, put
from support.raw import RawMemory, raw_bytes
from support.raw_sqlite import RawSqlite
from support.state_suite import OverState


class OverlaySuite(BackendSuite):
    """What is put is put below; what is looked at is an entry, or else what is below."""

    overlay: OverlayBackend

    @pytest.mark.stress
    @pytest.mark.timeout(1_800)
    @pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
    async def test_long_programs_give_the_same_results_as_the_model(self, backend: BackendProtocol) -> None:
        assert isinstance(self, BackendStateMachine)
        self.steps = 10_000  # type: ignore[misc]
        await self.test_random_programs_give_the_same_results_as_the_model(backend)

    async def peek_below(self, path: str) -> bytes | None:
        raise NotImplementedError

    async def raw_peek(self, path: str) -> bytes | None:
        entry = (await self.overlay._entries.get([path])).get(path)
        if entry is None:
            return await self.peek_below(path)
        return raw_bytes(entry.data) if entry.source is None else await self.peek_below(entry.source)


class FileAndDirectoryBelow(FileAndDirectory):
    async def test_delete_and_move_take_the_file_first(self, backend: BackendProtocol) -> None:
        """What comes to a moved path below stays hidden. The tree below lists a file or a directory, so what is beneath
        the file that was moved is deleted by its own path."""
        await self.made_by_two_clients()
        assert_ok(await backend.amove("/a", "/moved"))
        assert [await self.raw_peek(path) for path in ("/a", "/moved", "/a/b")] == [None, b"the file x", b"beneath x"]
        await self.put({"/a": "again"})
        assert not (await backend.aread("/a")).ok
        assert_ok(await backend.adelete("/a/b"))
        assert await self.raw_peek("/a/b") is None


class OverMemory(RawMemory, OverlaySuite):
    memory: MemoryBackend

    async def peek_below(self, path: str) -> bytes | None:
        return self.peek(self.memory, path)

    async def raw_peek(self, path: str) -> bytes | None:
        return await OverlaySuite.raw_peek(self, path)


@pytest.mark.both_loops
class TestOverMemory(OverMemory, BackendConformance, BackendStateMachine, FileAndDirectoryBelow):
    @pytest.fixture
    def backend(self) -> BackendProtocol:
        self.memory = MemoryBackend()
        self.overlay = OverlayBackend(self.memory)
        return self.overlay


class TestTenDeep(OverMemory, BackendStateMachine):
    steps = 300

    @pytest.fixture
    def backend(self) -> BackendProtocol:
        self.memory = MemoryBackend()
        below: BackendProtocol = self.memory
        for _ in range(10):
            below = self.overlay = OverlayBackend(below)
        return self.overlay


class TestEntriesInMemory(OverMemory, BackendStateMachine):
    @pytest.fixture
    def backend(self) -> BackendProtocol:
        self.memory, self.upper = MemoryBackend(), MemoryBackend()
        self.overlay = OverlayBackend(self.memory, self.upper, directory="/changes")
        return self.overlay

    @pytest.fixture
    def second_backend(self, backend: BackendProtocol) -> BackendProtocol:
        return OverlayBackend(self.memory, self.upper, directory="/changes")


class TestEntriesInSqlite(OverMemory, BackendConformance, BackendStateMachine):
    steps = 300

    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[BackendProtocol]:
        self.memory, self.file = MemoryBackend(), tmp_path / "changes.db"
        async with SqliteBackend(self.file) as upper:
            self.overlay = OverlayBackend(self.memory, upper)
            yield self.overlay

    @pytest.fixture
    async def second_backend(self, backend: BackendProtocol) -> AsyncIterator[BackendProtocol]:
        async with SqliteBackend(self.file) as upper:
            yield OverlayBackend(self.memory, upper)


class TestOverDisk(OverlaySuite, BackendConformance, BackendStateMachine):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> BackendProtocol:
        self.root = tmp_path
        self.overlay = OverlayBackend(FilesystemBackend(tmp_path))
        return self.overlay

    async def raw_put(self, path: str, data: bytes) -> None:
        def put() -> None:
            target = self.root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

        await anyio.to_thread.run_sync(put)

    async def peek_below(self, path: str) -> bytes | None:
        target = self.root / path.lstrip("/")
        return await anyio.to_thread.run_sync(lambda: target.read_bytes() if target.is_file() else None)


class TestOverSqlite(OverlaySuite, BackendStateMachine, FileAndDirectoryBelow):
    steps = 300

    @pytest.fixture
    async def backend(self, tmp_path: Path) -> AsyncIterator[BackendProtocol]:
        self.raw = RawSqlite(tmp_path / "files.db")
        async with SqliteBackend(self.raw.file) as lower:
            self.overlay = OverlayBackend(lower)
            yield self.overlay

    async def raw_put(self, path: str, data: bytes) -> None:
        await anyio.to_thread.run_sync(self.raw.put, path, data)

    async def peek_below(self, path: str) -> bytes | None:
        return await anyio.to_thread.run_sync(self.raw.peek, path)


class TestOverPostgres(OverlaySuite, BackendStateMachine, FileAndDirectoryBelow):
    steps = 100

    @pytest.fixture
    async def backend(self, postgres_files_dsn: str) -> AsyncIterator[BackendProtocol]:
        self.dsn, self.space = postgres_files_dsn, fresh_namespace()
        async with PostgresBackend(self.dsn, self.space) as lower:
            await lower.als("/")  # Makes the tables, since a test may store a file directly.
            self.overlay = OverlayBackend(lower)
            yield self.overlay

    async def raw_put(self, path: str, data: bytes) -> None:
        await anyio.to_thread.run_sync(partial(put, self.dsn, "/".join(self.space), path, data))

    async def peek_below(self, path: str) -> bytes | None:
        return await anyio.to_thread.run_sync(partial(peek, self.dsn, "/".join(self.space), path))


class TestOverS3(RawObjects, OverlaySuite, BackendStateMachine, FileAndDirectoryBelow):
    steps = 100

    @pytest.fixture
    def backend(self, s3_server: S3Server) -> BackendProtocol:
        self.prefix, self.store = s3_server.prefix(), s3_server.store()
        self.overlay = OverlayBackend(s3_server.backend(self.prefix))
        return self.overlay

    async def peek_below(self, path: str) -> bytes | None:
        return await RawObjects.raw_peek(self, path)

    async def raw_peek(self, path: str) -> bytes | None:
        return await OverlaySuite.raw_peek(self, path)


class TestOverState(OverState, OverlaySuite, BackendStateMachine):
    steps = 300

    def over_state(self, state: InNode) -> BackendProtocol:
        self.upper = MemoryBackend()
        self.overlay = OverlayBackend(state, self.upper)
        return self.overlay

    @pytest.fixture
    def second_backend(self, backend: BackendProtocol) -> BackendProtocol:
        return OverlayBackend(InNode(StateBackend(), self.node), self.upper)

    async def peek_below(self, path: str) -> bytes | None:
        return await OverState.raw_peek(self, path)

    async def raw_peek(self, path: str) -> bytes | None:
        return await OverlaySuite.raw_peek(self, path)


# The whole suite over the others is for the stress session.


@pytest.mark.stress
class TestWholeTenDeep(TestTenDeep, BackendConformance):
    pass


@pytest.mark.stress
class TestWholeOverPostgres(TestOverPostgres, BackendConformance):
    pass


@pytest.mark.stress
class TestWholeOverS3(TestOverS3, BackendConformance):
    pass


@pytest.mark.stress
class TestWholeOverState(TestOverState, BackendConformance):
    pass


@pytest.mark.stress
class TestWholeEntriesInMemory(TestEntriesInMemory, BackendConformance):
    pass


@pytest.mark.stress
class TestWholeOverSqlite(TestOverSqlite, BackendConformance):
    pass
