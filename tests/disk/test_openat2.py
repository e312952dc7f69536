"""Opening a path in one call gives the same result as opening it name by name, and refuses links and ways out."""

import os
from pathlib import Path

import pytest

from deepfs.disk import Disk
from deepfs.disk import resolve as places
from deepfs.disk.os_calls import open_unlinked
from deepfs.errors import DeepFSError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/a/b").mkdir(parents=True)
    (tmp_path / "root/a/b/file").write_text("inside")
    (tmp_path / "root/a/inner").symlink_to("b")
    (tmp_path / "root/a/outer").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("outside")
    return tmp_path / "root"


# Not "a/../a/b/file", which fails while something on the machine is renamed.
REFUSED = (
    *("a/inner/file", "a/outer/file", "../outside/file", "a/../../outside/file", "/etc/passwd", "a/none/file"),
    "a/b/file/x",
)


def test_links_and_paths_that_lead_outside_are_refused(root: Path) -> None:
    directory = os.open(root, os.O_RDONLY)
    try:
        assert [path for path in REFUSED if open_unlinked(path, os.O_RDONLY, directory) is not None] == []
        descriptor = open_unlinked("a/b/file", os.O_RDONLY, directory)
        assert descriptor is not None
        assert not os.get_inheritable(descriptor)
        assert os.read(descriptor, 100) == b"inside"
        os.close(descriptor)
    finally:
        os.close(directory)


@pytest.mark.parametrize("linked", [False, True])
def test_opening_in_one_call_and_name_by_name_give_the_same_result(
    root: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    given = root
    if linked:
        given = root.parent / "link"
        given.symlink_to(root)

    def answer(path: str) -> bytes | str:
        try:
            return Disk(str(given)).read_file(path)[0]
        except DeepFSError as error:
            return f"{error.code} {error}"

    paths = ("/a/b/file", "/a/inner/file", "/a/outer/file", "/a/none/file", "/a/b/file/x", "/a/b")
    quick = [answer(path) for path in paths]
    monkeypatch.setattr(places, "open_unlinked", lambda *_: None)
    assert [answer(path) for path in paths] == quick
