"""Every search option passes through the adapters for deepagents and the SDKs of services."""

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from deepagents.backends import FilesystemBackend as PeerFilesystemBackend
from deepagents.backends import protocol as peer

from deepfs import BackendProtocol, FilesystemBackend, MemoryBackend
from deepfs.compat.deepagents_backends import ToDeepagents, from_deepagents, to_deepagents
from deepfs.sandboxes.remote import RemoteSandbox
from support.machines import Machine
from support.search_options import CASES, Case, filled, options_of, shown
from support.services import SERVICES, open_service

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The SDKs, and some backends of deepagents, need asyncio."""
    return "asyncio"


async def searched(backend: Any, case: Case) -> Any:
    operation, pattern, option, value = case
    return await getattr(backend, f"a{operation}")(pattern, **{option: value})


async def test_adapted_backends_of_deepagents_respect_each_option(tmp_path: Path) -> None:
    memory = await filled(MemoryBackend())
    await filled(FilesystemBackend(tmp_path))
    on_disk = await anyio.to_thread.run_sync(lambda: PeerFilesystemBackend(str(tmp_path), virtual_mode=True))
    for case, theirs in product(CASES, (on_disk, to_deepagents(memory))):
        expected, adapted = shown(await searched(memory, case)), from_deepagents(theirs)
        assert shown(await searched(adapted, case)) == expected, case
        assert shown(await anyio.to_thread.run_sync(_sync, adapted, case)) == expected, case


def _sync(backend: BackendProtocol, case: Case) -> Any:
    operation, pattern, option, value = case
    return getattr(backend, operation)(pattern, **{option: value})


async def test_the_adapter_respects_each_option_of_deepagents() -> None:
    for operation in ("glob", "grep"):
        theirs, ours = options_of(operation, peer.BackendProtocol), options_of(operation, ToDeepagents)
        assert set(theirs) <= set(ours) <= set(options_of(operation))
    memory = await filled(MemoryBackend())
    for case in CASES:
        if case[2] in options_of(case[0], ToDeepagents):
            expected, found = await searched(memory, case), await searched(to_deepagents(memory), case)
            assert found.error is None
            assert [_brief(match) for match in found.matches] == [_brief(match) for match in expected.matches], case


def _brief(match: Any) -> tuple[object, ...]:
    beside = [[line["text"] for line in match.get(side) or ()] for side in ("context_before", "context_after")]
    return (match["path"], match.get("line"), match.get("text"), beside)


@pytest.fixture(scope="module", params=SERVICES)
async def remote(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RemoteSandbox[Any]]:
    async with open_service(request.param, Machine(tmp_path_factory.mktemp(request.param))) as make:
        yield make("/tmp/files")


@pytest.mark.needs("boxes of bubblewrap")
async def test_remote_sandboxes_respect_each_option(remote: RemoteSandbox[Any]) -> None:
    memory = await filled(MemoryBackend())
    await filled(remote)
    for case in CASES:
        assert shown(await searched(remote, case)) == shown(await searched(memory, case)), case
