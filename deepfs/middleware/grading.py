"""Gradings: the records of them, the answer of a grader, and what follows from it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import getLogger
from typing import Annotated, Any, Literal, NotRequired, TypeAlias
from uuid import uuid4

from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel, Discriminator, Field, model_validator
from typing_extensions import TypedDict  # Pydantic takes no other before Python 3.12.

from deepfs.middleware._base import AgentState, PrivateStateAttr

__all__ = [
    "CriterionEval",
    "CriterionFail",
    "CriterionPass",
    "GraderResponse",
    "GraderVerdict",
    "Grading",
    "RubricEvaluation",
    "RubricResult",
    "RubricState",
]

_log = getLogger("deepfs.middleware.rubric")

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
