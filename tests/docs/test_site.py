"""What the documentation site has to hold: every public name, and every page; and what the package index shows."""

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from deepfs import __version__

ROOT: Final = Path(__file__).parents[2]
REFERENCE: Final = sorted((ROOT / "docs/reference").glob("*.md"))
PUBLIC: Final = (
    "deepfs",
    "deepfs.backends",
    "deepfs.middleware",
    "deepfs.policy",
    "deepfs.sandboxes",
    "deepfs.testing",
)
"""The packages whose names are described; `deepfs.errors` is described whole."""


def _described() -> list[str]:
    return [name for page in REFERENCE for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]


def _object(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return import_module(name) if name == "deepfs.errors" else getattr(import_module(module), attribute)


def test_the_reference_describes_every_public_name_once() -> None:
    described = _described()
    assert sorted(set(described)) == sorted(described)
    known = [_object(name) for name in described]
    public = {f"{package}.{name}" for package in PUBLIC for name in import_module(package).__all__}
    missing = [
        name for name in sorted(public - {"deepfs.__version__"}) if not any(_object(name) is each for each in known)
    ]
    assert missing == []


def test_every_page_is_in_the_navigation() -> None:
    pages = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    assert written - pages == set()
