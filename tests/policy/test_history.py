"""HistoryBackend keeps, shows and restores former versions of changed files."""

import stat
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from deepfs import (
    FilesystemBackend,
    FilesystemPermission,
    MemoryBackend,
    PermissionedBackend,
    SqliteBackend,
    run_sync,
)
from deepfs.errors import BackendError, DeadlineError, NotFoundError, PermissionDeniedError
from deepfs.operations import Operation
from deepfs.policy import HistoryBackend, WrapperBackend
from deepfs.testing import FaultyBackend
from deepfs.types import EditResult
from support.processes import started

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["in the same backend", "in another one"])
def history(request: pytest.FixtureRequest) -> HistoryBackend:
    if request.param == "in the same backend":
        return HistoryBackend(MemoryBackend())
    return HistoryBackend(MemoryBackend(), MemoryBackend(), "/")


async def contents(backend: HistoryBackend, path: str) -> list[bytes]:
    return [await backend.aread_version(path, version.number) for version in await backend.ahistory(path)]


async def test_every_change_keeps_the_former_version(history: HistoryBackend) -> None:
    assert await history.ahistory("/a") == []
    await history.awrite("/a", "1")
    await history.awrite("/a", "2", overwrite=True)
    await history.aedit("/a", "2", "3")
    await history.aupload_files([("/a", b"\0\xff"), ("/b", b"b")])
    await history.acopy("/b", "/a", overwrite=True)
    await history.adelete("/a")
    assert await contents(history, "/a") == [b"1", b"2", b"3", b"\0\xff", b"b"]
    versions = await history.ahistory("//a/")
    assert [version.number for version in versions] == [1, 2, 3, 4, 5]
    assert [version.size for version in versions] == [1, 1, 1, 2, 1]
    assert sorted(version.saved_at for version in versions) == [version.saved_at for version in versions]


async def test_why_nothing_can_be_kept_is_told(tmp_path: Path) -> None:
    await anyio.Path(tmp_path / "files.db").write_bytes(b"no database, " * 1_000)
    files = MemoryBackend()
    await files.awrite("/a", "1")
    async with SqliteBackend(tmp_path / "files.db") as archive:
        history = HistoryBackend(files, archive)
        told = "The file is not a SQLite database"
        edited, [uploaded] = await history.aedit("/a", "1", "2"), await history.aupload_files([("/a", b"2")])
        assert told in str(edited.error)
        assert uploaded.error == "backend_error"
        for look in (history.ahistory("/a"), history.achanges()):
            with pytest.raises(BackendError, match=told):
                await look
        with pytest.raises(BackendError, match=f"'/a': it could not be kept in the history: {told}"):
            (await HistoryBackend(archive, files).awrite("/a", "1", overwrite=True)).unwrap()


async def test_a_storage_that_does_not_answer_in_time_is_a_timeout() -> None:
    files = MemoryBackend()
    await HistoryBackend(files).awrite("/a", "1")
    slow = FaultyBackend(files, dict.fromkeys(["ls", "upload_files", "write"], DeadlineError("The bucket timed out")))
    history = HistoryBackend(files, slow)
    changed = await history.awrite("/a", "2", overwrite=True)
    assert changed.code == "timeout"
    for look in (history.ahistory("/a"), history.achanges(), history.aundo("A")):
        with pytest.raises(DeadlineError, match="The history cannot be read: The bucket timed out"):
            await look


async def test_a_deleted_or_moved_tree_is_kept(history: HistoryBackend) -> None:
    await history.aupload_files([("/d/a", b"a"), ("/d/.hidden/b", b"b"), ("/e/c", b"c")])
    assert (await history.adelete("/d")).ok
    assert (await history.amove("/e", "/f")).ok
    assert await contents(history, "/d/a") == [b"a"]
    assert await contents(history, "/d/.hidden/b") == [b"b"]
    assert await contents(history, "/e/c") == [b"c"]
    assert (await history.arestore("/d/.hidden/b", 1)).ok
    assert (await history.aread("/d/.hidden/b")).file_data.content == "b"  # type: ignore[union-attr]


