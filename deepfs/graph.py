"""An agent with files, subagents and a list of things to do, ready to run."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import SystemMessage
from langchain_core.tools import BaseTool
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from deepfs.backends.protocol import BackendProtocol
from deepfs.middleware._backends import (
    AgentMiddleware,
    InterruptOnConfig,
    TodoListMiddleware,
    create_agent,
    init_chat_model,
    resolve_backend,
)
from deepfs.middleware.approvals import ANSWER_FORM, ApprovalMiddleware, UnansweredCallsMiddleware, covering
from deepfs.middleware.filesystem import FilesystemMiddleware, inheriting
from deepfs.middleware.memory import MemoryMiddleware
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.skills import SkillSource, skills_of
from deepfs.middleware.subagents import CompiledSubAgent, SubAgent, SubAgentMiddleware
from deepfs.middleware.summarization import SummarizationMiddleware
from deepfs.policy.rules import FilesystemPermission, checked_rules

if TYPE_CHECKING:
    from langgraph.cache.base import BaseCache
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

__all__ = ["DEFAULT_MODEL", "create_deep_agent"]

Middleware = AgentMiddleware[Any, Any, Any]

DEFAULT_MODEL: Final = "claude-sonnet-5-5"
"""The model of Anthropic that `create_deep_agent` uses if none is given."""

_RECURSION_LIMIT: Final = 1_000
_KEPT_MESSAGES: Final = 20
_CONTEXT_TOKENS: Final = 170_000
"""The length at which a conversation is summarised, for a model that does not report the size of its context."""


def create_deep_agent(
    model: str | BaseChatModel | None = None,
    tools: Sequence[BaseTool | Callable[..., Any] | dict[str, Any]] | None = None,
    *,
    system_prompt: str | SystemMessage | None = None,
    middleware: Sequence[Middleware] = (),
    subagents: Sequence[SubAgent | CompiledSubAgent] | None = None,
    skills: Sequence[SkillSource] | None = None,
    memory: Sequence[str] | None = None,
    permissions: Sequence[FilesystemPermission] | None = None,
    backend: Any = None,
    interrupt_on: dict[str, bool | InterruptOnConfig] | None = None,
    response_format: Any = None,
    context_schema: type[Any] | None = None,
    checkpointer: "bool | BaseCheckpointSaver[Any] | None" = None,
    store: "BaseStore | None" = None,
    debug: bool = False,
    name: str | None = None,
    cache: "BaseCache[Any] | None" = None,
) -> "CompiledStateGraph[Any, Any, Any, Any]":
    """Create a LangChain agent that plans, works with files, and hands tasks to subagents.

    Long conversations are summarised; the removed messages are first saved in a file under `/conversation_history`. The
    model is told which tool calls got no result, so a conversation can go on without an answer to an interrupt.

    Args:
        model: A chat model, or `"provider:name"`; None is the current Claude Sonnet, from the package
            langchain-anthropic.
        tools: Tools beside those of the middleware: the file tools, `task` and `write_todos`.
        system_prompt: The instructions of the agent.
        middleware: Further middleware, placed after the agent's own; it replaces middleware of the same name. A
            FilesystemMiddleware without permissions of its own gets `permissions`.
        subagents: They have the tools, the model and the `interrupt_on` of the agent unless they name their own. One
            named `general-purpose` is added if there is none.
        permissions: Rules about files, for subagents too unless they have their own. The mode `"interrupt"` asks a
            person, as `interrupt_on` does.
        skills: Directories of skills, each a path or a pair of path and label, for the agent and the subagent
            `general-purpose`; later ones win.
        memory: Paths of files that the agent is shown at every turn.
        backend: The backend of the files; None is a StateBackend.
        interrupt_on: The tools before which a person is asked. `write_file`, `edit_file` or `delete` includes other
            tools that replace files, unless these have entries of their own.
        response_format: The form of the last answer, as in `langchain.agents.create_agent`.
        context_schema: The type of the run's context, as in `create_agent`.
        checkpointer: What stores the threads, as in `create_agent`.
        store: What stores data across threads, as in `create_agent`.
        debug: Whether the graph logs its steps.
        name: The name of the graph.
        cache: The cache of the graph, as in `create_agent`.

    Raises:
        ModuleNotFoundError: If a package is missing; it names what to install.
        TypeError: For an argument of another type.
        ValueError: For subagents or rules that cannot be used.
    """
    rules = checked_rules(permissions or ())
    chat_model = _model(model)
    files = resolve_backend(backend)
    todos, summarization = _Todos(tool_description=PROMPTS["todos"]), _summarization(chat_model, files)
    filesystem = FilesystemMiddleware(backend=files, permissions=rules)
    unanswered = UnansweredCallsMiddleware()
    skilled = skills_of(filesystem.backend, skills, middleware)
    own: list[Middleware] = [
        unanswered,
        todos,
        filesystem,
        SubAgentMiddleware(
            default_model=chat_model,
            default_tools=tools,
            default_middleware=[unanswered, todos, filesystem, summarization],
            default_interrupt_on=interrupt_on,
            permissions=rules,
            subagents=subagents,
            general_purpose_middleware=skilled,
        ),
        summarization,
        *([MemoryMiddleware(backend=files, sources=memory)] if memory else []),
    ]
    last = ApprovalMiddleware.where_needed(rules, interrupt_on, middleware)
    graph = create_agent(
        chat_model,
        tools=list(tools or ()),
        system_prompt=system_prompt,
        middleware=_combined(own, covering(inheriting(rules, middleware)), skilled, last),
        response_format=response_format,
        context_schema=context_schema,
        checkpointer=checkpointer,
        store=store,
        debug=debug,
        name=name,
        cache=cache,
    )
    graph.__class__ = _Agent
    return graph.with_config({"recursion_limit": _RECURSION_LIMIT})


class _Agent(CompiledStateGraph[Any, Any, Any, Any]):
    """An agent whose errors say how to answer an interrupt, where LangGraph would fail on an answer of None."""

    def stream(self, input: Any, *args: Any, **options: Any) -> Any:
        """Like `CompiledStateGraph.stream`. Raises ValueError for an empty command."""
        return super().stream(_checked_input(input), *args, **options)

    def astream(self, input: Any, *args: Any, **options: Any) -> Any:
        """Like `stream`."""
        return super().astream(_checked_input(input), *args, **options)


def _checked_input(given: Any) -> Any:
    if isinstance(given, Command) and given.resume is None and not given.update and not given.goto:
        raise ValueError(f"A Command without an answer does nothing. {ANSWER_FORM}.")
    return given


def _combined(*groups: Sequence[Middleware]) -> list[Middleware]:
    """All middleware in order; of those with the same name, the last one at the position of the first."""
    return list({each.name: each for group in groups for each in group}.values())


# --- the model -------------------------------------------------------------------------------------------------------


def _model(model: str | BaseChatModel | None) -> BaseChatModel:
    if model is None:
        return _default_model()
    return init_chat_model(model) if isinstance(model, str) else model


def _default_model() -> BaseChatModel:
    try:
        return init_chat_model(f"anthropic:{DEFAULT_MODEL}")
    except ImportError as error:
        raise ModuleNotFoundError(
            "The default model needs the package langchain-anthropic: pip install langchain-anthropic, or pass a model",
            name="langchain_anthropic",
        ) from error


# --- middleware of langchain -----------------------------------------------------------------------------------------


class _Todos(TodoListMiddleware[Any, Any]):
    """The todo tool without a system prompt. LangChain's class appends even an empty prompt, which providers refuse."""

    @property
    def name(self) -> str:
        """The name of LangChain's class, so that each of the two classes can replace the other."""
        return "TodoListMiddleware"

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Leave the system message as it is."""
        return handler(request)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Like `wrap_model_call`."""
        return await handler(request)


def _summarization(model: BaseChatModel, files: BackendProtocol) -> Middleware:
    """Middleware that summarises when the context is nearly full, judged by the context size of the model if known.

    The summary is made from all messages that it replaces; LangChain's default would be only the last of them.
    """
    whole: dict[str, Any] = {"backend": files, "trim_tokens_to_summarize": None}
    if (model.profile or {}).get("max_input_tokens"):
        return SummarizationMiddleware(model, trigger=("fraction", 0.85), keep=("fraction", 0.1), **whole)
    return SummarizationMiddleware(
        model, trigger=("tokens", _CONTEXT_TOKENS), keep=("messages", _KEPT_MESSAGES), **whole
    )
