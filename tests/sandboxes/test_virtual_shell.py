"""VirtualShell: what commands see, what is stored of their changes, conflicts, limits, and agents."""

import re
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from langgraph.store.memory import InMemoryStore

from deepfs import (
    CompositeBackend,
    FilesystemBackend,
    MemoryBackend,
    StateBackend,
    StoreBackend,
    create_deep_agent,
    run_sync,
)
from deepfs.backends.postgres import PostgresBackend
from deepfs.backends.protocol import BackendProtocol, supports_execute
from deepfs.backends.sqlite import SqliteBackend
from deepfs.errors import BackendError
from deepfs.operations import ChangeFiles, Delete, Operation, Write
from deepfs.policy import FilesystemPermission, HistoryBackend, PermissionedBackend, QuotaBackend, WrapperBackend
from deepfs.sandboxes import VirtualShell
from deepfs.sandboxes import virtual_shell as module
from deepfs.testing import Call, ScriptedModel, Turn
from deepfs.types import ExecuteResponse
from support.graphs import InNode, open_node
from support.postgres_files import fresh_namespace
from support.promises import keeps

if TYPE_CHECKING:
    from support.object_stores import S3Server

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]
ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""For what belongs to asyncio."""


async def shell_of(files: dict[str, bytes], **options: Any) -> tuple[VirtualShell, MemoryBackend]:
    memory = MemoryBackend()
    await memory.aupload_files([*files.items()])
    return VirtualShell(memory, **options), memory


async def contents(backend: BackendProtocol) -> dict[str, bytes]:
    tree = await backend.alist_tree("/")
    paths = [entry.path for entry in tree.entries if entry.kind == "file"]
    return {each.path: each.unwrap() for each in await backend.adownload_files(paths)}


async def run(backend: BackendProtocol, command: str, **options: Any) -> ExecuteResponse:
    done: ExecuteResponse = await backend.aexecute(command, **options)  # type: ignore[attr-defined]
    return done


# --- what commands see and change ------------------------------------------------------------------------------------


async def test_a_command_reads_and_changes_the_files_of_the_backend() -> None:
    shell, memory = await shell_of({"/a.txt": b"b\na\n", "/src/x.py": b"foo = 1\n", "/b.bin": bytes(range(256))})
    assert supports_execute(shell)
    assert (await run(shell, "sort a.txt; cat /src/x.py")).output == "a\nb\nfoo = 1\n"
    assert (await run(shell, "sed -i s/foo/bar/ src/x.py && mv src lib && rm a.txt && cp b.bin c.bin")).exit_code == 0
    assert await contents(memory) == {
        "/lib/x.py": b"bar = 1\n",
        "/b.bin": bytes(range(256)),
        "/c.bin": bytes(range(256)),
    }
    assert (await shell.aread("/lib/x.py")).unwrap().content == "bar = 1\n"


async def test_each_command_begins_anew_in_the_root() -> None:
    shell, _ = await shell_of({"/d/a": b"x"})
    assert (await run(shell, "cd d; x=1; export y=2; pwd")).output == "/d\n"
    assert (await run(shell, "pwd; echo [$x$y]")).output == "/\n[]\n"


async def test_the_answer_has_the_exit_code_and_marks_stderr() -> None:
    shell, _ = await shell_of({})
    assert await run(shell, "echo out; echo err >&2; exit 3") == ExecuteResponse("out\n[stderr] err\n", 3)
    assert (await run(shell, "nosuch")).exit_code == 127
    refused = await run(shell, "echo 'open")
    assert (refused.exit_code, refused.output.startswith("Error: The command was not run: parse error")) == (2, True)


def test_modes_and_empty_directories_are_kept_where_the_storage_has_them(tmp_path: Path) -> None:
    shell = VirtualShell(FilesystemBackend(tmp_path))
    script = "printf '#!/bin/bash\\necho ran $1\\n' > full/r.sh; chmod 755 full/r.sh"
    done = shell.execute(f"mkdir -p empty/in full; {script}")
    assert done == ExecuteResponse("", 0)
    assert (tmp_path / "empty/in").is_dir()
    assert (tmp_path / "full/r.sh").stat().st_mode & 0o777 == 0o755
    assert (shell.execute("./full/r.sh x; echo more >> full/r.sh; rmdir empty/in empty")).output == "ran x\n"
    assert (tmp_path / "full/r.sh").stat().st_mode & 0o777 == 0o755
    assert not (tmp_path / "empty").exists()


async def test_a_storage_without_modes_and_empty_directories_runs_scripts_and_says_what_is_not_kept() -> None:
    shell, _ = await shell_of({"/r.sh": b"#!/bin/bash\necho ran\n"})
    assert (await run(shell, "./r.sh")).output == "ran\n"
    assert await run(shell, "mkdir d") == ExecuteResponse("[/d is empty, so it is not kept]\n", 0)


def test_links_are_followed_and_stay(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("one\n")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "out").symlink_to("/etc/passwd")
    shell = VirtualShell(FilesystemBackend(tmp_path))
    assert (shell.execute("cat link; echo two >> link")).output == "one\n"
    assert (tmp_path / "real").read_text() == "one\ntwo\n"
    assert (tmp_path / "link").is_symlink()
    assert (shell.execute("cat out")).exit_code == 1
    for command in ("ln -s real other; echo x > new", "ln real hard", "mv link other", "mkfifo pipe", "rm link"):
        refused = shell.execute(command)
        assert refused.exit_code == 126, command
        assert "Nothing was changed" in refused.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out", "real"]


async def test_what_tools_would_spoil_is_refused() -> None:
    files = {"/b.bin": bytes(range(256)), "/crlf": b"a\r\nb\r\n", "/u": "�\n".encode()}
    shell, memory = await shell_of({name: files[name] for name in ("/b.bin", "/crlf")})
    for command in (
        "sort b.bin > s",
        "sed s/x/y/ b.bin > s",
        "x=$(cat b.bin); echo $x > s",
        "split crlf",
        "nl crlf > n",
    ):
        assert (await run(shell, command)).exit_code == 126, command
    for command in ("head -c 9 /dev/zero > z", "rm b.bin; mkdir b.bin; echo x > b.bin/x"):
        assert (await run(shell, command)).exit_code == 126, command
    assert await contents(memory) == {name: files[name] for name in ("/b.bin", "/crlf")}
    shell, memory = await shell_of(files)
    assert (await run(shell, "sed s/^/x/ u > v")).exit_code == 0, "what was there before is not spoiled"
    assert (await contents(memory))["/v"] == "x�\n".encode()


# --- which contents are brought in -----------------------------------------------------------------------------------


class Counting(WrapperBackend):
    """Keeps the paths that were downloaded."""

    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self.fetched: list[str] = []

    async def adownload_files(self, paths: list[str]) -> Any:
        self.fetched += paths
        return await self.inner.adownload_files(paths)


TREE = {"/a.txt": b"one\n", "/b.txt": b"two\n", "/src/x.py": b"X\n", "/src/y.py": b"", "/z": b"b.txt\n"}
_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d"


@ASYNCIO
@pytest.mark.parametrize(
    ("command", "fetched"),
    [
        ("cat a.txt", ["/a.txt"]),
        ("cat ./src/../a.txt | tr o 0", ["/a.txt"]),
        ("cd src && head -n 1 x.py", ["/src/x.py"]),
        ("cat < a.txt", ["/a.txt"]),
        ("echo hi; ls; ls -1 src; mkdir d", []),
        ("echo new > c.txt", []),
        ("sed 'r b.txt' a.txt", ["/a.txt", "/b.txt"]),
        ("grep -n o a.txt", ["/a.txt"]),
        ("cat \"a\"'.t'x\\t", ["/a.txt"]),
        ("echo x >> a.txt", ["/a.txt"]),
        ("cp a.txt c; rm b.txt", ["/a.txt", "/b.txt"]),
        *(
            (command, sorted(TREE))
            for command in (
                "ls -l",
                "ls -R src; ls ?l src",
                "cat s*/x*",
                "mv src lib",
                "mv src q; wc -c q/*; mv q src",
                "rm -r src/",
                "cat $'\\x61.txt'",
                "f() { cat a.txt; }; f",
                "(cat a.txt)",
                "cat <(cat a.txt)",
                "grep -fz a.txt -r",
                "sed -fz a.txt",
                "cat ~/a.txt",
                "exec cat a.txt",
                "awk 1 a.txt",
                "cat $(cat z)",
                "f=a.txt; cat $f",
                'for f in *; do cat "$f"; done',
                "grep -r o .",
                "grep -rn o src",
                "find . -size +3c",
                "[ -s src/y.py ]; echo $?",
                "[[ -s src/y.py ]]; echo $?",
                "x=s; [ -$x src/y.py ]; echo $?",
                "xargs cat < z",
                "eval 'cat b.t''xt'",
                "cp -r src lib",
                "wc -c {a,b}.txt",
                "wc -c src/../*.txt",
                "awk '{while ((getline l < $1) > 0) print l}' z",
                "wc --files0-from=z",
                "diff src src",
                "alias q='cat b.txt'; q",
                "trap 'cat b.txt' EXIT",
                "echo 'cat b.txt' | sh",
                "source z",
                "stat -c %s a.txt",
                "exec 3< a.txt; cat <&3",
                "tar cf - . | wc -c",
            )
        ),
    ],
)
async def test_only_what_a_command_may_read_is_brought_in(command: str, fetched: list[str]) -> None:
    _, memory = await shell_of(TREE)
    counting = Counting(memory)
    lazy = await run(VirtualShell(counting), command)
    assert sorted(counting.fetched) == fetched
    eager, other = await shell_of(TREE)
    everything = module._find_named
    module._find_named = lambda words, command, files, directories: files
    try:
        # The files of both were made at other times.
        answer = await run(eager, command)
        assert (re.sub(_TIME, "", lazy.output), lazy.exit_code) == (re.sub(_TIME, "", answer.output), answer.exit_code)
    finally:
        module._find_named = everything
    assert await contents(memory) == await contents(other)


@pytest.mark.parametrize(
    "command",
    [
        "cat b.txt",
        "cp b.txt c",
        "echo x >> b.txt",
        "sed -i s/t/T/ b.txt",
        "mv b.txt c; cat c",
        "cat *.txt > all",
        "tee c < b.txt",
    ],
)
@keeps(
    "A content that was not brought in is never read or written as if it were empty",
)
async def test_a_content_that_was_not_brought_in_is_never_used(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a command reads a file that its words do not name, it runs again with the content."""
    eager, expected = await shell_of(TREE)
    wanted = await run(eager, command)
    monkeypatch.setattr(module, "_find_named", lambda words, command, files, directories: [])
    lazy, memory = await shell_of(TREE)
    assert await run(lazy, command) == wanted
    assert await contents(memory) == await contents(expected)


