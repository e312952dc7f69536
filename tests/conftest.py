"""Guards and fixtures of all tests: both event loops, no blocking call on them, no network, no skip, real servers."""

import gc
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import hypothesis
import pytest

from deepfs.testing import BackendStateMachine
from support.blocking import no_blocking
from support.network import forbid_network
from support.no_skips import pytest_make_collect_report, pytest_runtest_makereport
from support.sandboxes import busybox_tools

if TYPE_CHECKING:
    from langgraph.store.postgres.aio import AsyncPostgresStore
    from langgraph.store.sqlite.aio import AsyncSqliteStore

    from support.object_stores import S3Server
    from support.postgres import PostgresServer
    from support.redis_server import RedisServer

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]

pytest_plugins = ["support.requirements", "support.selection"]

# Seeds are fresh in each run unless `--hypothesis-seed` sets them; a failure prints how to repeat it. CI derives the
# seed from the commit: one commit always tests the same input, the next one another. Examples have no deadline, which
# would measure the load of the machine. `quick` is for running the same tests again on another interpreter.
hypothesis.settings.register_profile("full", deadline=None, derandomize=False, print_blob=True)
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("full"), max_examples=20)


def pytest_configure(config: pytest.Config) -> None:
    if (seed := config.getoption("--hypothesis-seed")) is not None:
        BackendStateMachine.seed = int(seed)
    profile = os.environ.get("HYPOTHESIS_PROFILE", "full")
    hypothesis.settings.load_profile(profile)
    if profile == "quick":
        BackendStateMachine.steps = 200
    forbid_network()


def pytest_collection_finish() -> None:
    """Freeze the garbage collector: scanning many thousand collected tests takes longer than some of them run."""
    gc.collect()
    gc.freeze()


# --- event loops -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run every async test on both loops; a module whose storage needs asyncio overrides this with `"asyncio"`."""
    steps = BackendStateMachine.steps
    if request.param == "trio":  # The loop hardly matters to these programs: the long ones run on asyncio only.
        BackendStateMachine.steps = min(steps, 200)
    yield request.param
    BackendStateMachine.steps = steps


@pytest.fixture(autouse=True)
def _no_blocking() -> Iterator[None]:
    with no_blocking():
        yield


@pytest.fixture
def _asyncio_only(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.fail("this store belongs to asyncio: override the fixture `anyio_backend` where it is used")


# --- servers and stores ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres_server() -> "Iterator[PostgresServer]":
    """A real server for this test worker, started by the first test that needs it."""
    from support.postgres import running_server

    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> "Iterator[RedisServer]":
    """A real server for this test worker, started by the first test that needs it."""
    from support.redis_server import running_redis

    with running_redis() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> "Iterator[S3Server]":
    """An S3 server for this test worker, with a bucket."""
    from support.object_stores import running_s3

    with running_s3() as server:
        yield server


@pytest.fixture(scope="session")
def ceph_server() -> "Iterator[S3Server]":
    """Ceph's S3 server for this test worker, with a bucket. It needs the packages ceph-mon, ceph-osd and radosgw."""
    from support.ceph import running_ceph

    with running_ceph() as server:
        yield server


@pytest.fixture(scope="session")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with the tools of busybox and nothing else."""
    return busybox_tools(tmp_path_factory.mktemp("busybox"))


@pytest.fixture
def postgres_dsn(postgres_server: "PostgresServer") -> Iterator[str]:
    """The DSN of a fresh database."""
    with postgres_server.database() as name:
        yield postgres_server.dsn(name)


@pytest.fixture(scope="session")
def postgres_files_dsn(postgres_server: "PostgresServer") -> Iterator[str]:
    """The DSN of a database that the tests of PostgresBackend share; each uses a namespace of its own."""
    with postgres_server.database() as name:
        yield postgres_server.dsn(name)


@pytest.fixture(scope="session")
def _stores() -> ModuleType:
    """Import here rather than in an async fixture, because importing blocks."""
    from support import stores

    return stores


@pytest.fixture
async def sqlite_store(_asyncio_only: None, _stores: ModuleType, tmp_path: Path) -> "AsyncIterator[AsyncSqliteStore]":
    """An AsyncSqliteStore on a fresh file."""
    async with _stores.open_sqlite_store(tmp_path / "store.db") as store:
        yield store


@pytest.fixture(scope="session")
def _postgres_store_template(postgres_server: "PostgresServer", _stores: ModuleType) -> Iterator[str]:
    with _stores.postgres_store_template(postgres_server) as name:
        yield name


@pytest.fixture
def _postgres_store_dsn(postgres_server: "PostgresServer", _postgres_store_template: str) -> Iterator[str]:
    with postgres_server.database(_postgres_store_template) as name:
        yield postgres_server.dsn(name)


@pytest.fixture
async def postgres_store(
    _asyncio_only: None, _stores: ModuleType, _postgres_store_dsn: str
) -> "AsyncIterator[AsyncPostgresStore]":
    """An AsyncPostgresStore on a fresh database of a real server."""
    async with _stores.open_postgres_store(_postgres_store_dsn) as store:
        yield store
