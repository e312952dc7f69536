"""Middleware that asks a person before a tool runs, and which calls it asks about."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import copy
from difflib import get_close_matches
from functools import partial
from json import dumps
from traceback import walk_tb
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NotRequired, get_args

from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import InvalidPathError
from deepfs.middleware._base import (
    AgentMiddleware,
    AgentState,
    CallStep,
    DecisionType,
    ExtendedModelResponse,
    HumanInTheLoopMiddleware,
    InterruptOnConfig,
    ModelCallSteps,
    ModelRequest,
    ModelResponse,
    PrivateStateAttr,
    Steps,
    ToolCallSteps,
    arun_steps,
    resolve_backend,
    run_steps,
    step_of_call,
    step_of_wait,
)
from deepfs.middleware._messages import ToolResult
from deepfs.middleware.approved import Approval, hold_to
from deepfs.middleware.arguments import TOOL_NAMES, canonical_arguments
from deepfs.middleware.filesystem import FilesystemMiddleware, rename_arguments
from deepfs.middleware.patch_tool_calls import give_ids
from deepfs.middleware.previews import COMPOUND_TOOLS, equivalent_calls, preview_call
from deepfs.policy.permissions import as_approved
from deepfs.policy.rules import FilesystemOperation, FilesystemPermission, check_rules, decisions_beneath
from deepfs.storage.gathering import gather
from deepfs.text.lines import digest
from deepfs.text.visible import one_line

__all__ = ["ANSWER_FORM", "ApprovalMiddleware", "ask_once", "warn_of_unknown_tools"]


InterruptOn = Mapping[str, bool | InterruptOnConfig]


class _ToolUse(NamedTuple):
    """How a tool uses the path in one of its arguments."""

    operations: tuple[FilesystemOperation, ...]
    argument: str
    default: str | None = None
    whole_tree: bool = False


# A listing or a search omits paths that the rules hide, so only its start directory needs approval.
_USES: Final[Mapping[str, tuple[_ToolUse, ...]]] = {
    "ls": (_ToolUse(("read",), "path", "/"),),
    "read_file": (_ToolUse(("read",), "file_path"),),
    "write_file": (_ToolUse(("write",), "file_path"),),
    "edit_file": (_ToolUse(("read", "write"), "file_path"),),
    "glob": (_ToolUse(("read",), "path", "/"),),
    "grep": (_ToolUse(("read",), "path", "/"),),
    "delete": (_ToolUse(("write",), "file_path", whole_tree=True),),
    "move": (
        _ToolUse(("read", "write"), "source", whole_tree=True),
        _ToolUse(("write",), "destination", whole_tree=True),
    ),
    "execute": (_ToolUse(("execute",), "", "/"),),
}

_DECISIONS: Final[list[DecisionType]] = list(get_args(DecisionType))


# --- calls about which rules ask ---


def asks_first(rules: Sequence[FilesystemPermission], name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a rule requires a person's approval of this tool call."""
    return any(
        _asks(rules, use, operation, given)
        for tool, given in equivalent_calls(name, arguments)
        for use in _USES.get(tool, ())
        for operation in use.operations
    )


def _asks(
    rules: Sequence[FilesystemPermission], use: _ToolUse, operation: FilesystemOperation, arguments: Mapping[str, Any]
) -> bool:
    path = arguments.get(use.argument) or use.default
    if not isinstance(path, str):
        return False
    try:
        first, *beneath = [decision.mode for decision in decisions_beneath(rules, operation, path)]
    except InvalidPathError:
        return False
    # Whether rules deny anything beneath the path is not known yet; the backend checks that.
    return first == "interrupt" or (use.whole_tree and first == "allow" and "interrupt" in beneath)


def has_interrupts(rules: Sequence[FilesystemPermission]) -> bool:
    """Whether a rule asks a person."""
    return any(rule.mode == "interrupt" for rule in rules)


