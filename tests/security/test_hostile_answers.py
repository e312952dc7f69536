"""What a sandbox answers is not trusted: it is checked, bounded, and refused by one error."""

import fcntl
import gzip
import os
import tracemalloc
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint

from deepfs import CompositeBackend, FilesystemPermission, MemoryBackend, PermissionedBackend
from deepfs.errors import BackendError, DeepFSError
from deepfs.sandboxes.base import BaseSandbox
from deepfs.sandboxes.remote import StreamEnds, exit_code_of
from deepfs.storage.gathering import gather
from deepfs.testing.suite import assert_ok, content_of
from deepfs.text.entries import EntryChange
from deepfs.types import ExecuteResponse
from support.hostile import LyingSandbox, attempted, framed, operations
from support.promises import keeps
from support.sandboxes import WITH_PYTHON, LocalSandbox, busybox_tools
from support.waiting import until_tasks_wait

pytestmark = pytest.mark.anyio
engines = pytest.mark.parametrize("engine", ["py", "sh"])

_MIB = 1024 * 1024


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """One event loop is enough, but for cancellation, which has both."""
    return "asyncio"


def telling(records: bytes) -> LyingSandbox:
    return LyingSandbox(lambda _: records)


# --- lengths ---


async def test_an_answer_that_announces_too_much_is_not_fetched() -> None:
    sandbox = LyingSandbox(lambda words: framed(words[0], "A" * 64_000, 10**11, "0" * 64))
    for call in operations(sandbox):
        before = sandbox.commands
        await attempted(call)
        assert sandbox.commands == before + 1


@pytest.mark.parametrize("part", ["", "A", "A" * 64_001])
async def test_parts_of_another_length_than_they_must_have_end_the_call(part: str) -> None:
    sandbox = LyingSandbox(
        lambda words: framed(words[0], part if words[2] == b"more" else "A" * 64_000, 640_000, "0" * 64)
    )
    result = await sandbox.als("/d")
    assert (result.code, sandbox.commands) == ("backend_error", 2)
    assert "'/d'" in (result.error or "")


async def test_a_frame_that_is_not_whole_and_unchanged_is_refused() -> None:
    text = b64encode(b"ok\n").decode()

    def framed_well(nonce: bytes) -> str:
        return framed(nonce, text, len(text), sha256(text.encode()).hexdigest())

    changes: list[Callable[[str, str], str]] = [
        lambda frame, nonce: "",
        lambda frame, nonce: frame.replace(nonce, "0" * 16),
        lambda frame, nonce: frame.replace("@end", ""),
        lambda frame, nonce: frame.replace("@end", " " * 300_000),
        lambda frame, nonce: frame.replace(f" {len(text)} ", " 9 "),
        lambda frame, nonce: frame.replace(f" {len(text)} ", f" {'9' * 5000} "),
        lambda frame, nonce: frame.replace(text, text[:-1]),
        lambda frame, nonce: frame.replace(text, f"{text}\udc80"),
        lambda frame, nonce: frame.replace(text, b64encode(b"E\n").decode()),
        lambda frame, nonce: "x" * 1_000_000,
    ]
    assert (await LyingSandbox(lambda words: ExecuteResponse(framed_well(words[0]), 0)).als("/d")).ok
    for change in changes:
        sandbox = LyingSandbox(
            lambda words, change=change: ExecuteResponse(change(framed_well(words[0]), words[0].decode()), 0)  # type: ignore[misc]
        )
        assert (await sandbox.als("/d")).code == "backend_error", change(framed_well(b"nonce"), "nonce")[:100]


async def test_an_answer_that_cannot_be_decompressed_is_refused() -> None:
    packed = gzip.compress(b"ok\n" * 100)
    for wrong in (b"\x1f\x8b no", packed[:-9], packed + b"more", gzip.compress(bytes(Modest.answer_bytes * 3))):
        text = b64encode(wrong).decode()
        checksum = sha256(text.encode()).hexdigest()
        sandbox = Modest(lambda words, text=text, sum=checksum: framed(words[0], text, len(text), sum))  # type: ignore[misc]
        assert (await sandbox.als("/d")).code == "backend_error"


