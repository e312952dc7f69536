"""What the programs share: the option `--model`, and how they show the work of an agent."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph.state import CompiledStateGraph

from deepfs.testing import Answer, ScriptedModel

__all__ = ["chosen_model", "option_parser", "show"]


def option_parser(documentation: str | None) -> argparse.ArgumentParser:
    """A parser of command lines with the option `--model`; the program's documentation is its help."""
    parser = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--model", metavar="PROVIDER:NAME", help="a real model, instead of the scripted one")
    return parser


def chosen_model(name: str | None, script: Sequence[Answer]) -> str | BaseChatModel:
    """The named model, or one that plays the script: it shows the program without a key and without a network.

    Args:
        name: `provider:name`, such as `anthropic:claude-sonnet-5-5`. The package of the provider must be installed,
            and its key be in the environment.
        script: The turns of the scripted model.
    """
    return name or ScriptedModel(script=script)


async def show(agent: CompiledStateGraph[Any, Any, Any, Any], request: str) -> str:
    """Run the agent, print each tool call and result as it comes, and return the answer."""
    answer = ""
    async for update in agent.astream({"messages": [("user", request)]}, stream_mode="updates"):
        for changes in update.values():
            for message in (changes or {}).get("messages", ()):
                if isinstance(message, AIMessage):
                    answer = message.text
                    _print_turn(message)
                elif isinstance(message, ToolMessage):
                    print(_indented(message.text))
    sys.stdout.flush()
    return answer


def _print_turn(message: AIMessage) -> None:
    if message.text:
        print(message.text)
    for call in message.tool_calls:
        arguments = ", ".join(f"{name}={str(value)[:60]!r}" for name, value in call["args"].items())
        print(f"  → {call['name']}({arguments})")


def _indented(text: str, first: int = 5, last: int = 3) -> str:
    """The first and the last lines of a result, with a margin."""
    lines = text.strip().splitlines()
    if (hidden := len(lines) - first - last) > 1:
        lines[first:-last] = [f"… {hidden} lines …"]
    return "\n".join(f"    {line[:110]}" for line in lines)
