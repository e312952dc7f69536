"""Summaries of long conversations: the middleware, its defaults, and the tool with which a model asks for one."""

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command
from pydantic import BaseModel

from deepfs.middleware._base import (
    DEFAULT_SUMMARY_PROMPT,
    ContextSize,
    PromptMiddleware,
    TokenCounter,
    TriggerClause,
    constructed_model,
)
from deepfs.middleware.compaction import (
    SUMMARIZATION_EVENT_KEY,
    SUMMARIZATION_SESSION_ID_KEY,
    Conversation,
    Steps,
    SummarizationEvent,
    SummarizationState,
    arun_steps,
    run_steps,
)
from deepfs.middleware.context_size import (
    SummarizationDefaults,
    TruncateArgsSettings,
    compute_summarization_defaults,
)
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.summarizer import DEEPAGENTS_DEFAULT_SUMMARY_PROMPT, SummarizationMiddleware

__all__ = [
    "DEEPAGENTS_DEFAULT_SUMMARY_PROMPT",
    "DEFAULT_SUMMARY_PROMPT",
    "SUMMARIZATION_EVENT_KEY",
    "SUMMARIZATION_SESSION_ID_KEY",
    "CompactConversationSchema",
    "ContextSize",
    "SummarizationDefaults",
    "SummarizationEvent",
    "SummarizationMiddleware",
    "SummarizationState",
    "SummarizationToolMiddleware",
    "TokenCounter",
    "TriggerClause",
    "TruncateArgsSettings",
    "compute_summarization_defaults",
    "create_summarization_middleware",
    "create_summarization_tool_middleware",
]

_log = logging.getLogger("deepfs")


# --- summaries on demand ---------------------------------------------------------------------------------------------


class CompactConversationSchema(BaseModel):
    """The arguments of `compact_conversation`: none."""


class SummarizationToolMiddleware(PromptMiddleware):
    """Gives an agent the tool `compact_conversation`, which summarises the conversation if it is long enough.

    That is half of the `trigger` of `summarization`; without a trigger, any conversation longer than what is kept.

    Args:
        summarization: What summarises. It need not be middleware of the agent, but something must show the summaries:
            a SummarizationMiddleware in the agent, as `create_deep_agent` adds it.
        system_prompt: A text at the end of the agent's system prompt; None adds none.

    Raises:
        TypeError: If an argument has another type.
    """

    state_schema: type[SummarizationState] = SummarizationState

    def __init__(self, summarization: SummarizationMiddleware, *, system_prompt: str | None = None) -> None:
        super().__init__()
        if not isinstance(summarization, SummarizationMiddleware):
            raise TypeError(f"summarization is a SummarizationMiddleware of deepfs, not {summarization!r}")
        if system_prompt is not None and not isinstance(system_prompt, str):
            raise TypeError(f"system_prompt is a str or None, not {type(system_prompt).__name__}")
        self._summarization = summarization
        self._half = _with_half_of_the_trigger(summarization)
        self.system_prompt = system_prompt
        self.tools: list[BaseTool] = [self._tool()]

    def _tool(self) -> BaseTool:
        def compact(runtime: ToolRuntime[Any, Any]) -> Any:
            return run_steps(self._compacted(runtime))

        async def acompact(runtime: ToolRuntime[Any, Any]) -> Any:
            return await arun_steps(self._compacted(runtime))

        # With a schema that has no fields, LangChain would not pass the runtime either.
        return StructuredTool.from_function(compact, acompact, _TOOL, PROMPTS["compact_conversation"])

    def _compacted(self, runtime: ToolRuntime[Any, Any]) -> "Steps[Command[Any]]":
        messages = runtime.state.get("messages", [])
        conversation = Conversation.of(runtime.state, messages)
        cut = self._cut(conversation)
        if _is_repeated(messages, runtime.tool_call_id):
            return _result(runtime, "Another call of this turn compacts the conversation.")
        if not cut:
            return _result(runtime, "Nothing to compact yet: the conversation is short enough. Go on.")
        try:
            yield from self._summarization.compacted(conversation, cut, needs_file=True)
        except GraphBubbleUp:
            raise
        except Exception as error:  # A failure of the tool must not end the run.
            _log.warning("compact_conversation failed: %s: %s", type(error).__name__, error)
            reason = f"Error: Not compacted ({type(error).__name__}: {error}). No message was removed. Go on without."
            return _result(runtime, reason, failed=True)
        count = conversation.update[SUMMARIZATION_EVENT_KEY]["cutoff_index"] - conversation.summarized
        return _result(runtime, f"Compacted: a summary stands for {count} more messages.", conversation.update)

    def _cut(self, conversation: Conversation) -> int:
        half = self._half
        is_long = not half._trigger_clauses or half._should_summarize(
            conversation.seen, half.token_counter(conversation.seen)
        )
        return half.cut(conversation) if is_long else 0