async def test_an_answer_in_parts_takes_no_more_commands_than_its_length_allows() -> None:
    sandbox = LyingSandbox(lambda words: framed(words[0], "A" * 64_000, 16 * _MIB, "0" * 64))
    assert (await sandbox.als("/d")).code == "backend_error"
    assert sandbox.commands <= 16 * _MIB / 64_000 + 1


def bomb(start: bytes, megabytes: int) -> str:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = packer.compress(start)
    for _ in range(megabytes):
        data += packer.compress(bytes(_MIB))
    return b64encode(data + packer.flush()).decode()


class Modest(LyingSandbox):
    answer_bytes: int = 4 * _MIB
    content_bytes: int = 8 * _MIB


@pytest.mark.parametrize("start", [b"", b"ok\n", b"ok 0 2147483648\n", b"ok\nfile 2147483648 /work/d/a//\n"])
async def test_an_answer_is_decompressed_only_as_far_as_it_is_used(start: bytes) -> None:
    text = bomb(start, 256)
    sandbox = Modest(lambda words: framed(words[0], text, len(text), sha256(text.encode()).hexdigest()))
    calls = operations(sandbox)
    tracemalloc.start()
    try:
        results = [await attempted(call) for call in calls]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * _MIB
    assert "backend_error" in {getattr(result, "code", None) for result in results}


async def test_a_listing_with_too_many_entries_is_refused() -> None:
    records = b"".join(b"81a4 0 0 /work/d/%d//\n" % number for number in range(100_001))
    sandbox = telling(b"ok\n" + records)
    sandbox._calls._answer_bytes = sandbox.answer_bytes = 16 * _MIB
    assert "more than 100,000" in ((await sandbox.als("/d")).error or "")


# --- records ---


_MALFORMED = {
    "ls": [
        *(b"", b"ok", b"no\n", b"ok ok\n", b"E\n", b"E not_found\nok\n", b"ok\n81a4 0 0\n", b"ok\n81a4 0 0 //\n"),
        *(b"ok\n81a4 -1 0 /work/d/a//\n", b"ok\n81a4 1_0 0 /work/d/a//\n", b"ok\nxyz 0 0 /work/d/a//\n"),
        *(b"ok\n-1 0 0 /work/d/a//\n", b"ok\n81a4 0 then /work/d/a//\n", b"ok\n81a4 0 0 /work/d/" + b"a" * 20_000),
        b"ok\n81a4 " + b"9" * 5000 + b" 0 /work/d/a//\n",
    ],
    "fetch": [
        *(b"", b"ok 0 5\none", b"ok 0 -1\n", b"ok 0\n", b"ok 0 0\nmore", b"ok 0 0\nok 0 0\n", b"E\n", b"E later\n"),
        *(b"same 0\n", b"same\n", b"what 0 0\n", b"ok 0 999999999999\n"),
    ],
    "write": [b"", b"ok", b"ok\nok\n", b"E\n", b"yes\n", b"ok 1\n"],
    "put": [b"ok\n", b"ok\nok\nok\n", b"ok\nno\n"],
    "grep": [
        *(b"ok\nfile 3 /work/d/a//\non", b"ok\nfile -3 /work/d/a//\none", b"ok\nmore 0 /work/d/a//\n"),
        *(b"ok\nfull 0 //\nfile 0 /work/d/a//\n", b"ok\nfile 99999999 /work/d/a//\n", b"ok\nfull 0 //\nmore"),
    ],
    "resolve": [b"", b"ok /d//\n", b"ok /d//\nok /d//\nok /d//\n", b"maybe /d//\nok /d//\n", b"ok\n"],
    "entries": [b"ok\n", b"ok\n81a4 0 0 /work/d/a//\n", b"ok\n41ed 0 0 /work/d//\n81a4 0 zz /work/d/a//\n"],
}


def asked(sandbox: BaseSandbox, operation: str) -> Callable[[], Any]:
    return {
        "ls": lambda: sandbox.als("/d"),
        "fetch": lambda: sandbox.aread("/d/a"),
        "write": lambda: sandbox.awrite("/d/a", ""),
        "put": lambda: sandbox.aupload_files([("/d/a", b""), ("/d/b", b"")]),
        "grep": lambda: sandbox.agrep("one", "/d"),
        "resolve": lambda: sandbox.aresolve_paths(["/d/a", "/d"]),
        "entries": lambda: sandbox.alist_tree("/d"),
    }[operation]


