"""Tests for backends, shipped to those who write one; they need pytest and hypothesis.

`BackendConformance` is the contract as a test class to inherit from, `BackendStateMachine` compares a backend with a
model over random programs, `LatencyBackend` and `FaultyBackend` make any backend slow or broken.
"""

import pytest

pytest.register_assert_rewrite(
    "deepfs.testing.conformance", "deepfs.testing.expect", "deepfs.testing.parity", "deepfs.testing.statemachine"
)

from deepfs.testing.conformance import BackendConformance  # noqa: E402
from deepfs.testing.faults import Fault, FaultyBackend, LatencyBackend  # noqa: E402
from deepfs.testing.parity import SyncParity  # noqa: E402
from deepfs.testing.statemachine import BackendStateMachine  # noqa: E402
from deepfs.testing.suite import BackendSuite  # noqa: E402

__all__ = [
    "BackendConformance",
    "BackendStateMachine",
    "BackendSuite",
    "Fault",
    "FaultyBackend",
    "LatencyBackend",
    "SyncParity",
]
