"""The documentation's backends pass the shipped suite; their code is taken from the pages.

The backend on the page about custom backends is tested alone and mounted.
"""

from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT: Final = Path(__file__).parents[2]


def names_of(page: Path) -> Mapping[str, Any]:
    """The namespace that the code of a page defines."""
    document = Sybil(parsers=[PythonCodeBlockParser()]).parse(page)
    with TemporaryDirectory() as directory, chdir(directory):
        for example in document.examples():
            example.evaluate()
    return document.namespace


PAGE: Final = names_of(ROOT / "docs" / "custom-backends.md")


class TestKeyValueBackend(PAGE["TestKeyValueBackend"]):
    """The test class of the page, unchanged."""


class TestPublishedDocuments(PAGE["TestPublishedDocuments"]):
    """The test class of the page for a backend that only reads, unchanged."""
