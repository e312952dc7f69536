"""BaseSandbox: commands per operation, content of any size, and names that try to break out."""

import os
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.to_thread
import pytest

from deepfs import CompositeBackend, FilesystemBackend, MemoryBackend
from deepfs.errors import BackendError, InvalidPathError
from deepfs.sandboxes.answers import tree_listing
from deepfs.sandboxes.base import BaseSandbox
from deepfs.sandboxes.wire import Records
from deepfs.testing.suite import assert_ok, content_of
from deepfs.text.entries import EntryChange
from deepfs.types import ExecuteResponse
from support.promises import keeps
from support.sandboxes import WITH_PYTHON, LocalSandbox

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop is enough: running commands has tests of its own."""
    return "asyncio"


@pytest.fixture(params=["python", pytest.param("busybox", marks=pytest.mark.needs("busybox")), "debian"])
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> LocalSandbox:
    root = tmp_path / "root"
    root.mkdir()
    if request.param == "debian":
        plain = tmp_path / "without-python"
        plain.mkdir()
        for name in _TOOLS:
            (plain / name).symlink_to(next(f"{part}/{name}" for part in _PARTS if os.path.exists(f"{part}/{name}")))
        return LocalSandbox(root, str(plain))
    return LocalSandbox(root, request.getfixturevalue("busybox") if request.param == "busybox" else WITH_PYTHON)


_PARTS = ("/bin", "/usr/bin")
_TOOLS = (
    *("base64", "cat", "chmod", "cp", "find", "flock", "grep", "gzip", "head", "id", "ln", "mkdir", "mkfifo"),
    *("mv", "readlink", "rm", "rmdir", "sed", "sh", "sha256sum", "sleep", "stat", "tail", "test", "tr", "wc"),
)
"""The programs that the shell script needs, from a system with GNU tools and without Python."""

_ODD = (
    *("it's", 'a "b"', "$(touch evil)", "`touch evil`", "a\nb", "-rf", "; touch evil", "a\\b", "é", "*", "!x", "{a}"),
    "a=b",
)


# --- round trips ------------------------------------------------------------------------------------------------------


async def test_ten_operations_take_at_most_eleven_commands(tmp_path: Path) -> None:
    sandbox = LocalSandbox(tmp_path)
    assert_ok(await sandbox.awrite("/a.txt", "one\ntwo\n"))
    assert_ok(await sandbox.aread("/a.txt"))
    assert_ok(await sandbox.aedit("/a.txt", "two", "three"))
    assert_ok(await sandbox.als("/"))
    assert_ok(await sandbox.aglob("*.txt"))
    assert_ok(await sandbox.agrep("three"))
    assert_ok(await sandbox.acopy("/a.txt", "/b.txt"))
    assert_ok(await sandbox.amove("/b.txt", "/c/d.txt"))
    assert [item.error for item in await sandbox.aupload_files([("/e", b"\0"), ("/f", b"x" * 9000)])] == [None, None]
    assert_ok(await sandbox.adelete("/c"))
    assert sandbox.commands <= 11


async def test_grep_over_many_files_takes_one_command(sandbox: LocalSandbox) -> None:
    def fill() -> None:
        for number in range(5000):
            directory = sandbox.root / str(number % 50)
            directory.mkdir(exist_ok=True)
            (directory / f"{number}.txt").write_text(f"line {number}\nand another of the {number}\n")

    await anyio.to_thread.run_sync(fill)
    result = assert_ok(await sandbox.agrep("line 4999"))
    assert [(match.path, match.line) for match in result.matches or ()] == [("/49/4999.txt", 1)]
    assert sandbox.commands == 1


async def test_unchanged_content_is_not_transferred_again(sandbox: LocalSandbox) -> None:
    text = "".join(f"{os.urandom(20).hex()}\n" for _ in range(10_000))
    await sandbox.awrite("/large.txt", text)
    before = sandbox.commands
    assert content_of(await sandbox.aread("/large.txt", 5000, 1)) == text.split("\n")[5000] + "\n"
    assert_ok(await sandbox.aedit("/large.txt", text.split("\n")[7000], "changed"))
    assert sandbox.commands - before == 2
    assert "changed\n" in await anyio.to_thread.run_sync((sandbox.root / "large.txt").read_text)


async def test_changes_by_other_commands_are_noticed(sandbox: LocalSandbox) -> None:
    await sandbox.awrite("/a.txt", "one two three")
    await sandbox.aexecute("printf 'ONE two three' > a.txt")
    assert_ok(await sandbox.aedit("/a.txt", "two", "2"))
    assert content_of(await sandbox.aread("/a.txt")) == "ONE 2 three"
    await sandbox.aexecute("printf other > a.txt")
    assert (await sandbox.aedit("/a.txt", "2", "3")).code == "no_match"
    await sandbox.aexecute("rm a.txt")
    assert (await sandbox.aedit("/a.txt", "other", "3")).code == "file_not_found"
    assert (await sandbox.aread("/a.txt")).code == "file_not_found"


# --- content ----------------------------------------------------------------------------------------------------------


async def test_a_megabyte_is_uploaded_and_downloaded_in_short_commands(sandbox: LocalSandbox) -> None:
    content = os.urandom(1 << 20)
    assert [
        item.error for item in await sandbox.aupload_files([("/a", b"a"), ("/large.bin", content), ("/b", b"b")])
    ] == [None, None, None]
    fresh = LocalSandbox(sandbox.root, sandbox._path)
    assert [item.content for item in await fresh.adownload_files(["/large.bin", "/b"])] == [content, b"b"]
    assert sandbox.longest < 128 * 1024, "no command is longer than an argument may be"


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path is always as long: it is part of the commands, of which the test counts the number."""
    with TemporaryDirectory() as directory:
        yield Path(directory)


