"""StateBackend passes the shipped suite inside a node of a compiled graph."""

from deepfs.testing import BackendConformance, BackendStateMachine
from support.state_suite import OverState
from support.suite_parts import few_on_trio


@few_on_trio
class TestState(OverState, BackendConformance, BackendStateMachine):
    pass
