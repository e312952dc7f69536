"""What deepfs uses of langchain, an extra; the one place that imports it, with an error that names the extra."""

try:
    from langchain.agents import create_agent
    from langchain.agents.middleware import (
        HumanInTheLoopMiddleware,
        InterruptOnConfig,
        SummarizationMiddleware,
        TodoListMiddleware,
    )
    from langchain.agents.middleware.types import AgentMiddleware, AgentState, ModelRequest, ModelResponse
    from langchain.chat_models import init_chat_model
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "langchain":
        raise
    raise ModuleNotFoundError(
        "Agents need the package langchain: pip install 'deepfs[agents]'", name=error.name
    ) from error

__all__ = [
    "AgentMiddleware",
    "AgentState",
    "HumanInTheLoopMiddleware",
    "InterruptOnConfig",
    "ModelRequest",
    "ModelResponse",
    "SummarizationMiddleware",
    "TodoListMiddleware",
    "create_agent",
    "init_chat_model",
]
