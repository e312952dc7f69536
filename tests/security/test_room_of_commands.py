"""Bounded room: what a sandbox takes of the disk is measured whole, its own writes count, and nothing of it stays."""

import json
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from deepfs.disk.usage import disk_use
from deepfs.sandboxes import bubblewrap
from deepfs.sandboxes.bubblewrap import BubblewrapSandbox, Limits
from deepfs.text.entries import EntryChange
from deepfs.threads.deadline import Deadline
from support.accounts import ACCOUNTS, output_as
from support.promises import keeps

pytestmark = [pytest.mark.anyio, pytest.mark.needs("BubblewrapSandbox")]
accounts = pytest.mark.parametrize("account", ACCOUNTS)

_MEGABYTE = 2**20


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


async def printed(account: str, program: str, *arguments: str) -> Any:
    """What a program prints as this account, decoded from JSON."""
    return json.loads(await anyio.to_thread.run_sync(output_as, account, program, *arguments))


# --- what is measured ---

_RUN = """
async def main():
    async with BubblewrapSandbox(limits=Limits(workspace=8 * 2**20), timeout=50) as box:
        response = await box.aexecute(sys.argv[1])
        print(json.dumps([response.exit_code, "files take more than" in response.output, response.output]))
anyio.run(main)
"""
_FILL = "head -c 20000000 /dev/zero >"
_LONG = "import os\nfor _ in range(40): os.mkdir('d' * 200); os.chdir('d' * 200)\n"
HIDING = {
    "a file": f"{_FILL} f",
    "a mode 0000": f"mkdir d; {_FILL} d/f; chmod 0 d",
    "the mode of the workspace": f"{_FILL} f; chmod 0 .",
    "many directories": f"mkdir -p {'d/' * 300}; {_FILL} {'d/' * 300}f; chmod 0 {'d/' * 200}",
    "a long path": f"python3 -c \"{_LONG}open('f', 'wb').write(bytes(20000000))\"",
    "an unlinked file": f"exec 7> f; rm f; {_FILL}&7",
    "an unlinked file of a thread": (
        'python3 -c "import os, threading, ctypes; e = threading.Event()\n'
        "def run():\n ctypes.CDLL(None).unshare(0x400); f = os.open('f', 65); os.unlink('f')\n"
        ' os.write(f, bytes(20000000)); e.wait()\nthreading.Thread(target=run).start()"'
    ),
    "an unlinked file of a process that cannot be traced": (
        "python3 -c \"import ctypes, os, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); f = os.open('f', 65)\n"
        "os.unlink('f'); os.write(f, bytes(20000000)); time.sleep(50)\""
    ),
    "empty files": "mkdir d; cd d; python3 -c 'for n in range(30000): open(str(n), \"w\")'",
}


@keeps("Bounded memory, processes, time and room, as described below")
@accounts
@pytest.mark.parametrize("how", HIDING)
async def test_room_is_counted_however_it_is_taken(account: str, how: str) -> None:
    exit_code, is_full, output = await printed(account, _RUN, f"{HIDING[how]}; sleep 50")
    assert (exit_code, is_full) == (None, True), output


@accounts
async def test_a_disk_that_fills_up_is_looked_at_soon(account: str) -> None:
    """Many files and descriptors make a look last, and the pause after it."""
    rests = "from deepfs.sandboxes import workspace\nworkspace._REST_FACTOR = 10_000\n"
    # More than what other tests may free on the same disk meanwhile, and what is left.
    command = "exec 7> f; rm f; sleep 1; head -c 500000000 /dev/zero >&7; sleep 50"
    exit_code, is_full, output = await printed(account, rests + _RUN, command)
    assert (exit_code, is_full) == (None, True), output


_LINKS = "import os\nfor n in range(10_000_000): os.symlink('x' * 120, f'{place}/{n}')\n"


