"""Results take their fields in the order of deepagents, so that positional arguments keep working."""

import inspect

import pytest
from deepagents.backends import protocol as peer

from deepfs import types


@pytest.mark.parametrize(
    "name", sorted(name for name in types.__all__ if hasattr(peer, name) and name.endswith(("Result", "Response")))
)
def test_positional_arguments_are_those_of_deepagents(name: str) -> None:
    ours = [
        name
        for name, parameter in inspect.signature(getattr(types, name)).parameters.items()
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    known = [parameter for parameter in inspect.signature(getattr(peer, name)).parameters if parameter in ours]
    assert ours[: len(known)] == known
