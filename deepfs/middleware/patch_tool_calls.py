"""The middleware that answers calls of tools without a result, which no provider accepts."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from deepfs.middleware._base import ModelCallSteps, ModelRequest, ModelResponse, Steps, step_of_call

__all__ = ["REMOVE_ALL_MESSAGES", "PatchToolCallsMiddleware"]


class UnansweredCallsMiddleware(ModelCallSteps):
    """Adds an error message for each tool call that has no result in the conversation.

    A result is missing if the user continues without answering an interrupt, if a run was stopped while its tools ran,
    or if the model wrote invalid arguments. Providers refuse such a conversation. Only the request to the model is
    changed, not the stored messages.

    A call that the model made without an id, or with that of another call of the same turn, gets one of its own:
    nothing could answer it otherwise.
    """

    def _model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Steps[ModelResponse[Any]]:
        """Add the missing results to the request, and the missing ids to the answer."""
        return give_ids((yield step_of_call(handler, request.override(messages=_add_answers(request.messages)))))


def _add_answers(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """The messages with a result for each call. Some models use their ids again, so each result answers one call."""
    reverse: list[AnyMessage] = []
    results: Counter[str] = Counter()
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            results[message.tool_call_id] += 1
        elif isinstance(message, AIMessage):
            reverse += reversed(list(_missing_results(message, results)))
        reverse.append(message)
    return reverse[::-1]


def _missing_results(message: AIMessage, results: "Counter[str]") -> Iterator[ToolMessage]:
    """The results that the calls of a message lack. Those that they have are taken out of `results`."""
    for call in _calls(message):
        name, identity = call["name"] or "The tool", call["id"]
        if not identity:
            continue
        if results[identity]:
            results[identity] -= 1
        elif call.get("type") == "invalid_tool_call":
            fault = "was not called, because its arguments are no valid JSON. Correct them and call it again"
            yield _error(f"{name} {fault}", call["name"], identity)
        else:
            fault = "was interrupted or cancelled, and has no result. Call it again where it is needed"
            yield _error(f"{name} {fault}", name, identity)


def _error(text: str, name: str | None, identity: str) -> ToolMessage:
    return ToolMessage(f"Error: {text}.", name=name, tool_call_id=identity, status="error")


def give_ids(response: ModelResponse[Any]) -> ModelResponse[Any]:
    """Give each call of the model that has no id, or the id of a call before it in its turn, one of its own."""
    found = getattr(response, "model_response", response)  # Another middleware may have wrapped the response.
    for place, message in enumerate(found.result):
        if not isinstance(message, AIMessage):
            continue
        ids = [call["id"] for call in _calls(message)]
        if not all(ids) or len({*ids}) < len(ids):
            known: set[str] = set()
            kinds: dict[str, Any] = {"tool_calls": message.tool_calls, "invalid_tool_calls": message.invalid_tool_calls}
            named = {
                kind: [{**call, "id": _own_id(call["id"], known)} for call in calls] for kind, calls in kinds.items()
            }
            found.result[place] = message.model_copy(update=named)
    return response


def _own_id(given: str | None, known: set[str]) -> str:
    """The id, or a new one if it is missing or in `known`, to which it is added."""
    own = given if given and given not in known else f"call_{uuid4().hex}"
    known.add(own)
    return own


def _calls(message: AIMessage) -> Iterator[Any]:
    return chain(message.tool_calls, message.invalid_tool_calls)


PatchToolCallsMiddleware = UnansweredCallsMiddleware