async def test_files_that_are_gone_or_forbidden_are_left_out_and_named() -> None:
    _, memory = await shell_of({"/a": b"1\n", "/no/b": b"2\n"})

    class Losing(WrapperBackend):
        async def adownload_files(self, paths: list[str]) -> Any:
            await self.inner.adelete("/a")
            return await self.inner.adownload_files(paths)

    done = await run(VirtualShell(Losing(memory)), "cat a no/b")
    assert done.output == "2\n[stderr] cat: a: No such file or directory\n[/a is left out: file_not_found]\n"


# --- what is stored --------------------------------------------------------------------------------------------------


class Meanwhile(WrapperBackend):
    """Somebody else changes files after the contents were fetched and before the changes are stored."""

    def __init__(self, inner: BackendProtocol, changes: Sequence[Operation]) -> None:
        super().__init__(inner)
        self.changes = [*changes]

    async def adownload_files(self, paths: list[str]) -> Any:
        found = await self.inner.adownload_files(paths)
        while self.changes:
            assert (await self.inner.arun(self.changes.pop())).ok
        return found


@keeps(
    "A file that others changed after the command read it is not overwritten",
    "what the command wrote is in a file beside it",
    "Deletions come last, and none is made after a write that failed",
)
async def test_what_others_changed_meanwhile_stays_and_both_sides_are_readable() -> None:
    _, memory = await shell_of({"/a": b"old\n", "/gone": b"x\n", "/keep": b"y\n"})
    others = [Write("/a", "theirs\n", overwrite=True), Write("/new", "theirs\n")]
    done = await run(
        VirtualShell(Meanwhile(memory, others)), "echo mine > a; echo mine > new; rm gone; mv keep kept; cat a"
    )
    assert done.exit_code == 1
    assert done.output.startswith("mine\n[/")
    found = await contents(memory)
    assert found.pop("/a") == found.pop("/new") == b"theirs\n"
    assert (found.pop("/gone"), found.pop("/keep"), found.pop("/kept")) == (b"x\n", b"y\n", b"y\n"), (
        "nothing is deleted"
    )
    assert [*found.values()] == [b"mine\n", b"mine\n"]
    for beside in found:
        assert f"was changed by others meanwhile: what this command wrote is in {beside}]\n" in done.output
    assert done.output.endswith("[So nothing was deleted or moved away]\n")


