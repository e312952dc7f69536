"""Cache breakpoints for the providers that have them, set by the middleware of their LangChain packages."""

import logging
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from langchain_core.messages import BaseMessage

from deepfs.middleware._base import (
    TRACE_POLICY,
    AgentMiddleware,
    AsyncHandler,
    Handler,
    Lazy,
    ModelRequest,
)
from deepfs.middleware._messages import blocks_of

__all__ = ["has_room_for_breakpoint", "prompt_caching"]

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
        is_supported = any(each.__module__.partition(".")[0] == self._package for each in type(model).__mro__)
        return self._middleware.get() if is_supported else None

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> Any:
        """Set the breakpoints, for a model of the package."""
        middleware = self._for(request.model)
        if middleware is None:
            return handler(request)
        return middleware.wrap_model_call(request, lambda marked: handler(_limit(marked, request)))

    async def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> Any:
        """As `wrap_model_call`."""
        middleware = self._for(request.model)
        if middleware is None:
            return await handler(request)
        return await middleware.awrap_model_call(request, lambda marked: handler(_limit(marked, request)))


# --- limits of a request ---------------------------------------------------------------------------------------------

_MAX_BREAKPOINTS: Final = 4
"""Anthropic refuses a request with more."""
_KEY: Final = "cache_control"


def has_room_for_breakpoint(request: ModelRequest[Any]) -> bool:
    """Whether the provider accepts one more cache breakpoint in a request."""
    return len(list(_breakpoints(request))) + (_KEY in request.model_settings) < _MAX_BREAKPOINTS


def _limit(marked: ModelRequest[Any], given: ModelRequest[Any]) -> ModelRequest[Any]:
    """The request with the breakpoints that fit beside those of `given`.

    The one at the end of the conversation is worth most. Tools come first in a request, so the one of the system
    message covers them. A breakpoint that lasts an hour may not follow a shorter one.
    """
    room = _MAX_BREAKPOINTS - len(list(_breakpoints(given)))
    lasts_in_messages = any(map(_lasts, _in_messages(*given.messages)))
    if room < 3 or lasts_in_messages or any(map(_lasts, _in_messages(given.system_message))):
        marked = marked.override(tools=given.tools)
    if room < 2 or lasts_in_messages:
        marked = marked.override(system_message=given.system_message)
    return marked if room > 0 else marked.override(model_settings=given.model_settings)


def _breakpoints(request: ModelRequest[Any]) -> Iterator[Any]:
    """The breakpoints of the tools and messages of a request."""
    for tool in request.tools:
        holder = tool if isinstance(tool, Mapping) else getattr(tool, "extras", None) or {}
        if _KEY in holder:
            yield holder[_KEY]
    yield from _in_messages(request.system_message, *request.messages)


def _in_messages(*messages: BaseMessage | None) -> Iterator[Any]:
    blocks = (block for message in messages if message is not None for block in blocks_of(message))
    return (block[_KEY] for block in blocks if isinstance(block, Mapping) and block.get(_KEY))


def _lasts(breakpoint_: Any) -> bool:
    return isinstance(breakpoint_, Mapping) and breakpoint_.get("ttl") == "1h"


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