async def test_thousands_of_files_are_uploaded_and_downloaded(short: Path) -> None:
    sandbox = LocalSandbox(short)
    files = [(f"/a long name of a directory/{number}.txt", str(number).encode()) for number in range(3000)]
    assert not [item.error for item in await sandbox.aupload_files(files) if item.error]
    fresh = LocalSandbox(short)
    assert [item.content for item in await fresh.adownload_files([path for path, _ in files])] == [
        content for _, content in files
    ]
    assert sandbox.longest < 128 * 1024
    assert fresh.longest < 128 * 1024
    assert sandbox.commands + fresh.commands < 30


async def test_an_edit_keeps_every_other_byte_and_the_mode(sandbox: LocalSandbox) -> None:
    path = sandbox.root / "run.sh"

    def prepare() -> None:
        path.write_bytes(b"\xef\xbb\xbf#!/bin/sh\r\necho one\r\nexit\r")
        path.chmod(0o751)

    await anyio.to_thread.run_sync(prepare)
    assert_ok(await sandbox.aedit("/run.sh", "one\nexit", "two\nend"))
    assert await anyio.to_thread.run_sync(path.read_bytes) == b"\xef\xbb\xbf#!/bin/sh\r\necho two\r\nend\r"
    assert await anyio.to_thread.run_sync(lambda: path.stat().st_mode & 0o777) == 0o751


# --- hostile names ----------------------------------------------------------------------------------------------------


@keeps("Names and contents travel as data, never as shell source")
async def test_file_names_are_never_interpreted(sandbox: LocalSandbox) -> None:
    for name in _ODD:
        path = f"/{name}/{name}"
        assert_ok(await sandbox.awrite(path, f"in {name}"))
        assert_ok(await sandbox.aedit(path, "in", "at"))
        assert content_of(await sandbox.aread(path)) == f"at {name}"
        assert_ok(await sandbox.acopy(path, f"{path}2"))
    listed = assert_ok(await sandbox.als("/")).entries or []
    assert [entry.path for entry in listed] == sorted(f"/{name}/" for name in _ODD)
    found = assert_ok(await sandbox.agrep("at ")).matches or []
    assert {match.path for match in found} == {f"/{name}/{name}{end}" for name in _ODD for end in ("", "2")}
    assert len(assert_ok(await sandbox.aglob("*2")).matches or ()) == len(_ODD)
    assert not await anyio.to_thread.run_sync((sandbox.root / "evil").exists)


async def test_modules_of_the_workspace_are_not_imported(sandbox: LocalSandbox) -> None:
    for name in ("os", "zlib", "hashlib", "shutil", "stat", "re", "fnmatch", "binascii"):
        await sandbox.awrite(f"/{name}.py", "raise SystemExit('imported')")
    assert len(assert_ok(await sandbox.aglob("*.py")).matches or ()) == 8
    assert_ok(await sandbox.acopy("/os.py", "/copy.py"))