@keeps(
    "A file that others changed after the command read it is not overwritten and not deleted",
)
async def test_what_others_changed_meanwhile_is_not_deleted() -> None:
    _, memory = await shell_of({"/a": b"old\n", "/b": b"b\n", "/c": b"c\n"})
    others = [Write("/a", "theirs\n", overwrite=True), Delete("/c")]
    done = await run(VirtualShell(Meanwhile(memory, others)), "rm a b c")
    assert (done.exit_code, await contents(memory)) == (1, {"/a": b"theirs\n"})
    assert "/a was not deleted: " in done.output


@keeps(
    "A file that others changed after the command read it is not overwritten",
)
async def test_a_binary_file_that_others_changed_meanwhile_stays() -> None:
    _, memory = await shell_of({"/a.bin": b"\xff1", "/b.bin": b"\xff2"})
    others = [Write("/a.bin", "theirs", overwrite=True), Write("/c.bin", "theirs")]
    done = await run(VirtualShell(Meanwhile(memory, others)), "cp b.bin a.bin; cp b.bin c.bin")
    found = await contents(memory)
    assert done.exit_code == 1
    assert found["/a.bin"] == found["/c.bin"] == b"theirs"
    assert sorted(found.values()) == [b"theirs", b"theirs", b"\xff2", b"\xff2", b"\xff2"]


