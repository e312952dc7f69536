"""What deepfs uses of langchain, an extra; the one place that imports it, with an error that names the extra."""

try:
    from langchain.agents import create_agent
    from langchain.agents.middleware import (
        HumanInTheLoopMiddleware,
        InterruptOnConfig,
        TodoListMiddleware,
    )
    from langchain.agents.middleware import SummarizationMiddleware as LangChainSummarization
    from langchain.agents.middleware.human_in_the_loop import DecisionType
    from langchain.agents.middleware.types import (
        AgentMiddleware,
        AgentState,
        ModelRequest,
        ModelResponse,
        PrivateStateAttr,
    )
    from langchain.chat_models import init_chat_model
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "langchain":
        raise
    raise ModuleNotFoundError(
        "Agents need the package langchain: pip install 'deepfs[agents]'", name=error.name
    ) from error

LANGCHAIN_WRAPS_APPROVED_CALLS = HumanInTheLoopMiddleware.wrap_tool_call is not AgentMiddleware.wrap_tool_call
"""Older ones put the call that a person edited into the message of the model instead."""

__all__ = [
    "LANGCHAIN_WRAPS_APPROVED_CALLS",
    "AgentMiddleware",
    "AgentState",
    "DecisionType",
    "HumanInTheLoopMiddleware",
    "InterruptOnConfig",
    "LangChainSummarization",
    "ModelRequest",
    "ModelResponse",
    "PrivateStateAttr",
    "TodoListMiddleware",
    "create_agent",
    "init_chat_model",
]