_RULED: Final = (*_USES, *COMPOUND_TOOLS)


def with_rules(rules: Sequence[FilesystemPermission], named: InterruptOn) -> dict[str, bool | InterruptOnConfig]:
    """Return `named` with entries for the tools that the rules may interrupt."""
    ruled = _RULED if has_interrupts(rules) else ()
    return {**named, **{name: _config(rules, named.get(name, False)) for name in ruled}}


def _config(rules: Sequence[FilesystemPermission], given: bool | InterruptOnConfig) -> bool | InterruptOnConfig:
    if given is True:
        return True

    def by_rules(request: ToolCallRequest) -> bool:
        return asks_first(rules, request.tool_call["name"], request.tool_call["args"])

    if given is False:
        return InterruptOnConfig(allowed_decisions=_DECISIONS, when=by_rules)
    own = given.get("when")
    if own is None:
        return given
    return InterruptOnConfig(**{**given, "when": lambda request: own(request) or by_rules(request)})


# --- calls that have the effect of a tool in interrupt_on ---

_SIMILAR_TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("move", *COMPOUND_TOOLS), ("write_file", "edit_file", "delete")),
    "write_file": ("edit_file", "delete"),
}
"""For a tool, others whose effect on files it can have: an entry of `interrupt_on` for one of them covers the tool.

An `interrupt_on` that was written for deepagents does not expect that the tool has such effects.
"""


def with_similar_tools(interrupt_on: InterruptOn) -> dict[str, bool | InterruptOnConfig]:
    """Return `interrupt_on` with entries for the tools of `_SIMILAR_TOOLS` that follow from the tools that it names.

    Entries that LangChain refuses stay as they are.
    """
    asking = {
        name: config
        for name, config in interrupt_on.items()
        if config is True or (isinstance(config, Mapping) and config.get("allowed_decisions"))
    }
    extended = dict(interrupt_on)
    for name, others in _SIMILAR_TOOLS.items():
        asked = {other: asking[other] for other in others if other in asking}
        if asked and name not in interrupt_on:
            extended[name] = _similar_config(asked)
    return extended


def warn_of_unknown_tools(interrupt_on: InterruptOn, tools: Iterable[Any]) -> None:
    """Warn of names in `interrupt_on` that are of none of the `tools`, nor of a file tool that may not be offered.

    It is no error: middleware may add a tool to a call of the model.
    """
    names = {*TOOL_NAMES, *COMPOUND_TOOLS, *map(_tool_name, tools)}
    for name in (name for name, asks in interrupt_on.items() if asks and name not in names):
        similar = [each for each in sorted(names) if name in each] or get_close_matches(name, names, 1, 0.7)
        meant = f"; did you mean {similar[0]!r}?" if similar else ""
        warnings.warn(f"interrupt_on: no tool of the agent is named {name!r}{meant}", stacklevel=3)


def _tool_name(tool: Any) -> str:
    if isinstance(tool, Mapping):
        tool = tool.get("function", tool)
        return str(tool.get("name", ""))
    return str(getattr(tool, "name", getattr(tool, "__name__", "")))


def _similar_config(asked: InterruptOn) -> InterruptOnConfig:
    """The config of a tool: ask if an entry of `asked` would ask; allow decisions that all entries allow."""
    lists = [_DECISIONS if isinstance(config, bool) else config["allowed_decisions"] for config in asked.values()]
    allowed = [decision for decision in _DECISIONS if all(decision in each for each in lists)]

    def when(request: ToolCallRequest) -> bool:
        return any(_would_ask(tool, config, request) for tool, config in asked.items())

    return InterruptOnConfig(allowed_decisions=allowed or ["approve", "reject"], when=when)


