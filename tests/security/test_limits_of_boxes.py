"""Bounded memory and processes: control groups count them, and results say where there are none."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from deepfs.sandboxes.bubblewrap import BubblewrapSandbox, Limits
from deepfs.sandboxes.limits import Cgroup, GroupHome, group_homes
from support.accounts import ACCOUNTS, output_as
from support.promises import keeps

pytestmark = [pytest.mark.anyio, pytest.mark.needs("BubblewrapSandbox")]
needs_groups = pytest.mark.skipif(ACCOUNTS[0] != "root", reason="needs control groups")
accounts = pytest.mark.parametrize("account", ACCOUNTS)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


# --- where groups are made ---


def group(path: Path, **files: str) -> None:
    """Make a directory that looks like a control group."""
    path.mkdir(parents=True, exist_ok=True)
    for name, content in {"cgroup_procs": "", **files}.items():
        (path / name.replace("_", ".", 1)).write_text(content)


def found(root: Path, membership: str) -> list[tuple[str, tuple[str, ...], bool]]:
    homes = group_homes(str(root), membership)
    return [(os.path.relpath(home.directory, root), home.controllers, home.is_unified) for home in homes]


def test_groups_of_v1_are_made_beneath_the_own_group(tmp_path: Path) -> None:
    for path in ("memory/service", "pids"):
        group(tmp_path / path)
    membership = "9:name=systemd:/x\n8:pids:/not/seen/here\n4:memory:/service\n0::/\n"
    assert found(tmp_path, membership) == [("memory/service", ("memory",), False), ("pids", ("pids",), False)]


BOTH = ("memory", "pids")
DIVIDED: dict[str, tuple[dict[str, str], dict[str, list[tuple[str, tuple[str, ...], bool]]]]] = {
    # What each group divides among the groups in it, and where groups are made for a member of which one.
    "both": (
        {"": "cpu memory pids", "user": "memory pids", "user/app": "pids", "user/app/own": ""},
        {"/user/app/own": [("user", BOTH, True)], "/user": [("user", BOTH, True)], "/": [(".", BOTH, True)]},
    ),
    "one": ({"": "", "a": "pids", "a/own": ""}, {"/a/own": [("a", ("pids",), True)], "/": []}),
    "outside": ({"": "memory pids"}, {"/../outside": []}),
}


@pytest.mark.parametrize("what", DIVIDED)
def test_groups_of_v2_are_made_in_the_nearest_group_that_divides_both(tmp_path: Path, what: str) -> None:
    divided, expected = DIVIDED[what]
    for path, enabled in divided.items():
        group(tmp_path / path, cgroup_controllers="memory pids", cgroup_subtree_control=enabled)
    assert {of: found(tmp_path, f"0::{of}\n") for of in expected} == expected
    (tmp_path / "cgroup.procs").unlink()  # No process may be moved into it.
    assert found(tmp_path, "0::/\n") == []


def test_each_controller_is_used_where_it_is(tmp_path: Path) -> None:
    group(tmp_path / "memory")
    for path in ("unified", "unified/own"):
        group(tmp_path / path, cgroup_controllers="pids", cgroup_subtree_control="pids")
    membership = "4:memory:/\n0::/own\n"
    assert found(tmp_path, membership) == [("memory", ("memory",), False), ("unified/own", ("pids",), True)]
    assert found(tmp_path / "missing", membership) == []


def test_a_group_that_sets_no_limit_counts_nothing(tmp_path: Path) -> None:
    groups = Cgroup(Limits(), [GroupHome(str(tmp_path), ("memory", "pids"), True)])
    groups.make()
    assert (groups.counts_memory, groups.counts_processes) == (False, False)
    groups.remove()
    assert not list(tmp_path.iterdir())


# --- what is counted ---

_LIVE = """
async def main():
    async with BubblewrapSandbox(limits=Limits(memory=96 * 2**20)) as box:
        responses = [await box.aexecute(command) for command in sys.argv[1:]]
        print(json.dumps([[each.output, each.exit_code, each.not_enforced] for each in responses]))
anyio.run(main)
"""


async def live(account: str, *commands: str) -> Any:
    shown = await anyio.to_thread.run_sync(output_as, account, _LIVE, *commands)
    return json.loads(shown)


_SHARED = "python3 -c 'import mmap; m = mmap.mmap(-1, 300 << 20); [m.write(bytes(1 << 20)) for _ in range(300)]'"
_MEMFD = "python3 -c 'import os; f = os.memfd_create(str()); [os.write(f, bytes(1 << 20)) for _ in range(200)]'"


@accounts
async def test_shared_memory_counts_or_the_result_says_that_it_does_not(account: str) -> None:
    for _, exit_code, not_enforced in await live(account, _SHARED, _MEMFD):
        if not_enforced:
            assert not_enforced == ["memory"]
        else:
            assert exit_code not in (0, None), "the processes of the command were limited together"


@keeps("Bounded memory, processes, time and room, as described below")
@needs_groups
async def test_processes_share_one_limit_of_memory() -> None:
    one = "python3 -c 'import time; x = bytearray(70 << 20); time.sleep(1); print(len(x))'"
    ((output, _, not_enforced),) = await live("root", f"{one} & {one} & wait")
    assert not_enforced == []
    assert output.count("73400320") < 2


async def test_a_sandbox_warns_once_of_what_is_not_enforced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Cgroup, "counts_memory", False)
    box = BubblewrapSandbox(tmp_path)
    for _ in range(2):
        assert (await box.aexecute("true")).not_enforced == ("memory",)
    async with box.astream_execute("true") as run:
        assert [chunk async for chunk in run] == []
    assert run.not_enforced == ("memory",)
    assert [record.levelname for record in caplog.records if "memory" in record.getMessage()] == ["WARNING"]


# --- the end of groups ---


def groups_left(pid: int) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").rglob(f"deepfs-{pid}-*") if path.is_dir()]


def in_groups(groups: Cgroup) -> "subprocess.Popen[bytes]":
    script = 'for file in "$@"; do [ "$file" = -- ] && break; echo 0 >"$file"; done; exec sleep 60'
    return subprocess.Popen(["/bin/sh", "-c", script, "sh", *groups.entrances, "--"])


def homes(kind: str) -> list[GroupHome] | None:
    """Where this process may make groups; for `v2` where that is in any case, without counting anything."""
    top = next((at for at in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified") if Path(at, "cgroup.procs").exists()), None)
    return [GroupHome(top, (), True)] if kind == "v2" and top else None


@needs_groups
@pytest.mark.parametrize("kind", ["of this process", "v2"])
async def test_what_is_left_in_a_group_is_killed(kind: str) -> None:
    def run() -> None:
        groups = Cgroup(Limits(), homes(kind))
        groups.make()
        process = in_groups(groups)
        while process.pid not in groups.processes_of(0):
            assert process.poll() is None
        groups.remove()
        assert process.wait(10) == -signal.SIGKILL
        assert not groups_left(os.getpid())

    await anyio.to_thread.run_sync(run)


@needs_groups
async def test_groups_of_a_killed_process_are_removed_by_the_next() -> None:
    def run() -> None:
        source = "import os, signal; from deepfs.sandboxes.limits import *; g = Cgroup(Limits()); g.make()\n"
        killed = subprocess.Popen([sys.executable, "-c", f"{source}os.kill(os.getpid(), signal.SIGKILL)"])
        killed.wait(60)
        assert groups_left(killed.pid)
        subprocess.run([sys.executable, "-c", f"{source}g.remove()"], check=True, timeout=60)
        assert not groups_left(killed.pid)

    await anyio.to_thread.run_sync(run)
