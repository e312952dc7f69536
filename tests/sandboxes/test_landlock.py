"""LandlockSandbox: the shipped suite, paths, and the workspace. What holds commands in is in tests/security."""

import os
from pathlib import Path

import anyio.to_thread
import pytest

from deepfs.errors import InvalidPathError, NotSupportedError
from deepfs.sandboxes.landlock import LandlockSandbox
from support.over_directory import OverDirectory

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


@pytest.mark.suite_parts("Surface", "Writing")
class TestConformance(OverDirectory):
    """Its files are those of a FilesystemBackend, for which the whole suite runs."""

    def make(self) -> LandlockSandbox:
        return LandlockSandbox(self.root)

    @pytest.mark.needs("LandlockSandbox")
    async def test_commands_run_only_if_the_capability_is_declared(self, backend: LandlockSandbox) -> None:
        if os.geteuid() != 0:
            await super().test_commands_run_only_if_the_capability_is_declared(backend)
        else:  # There are no commands of root; tests/security runs those of another account.
            with pytest.raises(NotSupportedError):
                await backend.aexecute("true")


def test_paths_map_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    for given in (tmp_path / "work", "work"):
        box = LandlockSandbox(given)
        root = str(tmp_path / "work")
        assert box.sandbox_path("/dir/a.txt") == f"{root}/dir/a.txt"
        assert box.virtual_path(f"{root}/dir/a.txt") == box.virtual_path("dir/a.txt") == "/dir/a.txt"
        assert box.virtual_path(root) == "/"
        for outside in ("/etc/passwd", "../x", f"{root}s/x"):
            with pytest.raises(InvalidPathError):
                box.virtual_path(outside)


async def test_a_workspace_of_its_own_goes_with_it() -> None:
    async with LandlockSandbox() as box:
        assert box.id.startswith("landlock-")
        assert (await box.awrite("/a.txt", "x")).ok
        root = box.sandbox_path("/")
        mode = await anyio.to_thread.run_sync(lambda: os.stat(root).st_mode)
        assert mode & 0o077 == 0, "nobody else looks into it"
    assert not await anyio.to_thread.run_sync(os.path.exists, root)
    assert (await box.aread("/a.txt")).code == "backend_error"