def _would_ask(tool: str, config: bool | InterruptOnConfig, request: ToolCallRequest) -> bool:
    own = None if isinstance(config, bool) else config.get("when")
    for arguments in _equivalent_arguments(request.tool_call["name"], request.tool_call["args"], tool):
        called: ToolCall = {**request.tool_call, "name": tool, "args": arguments}
        if own is None or _holds(own, request.override(tool_call=called)):
            return True
    return False


def _holds(when: Callable[[ToolCallRequest], bool], request: ToolCallRequest) -> bool:
    try:
        return when(request)
    except Exception:  # `when` was written for another tool. An unneeded question does no harm.
        return True


def _equivalent_arguments(name: str, arguments: Mapping[str, Any], tool: str) -> Iterator[dict[str, Any]]:
    """Yield the arguments of calls of `tool` with the effect of this call of the tool `name`."""
    texts = {"write_file": {"content": ""}, "edit_file": {"old_string": "", "new_string": ""}}.get(tool, {})
    for called, given in equivalent_calls(name, arguments):
        changed: list[Any] = []
        if called == tool:
            yield given
        elif called == "move":
            changed = [given.get("source")] * (tool == "delete") + [given.get("destination")]
        elif called == "write_file" and given.get("overwrite"):
            changed = [given.get("file_path")]
        for path in changed:
            yield {"file_path": path, **texts}


ANSWER_FORM: Final = (
    "Answer with Command(resume={'decisions': [...]}), which has a decision for each of the action_requests, in their "
    "order: {'type': 'approve'}, {'type': 'edit', 'edited_action': {'name': ..., 'args': {...}}}, "
    "{'type': 'reject', 'message': ...} or {'type': 'respond', 'message': ...}, as far as they are allowed"
)
"""How an interrupt is answered."""

_MAX_ANSWERS: Final = 1_000
_CHANGED: Final = "[No preview: other middleware changed this call after the model made it]"


_PREVIEWS: Final = "approval_previews"
"""The key of the state with what each call of the last turn would change."""


if TYPE_CHECKING:
    HumanInTheLoopState = AgentState[Any]
else:
    HumanInTheLoopState = HumanInTheLoopMiddleware.state_schema


class ApprovalState(HumanInTheLoopState):
    """The state of an agent with an ApprovalMiddleware."""

    approval_previews: NotRequired[Annotated[dict[str, dict[str, Any]], PrivateStateAttr]]
    """By id of the call: the text until the person is asked, and what the files were then."""