async def test_restoring_is_a_change_that_keeps_a_version(history: HistoryBackend) -> None:
    await history.awrite("/a", "old")
    await history.awrite("/a", "new", overwrite=True)
    assert (await history.arestore("/a", 1)).ok
    assert (await history.aread("/a")).file_data.content == "old"  # type: ignore[union-attr]
    assert await contents(history, "/a") == [b"old", b"new"]
    assert (await history.arestore("/a", 9)).code == "file_not_found"
    with pytest.raises(NotFoundError):
        await history.aread_version("/a", 9)


async def test_diffs_between_versions(history: HistoryBackend) -> None:
    await history.awrite("/a", "one\ntwo\n")
    await history.aedit("/a", "two", "2")
    assert await history.adiff("/a", 1) == "--- /a (version 1)\n+++ /a\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    await history.awrite("/a", "one\n2", overwrite=True)
    assert (await history.adiff("/a", 2)).endswith("-2\n+2\n\\ No newline at end of file\n")
    assert "+2\n" in await history.adiff("/a", 1, 2)
    assert await history.adiff("/a", 1, 1) == ""
    await history.aupload_files([("/a", b"\0")])
    assert await history.adiff("/a", 1) == "Binary files /a (version 1) and /a differ\n"
    await history.adelete("/a")
    assert (await history.adiff("/a", 1)).endswith("@@ -1,2 +0,0 @@\n-one\n-two\n")


FAILING: dict[str, Callable[[HistoryBackend], Awaitable[Any]]] = {
    "edit without a match": lambda history: history.aedit("/a", "none", "y"),
    "edit with too many": lambda history: history.aedit("/a", "n", "y"),
    "edit of another version": lambda history: history.aedit("/a", "now", "y", if_match="none"),
    "write that may not replace": lambda history: history.awrite("/a", "y"),
    "write over another version": lambda history: history.awrite("/a", "y", if_match="none"),
    "write of what is no text": lambda history: history.awrite("/a", "\0", overwrite=True),
    "copy that may not replace": lambda history: history.acopy("/other", "/a"),
    "copy of nothing": lambda history: history.acopy("/none", "/a", overwrite=True),
    "move that may not replace": lambda history: history.amove("/a", "/other"),
    "move into itself": lambda history: history.amove("/d", "/d/deeper"),
    "restore of nothing": lambda history: history.arestore("/a", 99),
}


async def test_a_failed_change_keeps_no_version() -> None:
    for name, change in FAILING.items():
        memory, archive = MemoryBackend(), MemoryBackend()
        history = HistoryBackend(memory, archive, keep=2)
        await history.aupload_files([("/other", b"o"), ("/d/a", b"d"), ("/a", b"1")])
        for text in ("2", "3", "nn now"):
            await history.awrite("/a", text, overwrite=True)
        before = await archive.aglob("/.history/**")
        for _ in range(3):
            assert not (await change(history)).ok, name
        assert await archive.aglob("/.history/**") == before, name
        assert await contents(history, "/a") == [b"2", b"3"], name
        await history.adelete("/a")
        assert await contents(history, "/a") == [b"3", b"nn now"], name


async def test_only_successful_uploads_of_a_batch_keep_versions() -> None:
    memory, archive = MemoryBackend(), MemoryBackend()
    rules = [FilesystemPermission(["write"], ["/no"], "deny")]
    await memory.aupload_files([("/no", b"1"), ("/yes", b"1")])
    history = HistoryBackend(PermissionedBackend(memory, rules), archive)
    outcomes = await history.aupload_files([("/no", b"2"), ("/yes", b"2")])
    assert [outcome.error for outcome in outcomes] == ["permission_denied", None]
    assert (await contents(history, "/no"), await contents(history, "/yes")) == ([], [b"1"])