@keeps(
    "What a command changed is stored by ordinary operations of that backend",
)
async def test_rules_histories_and_quotas_beneath_see_ordinary_operations() -> None:
    memory = MemoryBackend()
    kept = HistoryBackend(memory, MemoryBackend(), "/")
    rules = [
        FilesystemPermission(["read", "write"], ["/secret/**"], "deny"),
        FilesystemPermission(["write"], ["/fixed/**"], "deny"),
    ]
    await memory.aupload_files([("/a", b"1\n"), ("/secret/s", b"s\n"), ("/fixed/f", b"f\n")])
    shell = VirtualShell(PermissionedBackend(kept, rules))
    assert (await run(shell, "cat secret/s; cat fixed/f; grep -r s .")).output.count("s\n") == 0
    denied = await run(
        shell, "echo x > a; echo x > fixed/f; echo x > secret/s 2>/dev/null; mkdir -p secret; echo x > secret/s"
    )
    assert denied.exit_code == 1
    found = await contents(memory)
    assert (found["/a"], found["/fixed/f"], found["/secret/s"]) == (b"x\n", b"f\n", b"s\n")
    assert len(await kept.ahistory("/a")) == 1
    full = VirtualShell(QuotaBackend(MemoryBackend(), max_bytes=10, max_files=9))
    done = await run(full, "echo 123456789 > a; echo 123456789 > b")
    assert (done.exit_code, "was not written: " in done.output) == (1, True)


