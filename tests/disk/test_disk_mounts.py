"""Files that are mounted by themselves, file systems that become read-only, and full ones."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs("unshare", "boxes of bubblewrap")

PRELUDE = """
import json, os, subprocess, sys
import anyio
from deepfs import FilesystemBackend, run_sync

root = sys.argv[1]
files = FilesystemBackend(root)

def names():
    return sorted(name for _, directories, names in os.walk(root) for name in [*directories, *names])

async def chunks(*given):
    for chunk in given:
        yield chunk
"""


def run(mounts: str, script: str, root: Path) -> Any:
    """What `script` prints, run as root of a user namespace, after the shell commands `mounts`."""
    shell = f'set -e; cd "$1"; {mounts}; exec "$0" -c "$2" "$1"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", shell, sys.executable, str(root)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*command, PRELUDE + script], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


# --- a mounted file --------------------------------------------------------------------------------------------------

CHANGES = """
outcomes = {}
for name, change in {
    "write": lambda: files.write("/file", "a longer content", overwrite=True),
    "edit": lambda: files.edit("/file", "longer", "short"),
    "conditional write": lambda: files.write("/file", "x", if_match=files.read("/file").version),
    "upload": lambda: files.upload_files([("/file", b"bytes")])[0],
    "copy": lambda: files.copy("/other", "/file", overwrite=True),
}.items():
    done = change()
    outcomes[name] = [done.error, open(f"{root}/file").read()]
for name, refused in {
    "delete": lambda: files.delete("/file"),
    "move": lambda: files.move("/file", "/moved"),
}.items():
    outcomes[name] = [refused().code, open(f"{root}/file").read()]
print(json.dumps([outcomes, names(), os.stat(f"{root}/file").st_mode & 0o777]))
"""


@pytest.mark.parametrize("is_read_only", [False, True], ids=["in a directory", "in a read-only directory"])
def test_a_mounted_file_is_written_in_place(tmp_path: Path, is_read_only: bool) -> None:
    root, mounted = tmp_path / "root", tmp_path / "mounted"
    root.mkdir()
    (root / "file").write_bytes(b"hidden")
    (root / "other").write_bytes(b"other")
    mounted.write_bytes(b"content")
    mounted.chmod(0o640)
    mounts = f'mount --bind "{mounted}" file'
    if is_read_only:
        mounts = f'mount --bind "{root}" "{root}"; cd "{root}"; {mounts}; mount -o remount,bind,ro "{root}"'
    outcomes, names, mode = run(mounts, CHANGES, root)
    assert outcomes == {
        "write": [None, "a longer content"],
        "edit": [None, "a short content"],
        "conditional write": [None, "x"],
        "upload": [None, "bytes"],
        "copy": [None, "other"],
        "delete": ["permission_denied", "other"],
        "move": ["permission_denied", "other"],
    }
    assert (names, mode, mounted.read_bytes()) == (["file", "other"], 0o640, b"other")
    assert (root / "file").read_bytes() == b"hidden"


STREAM = """
done = run_sync(files.aupload_stream, "/file", chunks(b"1" * 100_000, b"2"))
print(json.dumps([done.error, os.stat(f"{root}/file").st_size, names()]))
"""


def test_a_stream_onto_a_mounted_file_is_written_in_place(tmp_path: Path) -> None:
    root, mounted = tmp_path / "root", tmp_path / "mounted"
    root.mkdir()
    (root / "file").touch()
    mounted.write_bytes(b"content")
    assert run(f'mount --bind "{mounted}" file', STREAM, root) == [None, 100_001, ["file"]]
    assert mounted.read_bytes() == b"1" * 100_000 + b"2"


FULL_MOUNT = """
done = files.write("/file", "x" * 200_000, overwrite=True)
print(json.dumps([done.code, done.error, open(f"{root}/file").read(), names()]))
"""


def test_a_mounted_file_on_a_full_disk_keeps_its_content(tmp_path: Path) -> None:
    root, small = tmp_path / "root", tmp_path / "small"
    root.mkdir()
    small.mkdir()
    (root / "file").touch()
    mounts = f'mount -t tmpfs -o size=64k none "{small}"; printf content > "{small}/f"; mount --bind "{small}/f" file'
    code, error, content, names = run(mounts, FULL_MOUNT, root)
    assert (code, content, names) == ("backend_error", "content", ["file"])
    assert "No space is left on the disk" in error


# --- a file system that fails meanwhile ------------------------------------------------------------------------------

FAILING = """
stored, codes = {"/start": "s"}, set()
files.write("/start", "s")

async def change(number):
    path = f"/d{number % 5}/f{number}"
    for step in range(STEPS):
        done = await files.awrite(path, text := f"{step}" * SIZE, overwrite=True)
        if done.ok:
            stored[path] = text
        else:
            codes.add((done.code, done.error.partition(": ")[2] or done.error))
        if (await files.aedit(path, text, text + "!")).ok:
            stored[path] = text + "!"
        if (await files.acopy(path, f"{path}-copy", overwrite=True)).ok:
            stored[f"{path}-copy"] = stored[path]
        if STOPS and number == 0 and step == 3:
            while (await anyio.run_process(["mount", "-o", "remount,ro", root], check=False)).returncode:
                pass  # Refused while a file is open for writing.

async def main():
    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(change, number)

anyio.run(main)
there = {path: files.read_raw(path).data["content"] for path in stored}
lost = sorted(path for path in stored if there[path] != stored[path])
more = [name for name in names() if name.startswith(".~")]
print(json.dumps([lost, more, sorted(codes), len(os.listdir("/proc/self/fd")) < 40, files.delete("/start").code]))
"""


def failing(*, size: int, steps: int, stops: bool) -> str:
    return f"SIZE, STEPS, STOPS = {size}, {steps}, {stops}\n" + FAILING


def test_a_disk_that_becomes_read_only_loses_no_change(tmp_path: Path) -> None:
    outcome = run('mount -t tmpfs none "$1"; cd "$1"', failing(size=100, steps=20, stops=True), tmp_path)
    lost, left, codes, is_closed, deletion = outcome
    assert (lost, left, is_closed, deletion) == ([], [], True, "permission_denied")
    assert {code for code, _ in codes} == {"permission_denied"}
    assert all("the file system is read-only" in reason for _, reason in codes)


def test_a_full_disk_loses_no_change_and_can_be_cleared(tmp_path: Path) -> None:
    outcome = run('mount -t tmpfs -o size=192k none "$1"; cd "$1"', failing(size=9_000, steps=9, stops=False), tmp_path)
    lost, left, codes, is_closed, deletion = outcome
    assert (lost, left, is_closed, deletion) == ([], [], True, None)
    assert {code for code, _ in codes} == {"backend_error"}
    assert all("No space is left on the disk" in reason for _, reason in codes)
