"""The middleware that answers calls of tools which nothing else did, so that the conversation can go on."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, InvalidToolCall, ToolCall, ToolMessage

from deepfs.middleware._backends import AgentMiddleware, ModelRequest, ModelResponse

__all__ = ["UnansweredCallsMiddleware"]


class UnansweredCallsMiddleware(AgentMiddleware[Any, Any, Any]):
    """Tells the model that a call of a tool has no result, where the conversation has none.

    So it is where somebody goes on without an answer to an interrupt, a run was stopped amid its tools, or the model
    spelt the arguments wrong. Providers refuse a conversation in which a result is missing. What is stored stays as it
    is.
    """

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Put in the answers that are missing."""
        return handler(request.override(messages=list(_answered(request.messages))))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """As `wrap_model_call`."""
        return await handler(request.override(messages=list(_answered(request.messages))))


def _answered(messages: Sequence[AnyMessage]) -> Iterator[AnyMessage]:
    known = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    for message in messages:
        yield message
        if isinstance(message, AIMessage):
            yield from (_answer(call) for call in message.tool_calls if call["id"] not in known)
            wrong = (call for call in message.invalid_tool_calls if call["id"] and call["id"] not in known)
            yield from map(_objection, wrong)


def _answer(call: ToolCall) -> ToolMessage:
    text = f"Error: {call['name']} was interrupted or cancelled, and has no result. Call it again where it is needed."
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"] or "", status="error")


def _objection(call: InvalidToolCall) -> ToolMessage:
    name = call["name"] or "The tool"
    text = f"Error: {name} was not called, because its arguments are no valid JSON. Correct them and call it again."
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"] or "", status="error")