class Recording(WrapperBackend):
    """Keeps the operations that change something."""

    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self.changes: list[Operation] = []

    async def run(self, operation: Operation) -> Any:
        self.changes += [operation] if operation.changes else []
        return await self.inner.arun(operation)


async def test_what_a_command_wrote_is_stored_by_one_call_and_what_it_deleted_by_a_second_one() -> None:
    _, memory = await shell_of({"/a": b"1\n", "/b": b"\xff", "/c": b"3\n"})
    recording = Recording(memory)
    assert (await run(VirtualShell(recording), "echo x >> a; cat b b > d; rm b c; echo new > n")).exit_code == 0
    assert [[*op.paths] for op in recording.changes if isinstance(op, ChangeFiles)] == [
        ["/a", "/d", "/n"],
        ["/b", "/c"],
    ]
    assert len(recording.changes) == 2
    assert await contents(memory) == {"/a": b"1\nx\n", "/d": b"\xff\xff", "/n": b"new\n"}


class Dying(WrapperBackend):
    """After some changes, also in the middle of a call, none works any more, as for a process that was killed."""

    def __init__(self, inner: BackendProtocol, changes: int) -> None:
        super().__init__(inner)
        self.left = changes

    async def run(self, operation: Operation) -> Any:
        if operation.changes:
            files = operation.files if isinstance(operation, ChangeFiles) else [None]
            left, self.left = self.left, self.left - len(files)
            if self.left < 0:
                if isinstance(operation, ChangeFiles) and left > 0:
                    await self.inner.achange_files(operation.files[:left])
                raise BackendError(None, "it was killed")
        return await self.inner.arun(operation)


@pytest.mark.parametrize("changes", range(11))
async def test_nothing_is_lost_if_it_is_killed_while_it_stores(changes: int) -> None:
    _, memory = await shell_of(TREE)
    done = await run(VirtualShell(Dying(memory, changes)), "mv src lib; mv a.txt lib; rm b.txt z; echo new > n")
    found = await contents(memory)
    assert {TREE["/src/x.py"], TREE["/a.txt"]} <= {*found.values()}
    assert (done.exit_code == 0) == (changes == 10), done.output
    assert done.exit_code == 0 or len(found) >= 3


async def test_names_that_the_interpreter_does_not_take_are_left_out_and_shown_safely() -> None:
    deep = "/".join("d" * 150)
    shell, memory = await shell_of(
        {"/a": b"1\n", "/x\n[etc was deleted]/b": b"2\n", f"/{deep}": b"3\n"}, max_files=9_000
    )
    done = await run(shell, "cat a; rm -r *; ls")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0] == "1"
    assert '["/x\\n[etc was deleted]" is left out: the interpreter does not take its path]' in lines
    assert not [line for line in lines if line.startswith("[etc")]
    assert [*await contents(memory)] == [f"/{deep}", "/x\n[etc was deleted]/b"]


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        "while :; do :; done",
        "x=aaaaaaaa; while :; do x=$x$x; done",
        "f() { f; }; f",
        ":(){ :|:& };:",
        "for ((;;)); do echo x; done",
        "for i in {1..90000000}; do :; done",
        "sleep 600",
        "sleep 600 & wait",
        "jq -n 'def f: f; f'",
        "awk 'BEGIN {x = \"a\"; while (1) x = x x}'",
        "printf '%900000000d' 1 > big",
        f"{'nice ' * 50_000} true",
        "cat a a > b; for i in 1 2 3 4 5 6 7 8 9; do cat b b b b b b b b > c; cp c b; done",
    ],
)
@keeps(
    "A command that is stopped, cancelled, or ended at a limit changes nothing",
    "Time, output and memory are bounded",
)
async def test_a_script_without_end_is_ended_and_changes_nothing(script: str) -> None:
    shell, memory = await shell_of({"/a": b"x" * 1_000_000}, timeout=1)
    done = await run(shell, f"set -e; rm a; echo x > new; cat nosuch || true; echo > a; {script}; cat nosuch")
    assert done.exit_code != 0
    assert len(done.output) < 200_000
    if done.exit_code is None:
        assert done.timed_out == 1
        assert done.output.endswith("[The command was stopped: its time of 1 s was up, and nothing was changed]\n")
    if "nothing was changed" in done.output:
        assert await contents(memory) == {"/a": b"x" * 1_000_000}


