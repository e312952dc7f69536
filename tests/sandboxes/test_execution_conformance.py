"""The shipped suite over a directory with a shell; composites whose default or executor runs commands."""

from pathlib import Path

import pytest

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import supports_execute
from deepfs.errors import NotSupportedError
from deepfs.policy import WrapperBackend
from deepfs.testing import BackendConformance
from support.sandboxes import raw_peek, raw_put


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop is enough: file operations and commands have tests of their own on both."""
    return "asyncio"


@pytest.mark.suite_parts("Surface", "Writing")
class TestLocalShell(BackendConformance):
    """Its files are those of a FilesystemBackend, for which the whole suite runs."""

    root: Path

    @pytest.fixture
    def backend(self, tmp_path: Path) -> LocalShellBackend:
        self.root = tmp_path
        return LocalShellBackend(tmp_path)

    @pytest.fixture
    def second_backend(self, backend: LocalShellBackend) -> LocalShellBackend:
        return LocalShellBackend(self.root)

    async def raw_put(self, path: str, data: bytes) -> None:
        await raw_put(self.root, path, data)

    async def raw_peek(self, path: str) -> bytes | None:
        return await raw_peek(self.root, path)


@pytest.mark.anyio
async def test_a_composite_runs_commands_in_its_default(tmp_path: Path) -> None:
    tree = CompositeBackend(LocalShellBackend(tmp_path), {"/memories/": MemoryBackend()})
    assert supports_execute(tree)
    assert supports_execute(WrapperBackend(tree))
    await tree.awrite("/a.txt", "one")
    await tree.awrite("/memories/b.txt", "two")
    assert (await tree.aexecute("cat a.txt")).output == "one"
    assert (await WrapperBackend(tree).aexecute("ls", timeout=5)).output == "a.txt\n", "mounts are no files to commands"


@pytest.mark.anyio
async def test_a_composite_without_an_executing_default_does_not_run_commands(tmp_path: Path) -> None:
    tree = CompositeBackend(MemoryBackend(), {"/shell/": LocalShellBackend(tmp_path)})
    assert not supports_execute(tree)
    with pytest.raises(NotSupportedError):
        await tree.aexecute("true")


def test_commands_run_synchronously(tmp_path: Path) -> None:
    tree = CompositeBackend(LocalShellBackend(tmp_path), {})
    assert tree.execute("echo one").output == "one\n"


@pytest.mark.anyio
async def test_a_mount_runs_commands_if_it_is_the_executor(tmp_path: Path) -> None:
    place = str(tmp_path)
    tree = CompositeBackend(MemoryBackend(), {f"{place}/": LocalShellBackend(tmp_path)}, executor=f"{place}/")
    assert supports_execute(tree)
    await tree.awrite(f"{place}/a.txt", "one")
    assert (await tree.aexecute(f"cat {place}/a.txt")).output == "one", "paths are the same to both"
    assert not supports_execute(CompositeBackend(LocalShellBackend(tmp_path), {"/m/": MemoryBackend()}, executor="/m/"))
    with pytest.raises(ValueError, match="one of the routes"):
        CompositeBackend(MemoryBackend(), {"/m/": MemoryBackend()}, executor="/other/")