async def test_symlinks_and_pipes(sandbox: LocalSandbox) -> None:
    await sandbox.awrite("/dir/a.txt", "one")
    await sandbox.aexecute("ln -s dir/a.txt link; ln -s dir dirlink; ln -s nowhere broken; ln -s . loop; mkfifo pipe")
    assert content_of(await sandbox.aread("/link")) == "one"
    assert_ok(await sandbox.aedit("/link", "one", "two"))
    assert content_of(await sandbox.aread("/dirlink/a.txt")) == "two"
    entries = {entry.path for entry in assert_ok(await sandbox.als("/")).entries or ()}
    assert entries == {"/broken", "/dir/", "/dirlink/", "/link", "/loop/", "/pipe"}
    found = assert_ok(await sandbox.agrep("two")).matches or []
    assert [match.path for match in found] == ["/dir/a.txt", "/link"]
    with anyio.fail_after(10):
        assert not (await sandbox.aread("/pipe")).ok


async def test_moving_a_file_onto_itself_keeps_it(sandbox: LocalSandbox) -> None:
    await sandbox.aupload_files([("/d/f", b"content"), ("/d/f\n", b"another")])
    await sandbox.aexecute("ln -s f d/link; ln -s d/link up; ln -s d dir; ln -s missing nowhere")
    for src, dst in (
        ("/d/link", "/d/f"),
        ("/up", "/d/f"),
        ("/up", "/d/link"),
        ("/dir/f", "/d/f"),
        ("/d/link", "/dir/f"),
    ):
        assert (await sandbox.amove(src, dst, overwrite=True)).path == dst
        assert (await sandbox.amove(dst, src, overwrite=True)).path == src
    assert (await sandbox.amove("/d", "/dir")).path == "/dir"
    downloads = await sandbox.adownload_files(["/d/f", "/d/link", "/up", "/dir/link"])
    assert [download.content for download in downloads] == [b"content"] * 4
    assert (await sandbox.amove("/d/f\n", "/d/f", overwrite=True)).ok
    assert [entry.path for entry in (await sandbox.als("/d")).entries or ()] == ["/d/f", "/d/link"]
    assert [(await sandbox.amove("/nowhere", "/missing")).code for _ in range(2)] == ["file_not_found"] * 2


async def test_paths_of_commands_are_those_of_files_beneath_the_root() -> None:
    box = Broken(ExecuteResponse("", 0), "/work")
    for given, path in (("/work/a", "/a"), ("b", "/b"), ("/work", "/"), ("/work/", "/")):
        assert box.virtual_path(given) == path
    for outside in ("/etc", "/workbench", "../etc", "/"):
        with pytest.raises(InvalidPathError):
            box.virtual_path(outside)
    assert Broken(ExecuteResponse("", 0)).virtual_path("/etc") == "/etc"


# --- broken sandboxes -------------------------------------------------------------------------------------------------


class Broken(BaseSandbox):
    """A sandbox that gives the same response to each command."""

    def __init__(self, response: ExecuteResponse, root: str = "/") -> None:
        super().__init__(root)
        self.response = response

    @property
    def id(self) -> str:
        return "broken"

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        return self.response


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (ExecuteResponse("OCI runtime exec failed: exec failed", 126), "backend_error"),
        (ExecuteResponse("", 0), "backend_error"),
        (ExecuteResponse("@deepfs 00 py 4 0\nAAAA\n@end 00", 0), "backend_error"),
        (ExecuteResponse("so far", None), "timeout"),
    ],
)
async def test_a_failed_command_is_never_an_empty_success(response: ExecuteResponse, code: str) -> None:
    sandbox = Broken(response)
    for call in (
        sandbox.als("/"),
        sandbox.agrep("x"),
        sandbox.aglob("*"),
        sandbox.aread("/a"),
        sandbox.awrite("/a", ""),
    ):
        result = await call
        assert result.code == code


async def test_noise_around_a_response_is_ignored(tmp_path: Path) -> None:
    class Noisy(LocalSandbox):
        async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
            response = await super().aexecute(command, timeout=timeout)
            text = response.output.replace("\n", "\r\n")
            return ExecuteResponse(f"Welcome!\r\n{text}[stderr] bye\n", response.exit_code)

    sandbox = Noisy(tmp_path)
    assert_ok(await sandbox.awrite("/a.txt", "one"))
    assert content_of(await sandbox.aread("/a.txt")) == "one"