@keeps(
    "Time, output and memory are bounded",
)
async def test_output_is_cut_in_the_middle() -> None:
    shell, _ = await shell_of({}, max_output_bytes=1_000)
    done = await run(shell, "seq 1 20000")
    assert done.truncated
    assert done.output.startswith("1\n2\n")
    assert done.output.endswith("20000\n")
    assert len(done.output) < 1_200
    longer = await run(shell, "for i in 1 2 3 4 5 6 7 8 9; do seq 1 60000; done")
    assert longer.truncated, "the interpreter cuts as well"


async def test_a_tree_or_files_over_the_bounds_are_refused_with_the_reason() -> None:
    shell, _ = await shell_of({f"/{n}": b"x" * 100 for n in range(9)}, max_files=5)
    refused = await run(shell, "ls")
    assert refused.exit_code == 126
    assert "there are 10 files and directories, and max_files is 5" in refused.output
    shell, _ = await shell_of({f"/{n}.txt": b"x" * 100 for n in range(9)}, max_bytes=500)
    assert (await run(shell, "cat 1.txt 2.txt | wc -c")).output == "200\n", "a large tree, of which little is read"
    refused = await run(shell, "cat *.txt")
    assert refused.exit_code == 126
    assert "have 900 bytes, and max_bytes is 500" in refused.output
    shell, _ = await shell_of({"/big": b"x" * 11_000_000, "/a": b"1"})
    assert (await run(shell, "cat a; ls")).output == "1a\nbig\n"
    assert (await run(shell, "wc big")).exit_code == 126


async def test_a_command_of_its_own_time_never_gets_more_than_the_shell_has() -> None:
    shell, _ = await shell_of({}, timeout=1)
    assert (await run(shell, "sleep 9", timeout=0.2)).timed_out == 0.2
    assert (await run(shell, "sleep 9", timeout=99)).timed_out == 1