class ApprovalMiddleware(ModelCallSteps, ToolCallSteps, HumanInTheLoopMiddleware[Any, Any, Any]):
    """Asks a person before calls of tools.

    It asks before the calls that `interrupt_on` names, and before those that a rule of mode `"interrupt"` matches. An
    approved call is allowed by the rules of mode `"interrupt"`, but not by those of mode `"deny"`. An answer of another
    form raises a ValueError that describes the form; then nothing is done, and the interrupt stays.

    With a backend, the description of a request ends with a diff or with a list of what would go, and an approved call
    of a tool of deepfs changes a file only if it is as the person saw it.

    Args:
        rules: The rules about files.
        interrupt_on: Tools by name, as in LangChain's HumanInTheLoopMiddleware. `write_file`, `edit_file` or `delete`
            includes `move`, `apply_patch` and `memory`; `edit_file` or `delete` includes a `write_file` that
            overwrites. A tool that has an entry of its own follows only that entry, and the rules.
        backend: The backend of the tools, with its rules; None shows no diff.

    Raises:
        TypeError: If an item of `rules` is not a rule, or `backend` is not a backend.
    """

    state_schema: type[Any] = ApprovalState

    def __init__(
        self,
        rules: Sequence[FilesystemPermission] = (),
        interrupt_on: InterruptOn | None = None,
        *,
        backend: Any = None,
    ) -> None:
        self._rules = check_rules(rules)
        self._named = with_similar_tools(interrupt_on or {})
        super().__init__(interrupt_on=with_rules(self._rules, self._named))
        self._backend: BackendProtocol | None = None if backend is None else resolve_backend(backend)
        if backend is not None:
            self.interrupt_on: dict[str, InterruptOnConfig] = {
                name: self._add_preview(config) for name, config in self.interrupt_on.items()
            }

    @staticmethod
    def where_needed(
        rules: Sequence[FilesystemPermission],
        interrupt_on: InterruptOn | None,
        beside: Sequence[AgentMiddleware[Any, Any, Any]] = (),
    ) -> "list[AgentMiddleware[Any, Any, Any]]":
        """Return the middleware in a list for `create_agent`; the list is empty if no call needs approval.

        Checkpoints store its name while an interrupt waits for an answer, so the name differs from
        `ApprovalMiddleware` only if one of `beside` has that name.

        Args:
            rules: The rules about files.
            interrupt_on: The tools before which a person is asked.
            beside: The agent's other middleware. The diffs are of the files of its last FilesystemMiddleware.

        Raises:
            TypeError: If an item of `rules` is not a rule.
        """
        if not interrupt_on and not has_interrupts(rules):
            return []
        is_taken = any(each.name == ApprovalMiddleware.__name__ for each in beside)
        backends = [each.backend for each in beside if isinstance(each, FilesystemMiddleware)]
        kind = _AgentApprovals if is_taken else ApprovalMiddleware
        return [kind(rules, interrupt_on, backend=backends[-1] if backends else None)]

    # --- previews ---

    def _model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Steps[Any]:
        """Add what the calls of the model would change to the state."""
        response = yield step_of_call(handler, request)
        calls, previews = self._calls_to_preview(response, request.tools), {}
        if calls and self._backend is not None:
            previews = yield step_of_wait(
                self._backend, partial(self._preview_calls, self._backend, calls, request.tools), self.name
            )
        if not previews and not request.state.get(_PREVIEWS):
            return response
        return ExtendedModelResponse(response, Command(update={_PREVIEWS: previews}))

    def _calls_to_preview(self, response: ModelResponse[Any], tools: Sequence[Any]) -> list[ToolCall]:
        # The middleware that renames arguments and gives ids is around this one.
        rename_arguments(give_ids(response), tools)
        # Conditions `when` are called with the question only, so a preview may be made of a call that needs none.
        made = [call for message in response.result if isinstance(message, AIMessage) for call in message.tool_calls]
        return [
            call
            for call in made
            if self._named.get(call["name"]) or asks_first(self._rules, call["name"], call["args"])
        ]

    async def _preview_calls(
        self, backend: BackendProtocol, calls: Sequence[ToolCall], tools: Sequence[Any]
    ) -> dict[str, dict[str, Any]]:
        """Previews by id of the call, as they are in the state."""
        makers = {tool.name: tool.preview for tool in tools if hasattr(tool, "preview")}
        made = await gather(
            [
                partial(preview_call, backend, call["name"], call["args"], make=makers.get(call["name"]))
                for call in calls
            ]
        )
        previews = {call["id"]: preview for call, preview in zip(calls, made, strict=True) if call["id"] and preview}
        times = Counter(path for preview in previews.values() for path in preview.versions)
        digests = {call["id"]: _call_digest(call) for call in calls}
        made_of = {
            name: {"call": digests[name], "is_shared": any(times[path] > 1 for path in preview.versions)}
            for name, preview in previews.items()
        }
        return {name: {**preview._asdict(), **made_of[name]} for name, preview in previews.items()}

    def _add_preview(self, config: InterruptOnConfig) -> InterruptOnConfig:
        """Return the config with the preview at the end of its description."""
        own = config.get("description")

        def description(tool_call: ToolCall, state: Any, runtime: Any) -> str:
            text = own(tool_call, state, runtime) if callable(own) else own
            if text is None:
                text = _describe_call(self.description_prefix, tool_call)
            preview = (state.get(_PREVIEWS) or {}).get(tool_call["id"] or "")
            if not preview:
                return text
            called = _call_digest(tool_call)
            if preview.get("call", called) != called:  # A thread of an earlier version has no digest.
                return f"{text}\n\n{_CHANGED}"
            _asked.get().add(tool_call["id"])
            return f"{text}\n\n{preview['text']}"

        return InterruptOnConfig(**{**config, "description": description})

    # --- the question and the calls ---

    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Ask a person about the calls that the model made. Raises ValueError for an answer of another form."""
        with _record_asked() as asked:
            update = self._ask(state, runtime)
        previews = state.get(_PREVIEWS)
        if not previews:
            return update
        kept = {name: {**preview, "text": ""} for name, preview in previews.items() if name in asked}
        return {**(update or {}), _PREVIEWS: kept}

    def _ask(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        wrong: Exception | None = None
        asking = next((each for each in reversed(state["messages"]) if isinstance(each, AIMessage)), None)
        made = asking.tool_calls if asking else []
        # LangGraph keeps each answer and replays all of them when this node runs again: the loop skips wrong answers.
        for _ in range(_MAX_ANSWERS):
            try:
                return _check_update(super().after_model(state, runtime))
            except GraphInterrupt:
                if wrong is None:
                    raise
                break
            except GraphBubbleUp:
                raise
            except Exception as error:
                if _was_asking(error):
                    raise
                wrong = error
                if asking:  # LangChain may have set the calls as the wrong answer left them.
                    asking.tool_calls = made
        detail = f" ({wrong})" if isinstance(wrong, ValueError) else ""
        raise ValueError(f"The answer to the interrupt is wrong{detail}. Nothing was done. {ANSWER_FORM}.") from wrong

    def _tool_call(self, request: ToolCallRequest, handler: Callable[..., Any]) -> Steps[ToolResult]:
        """Run the call; if a rule required approval, run it as approved."""
        refused = self._refuse_edit(request)
        if refused is not None:
            return refused
        asking = HumanInTheLoopMiddleware
        result: ToolResult = yield CallStep(
            partial(asking.wrap_tool_call, self, request, lambda asked: run_steps(self._run_call(asked, handler))),
            partial(asking.awrap_tool_call, self, request, lambda asked: arun_steps(self._run_call(asked, handler))),
        )
        return result

    def _run_call(self, asked: ToolCallRequest, handler: Callable[..., Any]) -> Steps[ToolResult]:
        named = _with_canonical_arguments(asked)
        with self._as_approved(named):
            result: ToolResult = yield step_of_call(handler, named)
        return result

    def _refuse_edit(self, request: ToolCallRequest) -> ToolMessage | None:
        """The result of a call that a person replaced by one of a tool that the agent does not have.

        LangChain raises an error, after which the thread cannot go on.
        """
        edited = self._reviewer_edit(request)
        if edited is None or edited["name"] == request.tool_call["name"]:
            return None
        if any(tool.name == edited["name"] for tool in request.runtime.tools):
            return None
        text = f"Error: A person replaced this call by one of {one_line(edited['name'])}, which is no tool here."
        return ToolMessage(
            f"{text} Nothing was done.",
            name=request.tool_call["name"],
            tool_call_id=request.tool_call["id"],
            status="error",
        )

    @contextmanager
    def _as_approved(self, request: ToolCallRequest) -> Iterator[None]:
        """Allow what a person was asked about, and only that."""
        shown = (request.state.get(_PREVIEWS) or {}).get(request.tool_call["id"] or "")
        approval = Approval(shown["versions"], shown["lines"], shown["is_shared"]) if shown else None
        with hold_to(approval):
            asks = asks_first(self._rules, request.tool_call["name"], request.tool_call["args"])
            with as_approved() if asks else nullcontext():
                yield


class _AgentApprovals(ApprovalMiddleware):
    """Used beside another ApprovalMiddleware: an agent needs different names to run both."""


def _with_canonical_arguments(request: ToolCallRequest) -> ToolCallRequest:
    """The request; a call that a person edited may have the aliases that the calls of models have."""
    arguments = canonical_arguments(request.tool, request.tool_call["args"])
    if arguments is None:
        return request
    return request.override(tool_call={**request.tool_call, "args": arguments})


def _call_digest(call: ToolCall) -> str:
    """A digest of what a call does, to tell whether a preview is of this call."""
    hashed = digest()
    hashed.update(dumps([call["name"], call["args"]], sort_keys=True, default=repr).encode())
    return hashed.hexdigest()


def _describe_call(prefix: str, tool_call: ToolCall, *_: Any) -> str:
    return f"{prefix}\n\nTool: {tool_call['name']}\nArgs: {tool_call['args']}"


_asked: ContextVar[set[str | None]] = ContextVar("deepfs_asked_calls")
"""The ids of the calls that the current question is about."""


@contextmanager
def _record_asked() -> Iterator[set[str | None]]:
    asked: set[str | None] = set()
    token = _asked.set(asked)
    try:
        yield asked
    finally:
        _asked.reset(token)


# --- answers ---------------------------------------------------------------------------------------------------------

_ASKING = frozenset({"_should_interrupt", "_create_action_and_config"})
"""LangChain's functions that call the user's functions `when` and `description`."""


def _was_asking(error: Exception) -> bool:
    """Whether the error was raised while the question was built, so that the answer did not cause it."""
    return any(frame.f_code.co_name in _ASKING for frame, _ in walk_tb(error.__traceback__))


def _check_update(update: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return `update`, made from an answer. Raises ValueError if a tool call in it has no name or no arguments."""
    given = update or {}
    edited = given.get("hitl_edited_tool_calls", {}).values()
    called = [each for message in given.get("messages", ()) for each in getattr(message, "tool_calls", ())]
    for action in (*edited, *called):
        is_action = isinstance(action, Mapping) and isinstance(action.get("args"), dict)
        if not is_action or not isinstance(action.get("name"), str):
            raise ValueError(f"{action!r} is no edited_action")
    return update


