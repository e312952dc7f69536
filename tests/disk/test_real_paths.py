"""Real paths after following links, compared with os.path.realpath."""

import errno
import os
from pathlib import Path

import pytest

from deepfs import (
    FilesystemBackend,
    FilesystemPermission,
    PermissionedBackend,
    run_sync,
)
from deepfs.disk import Disk
from deepfs.errors import BackendError

LINKS = {
    "d/inside": "../s",
    "d/absolute": "{root}/s/deep",
    "d/chain": "inside/deep",
    "d/dangling": "../s/missing",
    "d/self": ".",
    "s/deep/up": "../../d",
    "outside": "/etc",
    "above": "../..",
    "circle": "circle",
    "through_nothing": "nothing/../s",
}
ASKED = [
    "/", "/d", "/d/file", "/d/inside", "/d/inside/file", "/d/inside/new/er", "/d/absolute/file", "/d/chain/up/inside",
    "/d/self/self/file", "/d/dangling", "/d/dangling/beneath", "/s/deep/up/file", "/none/at/all", "/d/file/beneath",
]  # fmt: skip
NOWHERE = ["/outside", "/outside/passwd", "/above/x", "/circle", "/circle/x", "/through_nothing", "/through_nothing/f"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "s" / "deep").mkdir(parents=True)
    for file in ("d/file", "s/file", "s/deep/file"):
        (root / file).write_text("x")
    for link, target in LINKS.items():
        (root / link).symlink_to(target.format(root=root))
    return root


def test_real_paths_agree_with_os_path_realpath(root: Path) -> None:
    disk = Disk(str(root))
    for path in ASKED:
        expected = os.path.realpath(f"{root}{path}").removeprefix(os.path.realpath(root)) or "/"
        assert disk.real_path(path) == expected, path


def test_a_path_that_leads_outside_or_in_circles_has_no_real_path(root: Path) -> None:
    disk = Disk(str(root))
    assert [disk.real_path(path) for path in NOWHERE] == [None] * len(NOWHERE)
    assert Disk(str(root / "missing")).real_path("/a/b") == "/a/b"


def test_no_descriptor_stays_open(root: Path) -> None:
    disk = Disk(str(root))
    before = len(os.listdir("/proc/self/fd"))
    for path in (*ASKED, *NOWHERE):
        disk.real_path(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_running_out_of_descriptors_is_an_error_not_a_missing_path(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "d" / "secret").write_text("secret")
    (root / "open").symlink_to("d/secret")
    files = FilesystemBackend(root)
    ruled = PermissionedBackend(files, [FilesystemPermission(["read"], ["/d/**"], "deny")])
    real = os.open

    def short(name: object, *args: object, **options: object) -> int:
        if name == str(root):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(name, *args, **options)

    monkeypatch.setattr(os, "open", short)
    with pytest.raises(BackendError, match="Too many files are open"):
        run_sync(files.aresolve_paths, ["/open"])
    assert run_sync(files.aresolve_paths, ["/../x"]) == [None]
    found = ruled.glob("*")
    assert (found.code, found.matches) == ("backend_error", None)
