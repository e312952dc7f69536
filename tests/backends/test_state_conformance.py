"""StateBackend passes the shipped suite inside a node of a compiled graph."""

from deepfs.testing import BackendConformance, BackendStateMachine
from support.state_suite import OverState


class TestState(OverState, BackendConformance, BackendStateMachine):
    pass
