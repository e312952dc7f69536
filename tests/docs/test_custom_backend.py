"""The backend on the page about custom backends passes the shipped suite, alone and mounted: the code is the page's own."""

from pathlib import Path
from typing import Any, Final

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from deepfs import BackendProtocol, CompositeBackend, MemoryBackend
from support.rooted import RootedBackend

PAGE: Final = Path(__file__).parents[2] / "docs" / "custom-backends.md"


def names_of_the_page() -> dict[str, Any]:
    """What the code of the page defines."""
    document = Sybil(parsers=[PythonCodeBlockParser()]).parse(PAGE)
    for example in document.examples():
        example.evaluate()
    return document.namespace


NAMES: Final = names_of_the_page()


class TestKeyValueBackend(NAMES["TestKeyValueBackend"]):
    """The test class of the page."""


class TestMounted(NAMES["TestKeyValueBackend"]):
    """The same, in a directory of a tree."""

    @pytest.fixture
    def backend(self) -> BackendProtocol:
        self.documents: dict[str, bytes] = {}
        return self.mounted()

    @pytest.fixture
    def second_backend(self, backend: BackendProtocol) -> BackendProtocol:
        return self.mounted()

    def mounted(self) -> BackendProtocol:
        mount = NAMES["KeyValueBackend"](self.documents)
        return RootedBackend(CompositeBackend(MemoryBackend(), {"/custom/": mount}), "/custom")
