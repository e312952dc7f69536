"""The paths by which the documentation and the examples import names."""

import re
from importlib import import_module
from pathlib import Path
from typing import Final

import mcp.server.mcpserver  # noqa: F401 - It cannot be imported while the guard of blocking calls is on.

ROOT: Final = Path(__file__).parents[2]

_imports: Final = re.compile(r"from (deepfs[\w.]*) import (\([^)]*\)|[\w, ]+)")


def test_documented_names_are_there() -> None:
    for documents in ("README.md", "docs/*.md", "examples/*.py"):
        imported = {
            (path, name)
            for text in map(Path.read_text, ROOT.glob(documents))
            for path, names in _imports.findall(text)
            for name in re.findall(r"\w+", re.sub(r" as \w+", "", names))
        }
        assert imported, "nothing is imported there"
        assert [(path, name) for path, name in imported if not hasattr(import_module(path), name)] == []


def test_every_path_of_the_state_has_the_same_class() -> None:
    import deepfs
    from deepfs.backends import state
    from deepfs.middleware import filesystem

    assert deepfs.FilesystemState is state.FilesystemState is filesystem.FilesystemState