@keeps("answers of a hostile sandbox are refused or bounded")
async def test_whatever_is_malformed_is_one_error_that_names_the_path() -> None:
    for operation, records in [(name, records) for name, each in _MALFORMED.items() for records in each]:
        result = await attempted(asked(telling(records), operation))
        if operation == "put":
            assert [response.error for response in result] == ["backend_error"] * 2
        else:
            assert result.code == "backend_error"
            assert "'/d" in (str(result) if isinstance(result, DeepFSError) else result.error)


async def test_an_error_shows_no_control_characters_of_the_sandbox() -> None:
    result = await telling(b"E other \x1b[31m\xe2\x80\xaeevil\r{other}\n").als("/d")
    assert (result.error or "").isprintable()
    assert (result.error or "").endswith("evil {other}")


async def test_unchanged_content_must_have_been_read_before() -> None:
    result = await telling(b"same 0\n").aread("/d/a")
    assert (result.code, result.file_data) == ("backend_error", None)
    downloads = await telling(b"same 0\nsame 0\n").adownload_files(["/d/a", "/d/b"])
    assert [(download.error, download.content) for download in downloads] == [("backend_error", None)] * 2


TIMES = [
    (b"99999999999999", "9999-12-31T23:59:59.000000+00:00"),
    (b"-99999999999999", "0001-01-01T00:00:00.000000+00:00"),
    (b"1e999", "9999-12-31T23:59:59.000000+00:00"),
    (b"-inf", "0001-01-01T00:00:00.000000+00:00"),
    (b"nan", None),
    (b"0.5", "1970-01-01T00:00:00.500000+00:00"),
]


async def test_a_time_may_have_any_value() -> None:
    for told, shown_as in TIMES:
        listed = assert_ok(await telling(b"ok\n81a4 0 %s /work/d/a//\n" % told).als("/d")).entries or []
        assert [entry.modified_at for entry in listed] == [shown_as]
        read = assert_ok(await telling(b"ok %s 3\none" % told).aread("/d/a"))
        assert (read.file_data.modified_at if read.file_data else None) == shown_as


# --- names ---

_ELSEWHERE = [
    *(b"/etc/passwd", b"/work", b"/work/dd", b"/work/other/a", b"/work/d/../x", b"/work/d/./x", b"d/a", b"", b"/"),
    *(b"/work/d/", b"/work/d/a\0b", b"/work/d/a/", b"/workd/a", b"/work/d/a/../../e"),
]


async def test_a_name_that_does_not_lie_in_the_listed_directory_is_refused() -> None:
    for name in [*_ELSEWHERE, b"/work/d", b"/work/d/e/f"]:
        assert (await telling(b"ok\n81a4 0 0 %s//\n" % name).als("/d")).code == "backend_error"


async def test_a_name_that_does_not_lie_beneath_what_is_searched_is_refused() -> None:
    for name in _ELSEWHERE:
        assert (await telling(b"ok\n81a4 0 0 %s//\n" % name).aglob("**", "/d")).code == "backend_error"
        assert (await telling(b"ok\nfile 3 %s//\none" % name).agrep("one", "/d")).code == "backend_error"
        with pytest.raises(BackendError):
            await telling(b"ok\n41ed 0 0 /work/d//\n81a4 0 0 %s//\n" % name).alist_tree("/d")


async def test_a_forged_listing_reaches_no_other_mount() -> None:
    memory = MemoryBackend()
    await memory.awrite("/AGENTS.md", "mine")
    tree = CompositeBackend(MemoryBackend(), {"/memories/": memory, "/box/": telling(b"")})
    for forged in (b"/work/../memories/AGENTS.md", b"/memories/AGENTS.md", b"/work/d/../../memories/AGENTS.md"):
        listed = b"ok\n41ed 0 0 /work/d//\n81a4 0 0 %s//\n" % forged
        told = {b"entries": listed, b"ls": b"ok\n81a4 0 0 %s//\n" % forged, b"fetch": b"ok 0 4\nevil"}
        box = LyingSandbox(lambda words, told=told: told.get(words[2], b"ok\n"))  # type: ignore[misc]
        tree = CompositeBackend(MemoryBackend(), {"/memories/": memory, "/box/": box})
        for transfer in (tree.acopy, tree.amove):
            assert (await transfer("/box/d", "/there")).code == "backend_error"
        assert not (await tree.als("/box/d")).ok
    assert content_of(await memory.aread("/AGENTS.md")) == "mine"


