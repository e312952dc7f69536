"""Compares a backend with a model, with random programs."""

from deepfs.testing.statemachine.machine import BackendStateMachine

__all__ = ["BackendStateMachine"]
