"""A backend against a model of it, over random programs."""

from deepfs.testing.statemachine.machine import BackendStateMachine

__all__ = ["BackendStateMachine"]