@pytest.mark.parametrize("name", [b"", b"es/AGENTS.md"])
async def test_a_name_that_is_not_absolute_is_refused_also_where_the_root_is_that_of_the_sandbox(name: bytes) -> None:
    """With its mount before it, `es/AGENTS.md` would be a path beside the mount `/box`."""
    told = {b"grep": b"ok\nfile 3 %s//\none" % name, b"entries": b"ok\n41ed 0 0 ///\n81a4 0 0 %s//\n" % name}
    listed = b"ok\n81a4 0 0 %s//\n" % name
    box = LyingSandbox(lambda words: told.get(words[2], listed), "/")
    tree = CompositeBackend(MemoryBackend(), {"/box": box})
    assert (await tree.als("/box")).code == "backend_error"
    assert (await tree.aglob("**", "/box")).code == "backend_error"
    assert (await tree.agrep("one", "/box")).code == "backend_error"
    with pytest.raises(BackendError):
        await tree.alist_tree("/box")


async def test_an_entry_that_is_told_again_is_listed_once() -> None:
    records = b"81a4 1 0 /work/d/a//\n" * 2 + b"41ed 0 0 /work/d/a//\n"
    entries = assert_ok(await telling(b"ok\n" + records).als("/d")).entries or []
    assert [(entry.path, entry.size) for entry in entries] == [("/d/a", 1)]
    assert len(assert_ok(await telling(b"ok\n" + records).aglob("a", "/d")).matches or ()) == 1
    tree = await telling(b"ok\n41ed 0 0 /work/d//\n" + records).alist_tree("/d")
    assert [entry.path for entry in tree.entries] == ["/d", "/d/a"]
    found = assert_ok(await telling(b"ok\n" + b"file 3 /work/d/a//\none" * 2).agrep("one", "/d"))
    assert len(found.matches or ()) == 1


@engines
async def test_names_in_no_valid_path_blind_no_directory(engine: str, tmp_path: Path) -> None:
    sandbox = engine_of(engine, tmp_path)
    await sandbox.aexecute("for n in a 'C:' '..\\x' \"$(printf 'caf\\351')\"; do echo one >\"$n\"; done")
    shown_names = ["/..\\x", "/C:", "/a"]
    listed = assert_ok(await sandbox.als("/"))
    assert ([entry.path for entry in listed.entries or ()], listed.skipped) == (shown_names, 1)
    globbed = await sandbox.aglob("**")
    assert [info.path for info in globbed.matches or ()] == ["/C:", "/a"]
    assert (globbed.truncated, globbed.truncation_reason) == (True, "unreadable")
    grepped = await sandbox.agrep("one")
    assert ([match.path for match in grepped.matches or ()], grepped.skipped) == (["/a"], 2)
    listing = await sandbox.alist_tree("/")
    assert listing.omission is not None
    assert listing.omission.count == 3
    rules = PermissionedBackend(sandbox, [FilesystemPermission(["read"], ["/secret"], mode="deny")])
    assert [entry.path for entry in assert_ok(await rules.als("/")).entries or ()] == shown_names


# --- the end of calls ---


