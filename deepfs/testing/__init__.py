"""Tests for authors of backends, which need pytest and hypothesis, and a model with a script for tests of agents.

`BackendConformance` is the contract as a test class to inherit from, `ReadOnlyConformance` the part of it for a backend
that only reads, `BackendStateMachine` compares a backend with a model over random programs, `LatencyBackend` and
`FaultyBackend` make any backend slow or broken.
`ScriptedModel` is a chat model that needs neither a key nor pytest.
"""

import sys

from deepfs._lazy import lazy_exports

# The modules must be loaded after this line, so that their assertions show the compared values.
# Without pytest nothing rewrites them, and the model is used without pytest.
if "pytest" in sys.modules:
    import pytest

    pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("conformance", "statemachine", "suite")))

__getattr__, __dir__ = lazy_exports(__name__)