@keeps(
    "A command that is stopped, cancelled, or ended at a limit changes nothing",
)
async def test_a_cancelled_command_ends_its_interpreter_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shell, memory = await shell_of({"/a": b"x"})
    started: list[Any] = []
    start = module._Interpreter.start
    asked = anyio.Event()
    token = anyio.lowlevel.current_token()
    real = module.interpreter.send

    def send(stream: Any, header: dict[str, Any], contents: Any = ()) -> None:
        real(stream, header, contents)
        if "command" in header:
            anyio.from_thread.run_sync(asked.set, token=token)

    monkeypatch.setattr(module.interpreter, "send", send)
    monkeypatch.setattr(module._Interpreter, "start", lambda *args: (started.append(args[0]), start(*args)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, shell, "echo y > a; sleep 600")
        await asked.wait()
        tasks.cancel_scope.cancel()
    assert started[0]._process.returncode, "it was killed, and waited for"
    assert await contents(memory) == {"/a": b"x"}


@pytest.mark.parametrize(
    "script",
    [
        "jq -n 'def f(x): f(x + 1); f(0)'",
        "jq -n \"$(printf '[%.0s' {1..50000})\"",
        f"{'command ' * 2_000} true",
        "od -w999999999999 a",
    ],
)
@keeps(
    "The interpreter has a process of its own, with an empty environment",
    "what crashes it takes nothing else with it",
)
async def test_what_crashes_the_interpreter_takes_nothing_else_with_it(script: str) -> None:
    shell, _ = await shell_of({"/a": b"x"}, timeout=5)
    done = await run(shell, f"echo y > a; {script}; echo end")
    assert await run(shell, "cat a") == ExecuteResponse("y\n" if done.exit_code == 0 else "x", 0)
    if done.exit_code is None and done.timed_out is None:
        reason = "its interpreter crashed, or needed too much memory"
        assert done.output == f"[The command was stopped: {reason}, and nothing was changed]\n"


@pytest.mark.parametrize("stuck", ["analyze", "run"])
async def test_an_interpreter_that_looks_at_no_clock_is_killed(
    stuck: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, memory = await shell_of({"/a": b"x"}, timeout=0.2)
    program = (
        "import runpy, time\n"
        f"names = runpy.run_path({module.interpreter.__file__!r})['main'].__globals__\n"
        f"names[{stuck!r}] = lambda *args: time.sleep(600)\n"
        "names['main']()\n"
    )
    await anyio.Path(tmp_path / "program.py").write_text(program)
    monkeypatch.setattr(module.interpreter, "__file__", str(tmp_path / "program.py"))
    monkeypatch.setattr(module, "_ANALYSIS_SECONDS", 0.2 if stuck == "analyze" else 60)
    done = await run(shell, "echo y > a")
    assert (done.exit_code, done.timed_out) == ((126, None) if stuck == "analyze" else (None, 0.2))
    assert await contents(memory) == {"/a": b"x"}


async def test_an_interpreter_that_answers_nonsense_or_cannot_be_started_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, memory = await shell_of({"/a": b"x"}, timeout=5)
    program = (
        await anyio.Path(tmp_path / "program.py").write_text("import sys; sys.stdout.write('x' * 99)") and tmp_path
    )
    monkeypatch.setattr(module.interpreter, "__file__", f"{program}/program.py")
    assert (await run(shell, "cat a")).exit_code == 126
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(BackendError, match="the interpreter cannot be started"):
        await run(shell, "cat a")
    assert await contents(memory) == {"/a": b"x"}


@keeps(
    "Commands start no program, open no connection, and see no file, variable or process of this machine",
)
async def test_there_is_no_network_and_no_host() -> None:
    shell, _ = await shell_of({})
    tries = "curl http://127.0.0.1:9/; wget -q http://127.0.0.1:9/; cat < /dev/tcp/127.0.0.1/9; cat /etc/passwd"
    done = await run(shell, tries)
    assert done.exit_code == 1
    assert "root:" not in done.output
    assert (await run(shell, "cat /proc/self/environ; ls /home")).exit_code != 0


# --- constructor and package -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"max_files": 20_000}, ValueError, "max_files must be at most 10,000"),
        ({"max_bytes": 0}, ValueError, "max_bytes must be positive"),
        ({"timeout": "x"}, TypeError, "timeout must be a number"),
        ({"max_commands": 1.5}, TypeError, "max_commands must be an integer"),
    ],
)
def test_wrong_limits_are_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        VirtualShell(MemoryBackend(), **options)


def test_without_bashkit_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_spec("bashkit")
    monkeypatch.setattr("deepfs.text.arguments.find_spec", lambda package: None)
    with pytest.raises(ModuleNotFoundError, match=r"deepfs\[shell\]"):
        VirtualShell(MemoryBackend())


# --- the same answers over every storage -----------------------------------------------------------------------------

SCRIPTS = [
    "printf 'b\\r\\na\\n' > crlf.txt; printf '\\xef\\xbb\\xbfbom\\n' > bom.txt; echo ü > ü.txt; cat crlf.txt ü.txt",
    "mkdir -p d/e; echo one > d/e/1; echo two > d/2; : > d/empty; find d | sort; wc -c d/*2",
    "sed -i 's/a/A/' crlf.txt; echo more >> bom.txt; od -An -c crlf.txt bom.txt",
    "grep -rn o d; cat d/e/1 d/2 | sort -r > d/sorted; cat d/sorted",
    "mv d lib; find lib | sort; cat lib/e/1",
    "printf '\\xff\\x00\\xfe' > b.bin; cp b.bin lib/c.bin; cat b.bin >> lib/c.bin; wc -c < lib/c.bin",
    "rm -r lib/e lib/2; rm b.bin; ls -R",
    'for f in *.txt; do mv "$f" "x-$f"; done; ls; ls nosuch; echo $?',
    "gzip -k x-crlf.txt; gunzip -c x-crlf.txt.gz | cmp - x-crlf.txt && rm x-crlf.txt; ls",
    "head -c 200000 <(seq 1 100000) > large; tail -n 1 large; wc large; echo end >> large; tail -c 9 large",
]


