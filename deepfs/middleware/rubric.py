"""Middleware that lets an agent work on until another model finds that its work meets a rubric."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired, TypeAlias
from uuid import uuid4

from langchain.agents.middleware.types import hook_config
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel, Discriminator, Field, model_validator
from typing_extensions import TypedDict  # Pydantic takes no other before Python 3.12.

from deepfs.middleware._base import (
    TRACE_POLICY,
    AgentMiddleware,
    AgentState,
    CallStep,
    Lazy,
    PrivateStateAttr,
    Steps,
    arun_steps,
    construct_model,
    create_agent,
    run_steps,
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


GraderVerdict: TypeAlias = Literal["satisfied", "needs_revision", "failed"]
"""What the grader may find."""
RubricResult: TypeAlias = GraderVerdict | Literal["max_iterations_reached", "grader_error"]
"""How an evaluation ended. Only after `needs_revision` the agent works on."""


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
    def _check_result(self) -> "GraderResponse":
        """Refuse a result that the criteria contradict. A rubric that cannot be judged may have any."""
        holds = {criterion["passed"] for criterion in self.criteria}
        if self.result == "satisfied" and False in holds:
            raise ValueError("satisfied, but a criterion is not passed")
        if self.result == "needs_revision" and holds == {True}:
            raise ValueError("needs_revision, but all criteria are passed")
        return self


_log = getLogger(__name__)

RUBRIC_GRADER_MESSAGE_SOURCE: Final = "rubric_grader"
"""The name of messages that ask for a revision, and their `lc_source`."""
GRADER_SYSTEM_PROMPT: Final = PROMPTS["rubric"]

_MAX_MESSAGES: Final = 30
_MAX_CHARS: Final = 4_000


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
        if not model:
            raise ValueError("RubricMiddleware needs a model for the grader")
        if isinstance(max_iterations, bool):
            raise TypeError("max_iterations must be an integer, not a bool")
        check_integer("max_iterations", max_iterations)
        if max_iterations < 1:
            raise ValueError(f"max_iterations must be 1 or more, not {max_iterations}")
        if build_grader_state is not None and grader_state_schema is None:
            raise ValueError("build_grader_state needs a grader_state_schema")
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
                construct_model(model),
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
        return run_steps(self._grade(state, runtime))

    @hook_config(can_jump_to=["model"])
    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `after_agent`."""
        return await arun_steps(self._grade(state, runtime))

    def _grade(self, state: Mapping[str, Any], runtime: Any) -> Steps[dict[str, Any] | None]:
        if not state.get("rubric"):
            return None
        expected: list[str] = state.get("_rubric_criteria") or []  # Those that an earlier grading of this run found.
        iteration: int = state.get("_rubric_iterations") or 0
        place = {"grading_run_id": state.get("_current_grading_run_id") or str(uuid4()), "iteration": iteration}
        emit = getattr(runtime, "stream_writer", None) or (lambda event: None)
        emit({"type": "rubric_evaluation_start", **place})
        answer: GraderResponse | None = None
        failure: Exception | None = None
        objection = ""
        for _ in range(2):  # The grader is asked once more if its answer is incomplete. The first counts if that fails.
            try:
                grader, given = self._grader.get(), self._input(state, iteration, expected, objection)
                options = {"context": getattr(runtime, "context", None)}
                final = yield CallStep(
                    partial(grader.invoke, given, **options), partial(grader.ainvoke, given, **options)
                )
                answer = _answer_in(final)
            except GraphBubbleUp:
                raise
            except Exception as error:
                _log.exception("The grader of RubricMiddleware failed")
                failure = error
                break
            objection = _objection(answer, len(expected) or 1)
            if not objection:
                break
        is_unverified = answer is not None and answer.result == "satisfied" and objection != ""
        found = RubricEvaluation(
            **place,  # type: ignore[typeddict-item]
            result="grader_error",
            explanation=f"The grader failed: {type(failure).__name__}: {failure}",
            criteria=[],
            unverified=is_unverified,
        )
        if answer is not None:
            found["result"] = "needs_revision" if is_unverified else answer.result
            if found["result"] == "needs_revision" and iteration + 1 >= self.max_iterations:
                found["result"] = "max_iterations_reached"
            unclear = "The grader did not judge every criterion. It said: " if is_unverified else ""
            found["explanation"], found["criteria"] = f"{unclear}{answer.explanation}", [*answer.criteria]
        self._report(found, emit)
        update: dict[str, Any] = {
            "_rubric_evaluations": [*state.get("_rubric_evaluations", ()), found],
            "_rubric_iterations": iteration + 1,
            "_rubric_status": found["result"],
        }
        if not expected and found["criteria"] and found["result"] != "failed":
            update["_rubric_criteria"] = [criterion["name"] for criterion in found["criteria"]]
        if found["result"] == "needs_revision":
            update |= {"messages": [_request(found)], "jump_to": "model"}
        return update

    def _input(
        self, given: Mapping[str, Any], iteration: int, expected: Sequence[str], objection: str
    ) -> dict[str, Any]:
        """The input of the grader. Raises ValueError if `build_grader_state` returns messages."""
        state = dict(given)
        if self._prepare is not None:
            state["messages"] = self._prepare([*state.get("messages", ())])
        built = dict(self._build(state, iteration)) if self._build is not None else {}
        if "messages" in built:
            raise ValueError("build_grader_state must not return messages")
        return {**built, "messages": [HumanMessage(_task(state, expected, objection))]}

    def _report(self, found: RubricEvaluation, emit: Callable[[Mapping[str, Any]], None]) -> None:
        emit({"type": "rubric_evaluation_end", **found})
        if self._on_evaluation is not None:
            try:
                self._on_evaluation(found)
            except GraphBubbleUp:
                raise
            except Exception:
                _log.exception("on_evaluation of RubricMiddleware failed")


