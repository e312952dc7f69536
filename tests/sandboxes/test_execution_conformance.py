"""The shipped suite over a directory with a shell; composites whose default or executor runs commands."""

from pathlib import Path

import pytest

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import supports_execute
from deepfs.policy import WrapperBackend
from support.over_directory import OverDirectory


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop is enough: file operations and commands have tests of their own on both."""
    return "asyncio"


@pytest.mark.suite_parts("Surface", "Writing")
class TestLocalShell(OverDirectory):
    """Its files are those of a FilesystemBackend, for which the whole suite runs."""

    def make(self) -> LocalShellBackend:
        return LocalShellBackend(self.root)


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
async def test_a_mount_runs_commands_if_it_is_the_executor(tmp_path: Path) -> None:
    place = str(tmp_path)
    tree = CompositeBackend(MemoryBackend(), {f"{place}/": LocalShellBackend(tmp_path)}, executor=f"{place}/")
    assert supports_execute(tree)
    await tree.awrite(f"{place}/a.txt", "one")
    assert (await tree.aexecute(f"cat {place}/a.txt")).output == "one", "paths are the same to both"
    assert not supports_execute(CompositeBackend(LocalShellBackend(tmp_path), {"/m/": MemoryBackend()}, executor="/m/"))
    with pytest.raises(ValueError, match="one of the routes"):
        CompositeBackend(MemoryBackend(), {"/m/": MemoryBackend()}, executor="/other/")
