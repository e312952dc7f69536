"""Middleware that lets an agent work on until another model finds that its work meets a rubric."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import getLogger
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, NotRequired, TypeAlias
from uuid import uuid4

from langchain.agents.middleware.types import hook_config
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel, Discriminator, Field, model_validator
from typing_extensions import TypedDict  # Pydantic takes no other before Python 3.12.

from deepfs.middleware._backends import (
    TRACE_POLICY,
    AgentMiddleware,
    AgentState,
    Lazy,
    PrivateStateAttr,
    constructed_model,
    create_agent,
)
from deepfs.middleware.prompts import PROMPTS
from deepfs.text.arguments import check_callable, check_integer
from deepfs.text.visible import without_tags

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

__all__ = [
    "GRADER_SYSTEM_PROMPT",
    "RUBRIC_GRADER_MESSAGE_SOURCE",
    "CriterionEval",
    "CriterionFail",
    "CriterionPass",
    "GraderResponse",
    "GraderVerdict",
    "RubricEvaluation",
    "RubricMiddleware",
    "RubricResult",
    "RubricState",
]

_log = getLogger(__name__)

GraderVerdict: TypeAlias = Literal["satisfied", "needs_revision", "failed"]
"""What the grader may find."""
RubricResult: TypeAlias = GraderVerdict | Literal["max_iterations_reached", "grader_error"]
"""How an evaluation ended. Only after `needs_revision` the agent works on."""

RUBRIC_GRADER_MESSAGE_SOURCE: Final = "rubric_grader"
"""The name of messages that ask for a revision, and their `lc_source`."""
GRADER_SYSTEM_PROMPT: Final = PROMPTS["rubric"]

_MAX_MESSAGES: Final = 30
_MAX_CHARS: Final = 4_000


# --- records ---------------------------------------------------------------------------------------------------------


class CriterionPass(TypedDict):
    """A criterion that holds."""

    name: Annotated[str, Field(description="What is checked, in words that stand without the rubric.")]
    passed: Literal[True]


class CriterionFail(TypedDict):
    """A criterion that does not hold, or is not confirmed."""

    name: Annotated[str, Field(description="What is checked, in words that stand without the rubric.")]
    passed: Literal[False]
    gap: Annotated[str, Field(description="What is missing or wrong, so that it can be acted on.")]


CriterionEval: TypeAlias = Annotated[CriterionPass | CriterionFail, Discriminator("passed")]


class RubricEvaluation(TypedDict):
    """One evaluation. `iteration` counts from 0 within the run of gradings that has the id `grading_run_id`.

    `unverified` says that the grader left out criteria twice, so that its `satisfied` was not accepted.
    """

    grading_run_id: str
    iteration: int
    result: RubricResult
    explanation: str
    criteria: list[CriterionEval]
    unverified: bool


class RubricState(AgentState[Any]):
    """The state of an agent with a rubric, which the caller gives as `rubric`."""

    rubric: NotRequired[str]
    _rubric_status: NotRequired[Annotated[RubricResult | None, PrivateStateAttr]]
    _rubric_iterations: NotRequired[Annotated[int, PrivateStateAttr]]
    _rubric_evaluations: NotRequired[Annotated[list[RubricEvaluation], PrivateStateAttr]]
    _current_grading_run_id: NotRequired[Annotated[str, PrivateStateAttr]]
    _active_rubric: NotRequired[Annotated[str, PrivateStateAttr]]
    _rubric_criteria: NotRequired[Annotated[list[str], PrivateStateAttr]]


class GraderResponse(BaseModel):
    """What the grader answers."""

    result: GraderVerdict = Field(description="Whether every criterion holds, or the rubric cannot be judged.")
    explanation: str = Field(description="One or two sentences for the one who did the work.")
    criteria: list[CriterionEval] = Field(description="One entry for each criterion of the rubric, in its order.")

    @model_validator(mode="after")
    def _check_consistency(self) -> "GraderResponse":
        misses = any(not criterion["passed"] for criterion in self.criteria)
        if self.result == "satisfied" and misses:
            raise ValueError("the result is satisfied, but a criterion is not passed")
        if self.result == "needs_revision" and self.criteria and not misses:
            raise ValueError("the result is needs_revision, but every criterion is passed")
        return self


# --- the middleware --------------------------------------------------------------------------------------------------


class _Run(NamedTuple):
    """A grading: the run that it belongs to, its number in it, and what the state holds."""

    id: str
    iteration: int
    state: Mapping[str, Any]
    runtime: Any

    @property
    def context(self) -> Any:
        return getattr(self.runtime, "context", None)

    @property
    def expected(self) -> list[str]:
        """The criteria that an earlier grading of this run found."""
        return self.state.get("_rubric_criteria") or []


class RubricMiddleware(AgentMiddleware[Any, Any, Any]):
    """Grades the work of an agent by a rubric whenever it would end, and lets it work on while criteria fail.

    It does nothing unless the input has a `rubric`. A grader, an agent of its own, gets the rubric and the transcript.
    After `needs_revision` its feedback becomes a message and the agent goes on; all else ends the run and leaves the
    agent's last message as it is. How it ended is in `_rubric_status` of the state, in the event
    `rubric_evaluation_end` of the stream, and in the argument of `on_evaluation`.

    The criteria that the first grading names are asked for again in later ones. A grading that leaves some out is
    repeated once; if it is still incomplete, `satisfied` counts as `needs_revision`.

    Args:
        model: The model of the grader, or its name for `init_chat_model`.
        system_prompt: The instructions of the grader; None is `GRADER_SYSTEM_PROMPT`.
        tools: Tools with which the grader can gather evidence.
        grader_middleware: Middleware of the grader.
        grader_context_schema: The schema of the grader's context, which is that of the agent's run.
        grader_state_schema: The schema of the grader's state.
        prepare_messages_for_grader: Changes the messages of the transcript, for example leaves some out.
        build_grader_state: Returns further fields of the grader's input, for the state and the number of the grading.
        max_iterations: The most gradings of a run; the last one ends with `max_iterations_reached`.
        on_evaluation: Called with each evaluation. Its exceptions are logged.

    Raises:
        TypeError: For an argument of another type.
        ValueError: Without a model, for a `max_iterations` under 1, and for `build_grader_state` without
            `grader_state_schema`.
    """

    trace_policy = TRACE_POLICY

    state_schema: type[Any] = RubricState

    def __init__(
        self,
        *,
        model: "str | BaseChatModel",
        system_prompt: str | None = None,
        tools: "Sequence[BaseTool] | None" = None,
        grader_middleware: Sequence[AgentMiddleware[Any, Any, Any]] | None = None,
        grader_context_schema: type[Any] | None = None,
        grader_state_schema: type[Any] | None = None,
        prepare_messages_for_grader: Callable[[list[AnyMessage]], list[AnyMessage]] | None = None,
        build_grader_state: Callable[[Any, int], Mapping[str, Any]] | None = None,
        max_iterations: int = 3,
        on_evaluation: Callable[[RubricEvaluation], None] | None = None,
    ) -> None:
        super().__init__()
        _check(model, max_iterations, build_grader_state, grader_state_schema)
        for name, given in (
            ("prepare_messages_for_grader", prepare_messages_for_grader),
            ("build_grader_state", build_grader_state),
            ("on_evaluation", on_evaluation),
        ):
            if given is not None:
                check_callable(name, given)
        self.max_iterations: int = max_iterations
        self._prepare, self._build, self._on_evaluation = prepare_messages_for_grader, build_grader_state, on_evaluation
        self._grader: Lazy[Any] = Lazy(
            lambda: create_agent(
                constructed_model(model),
                system_prompt=system_prompt or GRADER_SYSTEM_PROMPT,
                tools=list(tools or ()),
                middleware=list(grader_middleware or ()),
                name=RUBRIC_GRADER_MESSAGE_SOURCE,
                response_format=GraderResponse,
                state_schema=grader_state_schema,
                context_schema=grader_context_schema,
            )
        )

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Start a new run of gradings if the rubric is a new one, or the last run has ended."""
        rubric = state.get("rubric")
        goes_on = state.get("_rubric_status") in (None, "needs_revision")
        if not rubric or (state.get("_active_rubric") == rubric and goes_on):
            return None
        return {
            "_rubric_iterations": 0,
            "_rubric_status": None,
            "_current_grading_run_id": str(uuid4()),
            "_active_rubric": rubric,
            "_rubric_criteria": [],
        }

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `before_agent`."""
        return self.before_agent(state, runtime)

    @hook_config(can_jump_to=["model"])
    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Grade the work. Unless it is done, ask for a revision and go back to the model."""
        run = self._started(state, runtime)
        if run is None:
            return None
        try:
            graded = _response(self._grader.get().invoke(self._input(run), context=run.context))
            objection = _objection(run, graded)
            if objection:
                graded = self._again(run, objection, graded)
        except GraphBubbleUp:
            raise
        except Exception as error:
            return self._ended(run, _failed(run, error))
        return self._ended(run, self._evaluation(run, graded))

    def _again(self, run: _Run, objection: str, graded: GraderResponse) -> GraderResponse:
        """Grade once more; if that fails, the first answer counts."""
        try:
            return _response(self._grader.get().invoke(self._input(run, objection), context=run.context))
        except GraphBubbleUp:
            raise
        except Exception:
            _log.exception("The grader failed when it was asked again")
            return graded

    @hook_config(can_jump_to=["model"])
    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `after_agent`."""
        run = self._started(state, runtime)
        if run is None:
            return None
        try:
            graded = _response(await self._grader.get().ainvoke(self._input(run), context=run.context))
            objection = _objection(run, graded)
            if objection:
                graded = await self._aagain(run, objection, graded)
        except GraphBubbleUp:
            raise
        except Exception as error:
            return self._ended(run, _failed(run, error))
        return self._ended(run, self._evaluation(run, graded))

    async def _aagain(self, run: _Run, objection: str, graded: GraderResponse) -> GraderResponse:
        try:
            return _response(await self._grader.get().ainvoke(self._input(run, objection), context=run.context))
        except GraphBubbleUp:
            raise
        except Exception:
            _log.exception("The grader failed when it was asked again")
            return graded

    def _started(self, state: Any, runtime: Any) -> _Run | None:
        if not state.get("rubric"):
            return None
        id_ = state.get("_current_grading_run_id") or str(uuid4())
        run = _Run(id_, state.get("_rubric_iterations") or 0, state, runtime)
        _emit(run, "rubric_evaluation_start", {})
        return run

    def _input(self, run: _Run, objection: str = "") -> dict[str, Any]:
        """The input of the grader. Raises ValueError if `build_grader_state` returns messages."""
        state = dict(run.state)
        if self._prepare is not None:
            state["messages"] = self._prepare([*state.get("messages", ())])
        built = dict(self._build(state, run.iteration)) if self._build is not None else {}
        if "messages" in built:
            raise ValueError("build_grader_state must not return messages")
        return {**built, "messages": [HumanMessage(_task(state, run.expected, objection))]}

    def _evaluation(self, run: _Run, graded: GraderResponse) -> RubricEvaluation:
        """The record of a grading. An incomplete one does not satisfy, and the last one ends the run."""
        found = _record(run, graded.result, graded.explanation, [*graded.criteria])
        if graded.result == "satisfied" and _objection(run, graded):
            found["result"], found["unverified"] = "needs_revision", True
            found["explanation"] = f"The grader did not judge every criterion. It said: {graded.explanation}"
        if found["result"] == "needs_revision" and run.iteration + 1 >= self.max_iterations:
            found["result"] = "max_iterations_reached"
        return found

    def _ended(self, run: _Run, found: RubricEvaluation) -> dict[str, Any]:
        """Tell of the evaluation, and return the update of the state for it."""
        told: dict[str, Any] = {name: found[name] for name in ("result", "explanation", "criteria", "unverified")}
        _emit(run, "rubric_evaluation_end", told)
        if self._on_evaluation is not None:
            try:
                self._on_evaluation(found)
            except GraphBubbleUp:
                raise
            except Exception:
                _log.exception("on_evaluation of RubricMiddleware failed")
        update: dict[str, Any] = {
            "_rubric_evaluations": [*run.state.get("_rubric_evaluations", ()), found],
            "_rubric_iterations": run.iteration + 1,
            "_rubric_status": found["result"],
        }
        if not run.expected and found["criteria"] and found["result"] != "failed":
            update["_rubric_criteria"] = [criterion["name"] for criterion in found["criteria"]]
        if found["result"] != "needs_revision":
            return update
        return {**update, "messages": [_request(found)], "jump_to": "model"}


def _check(model: object, most: int, build: object, schema: object) -> None:
    if not model:
        raise ValueError("RubricMiddleware needs a model for the grader")
    if isinstance(most, bool):
        raise TypeError("max_iterations must be an integer, not a bool")
    check_integer("max_iterations", most)
    if most < 1:
        raise ValueError(f"max_iterations must be 1 or more, not {most}")
    if build is not None and schema is None:
        raise ValueError("build_grader_state needs a grader_state_schema")


def _emit(run: _Run, kind: str, told: Mapping[str, Any]) -> None:
    """Write an event to the stream, if the run is streamed."""
    write = getattr(run.runtime, "stream_writer", None)
    if write is not None:
        write({"type": kind, "grading_run_id": run.id, "iteration": run.iteration, **told})


def _record(
    run: _Run, result: RubricResult, explanation: str, criteria: list[CriterionEval] | None = None
) -> RubricEvaluation:
    return RubricEvaluation(
        grading_run_id=run.id,
        iteration=run.iteration,
        result=result,
        explanation=explanation,
        criteria=criteria or [],
        unverified=False,
    )


def _failed(run: _Run, error: Exception) -> RubricEvaluation:
    _log.error("The grader of RubricMiddleware failed", exc_info=error)
    return _record(run, "grader_error", f"The grader failed: {type(error).__name__}: {error}")


def _response(state: Mapping[str, Any]) -> GraderResponse:
    """The answer in the final state of the grader. Raises ValueError if there is none."""
    given = state.get("structured_response")
    if given is None:
        raise ValueError("the grader gave no structured response")
    return given if isinstance(given, GraderResponse) else GraderResponse.model_validate(given)


def _objection(run: _Run, graded: GraderResponse) -> str:
    """Why the answer is incomplete; empty if it is complete. A rubric that cannot be judged needs no criteria."""
    if graded.result == "failed":
        return ""
    wanted, count = len(run.expected) or 1, len(graded.criteria)
    return f"Your last answer had {count} of the {wanted} criteria or more that are due." if count < wanted else ""


# --- texts -----------------------------------------------------------------------------------------------------------


def _task(state: Mapping[str, Any], expected: Sequence[str], objection: str) -> str:
    """The task of the grader: the rubric, the criteria of an earlier grading, and the transcript."""
    criteria = "\n".join(f"{number}. {name}" for number, name in enumerate(expected, 1))
    parts = [
        *([objection] if objection else []),
        _element("rubric", state.get("rubric", "").strip()),
        *([_element("criteria", criteria)] if expected else []),
        _element("transcript", _transcript(state.get("messages", ()))),
        f"Judge exactly these {len(expected)} criteria, in their order and by their names."
        if expected
        else "Divide the rubric into its criteria, and judge each of them.",
    ]
    return "\n\n".join(parts)


def _element(tag: str, text: str) -> str:
    for each in ("rubric", "criteria", "transcript"):
        text = without_tags(text, each)
    return f"<{tag}>\n{text}\n</{tag}>"


def _transcript(messages: Sequence[AnyMessage]) -> str:
    """The last messages, and the first one of the user, each cut to a length."""
    asked = (message for message in messages if isinstance(message, HumanMessage) and not _is_ours(message))
    last = messages[-_MAX_MESSAGES:]
    first = [message for message in [next(asked, None)] if message is not None and message not in last]
    return "\n\n".join(f"[{_role(message)}] {_shown(message)}" for message in [*first, *last]) or "(no messages)"


def _is_ours(message: HumanMessage) -> bool:
    return message.additional_kwargs.get("lc_source") == RUBRIC_GRADER_MESSAGE_SOURCE


def _role(message: AnyMessage) -> str:
    if isinstance(message, ToolMessage):
        return f"tool {message.name or ''}".strip()
    return {"human": "user", "ai": "assistant"}.get(message.type, message.type)


def _shown(message: AnyMessage) -> str:
    parts = [str(message.text)] if message.text else []
    if isinstance(message, AIMessage):
        parts += [f"(calls {call['name']} with {call['args']})" for call in message.tool_calls]
    text = "\n".join(parts) or "(no text)"
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]} (cut)"


def _request(found: RubricEvaluation) -> HumanMessage:
    """The message that asks for a revision."""
    gaps = [f"- {each['name']}: {each.get('gap') or 'not met'}" for each in found["criteria"] if not each["passed"]]
    kept = [] if found["unverified"] else [f"- {each['name']}" for each in found["criteria"] if each["passed"]]
    lines = [
        "A grader compared your work with the rubric. It is not done yet.",
        found["explanation"].strip(),
        *_section("What is missing:", gaps),
        *_section("What holds already, and must go on to hold:", kept),
        "Show for each criterion that it holds; change nothing that is right."
        if found["unverified"]
        else "Do what is missing, then end.",
    ]
    return HumanMessage(
        "\n".join(filter(None, lines)),
        name=RUBRIC_GRADER_MESSAGE_SOURCE,
        additional_kwargs={"lc_source": RUBRIC_GRADER_MESSAGE_SOURCE},
    )


def _section(title: str, rows: Iterable[str]) -> list[str]:
    return [title, *rows] if rows else []
