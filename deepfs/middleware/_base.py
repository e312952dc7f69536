"""What all middleware is built on: the imports from LangChain, the argument `backend`, waiting, and added prompts."""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from langchain_core.language_models import BaseChatModel
from langgraph.prebuilt.tool_node import ToolCallRequest

from deepfs._deprecated import warn_deprecated
from deepfs.backends.protocol import BackendProtocol, as_backend
from deepfs.middleware._messages import ToolResult, with_prompt
from deepfs.profiles.registry import apply_provider_profile
from deepfs.sync import call_sync
from deepfs.text import paths
from deepfs.threads.forks import ForkSafeLock

__all__ = [  # What the other modules of middleware have of LangChain.
    "DEFAULT_SUMMARY_PROMPT",
    "AgentMiddleware",
    "AgentState",
    "ContextSize",
    "DecisionType",
    "ExtendedModelResponse",
    "HumanInTheLoopMiddleware",
    "InterruptOnConfig",
    "LangChainSummarization",
    "ModelRequest",
    "ModelResponse",
    "OmitFromOutput",
    "PrivateStateAttr",
    "TodoListMiddleware",
    "TokenCounter",
    "TriggerClause",
    "create_agent",
]


def resolve_backend(backend: Any) -> BackendProtocol:
    """Return the backend for a backend of any protocol, a factory, or None (a StateBackend).

    The class StateBackend, which older code passes as a factory, stands for an object of it. Raises TypeError for any
    other value.
    """
    if backend is None or isinstance(backend, type):
        from deepfs.backends.state import StateBackend

        if backend is StateBackend:
            warn_deprecated("the class StateBackend as a backend is deprecated: pass StateBackend()")
        if backend in (None, StateBackend):
            return StateBackend()
    return as_backend(backend)


def artifacts_root(backend: object) -> str:
    """Return the directory for files that middleware stores: that of the composite in `backend`, or `/` without one.

    The composite may be `backend` itself or an inner backend of it.
    """
    own = getattr(backend, "artifacts_root", None)
    if own is not None:
        return paths.normalize(own)
    inner = backend.inner_backends() if isinstance(backend, BackendProtocol) else ()
    return next(map(artifacts_root, inner), "/")


T = TypeVar("T")


