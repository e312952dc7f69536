"""Backends differ only as their capabilities declare, in the ways that the design lists; the suite tests no other."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import deepfs.testing
from deepfs import BackendProtocol
from deepfs.sync import OPERATIONS

SOURCES: Final = sorted(Path(next(iter(deepfs.testing.__path__))).rglob("*.py"))

STREAMS: Final = {"adownload_stream", "aupload_stream"}
TREES: Final = {"alist_tree", "achange_entries"}
"""Needed of both backends in a transfer between them."""
LIFETIME: Final = {"aclose", "close"}
VALUES: Final = {"run", "arun"}
"""The methods that take an operation as a value."""
METHODS: Final = {*OPERATIONS, *(f"a{name}" for name in OPERATIONS), *STREAMS, *LIFETIME, *VALUES, "awatch"}
READ_ONLY: Final = "offers_changes"
"""It affects the tools of models; only the suite for backends that change nothing checks it."""
WHERE_A_SYNC_CALL_RUNS: Final = {"is_synchronous", "bound_to_this_thread"}
"""They do not affect results; only the tests that compare sync with async use them."""


def read_of(source: Path, *owners: str) -> Iterator[str]:
    """The attributes that a module reads from any expression, or an item of one, whose last name ends with an owner."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Attribute):
            value = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            name = getattr(value, "id", getattr(value, "attr", ""))
            if name.endswith(owners):
                yield node.attr


def test_the_protocol_has_no_other_public_names() -> None:
    public = {name for name in dir(BackendProtocol) if not name.startswith("_")}
    assert public - METHODS - TREES == {
        "capabilities",
        "aresolve_paths",
        "astorage_place",
        "inner_backends",
        "judges_results",
        "offers_changes",
        "offers_move",
        *WHERE_A_SYNC_CALL_RUNS,
    }


def test_the_suite_uses_only_operations_and_capabilities() -> None:
    read = {attribute for source in SOURCES for attribute in read_of(source, "backend", "both")}
    assert read - METHODS - WHERE_A_SYNC_CALL_RUNS == {"capabilities", READ_ONLY}
    looking = {source.name for source in SOURCES if WHERE_A_SYNC_CALL_RUNS & set(read_of(source, "backend"))}
    assert looking <= {"surface.py"}
    assert {source.name for source in SOURCES if READ_ONLY in read_of(source, "backend")} == {"read_only.py"}
