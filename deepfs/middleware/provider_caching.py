"""Cache breakpoints for the providers that have them, set by the middleware of their LangChain packages."""

import logging
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from deepfs.middleware._base import (
    TRACE_POLICY,
    AgentMiddleware,
    AsyncHandler,
    Handler,
    Lazy,
    ModelRequest,
    is_of,
)
from deepfs.middleware._messages import blocks_of

__all__ = ["MAX_BREAKPOINTS", "count_breakpoints", "prompt_caching"]

_log = logging.getLogger(__name__)


class ProviderCaching(AgentMiddleware[Any, Any, Any]):
    """Stands for the middleware of a package, which is imported with the first request to a model of that package.

    Importing such a package takes up to seconds, and a model of it can only exist once it is imported.
    """

    trace_policy = TRACE_POLICY

    def __init__(self, package: str, class_name: str) -> None:
        super().__init__()
        self._package, self._class_name = package, class_name
        self._middleware: Lazy[AgentMiddleware[Any, Any, Any] | None] = Lazy(self._make)

    @property
    def name(self) -> str:
        """The name of the class, so that middleware of that name replaces this one."""
        return self._class_name

    def _make(self) -> AgentMiddleware[Any, Any, Any] | None:
        try:
            module = import_module(f"{self._package}.middleware.prompt_caching")
            made: AgentMiddleware[Any, Any, Any] = getattr(module, self._class_name)(
                unsupported_model_behavior="ignore"
            )
        except (AttributeError, ImportError) as error:
            _log.warning("Prompts are not cached: %s has no %s (%s)", self._package, self._class_name, error)
            return None
        return made

    def _for(self, model: object) -> AgentMiddleware[Any, Any, Any] | None:
        return self._middleware.get() if is_of(model, self._package) else None

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> Any:
        """Set the breakpoints, for a model of the package."""
        middleware = self._for(request.model)
        if middleware is None:
            return handler(request)
        return middleware.wrap_model_call(request, lambda marked: handler(_add(marked, request)))

    def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> Any:
        """As `wrap_model_call`."""
        middleware = self._for(request.model)
        if middleware is None:
            return handler(request)
        return middleware.awrap_model_call(request, lambda marked: handler(_add(marked, request)))


# --- breakpoints -----------------------------------------------------------------------------------------------------

MAX_BREAKPOINTS: Final = 4
"""Anthropic refuses a request with more."""
_KEY: Final = "cache_control"


def count_breakpoints(request: ModelRequest[Any]) -> int:
    """The number of cache breakpoints in a request."""
    tools = [tool if isinstance(tool, Mapping) else getattr(tool, "extras", None) or {} for tool in request.tools]
    messages = filter(None, [request.system_message, *request.messages])
    blocks = [block for message in messages for block in blocks_of(message) if isinstance(block, Mapping)]
    return sum(bool(each.get(_KEY)) for each in (*tools, *blocks, request.model_settings))


def _add(marked: ModelRequest[Any], given: ModelRequest[Any]) -> ModelRequest[Any]:
    """Of the breakpoints of `marked`, add to those of `given` the one at the end of the conversation; all to none.

    So there are not too many, and none stands before one that lasts longer, which Anthropic refuses as well.
    """
    own = count_breakpoints(given)
    if own:
        marked = marked.override(tools=given.tools, system_message=given.system_message)
    return marked if own < MAX_BREAKPOINTS else marked.override(model_settings=given.model_settings)


# --- the packages ----------------------------------------------------------------------------------------------------


_CLASSES: Final = {
    "langchain_anthropic": "AnthropicPromptCachingMiddleware",
    "langchain_aws": "BedrockPromptCachingMiddleware",
    "langchain_fireworks": "FireworksPromptCachingMiddleware",
}
# Found on import: constructors may run on an event loop, which looking for files would block.
_INSTALLED: Final = [
    ProviderCaching(package, name) for package, name in _CLASSES.items() if find_spec(package) is not None
]


def prompt_caching() -> list[AgentMiddleware[Any, Any, Any]]:
    """Return middleware that caches prompts with the models of Anthropic, Bedrock and Fireworks.

    There is one for each LangChain package that is installed. It is imported with the first request to a model of the
    package; other requests stay as they are. Place it after middleware that changes the system message or the tools.
    """
    return list(_INSTALLED)
