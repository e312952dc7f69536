"""StateBackend passes the shipped suite inside a node of a compiled graph."""

from support.state_suite import StateConformance


class TestState(StateConformance):
    pass