# --- a middleware of LangChain that asks as well ---------------------------------------------------------------------


def ask_once(
    rules: Sequence[FilesystemPermission],
    interrupt_on: InterruptOn | None,
    middleware: Sequence[AgentMiddleware[Any, Any, Any]],
) -> tuple[list[AgentMiddleware[Any, Any, Any]], InterruptOn | None]:
    """Return the middleware and the `interrupt_on` with which nobody is asked twice about one call.

    A HumanInTheLoopMiddleware of LangChain stands for `interrupt_on`, and asks about tools with the effect of those
    that it names as well, even if it sets one to False, since it does not keep such entries. If rules ask too, an
    ApprovalMiddleware with the returned `interrupt_on` takes its place.
    """
    covered = [_cover_similar_tools(each) for each in middleware]
    asking = [each for each in covered if each.name == HumanInTheLoopMiddleware.__name__]
    if not asking:
        return covered, interrupt_on
    last = asking[-1]
    if not has_interrupts(rules) or type(last) is not HumanInTheLoopMiddleware:
        return covered, None
    wording = partial(_describe_call, last.description_prefix)
    named = {
        name: InterruptOnConfig(**{"description": wording, **config}) for name, config in last.interrupt_on.items()
    }
    return [each for each in covered if each not in asking], named


def _cover_similar_tools(middleware: AgentMiddleware[Any, Any, Any]) -> AgentMiddleware[Any, Any, Any]:
    if not isinstance(middleware, HumanInTheLoopMiddleware) or isinstance(middleware, ApprovalMiddleware):
        return middleware
    other = copy(middleware)
    extended: dict[str, Any] = with_similar_tools(middleware.interrupt_on)
    other.interrupt_on = extended
    return other