@accounts
@pytest.mark.parametrize("place", bubblewrap.TEMPORARY)
async def test_files_in_memory_are_bounded_by_their_number(account: str, place: str) -> None:
    program = _RUN.replace("files take", "temporary files take").replace("workspace=8", "temporary=8")
    command = f"python3 -c \"place = '{place}'\n{_LINKS}\""
    exit_code, is_full, output = await printed(account, program, command)
    assert (exit_code, is_full) == (None, True), output


UNREADABLE = 'cp "$(command -v head)" "$(command -v sleep)" .; chmod 111 head sleep; exec 7> f 8< /dev/zero; rm f'


async def test_a_command_cannot_hide_what_it_has_open() -> None:
    """The kernel shows only to root what a program has open that may not be read."""
    program = _RUN.replace("files take more than", "hides which files")
    exit_code, is_hidden, output = await printed(
        ACCOUNTS[-1], program, f"{UNREADABLE}; ./head -c 1000000 <&8 >&7; exec ./sleep 50"
    )
    assert (exit_code, is_hidden) == (None, True), output


# --- writes from outside of the box ---


def test_a_directory_that_cannot_be_measured_is_over_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "the disk failed")

    assert disk_use(str(tmp_path), 1000, Deadline()) == 0
    monkeypatch.setattr(os, "scandir", refuse)
    assert disk_use(str(tmp_path), 1000, Deadline()) > 1000


def sandbox(directory: Path) -> BubblewrapSandbox:
    return BubblewrapSandbox(directory, limits=Limits(workspace=_MEGABYTE, file_size=100 * _MEGABYTE))


async def test_writes_from_outside_are_refused_when_the_workspace_is_full(tmp_path: Path) -> None:
    box = sandbox(tmp_path)
    assert (await box.awrite("/a", "x" * 700_000)).ok
    assert (await box.awrite("/b", "x" * 700_000)).code == "quota_exceeded"
    assert (await box.aupload_files([("/b", b"x" * 700_000), ("/c", b"x")]))[0].error == "quota_exceeded"
    assert (await box.acopy("/a", "/b")).code == "quota_exceeded"
    assert (await box.aedit("/a", "x" * 350_000, "y" * 800_000, replace_all=True)).code == "quota_exceeded"

    async def chunks() -> Any:
        for _ in range(20):
            yield b"x" * 50_000

    assert (await box.aupload_stream("/b", chunks())).error == "quota_exceeded"
    assert (await box.adelete("/a")).ok
    assert (await box.awrite("/b", "x" * 700_000)).ok


async def test_a_full_workspace_can_be_changed_as_long_as_it_does_not_grow(tmp_path: Path) -> None:
    box = sandbox(tmp_path)
    await box.aexecute("head -c 900000 /dev/zero | tr '\\0' x > a; head -c 900000 /dev/zero > b")
    assert (await box.awrite("/c", "x")).code == "quota_exceeded"
    assert (await box.awrite("/a", "y" * 800_000, overwrite=True)).ok
    assert (await box.aedit("/a", "y" * 800_000, "z")).ok
    assert (await box.amove("/a", "/d")).ok
    assert (await box.adelete("/b")).ok
    assert (await box.awrite("/c", "x")).ok


async def test_parallel_writes_do_not_exceed_the_limit_together(tmp_path: Path) -> None:
    box = sandbox(tmp_path)
    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(box.awrite, f"/{number}", "x" * 100_000)
    assert 0 < await anyio.to_thread.run_sync(disk_use, str(tmp_path), 10**9, Deadline()) <= _MEGABYTE


_DEEP = "/d" * 60

GROWTH: dict[str, Callable[[BubblewrapSandbox, int], Awaitable[Any]]] = {
    "empty files": lambda box, number: box.awrite(f"/{number}", ""),
    "empty files in new directories": lambda box, number: box.awrite(f"/{number}{_DEEP}/f", ""),
    "empty uploads": lambda box, number: box.aupload_files([(f"/{number}{_DEEP}/f", b"")]),
    "empty streams": lambda box, number: box.aupload_stream(f"/{number}{_DEEP}/f", nothing()),
    "moves": lambda box, number: box.amove("/full" if number == 0 else f"/{number - 1}{_DEEP}", f"/{number}{_DEEP}"),
    "copies": lambda box, number: box.acopy("/empty", f"/{number}{_DEEP}/f"),
    "directories": lambda box, number: box.achange_entries([EntryChange(f"/{number}{_DEEP}", "make_directory")]),
}