async def test_a_damaged_response_is_detected(tmp_path: Path) -> None:
    class Damaging(LocalSandbox):
        async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
            response = await super().aexecute(command, timeout=timeout)
            lines = response.output.split("\n")
            lines[1] = lines[1][:-8] + "AAAAAAAA"
            return ExecuteResponse("\n".join(lines), response.exit_code)

    assert "damaged" in ((await Damaging(tmp_path).als("/")).error or "")


# --- moves to and from another storage ---


async def test_a_tree_can_be_moved_out_and_back(sandbox: LocalSandbox, tmp_path: Path) -> None:
    tree = CompositeBackend(FilesystemBackend(tmp_path / "out"), {"/box/": sandbox})
    for path in ("/box/d/run.sh", *(f"/box/d/deep/{name}" for name in _ODD)):
        assert [stored.error for stored in await tree.aupload_files([(path, b"#!/bin/sh\r\n")])] == [None]
    await sandbox.aexecute("mkdir -m 700 d/empty; chmod 755 d/run.sh")
    assert (await tree.amove("/box/d", "/d")).error is None
    assert (await tree.als("/box/d")).code == "file_not_found"
    assert (await tree.als("/d/empty")).entries == []
    assert await anyio.to_thread.run_sync(lambda: (tmp_path / "out" / "d" / "run.sh").stat().st_mode & 0o777) == 0o755
    assert (await tree.amove("/d", "/box/e")).error is None
    listed = await sandbox.aexecute("stat -c '%a' e/run.sh e/empty; find e/deep -type f | wc -l")
    assert listed.output.split()[:2] == ["755", "700"]
    names = [info.path for info in (await sandbox.als("/e/deep")).entries or ()]
    assert names == sorted(f"/e/deep/{name}" for name in _ODD)
    assert await anyio.to_thread.run_sync(os.listdir, tmp_path / "out") == []


async def test_trees_that_cannot_be_moved_whole_are_refused(sandbox: LocalSandbox) -> None:
    memory = MemoryBackend()
    tree = CompositeBackend(memory, {"/box/": sandbox})
    refused = {
        "ln -s . d/loop; ln -s . d/again": "unsupported",
        "ln -s none d/link": "unsupported",
        "mkfifo d/pipe": "unsupported",
        "printf x > d/$(printf 'caf\\351')": "invalid_path",
    }
    for made, code in refused.items():
        await sandbox.aexecute(f"mkdir d; printf x > d/a; {made}")
        for transfer in (tree.amove, tree.acopy):
            assert ((await transfer("/box/d", "/d")).code, memory._files) == (code, {}), made
        assert (await sandbox.aexecute("cat d/a; ls d | wc -l; rm -r d")).output.split()[0].startswith("x")


async def test_only_empty_directories_are_removed(sandbox: LocalSandbox) -> None:
    await sandbox.aexecute("mkdir full empty; echo x > full/a")
    made = [EntryChange("/new/dir", "make_directory", 0o500), EntryChange("/full", "make_directory")]
    assert [each.error for each in await sandbox.achange_entries(made)] == [None, "already_exists"]
    gone = [EntryChange(path, "remove_directory") for path in ("/full", "/empty", "/none", "/full/a")]
    codes = [each.error for each in await sandbox.achange_entries(gone)]
    assert codes[:3] == ["already_exists", None, "file_not_found"]
    assert codes[3] is not None
    assert (await sandbox.aexecute("stat -c %a new/dir; cat full/a")).output.split() == ["700", "x"]


@pytest.mark.parametrize("forged", ["/other", "/dd/a", "d/a", "", "/d/a//\n81a4 1 0 /etc/passwd"])
async def test_listed_names_outside_the_directory_are_refused(forged: str) -> None:
    for root in ("/", "/work"):
        place = "" if root == "/" else root
        text = b64encode(f"41ed 0 0 {place}/d//\n81a4 1 0 {place}{forged}//\n".encode()).decode()
        with pytest.raises(BackendError):
            tree_listing(Records(text, sha256(text.encode()).hexdigest()), "/d", root)
