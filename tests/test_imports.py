"""Importing a part of deepfs loads no framework and no driver before they are used."""

import json
from typing import Final

import pytest

from support.scripts import run_script

# The dependencies of deepfs, and their own dependencies.
LIGHT: Final = {"anyio", "deepfs", "idna", "msgspec", "sniffio", "typing_extensions"}


def loaded_by(statement: str) -> set[str]:
    """The packages outside the standard library that a statement loads in a new interpreter."""
    printed = run_script(f"""
        import json, sys
        before = set(sys.modules)
        {statement}
        loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
        print(json.dumps(sorted(loaded - sys.stdlib_module_names)))
    """)
    return set(json.loads(printed))


def test_importing_deepfs_loads_nothing_else() -> None:
    assert loaded_by("import deepfs, deepfs.backends") == {"deepfs"}


@pytest.mark.parametrize(
    "statement",
    [
        "from deepfs import MemoryBackend, run_sync",
        "from deepfs.backends import FilesystemBackend",
        "from deepfs.backends.composite import CompositeBackend",
        "from deepfs.policy import WrapperBackend",
        "from deepfs import FilesystemPermission, PermissionedBackend",
    ],
)
def test_backends_load_no_framework_and_no_driver(statement: str) -> None:
    assert loaded_by(statement) <= LIGHT


def test_using_backends_loads_no_framework_and_no_driver(tmp_path: object) -> None:
    used = f"""from deepfs import CompositeBackend, FilesystemBackend, MemoryBackend
        backend = CompositeBackend(MemoryBackend(), {{"/d/": FilesystemBackend({str(tmp_path)!r})}})
        assert backend.write("/d/a.txt", "one").ok and backend.grep("one").matches"""
    assert loaded_by(used) <= LIGHT


def test_names_are_listed_before_they_are_loaded() -> None:
    printed = run_script("""
        import sys
        import deepfs
        assert set(deepfs.__all__) <= set(dir(deepfs))
        assert "deepfs.types" not in sys.modules
        assert deepfs.FileInfo is deepfs.FileInfo is sys.modules["deepfs.types"].FileInfo
        assert "FileInfo" in vars(deepfs)
        try:
            deepfs.no_such_name
        except AttributeError as error:
            print(error)
    """)
    assert printed == "module 'deepfs' has no attribute 'no_such_name'\n"
