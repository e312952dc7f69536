"""A workspace over a directory: directories without files, links, modes, and watches."""

from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.errors import ErrorCode
from deepfs.testing.suite import assert_failed, assert_ok, list_paths, text_of
from deepfs.types import ChangeEvent
from deepfs.workspaces import OverlayBackend, fork

pytestmark = pytest.mark.anyio


@pytest.fixture
def workspace(tmp_path: Path) -> OverlayBackend:
    (tmp_path / "d/empty").mkdir(parents=True)
    (tmp_path / "alone").mkdir()
    (tmp_path / "d/a.txt").write_text("a")
    (tmp_path / "to_file").symlink_to("d/a.txt")
    (tmp_path / "to_directory").symlink_to("d")
    return fork(FilesystemBackend(tmp_path))


async def test_a_directory_goes_with_its_files(workspace: OverlayBackend, tmp_path: Path) -> None:
    assert_ok(await workspace.adelete("/d"))
    assert "/d/" not in await list_paths(workspace, "/")
    assert_failed(await workspace.als("/d"), ErrorCode.FILE_NOT_FOUND)
    assert await anyio.Path(tmp_path / "d/a.txt").exists()
    assert (await workspace.amerge()).ok
    assert not await anyio.Path(tmp_path / "d").exists()


async def test_a_directory_without_files_is_shown_and_not_changed(workspace: OverlayBackend) -> None:
    assert await list_paths(workspace, "/alone") == []
    for result in (
        await workspace.adelete("/alone"),
        await workspace.amove("/alone", "/other"),
        await workspace.acopy("/alone", "/other"),
    ):
        assert "a workspace changes files only" in str(assert_failed(result, ErrorCode.UNSUPPORTED).error)
    assert_failed(await workspace.awrite("/alone", ""), ErrorCode.IS_DIRECTORY)
    assert_failed(await workspace.adelete("/missing"), ErrorCode.FILE_NOT_FOUND)


async def test_a_change_through_a_link_is_one_of_the_file(workspace: OverlayBackend, tmp_path: Path) -> None:
    assert_ok(await workspace.aedit("/to_file", "a", "edited"))
    assert assert_ok(await workspace.awrite("/to_directory/new.txt", "new")).path == "/to_directory/new.txt"
    assert [await text_of(workspace, path) for path in ("/to_file", "/d/a.txt", "/d/new.txt")] == [
        "edited",
        "edited",
        "new",
    ]
    assert await anyio.Path(tmp_path / "d/a.txt").read_text() == "a"
    assert (await workspace.amerge()).merged == ["/d/a.txt", "/d/new.txt"]
    assert await anyio.Path(tmp_path / "to_file").is_symlink()
    assert await anyio.Path(tmp_path / "d/a.txt").read_text() == "edited"


async def test_a_deleted_link_is_not_what_it_leads_to(workspace: OverlayBackend) -> None:
    assert_ok(await workspace.adelete("/to_file"))
    assert "/to_file" not in await list_paths(workspace, "/")
    assert await text_of(workspace, "/d/a.txt") == "a"


async def test_where_a_link_was_deleted_is_no_file(workspace: OverlayBackend, tmp_path: Path) -> None:
    assert_ok(await workspace.adelete("/to_file"))
    assert_failed(await workspace.aread("/to_file"), ErrorCode.FILE_NOT_FOUND)
    assert_failed(await workspace.awrite("/to_file", "new"), ErrorCode.UNSUPPORTED)
    assert_failed(await workspace.amove("/d/a.txt", "/to_file"), ErrorCode.UNSUPPORTED)
    assert (await workspace.amerge()).merged == ["/to_file"]
    assert not await anyio.Path(tmp_path / "to_file").is_symlink()
    assert await anyio.Path(tmp_path / "d/a.txt").read_text() == "a"


async def test_a_link_to_a_directory_is_not_deleted_with_what_it_leads_to(
    workspace: OverlayBackend, tmp_path: Path
) -> None:
    assert_failed(await workspace.adelete("/to_directory"), ErrorCode.UNSUPPORTED)
    assert await workspace.achanges() == []
    assert (await workspace.amerge()).ok
    assert await anyio.Path(tmp_path / "d/a.txt").read_text() == "a"


async def test_a_watch_tells_what_changes_here_and_what_is_seen_of_below() -> None:
    below = MemoryBackend(files={"/a": "1", "/b": "2"})
    workspace = fork(below)
    assert_ok(await workspace.awrite("/a", "mine", overwrite=True))
    async with aclosing(workspace.awatch("/")) as events:
        assert await anext(events) == ChangeEvent("/", "resync")
        assert_ok(await below.awrite("/a", "not seen", overwrite=True))
        assert_ok(await below.awrite("/b", "seen", overwrite=True))
        assert (event := await anext(events)).path == "/b"
        assert event.kind == "modified"
        assert_ok(await workspace.adelete("/b"))
        assert await anext(events) == ChangeEvent("/b", "deleted")
