"""Summaries of long conversations: the middleware, its defaults, and the tool with which a model asks for one."""

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from langchain_core.exceptions import ContextOverflowError
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
    AgentMiddleware,
    CallStep,
    ContextSize,
    LangChainSummarization,
    ModelCallSteps,
    ModelRequest,
    PromptMiddleware,
    Steps,
    TokenCounter,
    TriggerClause,
    arun_steps,
    construct_model,
    resolve_backend,
    run_steps,
    step_of_call,
    step_of_wait,
)
from deepfs.middleware._messages import is_blank
from deepfs.middleware.compaction import (
    SUMMARIZATION_EVENT_KEY,
    SUMMARIZATION_SESSION_ID_KEY,
    ArgumentLimit,
    ConversationView,
    SummarizationDefaults,
    SummarizationEvent,
    SummarizationState,
    TruncateArgsSettings,
    compute_summarization_defaults,
    input_budget,
    is_context_overflow,
    move_long_texts,
    takes_tools,
)
from deepfs.middleware.history_files import HistoryFiles, NotKeptError, history_name
from deepfs.middleware.prompts import PROMPTS

if TYPE_CHECKING:
    from deepfs.backends.protocol import BackendProtocol

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


_instructions, _mark, _given = DEFAULT_SUMMARY_PROMPT.partition("<messages>")
DEEPAGENTS_DEFAULT_SUMMARY_PROMPT: Final = f"{_instructions}{PROMPTS['summary_media']}\n\n{_mark}{_given}"
"""LangChain's prompt for summaries, and what the references to media files mean."""

_TRIMMED_TOKENS: Final = 4_000
_UNTRIMMED_MESSAGES: Final = 15
_MAX_SUMMARIES: Final = 100


# --- summaries at a limit --------------------------------------------------------------------------------------------