async def test_files_without_content_and_directories_take_room(tmp_path: Path) -> None:
    for number, name in enumerate(GROWTH):
        root = tmp_path / str(number)
        await anyio.to_thread.run_sync(root.mkdir)
        box = BubblewrapSandbox(root, limits=Limits(workspace=_MEGABYTE // 4))
        assert (await box.awrite("/full", "x")).ok
        assert (await box.awrite("/empty", "")).ok
        for number in range(600):
            outcome = await GROWTH[name](box, number)
            if "quota_exceeded" in repr(outcome):
                break
        else:
            pytest.fail("nothing was refused")
        assert await anyio.to_thread.run_sync(disk_use, str(root), 10**9, Deadline()) <= _MEGABYTE // 4


async def nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def test_a_command_whose_workspace_is_gone_is_stopped() -> None:
    box = BubblewrapSandbox()
    with anyio.fail_after(30):
        async with box.astream_execute("echo begun; sleep 60") as run:
            async for _ in run:
                await box.aclose()
    assert run.stopped == "its workspace is gone"


# --- removal ---

_LEAVE = """
async def main():
    async with BubblewrapSandbox(timeout=30) as box:
        response = await box.aexecute(sys.argv[1])
        root = box.cwd
    print(json.dumps([response.exit_code, root.exists()]))
anyio.run(main)
"""
STUBBORN = {
    "1,500 nested directories": 'python3 -c \'import os\nfor _ in range(1500): os.mkdir("d"); os.chdir("d")\'',
    "modes of directories": (
        "mkdir -p a/b c/d e/f; touch a/b/f e/f/g; chmod 300 a/b; chmod 0 c/d; chmod 500 e/f a; chmod 0 ."
    ),
    "long paths": f'python3 -c "{_LONG}"',
    "names of any bytes": "touch \"$(printf 'a\\377\\n')\" -- -f",
}


@pytest.mark.parametrize("what", STUBBORN)
async def test_workspaces_are_removed(what: str) -> None:
    assert await printed(ACCOUNTS[-1], _LEAVE, STUBBORN[what]) == [0, False]


async def test_the_removal_follows_no_link_and_changes_no_mode_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"

    def make() -> None:
        outside.mkdir(0o500)
        (outside / "f").write_text("x")

    await anyio.to_thread.run_sync(make)
    async with BubblewrapSandbox() as box:
        assert (await box.aexecute(f"ln -s {outside} link; mkdir d; ln -s {outside} d/link; chmod 0 d")).exit_code == 0
    assert await anyio.to_thread.run_sync(os.listdir, outside) == ["f"]
    assert stat.S_IMODE((await anyio.to_thread.run_sync(os.stat, outside)).st_mode) == 0o500


_FORKED = """
box = BubblewrapSandbox()
box.write("/f", "text")
found = [box.execute("cat f").output]
if os.fork() == 0:
    sys.exit()
os.wait()
found.append(box.execute("cat f < /dev/zero").output)
print(json.dumps(found))
"""


@accounts
async def test_the_end_of_a_fork_removes_nothing_of_its_parent(account: str) -> None:
    assert await printed(account, _FORKED) == ["text", "text"]


def test_devices_that_cannot_be_used_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays of the first attempt, and the second is not told that all is well."""

    def fail(path: str, *_: object) -> None:
        raise PermissionError(1, "no devices here", path)

    monkeypatch.setattr(bubblewrap.os, "mknod", fail)
    monkeypatch.setattr(
        bubblewrap, "mkdtemp", lambda prefix: os.mkdir(tmp_path / "devices") or str(tmp_path / "devices")
    )
    for _ in range(2):
        with pytest.raises(PermissionError):
            bubblewrap.private_devices("test")
    assert os.listdir(tmp_path) == []