@pytest.fixture(params=["asyncio", "trio"])
def either_loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_cancelled_call_runs_no_further_command(either_loop: str) -> None:
    """The command at which the caller is cancelled completes; a change that needs more commands is not begun."""

    async def commands_of(name: str, at: int) -> tuple[list[bytes], bool]:
        seen: list[bytes] = []
        with anyio.CancelScope() as scope:

            def answer(words: list[bytes]) -> bytes | str:
                seen.append(words[2])
                if len(seen) == at:
                    scope.cancel()
                if name == "parts":
                    return framed(words[0], "A" * 64_000, 10 * 64_000, "0" * 64)
                return b"E timeout\n" if words[2] == b"write" else b"ok\n"

            sandbox = LyingSandbox(answer)
            content = "x" * 500_000 if name == "staged" else "x"
            call = sandbox.als("/d") if name == "parts" else sandbox.awrite("/d/a", content)
            await call
            await checkpoint()
        return seen, scope.cancelled_caught

    async def main() -> None:
        assert await commands_of("parts", 2) == ([b"ls", b"more"], True)
        assert await commands_of("staged", 2) == ([b"stage", b"stage"], True)
        assert await commands_of("locked", 2) == ([b"write", b"write"], True)

    anyio.run(main, backend=either_loop)


class Hanging(LyingSandbox):
    """A sandbox whose commands never end."""

    script_seconds: float = 0.1

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        self.commands += 1
        await anyio.sleep_forever()
        raise AssertionError


def test_a_shielded_change_ends_at_its_deadline(either_loop: str) -> None:
    async def main() -> None:
        sandbox = Hanging(lambda _: b"")
        calls = operations(sandbox)
        with anyio.fail_after(60):
            results = [await attempted(call) for call in calls]
            codes = {getattr(result, "code", None) for result in results if not isinstance(result, list)}
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(sandbox.awrite, "/d/a", "x")
                    await until_tasks_wait()
                    scope.cancel()
        assert codes == {"timeout"}
        assert sandbox.commands == len(calls) + 1

    anyio.run(main, backend=either_loop)


def engine_of(engine: str, root: Path, path: str = WITH_PYTHON) -> LocalSandbox:
    sandbox = LocalSandbox(root, path)
    sandbox._calls._engine = engine
    return sandbox


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "w").mkdir()
    return tmp_path / "w"