_TOOL: Final = "compact_conversation"


def _with_half_of_the_trigger(summarization: SummarizationMiddleware) -> SummarizationMiddleware:
    half = copy(summarization)
    half._trigger_clauses = [_half(clause) for clause in summarization._trigger_clauses]
    return half


def _half(clause: TriggerClause) -> Any:
    return {kind: value / 2 if kind == "fraction" else max(1, value // 2) for kind, value in clause.items()}  # type: ignore[operator]


def _is_repeated(messages: Sequence[AnyMessage], tool_call_id: str | None) -> bool:
    """Whether another call of the tool precedes this one in the last turn."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            first = next((call for call in message.tool_calls if call["name"] == _TOOL), None)
            return first is not None and first["id"] != tool_call_id
    return False


def _result(
    runtime: ToolRuntime[Any, Any], text: str, update: Mapping[str, Any] | None = None, *, failed: bool = False
) -> "Command[Any]":
    status: Any = "error" if failed else "success"
    message = ToolMessage(text, tool_call_id=runtime.tool_call_id or "", name=_TOOL, status=status)
    return Command(update={**(update or {}), "messages": [message]})


# --- defaults --------------------------------------------------------------------------------------------------------


def create_summarization_middleware(
    model: BaseChatModel,
    backend: Any = None,
    *,
    summary_prompt: str = DEEPAGENTS_DEFAULT_SUMMARY_PROMPT,
    trim_tokens_to_summarize: int | None = None,
    token_counter: TokenCounter = count_tokens_approximately,
    summarizer: Any = None,
) -> SummarizationMiddleware:
    """A SummarizationMiddleware with the settings of `compute_summarization_defaults`.

    Args:
        model: The chat model.
        backend: The backend of the files; None is a StateBackend.
        summary_prompt: As of SummarizationMiddleware.
        trim_tokens_to_summarize: As of SummarizationMiddleware; None, the default, summarises all.
        token_counter: As of SummarizationMiddleware.
        summarizer: As of SummarizationMiddleware.

    Raises:
        TypeError: If `model` is not a chat model, or `backend` not a backend.
    """
    if not isinstance(model, BaseChatModel):
        raise TypeError(f"model is a BaseChatModel, not {model!r}")
    return SummarizationMiddleware(
        model,
        backend=backend,
        summary_prompt=summary_prompt,
        trim_tokens_to_summarize=trim_tokens_to_summarize,
        token_counter=token_counter,
        summarizer=summarizer,
        **compute_summarization_defaults(model),
    )


def create_summarization_tool_middleware(
    model: str | BaseChatModel, backend: Any = None, *, system_prompt: str | None = None
) -> SummarizationToolMiddleware:
    """A SummarizationToolMiddleware over `create_summarization_middleware`.

    Args:
        model: The chat model, or `"provider:name"`.
        backend: The backend of the files; None is a StateBackend.
        system_prompt: A text at the end of the agent's system prompt; None adds none.

    Raises:
        TypeError: If `backend` is not a backend, or `system_prompt` not a str.
    """
    summarization = create_summarization_middleware(constructed_model(model), backend)
    return SummarizationToolMiddleware(summarization, system_prompt=system_prompt)
