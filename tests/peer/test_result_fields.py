"""Results take their fields in the order of deepagents, so that positional arguments keep working."""

import inspect

from deepagents.backends import protocol as peer

from deepfs import types


def test_positional_arguments_are_those_of_deepagents() -> None:
    names = [name for name in types.__all__ if hasattr(peer, name) and name.endswith(("Result", "Response"))]
    assert len(names) >= 10
    for name in names:
        parameters = inspect.signature(getattr(types, name)).parameters.values()
        ours = [each.name for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]
        known = [each for each in inspect.signature(getattr(peer, name)).parameters if each in ours]
        assert ours[: len(known)] == known, name
