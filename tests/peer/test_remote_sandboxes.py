"""Sandboxes of services: the real SDKs talk to local implementations of the services."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from deno_sandbox.rpc import AsyncRpcClient
from deno_sandbox.sandbox import AsyncSandbox
from deno_sandbox.transport import WebSocketTransport

from deepfs.backends import DenoSandbox
from deepfs.sandboxes.remote import Done, RemoteSandbox
from deepfs.text.arguments import check_installed
from support.machines import Machine
from support.services import SERVICES, Maker, open_service

pytestmark = [pytest.mark.anyio, pytest.mark.needs("boxes of bubblewrap")]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The SDKs need asyncio."""
    return "asyncio"


@pytest.fixture(scope="module", params=SERVICES)
async def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Maker]:
    async with open_service(request.param, Machine(tmp_path_factory.mktemp(request.param))) as make:
        yield make


@pytest.fixture
async def sandbox(make: Maker, tmp_path: Path) -> RemoteSandbox[Any]:
    return make(f"/tmp/{tmp_path.name}/work")


async def test_commands_run(sandbox: RemoteSandbox[Any]) -> None:
    assert sandbox.id == SERVICES[sandbox.service.lower()].id
    await sandbox.awrite("/a.txt", "one")
    response = await sandbox.aexecute("cat; cat a.txt; echo bad >&2; exit 3")
    assert response.exit_code == 3
    assert response.output in {"one\n[stderr] bad\n", "onebad\n"}
    assert (await sandbox.aexecute("kill -9 $$")).exit_code == 137
    assert (await sandbox.aexecute("pwd")).output.strip() == sandbox.sandbox_path("/")


async def test_a_command_ends_at_its_timeout(sandbox: RemoteSandbox[Any]) -> None:
    response = await sandbox.aexecute("exec sleep 30", timeout=0.5)
    assert response.exit_code is None
    assert "its time of 1 s was up" in response.output


async def test_output_is_bounded(sandbox: RemoteSandbox[Any]) -> None:
    response = await sandbox.aexecute("head -c 1000000 /dev/zero | tr '\\0' x")
    assert response.truncated
    assert "further bytes left out" in response.output
    assert len(response.output) < 101_000


async def test_large_files_are_transferred_by_the_sdk(
    sandbox: RemoteSandbox[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    content, commands = os.urandom(3 << 20), []
    run = sandbox._run

    async def counted(command: str, seconds: int, most: int) -> object:
        commands.append(command)
        return await run(command, seconds, most)

    monkeypatch.setattr(sandbox, "_run", counted)
    small, large = "/it's/größe *", "/it's/größe \n.bin"
    assert [item.error for item in await sandbox.aupload_files([(small, b"a"), (large, content)])] == [None, None]
    sandbox._contents.forget(large)
    assert [item.content for item in await sandbox.adownload_files([large, small])] == [content, b"a"]
    assert len(commands) <= 4


async def test_a_failure_of_the_service_is_a_backend_error(
    sandbox: RemoteSandbox[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = sandbox._errors()[0]

    async def failing(command: str, seconds: int, most: int) -> object:
        raise error("gone")

    monkeypatch.setattr(sandbox, "_run", failing)
    result = await sandbox.als("/")
    assert result.code == "backend_error"
    assert f"{sandbox.service} did not run the command: gone" in (result.error or "")


async def test_the_error_of_a_missing_package_names_the_extra() -> None:
    with pytest.raises(ImportError, match=r"pip install 'deepfs\[modal\]'"):
        check_installed("no_such_package", "modal", "ModalSandbox")


async def test_calls_from_other_event_loops_and_threads_work(sandbox: RemoteSandbox[Any]) -> None:
    def elsewhere() -> list[object]:
        sandbox.write("/a.txt", "one")
        return [
            sandbox.execute("cat a.txt").output,
            anyio.run(sandbox.aexecute, "cat a.txt", backend="asyncio").output,
        ]

    assert await anyio.to_thread.run_sync(elsewhere) == ["one", "one"]


async def test_a_command_cancelled_from_another_event_loop_ends(make: Maker, tmp_path: Path) -> None:
    sandbox = make(f"/tmp/{tmp_path.name}")

    async def cancelled() -> bool:
        with anyio.move_on_after(0.3) as scope:
            await sandbox.aexecute("exec sleep 30")
        return scope.cancelled_caught

    with anyio.fail_after(10):
        assert await anyio.to_thread.run_sync(anyio.run, cancelled)


def test_the_error_reports_an_ended_event_loop() -> None:
    async def made() -> RemoteSandbox[Any]:
        return DenoSandbox(AsyncSandbox(None, AsyncRpcClient(WebSocketTransport()), "deno-1"))

    sandbox = asyncio.run(made())
    assert "no longer runs" in (sandbox.ls("/").error or "")


def test_a_sandbox_that_was_made_without_an_event_loop_belongs_to_that_of_sync_calls() -> None:
    loops: list[Any] = []

    class Looking(DenoSandbox):
        async def _run(self, command: str, seconds: int, most: int) -> Done:
            loops.append(asyncio.get_running_loop())
            return Done(b"", b"", 0)

    sandbox = Looking(None)  # type: ignore[arg-type]
    assert [sandbox.execute("true").exit_code for _ in range(2)] == [0, 0]
    assert len({*loops}) == 1
