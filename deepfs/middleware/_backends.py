"""What all middleware shares: the names of LangChain that it needs, and the backend that a caller means."""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from deepfs.backends.protocol import BackendProtocol, as_backend
from deepfs.backends.state import StateBackend
from deepfs.text import paths

__all__ = [
    "LANGCHAIN_WRAPS_APPROVED_CALLS",
    "AgentMiddleware",
    "AgentState",
    "DecisionType",
    "HumanInTheLoopMiddleware",
    "InterruptOnConfig",
    "LangChainSummarization",
    "Lazy",
    "ModelRequest",
    "ModelResponse",
    "PrivateStateAttr",
    "TodoListMiddleware",
    "artifacts_root",
    "create_agent",
    "init_chat_model",
    "resolve_backend",
]


def resolve_backend(backend: Any) -> BackendProtocol:
    """The backend that is meant by one of any protocol, by a factory, or by None, which is StateBackend.

    Raises TypeError for what is none of these.
    """
    return StateBackend() if backend is None else as_backend(backend)


def artifacts_root(backend: object) -> str:
    """Where middleware puts what it offloads: where the composite that `backend` is, or stands before, has it."""
    own = getattr(backend, "artifacts_root", None)
    if own is not None:
        return paths.normalize(own)
    inner = backend.inner_backends() if isinstance(backend, BackendProtocol) else ()
    return next(map(artifacts_root, inner), "/")


T = TypeVar("T")


class Lazy(Generic[T]):
    """Makes its value once, whichever threads ask first."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[T] = []

    def get(self) -> T:
        """The value."""
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]


try:
    from langchain.agents import create_agent
    from langchain.agents.middleware import (
        HumanInTheLoopMiddleware,
        InterruptOnConfig,
        TodoListMiddleware,
    )
    from langchain.agents.middleware import SummarizationMiddleware as LangChainSummarization
    from langchain.agents.middleware.human_in_the_loop import DecisionType
    from langchain.agents.middleware.types import (
        AgentMiddleware,
        AgentState,
        ModelRequest,
        ModelResponse,
        PrivateStateAttr,
    )
    from langchain.chat_models import init_chat_model
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "langchain":
        raise
    raise ModuleNotFoundError(
        "Agents need the package langchain: pip install 'deepfs[agents]'", name=error.name
    ) from error

LANGCHAIN_WRAPS_APPROVED_CALLS = HumanInTheLoopMiddleware.wrap_tool_call is not AgentMiddleware.wrap_tool_call
"""Older ones put the call that a person edited into the message of the model instead."""
