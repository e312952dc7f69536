"""StateBackend passes the shipped suite inside a node of a compiled graph."""

from deepfs.testing import BackendConformance, BackendStateMachine
from support.selection import few_on_trio
from support.state_suite import OverState


@few_on_trio
class TestState(OverState, BackendConformance, BackendStateMachine):
    pass
