"""Tests for authors of backends, which need pytest and hypothesis, and a model with a script for tests of agents.

`BackendConformance` is the contract as a test class to inherit from, `ReadOnlyConformance` the part of it for a backend
that only reads, `BackendStateMachine` compares a backend with a model over random programs, `LatencyBackend` and
`FaultyBackend` make any backend slow or broken.
`ScriptedModel` is a chat model that needs neither a key nor pytest.
"""

import sys
from typing import TYPE_CHECKING

from deepfs._lazy import lazy_exports

if TYPE_CHECKING:
    from deepfs.testing.conformance import BackendConformance, ReadOnlyConformance
    from deepfs.testing.faults import Fault, FaultyBackend, LatencyBackend
    from deepfs.testing.parity import SyncParity
    from deepfs.testing.scripted import Answer, Call, ScriptedModel, ScriptEndedError, Turn
    from deepfs.testing.statemachine import BackendStateMachine
    from deepfs.testing.suite import BackendSuite

__all__ = [
    "Answer",
    "BackendConformance",
    "BackendStateMachine",
    "BackendSuite",
    "Call",
    "Fault",
    "FaultyBackend",
    "LatencyBackend",
    "ReadOnlyConformance",
    "ScriptEndedError",
    "ScriptedModel",
    "SyncParity",
    "Turn",
]

# The modules must be loaded after this line, so that their assertions show the compared values.
# Without pytest nothing rewrites them, and the model is used without pytest.
if "pytest" in sys.modules:
    import pytest

    pytest.register_assert_rewrite(
        "deepfs.testing.conformance", "deepfs.testing.expect", "deepfs.testing.parity", "deepfs.testing.statemachine"
    )

if not TYPE_CHECKING:  # Type checkers know the names, and report unknown ones.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "conformance": ["BackendConformance", "ReadOnlyConformance"],
            "faults": ["Fault", "FaultyBackend", "LatencyBackend"],
            "parity": ["SyncParity"],
            "scripted": ["Answer", "Call", "ScriptEndedError", "ScriptedModel", "Turn"],
            "statemachine": ["BackendStateMachine"],
            "suite": ["BackendSuite"],
        },
    )