class Answering(WrapperBackend):
    """Makes the change, then raises `answer` instead of returning the result."""

    answer: Exception | None = None

    async def run(self, operation: Operation) -> Any:
        result = await super().run(operation)
        if operation.name in ("write", "delete", "edit") and self.answer is not None:
            raise self.answer
        return result


async def test_a_change_whose_response_is_lost_keeps_a_version() -> None:
    for answer in (BackendError("Error: the answer is lost"), OSError("lost")):
        inner = Answering(MemoryBackend())
        history = HistoryBackend(inner, MemoryBackend())
        await history.awrite("/a", "1")
        await history.awrite("/d/b", "b")
        inner.answer = answer
        for change in (history.awrite("/a", "2", overwrite=True), history.adelete("/d")):
            with suppress(OSError):
                assert not (await change).ok
        inner.answer = None
        assert (await contents(history, "/a"), await contents(history, "/d/b")) == ([b"1"], [b"b"])


async def test_a_change_cancelled_before_it_happens_keeps_no_version() -> None:
    class Stuck(WrapperBackend):
        async def aedit(self, *args: Any, **options: Any) -> EditResult:
            await anyio.sleep_forever()
            raise AssertionError

    memory, archive = MemoryBackend(), MemoryBackend()
    await memory.awrite("/a", "1")
    history = HistoryBackend(Stuck(memory), archive)
    with anyio.move_on_after(0.05):
        await history.aedit("/a", "1", "2")
    assert await history.ahistory("/a") == []
    assert (await archive.aglob("/.history/**")).matches == []


# --- rules ---


async def with_a_secret(how: str) -> tuple[MemoryBackend, HistoryBackend, Callable[..., HistoryBackend]]:
    """The files, a history without rules, and a function that makes a history with rules over the same versions."""
    memory, archive = MemoryBackend(), MemoryBackend()
    versions = [archive] if how == "in another one" else [memory, "/.history"]
    keeper = HistoryBackend(memory, *versions)
    await keeper.awrite("/secret", "password 1\n")
    await keeper.awrite("/secret", "password 2\n", overwrite=True)

    def ruled(*operations: Any) -> HistoryBackend:
        rule = FilesystemPermission([*operations], ["/secret"], "deny")
        return HistoryBackend(PermissionedBackend(memory, [rule]), *versions)

    return memory, keeper, ruled


@pytest.mark.parametrize("how", ["in the same backend", "in another one"])
async def test_versions_need_the_permissions_of_their_file(how: str) -> None:
    memory, keeper, ruled = await with_a_secret(how)
    writer = ruled("write")
    assert await writer.aread_version("/secret", 1) == b"password 1\n"
    assert (await writer.arestore("/secret", 1)).code == "permission_denied"
    reader = ruled("read")
    for is_there in (True, False):
        for look in (reader.ahistory("/secret"), reader.aread_version("//secret/", 1), reader.adiff("/secret", 1)):
            with pytest.raises(PermissionDeniedError, match="permission denied for read on /secret"):
                await look
        assert (await reader.arestore("/secret", 1)).code == "permission_denied"
        shown = await memory.adownload_files(["/secret"])
        assert shown[0].content == (b"password 2\n" if is_there else None)
        await keeper.adelete("/secret")
    assert (await keeper.aread_version("/secret", 1)) == b"password 1\n"