def _answer_in(final: Mapping[str, Any]) -> GraderResponse:
    """The answer in the final state of the grader. Raises ValueError if it has none, or one of another form."""
    given = final.get("structured_response")
    if given is None:
        raise ValueError("the grader gave no structured response")
    return given if isinstance(given, GraderResponse) else GraderResponse.model_validate(given)


def _objection(answer: GraderResponse, wanted: int) -> str:
    """Why an answer is incomplete; empty if it is complete. A rubric that cannot be judged needs no criteria."""
    count = len(answer.criteria)
    if answer.result == "failed" or count >= wanted:
        return ""
    return f"Your last answer had {count} of the {wanted} criteria or more that are due."


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
    people = (each for each in messages if isinstance(each, HumanMessage))
    asked = (each for each in people if each.additional_kwargs.get("lc_source") != RUBRIC_GRADER_MESSAGE_SOURCE)
    shown = list(messages[-_MAX_MESSAGES:])
    first = next(asked, None)
    if first is not None and first not in shown:
        shown.insert(0, first)
    rows: list[str] = []
    for message in shown:
        role = {"human": "user", "ai": "assistant"}.get(message.type, message.type)
        if isinstance(message, ToolMessage):
            role = f"tool {message.name or ''}".strip()
        parts = [str(message.text)] if message.text else []
        if isinstance(message, AIMessage):
            parts += [f"(calls {call['name']} with {call['args']})" for call in message.tool_calls]
        text = "\n".join(parts) or "(no text)"
        rows.append(f"[{role}] {text}" if len(text) <= _MAX_CHARS else f"[{role}] {text[:_MAX_CHARS]} (cut)")
    return "\n\n".join(rows) or "(no messages)"


def _request(found: RubricEvaluation) -> HumanMessage:
    """The message that asks for a revision."""
    gaps = [f"- {each['name']}: {each.get('gap') or 'not met'}" for each in found["criteria"] if not each["passed"]]
    kept = [] if found["unverified"] else [f"- {each['name']}" for each in found["criteria"] if each["passed"]]
    lines = [
        "A grader compared your work with the rubric. It is not done yet.",
        found["explanation"].strip(),
        *(["What is missing:", *gaps] if gaps else []),
        *(["What holds already, and must go on to hold:", *kept] if kept else []),
        "Show for each criterion that it holds; change nothing that is right."
        if found["unverified"]
        else "Do what is missing, then end.",
    ]
    return HumanMessage(
        "\n".join(filter(None, lines)),
        name=RUBRIC_GRADER_MESSAGE_SOURCE,
        additional_kwargs={"lc_source": RUBRIC_GRADER_MESSAGE_SOURCE},
    )