def wait_for(backend: object, call: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
    """Run a call that waits only for `backend`, in the sync form of the middleware `name`."""
    return call_sync(backend, call, f"The sync form of {name}", "its async form (ainvoke)")


class Lazy(Generic[T]):
    """A value that is made at the first `get`, once even if several threads call it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = ForkSafeLock()
        self._made: list[T] = []

    def get(self) -> T:
        """Return the value; make it at the first call."""
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
    from langchain.agents.middleware.summarization import (
        DEFAULT_SUMMARY_PROMPT,
        ContextSize,
        TokenCounter,
        TriggerClause,
    )
    from langchain.agents.middleware.types import (
        AgentMiddleware,
        AgentState,
        ExtendedModelResponse,
        ModelRequest,
        ModelResponse,
        OmitFromOutput,
        PrivateStateAttr,
        TracePolicy,
        omit_payload,
    )
    from langchain.chat_models import init_chat_model
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "langchain":
        raise
    raise ModuleNotFoundError(
        "Agents need the package langchain: pip install 'deepfs[agents]'", name=error.name
    ) from error

TRACE_POLICY: Any = TracePolicy(process_inputs=omit_payload, process_outputs=omit_payload)
"""Keeps messages and files out of the spans of middleware in traces."""
SkillSource: TypeAlias = str | tuple[str, str]
"""A directory of skills: its path, or its path and a label for the prompt."""
FORK: Final = "__deepfs_fork"
"""The key of `configurable` with the id of the fork of the files that a subagent works on."""
WORKSPACES: Final = "/.forks"
"""The directory of a state, or of another storage, that holds the changes of all workspaces."""


def construct_model(model: str | BaseChatModel) -> BaseChatModel:
    """Return a chat model; one that is given as `"provider:name"` is made as the profile of its provider says."""
    return init_chat_model(model, **apply_provider_profile(model)) if isinstance(model, str) else model


def is_of(model: object, package: str, name: str | None = None) -> bool:
    """Whether a model is of a class of a package: of any, or of that name. The package is not imported for that."""
    known = ((cls.__module__.partition(".")[0], cls.__name__) for cls in type(model).__mro__)
    return any(top == package and name in (None, own) for top, own in known)


Handler: TypeAlias = Callable[[ModelRequest[Any]], ModelResponse[Any]]
AsyncHandler: TypeAlias = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
"""What `wrap_model_call` and its async form call."""
ToolHandler: TypeAlias = Callable[[ToolCallRequest], ToolResult]
AsyncToolHandler: TypeAlias = Callable[[ToolCallRequest], Awaitable[ToolResult]]
"""What `wrap_tool_call` and its async form call."""


# For a coroutine function, LangChain's agents make a span, at the cost of two jobs in threads a call, traced or not. So
# the async forms of these hooks are plain functions, which return the coroutine to wait for.


class RequestMiddleware(AgentMiddleware[Any, Any, Any]):
    """Middleware that changes each request to the model by `modify_request`, which waits for nothing."""

    trace_policy: Any = TRACE_POLICY

    def modify_request(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """The request to send."""
        raise NotImplementedError

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> ModelResponse[Any]:
        """Change the request."""
        return handler(self.modify_request(request))

    def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> Any:
        """As `wrap_model_call`."""
        return handler(self.modify_request(request))


class PromptMiddleware(RequestMiddleware):
    """Middleware that appends `system_prompt` to the system message of each call of the model."""

    system_prompt: str | None

    def modify_request(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """The request with the prompt."""
        return request.override(system_message=with_prompt(request.system_message, self.system_prompt or ""))


# --- code for both forms of an agent ---


class CallStep(NamedTuple):
    """A call that may wait, in its sync form and its async one."""

    call: Callable[[], Any]
    acall: Callable[[], Awaitable[Any]]


Steps: TypeAlias = Generator[CallStep, Any, T]
"""Code for both forms of an agent: it yields each step, and gets its result or its error."""


def run_steps(steps: Steps[T]) -> T:
    """Run the code with the sync form of each step, and return its result."""
    try:
        step = next(steps)
        while True:
            try:
                done = step.call()
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(done)
    except StopIteration as ended:
        result: T = ended.value
        return result
    finally:
        steps.close()


async def arun_steps(steps: Steps[T]) -> T:
    """As `run_steps`, with the async form of each step."""
    try:
        step = next(steps)
        while True:
            try:
                done = await step.acall()
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(done)
    except StopIteration as ended:
        result: T = ended.value
        return result
    finally:
        steps.close()  # Cancelled, it leaves its blocks here, in the context in which it entered them.


def step_of_wait(backend: object, call: Callable[[], Coroutine[Any, Any, Any]], name: str) -> CallStep:
    """The step of a call that waits only for `backend`, in the middleware `name`."""
    return CallStep(partial(wait_for, backend, call, name), call)


def step_of_call(call: Callable[..., Any], *args: Any) -> CallStep:
    """The step of a call of a handler, which is async in the async form."""
    bound = partial(call, *args)
    return CallStep(bound, bound)


class ModelCallSteps(AgentMiddleware[Any, Any, Any]):
    """Middleware with code for both forms around a call of the model."""

    trace_policy: Any = TRACE_POLICY

    def _model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Steps[Any]:
        raise NotImplementedError

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> Any:
        """Do what the class says of a call of the model."""
        return run_steps(self._model_call(request, handler))

    def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> Coroutine[Any, Any, Any]:
        """As `wrap_model_call`."""
        return arun_steps(self._model_call(request, handler))


class ToolCallSteps(AgentMiddleware[Any, Any, Any]):
    """Middleware with code for both forms around a call of a tool."""

    trace_policy: Any = TRACE_POLICY

    def _tool_call(self, request: ToolCallRequest, handler: Callable[..., Any]) -> Steps[ToolResult]:
        raise NotImplementedError

    def wrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolResult:
        """Do what the class says of a call of a tool."""
        return run_steps(self._tool_call(request, handler))

    def awrap_tool_call(self, request: ToolCallRequest, handler: AsyncToolHandler) -> Coroutine[Any, Any, ToolResult]:
        """As `wrap_tool_call`."""
        return arun_steps(self._tool_call(request, handler))