async def test_symlinks_do_not_give_access_to_denied_versions(tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(lambda: (tmp_path / "link").symlink_to("secret"))
    disk, archive = FilesystemBackend(tmp_path), MemoryBackend()
    keeper = HistoryBackend(disk, archive)
    await keeper.awrite("/secret", "1")
    await keeper.awrite("/secret", "2", overwrite=True)
    rules = [FilesystemPermission(["read"], ["/secret"], "deny")]
    agent = HistoryBackend(PermissionedBackend(disk, rules), archive)
    with pytest.raises(PermissionDeniedError):
        await agent.aread_version("/link", 1)
    assert await keeper.aread_version("/link", 1) == b"1"


async def test_a_tampered_version_is_detected() -> None:
    archive = MemoryBackend()
    history = HistoryBackend(MemoryBackend(), archive)
    await history.awrite("/a", "1")
    await history.adelete("/a")
    [kept] = (await archive.aglob("/.history/**/00000001-*")).matches or []
    await archive.awrite(kept.path, "forged", overwrite=True)
    with pytest.raises(BackendError, match="was changed"):
        await history.aread_version("/a", 1)
    assert (await history.arestore("/a", 1)).code == "backend_error"


async def test_deleting_a_tree_during_writes_loses_no_version(history: HistoryBackend) -> None:
    await history.aupload_files([(f"/d/{number}", b"0") for number in range(10)])

    async def write(number: int) -> None:
        await history.awrite(f"/d/{number}", "1", overwrite=True)

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(write, number)
            if number == 5:
                group.start_soon(history.adelete, "/d")
    for number in range(10):
        found = (await history.adownload_files([f"/d/{number}"]))[0].content
        assert {*await contents(history, f"/d/{number}"), found} - {None} == {b"0", b"1"}


async def test_the_directory_of_versions_cannot_be_accessed() -> None:
    history = HistoryBackend(MemoryBackend(), directory="/.versions[1]")
    await history.awrite("/a", "x")
    await history.adelete("/a")
    assert (await history.als("/")).entries == []
    assert (await history.adelete("/.versions[1]")).code == "permission_denied"
    assert (await history.awrite("/.versions[1]/x", "x")).code == "permission_denied"
    assert (await history.aglob(".versions*/**")).matches == []
    assert await contents(history, "/a") == [b"x"]


async def test_a_change_is_refused_if_the_version_cannot_be_kept() -> None:
    memory = MemoryBackend()
    memory.write("/a", "x")
    history = HistoryBackend(memory, FaultyBackend(MemoryBackend(), {"upload_files": BackendError("Error: full")}))
    stored = await history.aupload_files([("/a", b"y"), ("/new", b"z"), ("/..", b"")])
    assert [(item.path, item.error) for item in stored] == [
        ("/a", "backend_error"), ("/new", "backend_error"), ("/..", "invalid_path"),
    ]  # fmt: skip
    result = await history.awrite("/a", "y", overwrite=True)
    assert result.code == "backend_error"
    assert memory.read("/a").file_data.content == "x"  # type: ignore[union-attr]


def test_a_file_and_its_symlinks_share_one_history(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    (tmp_path / "link").symlink_to("file")
    history = HistoryBackend(FilesystemBackend(tmp_path))
    assert history.write("/link", "2", overwrite=True).ok
    assert history.write("/file", "3", overwrite=True).ok
    assert run_sync(contents, history, "/file") == run_sync(contents, history, "/link") == [b"1", b"2"]


def test_invalid_settings_are_refused() -> None:
    invalid: list[dict[str, Any]] = [{"directory": "/"}, {"keep": 0}]
    for settings in invalid:
        with pytest.raises(ValueError, match=r"version"):
            HistoryBackend(MemoryBackend(), **settings)


EDITOR = """
import sys
import anyio
from deepfs import FilesystemBackend, SqliteBackend
from deepfs.policy import HistoryBackend

async def main(root, archive, name, edits):
    history = HistoryBackend(FilesystemBackend(root), SqliteBackend(archive), keep=1000)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(edits):
        assert (await history.aedit("/a", "|", f"{name}{number},|")).ok

anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
"""


async def check_every_content_is_kept(history: HistoryBackend, path: str, edits: int) -> None:
    """Each content that an edit of the process `EDITOR` replaced is a version with a number of its own."""
    versions = await history.ahistory(path)
    assert len({version.number for version in versions}) == len(versions) == edits
    (now,) = await history.adownload_files([path])
    parts = (now.content or b"").removesuffix(b"|").split(b",")[:-1]
    assert len(parts) == edits
    replaced = [b"".join(b"%s," % part for part in parts[:count]) + b"|" for count in range(edits)]
    assert await contents(history, path) == replaced


def test_processes_with_one_history_keep_every_content(tmp_path: Path) -> None:
    files, archive = tmp_path / "files", tmp_path / "archive.db"
    history = HistoryBackend(FilesystemBackend(files), SqliteBackend(archive), keep=1000)
    history.write("/a", "|")
    with ExitStack() as stack:
        editors = [stack.enter_context(started(EDITOR, files, archive, name, 15)) for name in "ab"]
        for editor in editors:
            assert editor.stdout is not None
            assert editor.stdout.readline() == "ready\n"
        for editor in editors:
            assert editor.stdin is not None
            editor.stdin.write("\n")
            editor.stdin.flush()
        assert [editor.wait() for editor in editors] == [0, 0]
    run_sync(check_every_content_is_kept, history, "/a", 30)
    run_sync(history.aclose)


async def test_a_change_keeps_what_another_process_stored_meanwhile(tmp_path: Path) -> None:
    class Late(WrapperBackend):
        """Another process writes between the look at the file and the change."""

        async def run(self, operation: Operation) -> Any:
            if operation.name == change and not (await other.aedit("/a", "1", "2")).ok:
                await other.awrite("/a", "theirs")
            return await super().run(operation)

    rows = (("write", "1 x"), ("edit", "1 x"), ("delete", "1 x"), ("write", None))
    for number, (change, before) in enumerate(rows):
        root = tmp_path / str(number)
        other = FilesystemBackend(root)
        if before:
            await other.awrite("/a", before)
        history = HistoryBackend(Late(FilesystemBackend(root)), MemoryBackend())
        changes: dict[str, Callable[[], Awaitable[Any]]] = {
            "write": lambda history=history: history.awrite("/a", "3", overwrite=True),
            "edit": lambda history=history: history.aedit("/a", "x", "y"),
            "delete": lambda history=history: history.adelete("/a"),
        }
        assert (await changes[change]()).ok, change
        assert await contents(history, "/a") == [b"2 x" if before else b"theirs"], change


def bits(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_versions_are_private_and_restored_with_their_modes(tmp_path: Path) -> None:
    files, archive = tmp_path / "files", tmp_path / "archive"
    history = HistoryBackend(FilesystemBackend(files), FilesystemBackend(archive), "/kept/here")
    for name, mode in (("secret", 0o600), ("program", 0o755), ("shared", 0o666)):
        history.write(f"/{name}", name)
        (files / name).chmod(mode)
        history.delete(f"/{name}")
        assert run_sync(history.arestore, f"/{name}", 1).ok
        assert bits(files / name) == mode
    stored = list((archive / "kept/here").rglob("*"))
    assert {bits(path) for path in stored if path.is_file()} == {0o600}
    assert {bits(archive / "kept/here"), *(bits(path) for path in stored if path.is_dir())} == {0o700}


def test_restoring_over_a_file_opens_nothing_to_others(tmp_path: Path) -> None:
    history = HistoryBackend(FilesystemBackend(tmp_path), MemoryBackend())
    history.write("/a", "secret")
    (tmp_path / "a").chmod(0o600)
    history.write("/a", "known", overwrite=True)
    (tmp_path / "a").chmod(0o644)
    assert run_sync(history.arestore, "/a", 1).ok
    assert bits(tmp_path / "a") == 0o600
    assert run_sync(history.arestore, "/a", 2).ok
    assert bits(tmp_path / "a") == 0o600


async def test_a_version_whose_mode_was_lost_is_restored_for_the_owner_alone(tmp_path: Path) -> None:
    history = HistoryBackend(FilesystemBackend(tmp_path))
    await history.awrite("/a", "1")
    await history.adelete("/a")
    [number] = [each async for each in anyio.Path(tmp_path / ".history").rglob("00000001")]
    await number.unlink()
    assert (await history.arestore("/a", 1)).ok
    assert stat.S_IMODE((await anyio.Path(tmp_path / "a").stat()).st_mode) == 0o600
