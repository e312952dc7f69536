"""Changes of the messages that middleware sees: the system message, and those in what a tool returned."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from langchain_core.messages import SystemMessage, ToolMessage

if TYPE_CHECKING:
    from langgraph.types import Command

__all__ = ["ToolResult", "is_blank", "mapped", "messages_of", "with_prompt"]

ToolResult: TypeAlias = "ToolMessage | Command[Any]"
"""As LangChain declares it; LangGraph lets tools return lists of these, too."""


def is_blank(content: object) -> bool:
    """Whether nothing in the content of a message can be seen. Providers refuse such messages and blocks."""
    if isinstance(content, str):
        return not content.strip()
    if not isinstance(content, list):
        return False
    return all(is_blank(block if isinstance(block, str) else _text_of(block)) for block in content)


def _text_of(block: Any) -> object:
    is_text = isinstance(block, Mapping) and block.get("type") == "text"
    return block.get("text") or "" if is_text else None


def with_prompt(message: SystemMessage | None, prompt: str) -> SystemMessage | None:
    """The system message with `prompt` at its end, and without blocks that are blank; None where nothing is left."""
    said = _without_blanks(message)
    if is_blank(prompt):
        return said
    if said is None:
        return SystemMessage(prompt)
    if isinstance(said.content, str):
        return said.model_copy(update={"content": f"{said.content}\n\n{prompt}"})
    return said.model_copy(update={"content": [*said.content, {"type": "text", "text": f"\n\n{prompt}"}]})


def _without_blanks(message: SystemMessage | None) -> SystemMessage | None:
    if message is None or is_blank(message.content):
        return None
    if isinstance(message.content, str):
        return message
    return message.model_copy(update={"content": [block for block in message.content if not is_blank([block])]})


def messages_of(result: "ToolResult | list[ToolResult]") -> Iterator[ToolMessage]:
    """The messages for the model in what a tool returned."""
    if isinstance(result, list):
        return (message for each in result for message in messages_of(each))
    found = [result] if isinstance(result, ToolMessage) else _update(result).get("messages", ())
    return (message for message in found if isinstance(message, ToolMessage))


async def mapped(result: Any, change: Callable[[ToolMessage], Awaitable[ToolMessage]]) -> Any:
    """What a tool returned, with its messages for the model changed."""
    if isinstance(result, list):
        return [await _mapped(each, change) for each in result]
    return await _mapped(result, change)


async def _mapped(result: ToolResult, change: Callable[[ToolMessage], Awaitable[ToolMessage]]) -> ToolResult:
    if isinstance(result, ToolMessage):
        return await change(result)
    messages = [
        await change(message) if isinstance(message, ToolMessage) else message
        for message in _update(result).get("messages", ())
    ]
    return replace(result, update={**_update(result), "messages": messages}) if messages else result


def _update(command: "Command[Any]") -> dict[str, Any]:
    return command.update if isinstance(command.update, dict) else {}
