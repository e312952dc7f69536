"""Middleware that lets an agent work on until another model finds that its work meets a rubric."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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


class Grading:
    """One grading of an agent's work. The grader is asked again, once, if its answer is incomplete.

    Args:
        state: The state of the agent.
        runtime: The `Runtime` of the graph.
    """

    def __init__(self, state: Mapping[str, Any], runtime: Any) -> None:
        self.state = state
        self.context: Any = getattr(runtime, "context", None)
        self.expected: list[str] = state.get("_rubric_criteria") or []
        """The criteria that an earlier grading of this run found."""
        self.iteration: int = state.get("_rubric_iterations") or 0
        self._id: str = state.get("_current_grading_run_id") or str(uuid4())
        self._write = getattr(runtime, "stream_writer", None)
        self._answer: GraderResponse | None = None
        self._failure: Exception | None = None
        self._questions = 0

    @property
    def is_open(self) -> bool:
        """Whether the grader is to be asked."""
        return self._questions == 0 or (self._questions == 1 and self._answer is not None and bool(self.objection))

    @property
    def objection(self) -> str:
        """Why the answer is incomplete; empty if it is complete. A rubric that cannot be judged needs no criteria."""
        if self._answer is None or self._answer.result == "failed":
            return ""
        wanted, count = len(self.expected) or 1, len(self._answer.criteria)
        return f"Your last answer had {count} of the {wanted} criteria or more that are due." if count < wanted else ""

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Note a failure of the grader in the block; a first answer counts even if the second question fails.

        Raises:
            GraphBubbleUp: If the block raises it, as interrupts do.
        """
        self._questions += 1
        try:
            yield
        except GraphBubbleUp:
            raise
        except Exception as error:
            _log.exception("The grader of RubricMiddleware failed")
            self._failure = error

    def take(self, final: Mapping[str, Any]) -> None:
        """Take the answer from the final state of the grader.

        Args:
            final: The state.

        Raises:
            ValueError: If it has no answer, or one of another form.
        """
        given = final.get("structured_response")
        if given is None:
            raise ValueError("the grader gave no structured response")
        self._answer = given if isinstance(given, GraderResponse) else GraderResponse.model_validate(given)

    def evaluation(self, most: int) -> RubricEvaluation:
        """The record. An incomplete answer does not satisfy.

        Args:
            most: The most gradings of a run. The last one ends it.
        """
        answer, objection = self._answer, self.objection
        if answer is None:
            failure = f"The grader failed: {type(self._failure).__name__}: {self._failure}"
            return self._record("grader_error", failure)
        is_unverified = answer.result == "satisfied" and objection != ""
        result: RubricResult = "needs_revision" if is_unverified else answer.result
        if result == "needs_revision" and self.iteration + 1 >= most:
            result = "max_iterations_reached"
        unclear = "The grader did not judge every criterion. It said: " if is_unverified else ""
        found = self._record(result, f"{unclear}{answer.explanation}", [*answer.criteria])
        found["unverified"] = is_unverified
        return found

    def _record(
        self, result: RubricResult, explanation: str, criteria: list[CriterionEval] | None = None
    ) -> RubricEvaluation:
        return RubricEvaluation(
            grading_run_id=self._id,
            iteration=self.iteration,
            result=result,
            explanation=explanation,
            criteria=criteria or [],
            unverified=False,
        )

    def update(self, found: RubricEvaluation) -> dict[str, Any]:
        """The update of the state for the record.

        Args:
            found: The record.
        """
        update: dict[str, Any] = {
            "_rubric_evaluations": [*self.state.get("_rubric_evaluations", ()), found],
            "_rubric_iterations": self.iteration + 1,
            "_rubric_status": found["result"],
        }
        if not self.expected and found["criteria"] and found["result"] != "failed":
            update["_rubric_criteria"] = [criterion["name"] for criterion in found["criteria"]]
        return update

    def emit(self, kind: str, told: Mapping[str, Any]) -> None:
        """Write an event to the stream, if the run is streamed.

        Args:
            kind: The type of the event.
            told: What it says.
        """
        if self._write is not None:
            self._write({"type": kind, "grading_run_id": self._id, "iteration": self.iteration, **told})


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
        grading = _begun(state, runtime)
        while grading is not None and grading.is_open:
            with grading.asking():
                grading.take(self._grader.get().invoke(self._input(grading), context=grading.context))
        return None if grading is None else self._ended(grading)

    @hook_config(can_jump_to=["model"])
    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `after_agent`."""
        grading = _begun(state, runtime)
        while grading is not None and grading.is_open:
            with grading.asking():
                grading.take(await self._grader.get().ainvoke(self._input(grading), context=grading.context))
        return None if grading is None else self._ended(grading)

    def _input(self, grading: Grading) -> dict[str, Any]:
        """The input of the grader. Raises ValueError if `build_grader_state` returns messages."""
        state = dict(grading.state)
        if self._prepare is not None:
            state["messages"] = self._prepare([*state.get("messages", ())])
        built = dict(self._build(state, grading.iteration)) if self._build is not None else {}
        if "messages" in built:
            raise ValueError("build_grader_state must not return messages")
        return {**built, "messages": [HumanMessage(_task(state, grading.expected, grading.objection))]}

    def _ended(self, grading: Grading) -> dict[str, Any]:
        """Tell of the evaluation, and return the update of the state for it."""
        found = grading.evaluation(self.max_iterations)
        told: dict[str, Any] = {name: found[name] for name in ("result", "explanation", "criteria", "unverified")}
        grading.emit("rubric_evaluation_end", told)
        if self._on_evaluation is not None:
            try:
                self._on_evaluation(found)
            except GraphBubbleUp:
                raise
            except Exception:
                _log.exception("on_evaluation of RubricMiddleware failed")
        revision = {"messages": [_request(found)], "jump_to": "model"} if found["result"] == "needs_revision" else {}
        return {**grading.update(found), **revision}


def _begun(state: Mapping[str, Any], runtime: Any) -> Grading | None:
    if not state.get("rubric"):
        return None
    grading = Grading(state, runtime)
    grading.emit("rubric_evaluation_start", {})
    return grading


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