async def answers(shell: BackendProtocol) -> list[tuple[str, int | None]]:
    """What the scripts print, and at last all files."""
    done = [await run(shell, script) for script in SCRIPTS]
    files = "".join(f"{path} {content!r}\n" for path, content in sorted((await contents(shell)).items()))
    return [*((each.output, each.exit_code) for each in done), (files, None)]


async def check_answers(backend: BackendProtocol) -> None:
    """The scripts give the same over a backend as over a MemoryBackend."""
    expected = await answers(VirtualShell(MemoryBackend()))
    assert expected[4] == ("lib\nlib/2\nlib/e\nlib/e/1\nlib/empty\nlib/sorted\none\n", 0)
    assert not [code for _, code in expected if code]
    assert await answers(VirtualShell(backend)) == expected


@pytest.mark.parametrize("storage", ["disk", "history", "sqlite", "store"])
async def test_scripts_give_the_same_over_every_storage(storage: str, tmp_path: Path) -> None:
    backends: dict[str, Callable[[], BackendProtocol]] = {
        "disk": lambda: FilesystemBackend(tmp_path / "disk"),
        "sqlite": lambda: SqliteBackend(tmp_path / "files.db", "all"),
        "store": lambda: StoreBackend(InMemoryStore(), namespace=("all",)),
        "history": lambda: HistoryBackend(MemoryBackend(), MemoryBackend(), "/"),
    }
    async with backends[storage]() as backend:
        await check_answers(backend)


@ASYNCIO
async def test_scripts_give_the_same_over_postgres(postgres_files_dsn: str) -> None:
    async with PostgresBackend(postgres_files_dsn, fresh_namespace()) as backend:
        await check_answers(backend)


@ASYNCIO
async def test_scripts_give_the_same_over_s3(s3_server: "S3Server") -> None:
    async with s3_server.backend(s3_server.prefix()) as backend:
        await check_answers(backend)


def test_commands_see_all_mounts_and_move_files_between_them(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    shell = VirtualShell(CompositeBackend(MemoryBackend(), {"/disk/": FilesystemBackend(tmp_path)}))
    assert shell.execute("echo 1 > a; echo 2 > disk/sub/b; mkdir disk/new").output == ""
    assert shell.execute("mv disk/sub . && mv a disk/new && find . | sort && cat sub/b disk/new/a") == ExecuteResponse(
        ".\n./disk\n./disk/new\n./disk/new/a\n./sub\n./sub/b\n2\n1\n", 0
    )
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_scripts_give_the_same_in_the_state_of_a_graph() -> None:
    with open_node() as node:
        run_sync(check_answers, InNode(StateBackend(), node))


# --- agents ----------------------------------------------------------------------------------------------------------


@ASYNCIO
async def test_an_agent_runs_commands_on_the_files_in_its_state() -> None:
    script = [
        Turn("", [Call("write_file", {"file_path": "/notes.txt", "content": "b\na\n"})]),
        Turn("", [Call("execute", {"command": "sort notes.txt > /sorted.txt && cat /sorted.txt"})]),
        Turn("", [Call("read_file", {"file_path": "/sorted.txt"})]),
        "done",
    ]
    agent = create_deep_agent(ScriptedModel(script=script), backend=VirtualShell(StateBackend()))
    found = await agent.ainvoke({"messages": [("user", "Sort my notes.")]})
    answers = [message.text for message in found["messages"] if message.type == "tool"]
    assert answers[1].startswith("a\nb\n")
    assert "a" in answers[2]
    assert found["files"]["/sorted.txt"]["content"] == "a\nb\n"