@pytest.fixture
def held_lock(root: Path) -> Iterator[Path]:
    """The directory of temporary files of a sandbox in which another process holds the lock of the scripts."""
    with open(root.parent / f".~deepfs-lock-{os.getuid()}", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield root.parent


@engines
async def test_a_lock_held_in_the_sandbox_cannot_hold_a_change(
    engine: str, root: Path, held_lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepfs.sandboxes.wire._LOCK_ATTEMPTS", 1)

    class Apart(LocalSandbox):
        async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
            return await super().aexecute(f"export TMPDIR={held_lock}\n{command}", timeout=timeout)

    sandbox = Apart(root)
    sandbox._calls._engine = engine
    await sandbox.aexecute("for n in 1 2 3 4 5; do echo one >$n; done")
    calls: list[Callable[[], Any]] = [
        lambda: sandbox.awrite("/1", "two", overwrite=True),
        lambda: sandbox.aedit("/2", "one", "two"),
        lambda: sandbox.adelete("/3"),
        lambda: sandbox.amove("/4", "/6"),
        lambda: sandbox.acopy("/5", "/7"),
        lambda: sandbox.achange_entries([EntryChange("/8", "make_directory")]),
        lambda: sandbox.aupload_files([("/9", b"")]),
    ]
    codes: list[str] = []

    async def attempt(call: Callable[[], Any]) -> None:
        result = await attempted(call)
        codes.append(result[0].error if isinstance(result, list) else result.code)

    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(attempt, call)
    assert codes == ["timeout"] * 7
    assert [entry.path for entry in assert_ok(await sandbox.als("/")).entries or ()] == [f"/{n}" for n in range(1, 6)]
    assert len(assert_ok(await sandbox.agrep("one")).matches or ()) == 5


# --- links and rules ---


@pytest.fixture(params=["py", "sh", pytest.param("busybox", marks=pytest.mark.needs("busybox"))])
async def linked(request: pytest.FixtureRequest, root: Path) -> LocalSandbox:
    if request.param == "busybox":
        tools = await anyio.to_thread.run_sync(busybox_tools, root.parent / "tools")
        sandbox = engine_of("sh", root, tools)
    else:
        sandbox = engine_of(request.param, root)
    await sandbox.aupload_files([("/secret/key", b"hidden"), ("/open/a", b"hidden no more")])
    made = (
        "ln -s ../secret/key open/file; ln -s ../secret open/dir; ln -s loop loop; ln -s /etc open/etc; ln -s a open/b"
    )
    assert (await sandbox.aexecute(f"{made}; ln -s /etc/hostname open/name")).exit_code == 0
    return sandbox


async def test_links_are_resolved_in_the_sandbox_by_one_command(linked: LocalSandbox) -> None:
    before = linked.commands
    wanted = {
        "/open/a": "/open/a",
        "/open/file": "/secret/key",
        "/open/dir/new/deeper": "/secret/new/deeper",
        "/open/dir": "/secret",
        "/open/b": "/open/a",
        "/none/at all": "/none/at all",
        "/loop": None,
        "/open/etc/passwd": None,
        "/": "/",
        "/../x": None,
        "/line\nbreak\n": "/line\nbreak\n",
    }
    assert dict(zip(wanted, await linked.aresolve_paths([*wanted]), strict=True)) == wanted
    assert linked.commands == before + 1


@keeps("Rules cover the paths to which links lead.")
async def test_rules_judge_what_links_lead_to(linked: LocalSandbox) -> None:
    both = ["read", "write"]
    rules = PermissionedBackend(linked, [FilesystemPermission(both, ["/secret", "/secret/**"], mode="deny")])
    for path in ("/open/file", "/open/dir/key", "/open/dir", "/open/name", "/open/etc/hostname"):
        calls: list[Callable[[], Any]] = [
            lambda path=path: rules.aread(path),
            lambda path=path: rules.aread_raw(path),
            lambda path=path: rules.awrite(path, "x", overwrite=True),
            lambda path=path: rules.aedit(path, "hidden", "x"),
            lambda path=path: rules.acopy(path, "/open/copy"),
            lambda path=path: rules.als(path),
            lambda path=path: rules.agrep("hidden", path),
            lambda path=path: rules.aglob("*", path),
        ]
        assert {(await attempted(call)).code for call in calls} == {"permission_denied"}, path
        assert [item.error for item in await rules.adownload_files([path])] == ["permission_denied"]
        assert [item.error for item in await rules.aupload_files([(path, b"x")])] == ["permission_denied"]
    assert {match.path for match in (await rules.agrep("", "/", regex=True)).matches or ()} <= {"/open/a", "/open/b"}
    assert {info.path for info in (await rules.aglob("*", "/open")).matches or ()} <= {
        "/open/a",
        "/open/b",
        "/open/name",
    }
    assert content_of(await rules.aread("/open/b")) == "hidden no more"
    assert content_of(await linked.aread("/secret/key")) == "hidden"


async def test_rules_refuse_where_links_cannot_be_resolved(linked: LocalSandbox) -> None:
    class Without(LyingSandbox):
        async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
            if b"resolve" in command.encode() or b64encode(b"resolve") in command.encode():
                return await super().aexecute(command, timeout=timeout)
            return await linked.aexecute(command, timeout=timeout)

    for told in (b"no //\nno //\n", b"E other sh: readlink: not found\n", b""):
        box = Without(lambda _, told=told: told, str(linked.root))  # type: ignore[misc]
        rules = PermissionedBackend(box, [FilesystemPermission(["read"], ["/secret/**"], mode="deny")])
        results = [await rules.aread("/open/a"), await rules.als("/open"), await rules.agrep("hidden")]
        assert not [result for result in results if result.ok]


# --- services ---


def test_of_a_stream_its_ends_are_kept() -> None:
    output = StreamEnds(1000)
    tracemalloc.start()
    try:
        for _ in range(2000):
            output.add(b"x" * 100_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    output.add(b"end")
    assert peak < _MIB
    assert output.data.endswith(b"xend")
    assert len(output.data) + output.left_out == 200_000_003
    assert len(output.data) <= 3000


async def test_a_missing_exit_code_is_an_error() -> None:
    for told in [None, "0", 1.5, float("nan"), 10**20]:
        with pytest.raises(BackendError, match="did not tell how the command ended"):
            exit_code_of(told)


async def test_an_error_of_a_stream_is_raised_as_it_is() -> None:
    async def broken() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await gather([broken, broken])
