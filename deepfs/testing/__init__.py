"""Tests for authors of backends; they need pytest and hypothesis.

`BackendConformance` is the contract as a test class to inherit from, `ReadOnlyConformance` the part of it for a backend
that only reads, `BackendStateMachine` compares a backend with a
model over random programs, `LatencyBackend` and `FaultyBackend` make any backend slow or broken.
"""

from typing import TYPE_CHECKING

import pytest

from deepfs._lazy import lazy_exports

if TYPE_CHECKING:
    from deepfs.testing.conformance import BackendConformance, ReadOnlyConformance
    from deepfs.testing.faults import Fault, FaultyBackend, LatencyBackend
    from deepfs.testing.parity import SyncParity
    from deepfs.testing.statemachine import BackendStateMachine
    from deepfs.testing.suite import BackendSuite

__all__ = [
    "BackendConformance",
    "BackendStateMachine",
    "BackendSuite",
    "Fault",
    "FaultyBackend",
    "LatencyBackend",
    "ReadOnlyConformance",
    "SyncParity",
]

# The modules must be loaded after this line, so that their assertions show the compared values.
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
            "statemachine": ["BackendStateMachine"],
            "suite": ["BackendSuite"],
        },
    )
