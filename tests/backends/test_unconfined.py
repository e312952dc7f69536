"""`virtual_mode=False`: paths of the host; the root and its parent directories cannot be moved or deleted."""

from pathlib import Path

import pytest

from deepfs.backends.filesystem import FilesystemBackend

WAYS = ["", ".", "./", "..", "sub/..", "../../a/b", "{root}", "{root}/", "{root}/..", "{link}/b"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "a" / "b"
    (root / "sub").mkdir(parents=True)
    (root / "file").write_text("kept")
    (tmp_path / "link").symlink_to(root.parent)
    return root


@pytest.fixture(params=["given", "by a link"])
def backend(request: pytest.FixtureRequest, root: Path, tmp_path: Path) -> FilesystemBackend:
    return FilesystemBackend(root if request.param == "given" else tmp_path / "link" / "b", virtual_mode=False)


def test_the_root_and_its_parents_cannot_be_moved_or_deleted(
    backend: FilesystemBackend, root: Path, tmp_path: Path
) -> None:
    for way in WAYS:
        path = way.format(root=root, link=tmp_path / "link")
        results = [backend.delete(path), backend.move(path, str(tmp_path / "moved"))]
        assert [result.code for result in results] == ["permission_denied"] * 2, way
    assert (root / "file").read_text() == "kept"


def test_siblings_of_the_root_can_be_moved_and_deleted(backend: FilesystemBackend, root: Path) -> None:
    (root.parent / "bb").mkdir()
    assert backend.delete("../bb").ok
    assert backend.move("sub", "../sub").ok
    assert backend.delete("../sub").ok
    assert backend.delete("file").ok
    assert list(root.parent.rglob("*")) == [root]


def test_a_link_in_the_path_of_the_root_cannot_be_deleted(root: Path, tmp_path: Path) -> None:
    backend = FilesystemBackend(tmp_path / "link" / "b", virtual_mode=False)
    assert backend.delete(str(tmp_path / "link")).code == "permission_denied"
    assert FilesystemBackend(root, virtual_mode=False).delete(str(tmp_path / "link")).ok
    assert (root / "file").read_text() == "kept"