class SummarizationMiddleware(ModelCallSteps, LangChainSummarization[Any, Any]):
    """Shows the model a summary for the older messages of a long conversation.

    The messages stay in the state; `_summarization_event` holds the summary. Those that it stands for are first
    appended to `/conversation_history/<thread>.md`, below the `artifacts_root` of a composite, each once, and the
    summary names that file. Media go to `/conversation_history/media`. A file that would grow over 10 MB continues in
    `<thread>.2.md`, and so on. For subagents, and for thread ids that are long or have characters other than letters,
    digits, `_` and `-`, the name of the file ends with a hash. If the file cannot be written or the summary fails, the
    model sees all messages, and a warning is logged.

    A request that the model refuses because it is too long is summarised and sent once more; if that is still too long,
    long texts of its messages are moved to files.

    Args:
        model: The model whose context is limited, which also summarises.
        backend: The backend of the files; None is a StateBackend.
        trigger: The size from which on to summarise, a mapping of sizes that must all be reached, or a list of these,
            of which one is enough; None summarises only what the model cannot take.
        keep: The newest part of the conversation, which stays as it is.
        token_counter: Counts the tokens of messages, and of `tools` if it has this argument.
        summary_prompt: The prompt for summaries, with `{messages}`.
        trim_tokens_to_summarize: The most tokens that are given to the summarising model, the newest ones; None gives
            all.
        truncate_args_settings: When to shorten old arguments of calls that write files, in the request only; None
            never does.
        summarizer: Another model, or a function or Runnable from messages to a text, that summarises.
        **options: Deprecated arguments of LangChain's class.

    Raises:
        TypeError: If `backend` is not a backend, for `history_path_prefix`, and for a `summarizer` that the installed
            langchain does not know.
        ValueError: For a size that is not positive, or a fraction for a model whose context is not known.
    """

    serialized_name: ClassVar[str] = "SummarizationMiddleware"
    state_schema: type[SummarizationState] = SummarizationState
    model: BaseChatModel
    """The model that summarises."""
    token_counter: TokenCounter
    # Without these, LangChain's class would remove the messages from the state in steps of their own.
    before_model: Any = AgentMiddleware.before_model
    abefore_model: Any = AgentMiddleware.abefore_model

    def __init__(
        self,
        model: str | BaseChatModel,
        *,
        backend: Any = None,
        trigger: Any = None,
        keep: ContextSize = ("messages", 20),
        token_counter: TokenCounter = count_tokens_approximately,
        summary_prompt: str = DEEPAGENTS_DEFAULT_SUMMARY_PROMPT,
        trim_tokens_to_summarize: int | None = _TRIMMED_TOKENS,
        truncate_args_settings: TruncateArgsSettings | None = None,
        summarizer: Any = None,
        **options: Any,
    ) -> None:
        if "history_path_prefix" in options:
            raise TypeError("history_path_prefix is gone: set artifacts_root of a CompositeBackend instead")
        if summarizer is not None:
            options["summarizer"] = summarizer
        super().__init__(
            model,
            trigger=trigger,
            keep=keep,
            token_counter=token_counter,
            summary_prompt=summary_prompt,
            trim_tokens_to_summarize=trim_tokens_to_summarize,
            **options,
        )
        if summarizer is not None and not hasattr(self, "summarizer"):
            raise TypeError("summarizer needs a later version of langchain")
        self._keep_in(backend)
        self._arguments = ArgumentLimit(truncate_args_settings, self._partial_token_counter, self._get_profile_limits)
        self._takes_tools = takes_tools(self.token_counter)

    def with_backend(self, backend: Any) -> Self:
        """Return a copy that keeps its files in another backend.

        Args:
            backend: The backend; None is a StateBackend.

        Raises:
            TypeError: If `backend` is not a backend.
        """
        other = copy(self)
        other._keep_in(backend)
        return other

    def _keep_in(self, backend: Any) -> None:
        self.backend: BackendProtocol = resolve_backend(backend)
        self._history = HistoryFiles(self.backend)

        self._summaries: dict[str, tuple[str, str]] = {}

    @property
    def name(self) -> str:
        """The name of LangChain's class, so that either class replaces the other in an agent."""
        return self.serialized_name

    def _model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Steps[Any]:
        """Show the summary, summarise a conversation that is too long, and store what the summary stands for."""
        conversation = ConversationView.of(request.state, request.messages)
        if self._is_due(request, conversation):
            yield from self._summarize(conversation, forced=False)
        reductions = iter((self._summarize, self._move_long_texts))
        while True:
            try:
                response = yield step_of_call(handler, request.override(messages=conversation.seen))
            except Exception as error:
                if not is_context_overflow(error):
                    raise
                yield from self._reduce(conversation, reductions, error)
            else:
                return conversation.with_update(response)

    # --- when ---

    def _is_due(self, request: ModelRequest[Any], conversation: ConversationView) -> bool:
        """Shorten old arguments; return whether the conversation is too long even so."""
        tokens = self._tokens(request, conversation.seen)
        seen = self._arguments.apply(conversation.seen, tokens)
        if any(now is not before for now, before in zip(seen, conversation.seen, strict=True)):
            conversation.seen, tokens = seen, self._tokens(request, seen)
        return self._should_summarize(conversation.seen, tokens) or tokens > input_budget(request)

    def _tokens(self, request: ModelRequest[Any], messages: Sequence[AnyMessage]) -> int:
        counted = [*filter(None, [request.system_message]), *messages]
        tools: dict[str, Any] = {"tools": request.tools} if self._takes_tools else {}
        return self.token_counter(counted, **tools)

    def _reduce(self, conversation: ConversationView, reductions: Any, error: Exception) -> Steps[None]:
        """Make the conversation smaller after a refusal. Raises ContextOverflowError if nothing is left to do."""
        before = self._partial_token_counter(conversation.seen)
        for reduce in reductions:
            yield from reduce(conversation, forced=True)
            if self._partial_token_counter(conversation.seen) < before:
                return
        reason = f" ({type(conversation.failure).__name__}: {conversation.failure})" if conversation.failure else ""
        raise ContextOverflowError(
            f"The conversation is too long for the model and could not be made shorter{reason}: send less, offer fewer "
            "tools, or ask for fewer output tokens"
        ) from error

    # --- summaries ---

    def _summarize(self, conversation: ConversationView, *, forced: bool) -> Steps[None]:
        """Summarise, unless this was done already. If it fails, the conversation stays as it is."""
        cut = self.cut(conversation, forced=forced)
        if SUMMARIZATION_EVENT_KEY in conversation.update or not cut:
            return
        try:
            yield from self.compact(conversation, cut, needs_file=not forced)
        except (GraphBubbleUp, TypeError):  # A TypeError is that of a summarizer which cannot be called.
            raise
        except NotKeptError as error:
            _log.warning("The conversation is not summarised, because its history cannot be stored: %s", error)
        except Exception as error:  # The conversation goes on with all its messages.
            conversation.failure = error
            _log.warning("The conversation could not be summarised: %s: %s", type(error).__name__, error)

    def cut(self, conversation: ConversationView, *, forced: bool = False) -> int:
        """The number of messages in `conversation.seen` to summarise; 0 if there is nothing new to summarise.

        Args:
            conversation: The conversation.
            forced: Whether to keep fewer than `keep` says if there is nothing to summarise otherwise.
        """
        cut = self._determine_cutoff_index(conversation.seen)
        if forced and cut <= 0:
            cut = self._find_safe_cutoff(conversation.seen, max(1, len(conversation.seen) // 2))
        return cut if cut > 0 and conversation.place(cut) > conversation.summarized else 0

    def compact(self, conversation: ConversationView, cut: int, *, needs_file: bool) -> Steps[None]:
        """Store the messages before `cut`, and put a summary in their place.

        Args:
            conversation: The conversation.
            cut: The number of messages in `conversation.seen` to summarise.
            needs_file: Whether to give up if the messages cannot be stored. They stay in the state in any case.

        Raises:
            NotKeptError: If they could not be stored.
        """
        name = conversation.name = conversation.update[SUMMARIZATION_SESSION_ID_KEY] = history_name(conversation.name)
        try:
            stored = yield step_of_wait(
                self.backend,
                partial(self._history.append, name, conversation.messages_to_file(conversation.place(cut))),
                self.name,
            )
        except NotKeptError as error:
            if needs_file:
                raise
            _log.warning("The messages that are summarised stay in the state only: %s", error)
            stored = []
        summary = yield from self._summary(name, conversation.before(cut))
        conversation.summarize(cut, summary, stored)

    def _summary(self, name: str, messages: Sequence[AnyMessage]) -> Steps[str]:
        """The summary of the messages. It is made once, even if the model fails after it."""
        key = _fingerprint(messages)
        known, summary = self._summaries.get(name, ("", ""))
        if known == key:
            return summary
        given = self._history.transcript().replace_media(messages)
        text: str = yield CallStep(partial(self._create_summary, given), partial(self._acreate_summary, given))
        if is_blank(text):  # The model would see nothing of the messages.
            raise ValueError("the model answered with an empty summary")
        while len(self._summaries) >= _MAX_SUMMARIES:
            self._summaries.pop(next(iter(self._summaries)), None)
        self._summaries[name] = (key, text)
        return text

    def _trim_messages_for_summary(self, messages: list[AnyMessage]) -> list[AnyMessage]:
        # LangChain begins with a message of a person. Without one among the newest, it would summarise nothing.
        return super()._trim_messages_for_summary(messages) or messages[-_UNTRIMMED_MESSAGES:]

    # --- long messages ---

    def _move_long_texts(self, conversation: ConversationView, *, forced: bool) -> Steps[None]:
        """Move long texts of tools and people to files."""
        move = partial(move_long_texts, self.backend, conversation.seen, conversation.messages)
        clipped, stored = yield step_of_wait(self.backend, move, self.name)
        conversation.replace(clipped, stored)


def _fingerprint(messages: Sequence[AnyMessage]) -> str:
    content = repr([(each.type, each.id, each.content, getattr(each, "tool_calls", None)) for each in messages])
    return sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


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

        def compact(runtime: ToolRuntime[Any, Any]) -> Any:
            return run_steps(self._compact(runtime))

        async def acompact(runtime: ToolRuntime[Any, Any]) -> Any:
            return await arun_steps(self._compact(runtime))

        # With a schema that has no fields, LangChain would not pass the runtime either.
        tool = StructuredTool.from_function(compact, acompact, _TOOL, PROMPTS["compact_conversation"])
        self.tools: list[BaseTool] = [tool]

    def _compact(self, runtime: ToolRuntime[Any, Any]) -> "Steps[Command[Any]]":
        messages = runtime.state.get("messages", [])
        conversation, half = ConversationView.of(runtime.state, messages), self._half
        seen = conversation.seen
        is_long = not half._trigger_clauses or half._should_summarize(seen, half.token_counter(seen))
        cut = half.cut(conversation) if is_long else 0
        if _is_repeated(messages, runtime.tool_call_id):
            return _result(runtime, "Another call of this turn compacts the conversation.")
        if not cut:
            return _result(runtime, "Nothing to compact yet: the conversation is short enough. Go on.")
        try:
            yield from self._summarization.compact(conversation, cut, needs_file=True)
        except GraphBubbleUp:
            raise
        except Exception as error:  # A failure of the tool must not end the run.
            _log.warning("compact_conversation failed: %s: %s", type(error).__name__, error)
            reason = f"Error: Not compacted ({type(error).__name__}: {error}). No message was removed. Go on without."
            return _result(runtime, reason, failed=True)
        count = conversation.update[SUMMARIZATION_EVENT_KEY]["cutoff_index"] - conversation.summarized
        return _result(runtime, f"Compacted: a summary stands for {count} more messages.", conversation.update)


_TOOL: Final = "compact_conversation"


def _with_half_of_the_trigger(summarization: SummarizationMiddleware) -> SummarizationMiddleware:
    half = copy(summarization)
    clauses: Any = summarization._trigger_clauses
    halves: Any = [
        {kind: value / 2 if kind == "fraction" else max(1, value // 2) for kind, value in clause.items()}
        for clause in clauses
    ]
    half._trigger_clauses = halves
    return half


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
    summarization = create_summarization_middleware(construct_model(model), backend)
    return SummarizationToolMiddleware(summarization, system_prompt=system_prompt)
