"""`UnansweredCallsMiddleware` by the path and the name that it has in deepagents."""

from langgraph.graph.message import REMOVE_ALL_MESSAGES

from deepfs.middleware.unanswered import UnansweredCallsMiddleware as PatchToolCallsMiddleware

__all__ = ["REMOVE_ALL_MESSAGES", "PatchToolCallsMiddleware"]
