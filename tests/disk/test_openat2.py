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


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("a/b/file", b"inside"),
        ("a/inner/file", None),
        ("a/outer/file", None),
        # Not "a/../a/b/file", which fails while something on the machine is renamed.
        ("../outside/file", None),
        ("a/../../outside/file", None),
        ("/etc/passwd", None),
        ("a/none/file", None),
        ("a/b/file/x", None),
    ],
)
def test_links_and_paths_that_lead_outside_are_refused(root: Path, path: str, content: bytes | None) -> None:
    directory = os.open(root, os.O_RDONLY)
    try:
        descriptor = open_unlinked(path, os.O_RDONLY, directory)
        found = None
        if descriptor is not None:
            assert not os.get_inheritable(descriptor)
            found = os.read(descriptor, 100)
            os.close(descriptor)
    finally:
        os.close(directory)
    assert found == content


@pytest.mark.parametrize("path", ["/a/b/file", "/a/inner/file", "/a/outer/file", "/a/none/file", "/a/b/file/x", "/a/b"])
@pytest.mark.parametrize("linked", [False, True])
def test_opening_in_one_call_and_name_by_name_give_the_same_result(
    root: Path, monkeypatch: pytest.MonkeyPatch, path: str, linked: bool
) -> None:
    given = root
    if linked:
        given = root.parent / "link"
        given.symlink_to(root)

    def answer() -> bytes | str:
        try:
            return Disk(str(given)).read_file(path)[0]
        except DeepFSError as error:
            return f"{error.code} {error}"

    quick = answer()
    monkeypatch.setattr(places, "open_unlinked", lambda *_: None)
    assert answer() == quick
