"""Commands in a workspace: they run on a copy, and what they changed is a change of the workspace."""

import pytest

from deepfs.backends.memory import MemoryBackend
from deepfs.errors import NotSupportedError
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
    assert (answer.exit_code, answer.output) == (1, "\n[Not kept: /link: only files with valid names are kept]")
    assert (await workspace.aread("/a")).file_data.content == "2"


async def test_without_a_sandbox_no_command_is_run() -> None:
    workspace = fork(MemoryBackend())
    assert not workspace.capabilities.executes
    with pytest.raises(NotSupportedError):
        await workspace.aexecute("true")
