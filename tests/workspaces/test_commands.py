"""Commands in a workspace: they run on a copy, and what they changed is a change of the workspace."""

from contextlib import aclosing
from typing import Any

import pytest

from deepfs.backends.memory import MemoryBackend
from deepfs.errors import NotSupportedError
from deepfs.operations import Execute, Operation
from deepfs.sandboxes.bubblewrap import BubblewrapSandbox
from deepfs.workspaces import fork

pytestmark = pytest.mark.anyio


async def test_a_command_sees_the_workspace_and_changes_it_alone() -> None:
    below = MemoryBackend(files={"/a.txt": "one\n", "/d/b.txt": "two\n", "/gone": "x", "/same": "same"})
    workspace = fork(below, commands=BubblewrapSandbox)
    await workspace.aedit("/a.txt", "one", "ONE")
    await workspace.adelete("/gone")
    command = (
        "cat a.txt; ls; echo new > d/new; rm d/b.txt; printf '\\000\\377' > bin; mv same moved; sed -i s/ONE/TWO/ a.txt"
    )
    answer = await workspace.aexecute(command)
    assert (answer.exit_code, answer.output.split()) == (0, ["ONE", "a.txt", "d", "same"])
    assert {change.path: change.kind for change in await workspace.achanges()} == {
        "/a.txt": "edited",
        "/bin": "created",
        "/d/b.txt": "deleted",
        "/d/new": "created",
        "/gone": "deleted",
        "/moved": "created",
        "/same": "deleted",
    }
    assert [each.content for each in await workspace.adownload_files(["/a.txt", "/bin"])] == [b"TWO\n", b"\0\xff"]
    assert sorted(below._files) == ["/a.txt", "/d/b.txt", "/gone", "/same"]
    assert (await workspace.amerge()).ok
    assert sorted(below._files) == ["/a.txt", "/bin", "/d/new", "/moved"]


async def test_a_change_of_the_same_size_and_time_is_found() -> None:
    workspace = fork(MemoryBackend(files={"/a": "1", "/b": "2"}), commands=BubblewrapSandbox)
    assert (await workspace.aexecute("printf 9 > a; touch -r b a")).exit_code == 0
    assert [change.path for change in await workspace.achanges()] == ["/a"]


async def test_what_a_workspace_cannot_keep_is_named() -> None:
    workspace = fork(MemoryBackend(files={"/a": "1"}), commands=BubblewrapSandbox)
    answer = await workspace.aexecute("ln -s a link; printf 2 > a")
    assert (answer.exit_code, answer.output) == (
        1,
        "\n[Not kept: /link: only readable files with valid names are kept]",
    )
    assert (await workspace.aread("/a")).file_data.content == "2"


async def test_what_a_command_made_unreadable_is_kept() -> None:
    workspace = fork(MemoryBackend(files={"/a": "1", "/b": "2", "/d/x": "3"}), commands=BubblewrapSandbox)
    answer = await workspace.aexecute("echo new > a; chmod 000 a; echo new > b; chmod 000 d")
    assert (answer.exit_code, answer.output) == (0, "")
    assert [(change.path, change.kind) for change in await workspace.achanges()] == [("/a", "edited"), ("/b", "edited")]


async def test_what_others_change_below_during_a_command_is_not_replaced() -> None:
    below = MemoryBackend(files={"/a": "old\n", "/gone": "old"})
    theirs = {"/a": "theirs", "/gone": "theirs", "/new": "theirs"}

    class Slow(BubblewrapSandbox):
        async def run(self, operation: Operation) -> Any:
            answer = await super().run(operation)
            if isinstance(operation, Execute):
                for path, content in theirs.items():
                    await below.awrite(path, content, overwrite=True)
            return answer

    workspace = fork(below, commands=Slow)
    answer = await workspace.aexecute("echo mine >> a; rm gone; echo mine > new; echo mine > other")
    assert answer.exit_code == 1
    assert "[Not kept: /gone, /a, /new: others changed them meanwhile" in answer.output.replace("/new, /a", "/a, /new")
    assert (await workspace.amerge()).merged == ["/other"]
    assert {path: file.content for path, file in below._files.items()} == {**theirs, "/other": "mine\n"}


async def test_a_watch_tells_what_a_command_changes() -> None:
    workspace = fork(MemoryBackend(files={"/a": "1"}), commands=BubblewrapSandbox)
    async with aclosing(workspace.awatch("/")) as events:
        assert (await anext(events)).kind == "resync"
        await workspace.aexecute("printf 2 > a")
        assert (await anext(events)).path == "/a"


async def test_without_a_sandbox_no_command_is_run() -> None:
    workspace = fork(MemoryBackend())
    assert not workspace.capabilities.executes
    with pytest.raises(NotSupportedError):
        await workspace.aexecute("true")
