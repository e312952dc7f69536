"""The middleware that gives an agent of LangChain a filesystem."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeGuard

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from deepfs._moved import names_of_deepagents
from deepfs.backends.protocol import BackendProtocol, supports_execute
from deepfs.backends.state import FilesystemState
from deepfs.middleware._backends import (
    AgentMiddleware,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    artifacts_root,
    resolve_backend,
)
from deepfs.middleware._media_blocks import has_media, has_references, is_spelt_out, restored
from deepfs.middleware._messages import ToolResult, mapped, messages_of, typed_block, with_prompt
from deepfs.middleware.blobs import Blobs
from deepfs.middleware.eviction import CHARS_PER_TOKEN, Evictor
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.tools import FILE_TOOLS, MAX_EXECUTE_SECONDS, MAX_RESULT_CHARS, filesystem_tools
from deepfs.middleware.unsupported_content import ModelInvalidRequestError, acceptable, without_new_media
from deepfs.policy.permissions import PermissionedBackend
from deepfs.policy.rules import FilesystemPermission, checked_rules
from deepfs.sync import call_sync
from deepfs.text import paths

__all__ = ["FilesystemMiddleware", "FilesystemPermission", "FilesystemState"]

_RESULTS: Final = "large_tool_results"
_MESSAGES: Final = "large_messages"


class FilesystemMiddleware(AgentMiddleware[Any, Any, Any]):
    """Gives an agent the tools of `filesystem_tools`, and moves long texts and media to files.

    The model is offered `execute` only if the backend runs commands. A long text is stored in a file below the
    `artifacts_root` of a composite; its head and tail, and the path of the file, take its place.

    Args:
        backend: The backend of the tools; None is a StateBackend.
        system_prompt: The paragraph about files at the end of the system prompt; None is that of deepfs.
        custom_tool_descriptions: Descriptions by name of the tool.
        tool_token_limit_before_evict: The longest result of a tool, in tokens of four characters; longer ones are
            stored under `/large_tool_results`. None stores none.
        human_message_token_limit_before_evict: The longest message of a person, in such tokens; longer ones are stored
            under `/large_messages`. None stores none.
        max_execute_timeout: The most seconds of a command whose call names a timeout; the limit of the backend holds
            besides.
        offload_binary_content: Whether images, audio, video and documents in messages of people and results of tools
            are stored under `/blobs`, each content once, and state holds references. Each request of the model has
            the media themselves.
        permissions: Rules for the tools. A call that matches a rule of mode `"interrupt"` is refused, unless an
            ApprovalMiddleware with the same rules asks a person first, as `create_deep_agent` adds it.

    Raises:
        TypeError: If `backend` is not a backend, or an item of `permissions` is not a rule.
    """

    state_schema: type[Any] = FilesystemState

    def __init__(
        self,
        backend: Any = None,
        system_prompt: str | None = None,
        custom_tool_descriptions: Mapping[str, str] | None = None,
        tool_token_limit_before_evict: int | None = 20_000,
        *,
        human_message_token_limit_before_evict: int | None = 50_000,
        max_execute_timeout: float = MAX_EXECUTE_SECONDS,
        offload_binary_content: bool = True,
        permissions: Sequence[FilesystemPermission] | None = None,
    ) -> None:
        super().__init__()
        self._max_execute_timeout = max_execute_timeout
        self._storage = resolve_backend(backend)
        self._descriptions = custom_tool_descriptions
        self._result_chars = _result_chars(tool_token_limit_before_evict)
        self._prompt = PROMPTS["filesystem"] if system_prompt is None else system_prompt
        self._limits = (tool_token_limit_before_evict, human_message_token_limit_before_evict)
        self._results = self._evictor(tool_token_limit_before_evict, _RESULTS)
        self._messages = self._evictor(human_message_token_limit_before_evict, _MESSAGES)
        self._blobs = Blobs(self._storage)
        self._offloads = offload_binary_content
        self.backend: BackendProtocol = self._storage
        self.tools: list[BaseTool] = []
        self._equip(permissions)

    def _equip(self, permissions: Sequence[FilesystemPermission] | None) -> None:
        self.permissions: Sequence[FilesystemPermission] = checked_rules(permissions or ())
        self.backend = PermissionedBackend(self._storage, self.permissions) if self.permissions else self._storage
        self.tools = filesystem_tools(
            self.backend,
            descriptions=self._descriptions,
            max_result_chars=self._result_chars,
            execute=True,
            max_execute_timeout=self._max_execute_timeout,
        )

    def with_permissions(self, permissions: Sequence[FilesystemPermission]) -> Self:
        """Return a copy over the same storage, with `permissions` as its rules."""
        other = copy(self)
        other._equip(permissions)
        return other

    def with_backend(self, backend: Any) -> Self:
        """Return a copy over `backend`, with the same rules and limits."""
        other = copy(self)
        other._storage = resolve_backend(backend)
        results, messages = self._limits
        other._results, other._messages = other._evictor(results, _RESULTS), other._evictor(messages, _MESSAGES)
        other._equip(self.permissions)
        return other

    def _evictor(self, token_limit: int | None, directory: str) -> Evictor | None:
        # The evictor writes without the rules, which restrict only the model.
        if token_limit is None:
            return None
        return Evictor(self._storage, token_limit, paths.join(artifacts_root(self._storage), directory))

    # --- calls of the model ---

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        """Append the prompt; fill in media; hide `execute` if the backend runs no commands, and refused media.

        A request that the provider refuses is sent once more without the media that are new in it.
        """
        prepared = self._prepared(request)
        if any(map(has_references, prepared.messages)):
            prepared = self._waited(partial(self._filled, prepared))
        try:
            return handler(prepared)
        except ModelInvalidRequestError as error:
            reduced = _without_new_media(prepared, error)
        return _remembering(request, handler(reduced))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        """As `wrap_model_call`."""
        prepared = self._prepared(request)
        if any(map(has_references, prepared.messages)):
            prepared = await self._filled(prepared)
        try:
            return await handler(prepared)
        except ModelInvalidRequestError as error:
            reduced = _without_new_media(prepared, error)
        return _remembering(request, await handler(reduced))

    async def _filled(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        messages = await self._blobs.filled(request.messages)
        return request.override(messages=acceptable(messages, request.model))  # Their sizes are known only now.

    def _prepared(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        hidden = None if supports_execute(self.backend) else "execute"
        tools = [tool for tool in request.tools if not isinstance(tool, BaseTool) or tool.name != hidden]
        return request.override(
            system_message=with_prompt(request.system_message, self._prompt),
            messages=acceptable(request.messages, request.model),
            tools=tools,
        )

    # --- results of tools ---

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]) -> ToolResult:
        """Store a result that is too large."""
        result = handler(request)
        return self._waited(partial(self._settled, request, result)) if self._has_work(request, result) else result

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        """As `wrap_tool_call`."""
        result = await handler(request)
        return await self._settled(request, result) if self._has_work(request, result) else result

    def _has_work(self, request: ToolCallRequest, result: ToolResult) -> bool:
        if any(is_spelt_out(each) or (self._offloads and has_media(each)) for each in messages_of(result)):
            return True
        if request.tool_call["name"] in FILE_TOOLS:
            return any(isinstance(message.content, list) for message in messages_of(result))
        return self._results is not None and any(map(self._results.is_oversized, messages_of(result)))

    async def _settled(self, request: ToolCallRequest, result: ToolResult) -> ToolResult:
        evict = _typed if request.tool_call["name"] in FILE_TOOLS else self._evicted
        settled: ToolResult = await mapped(result, evict)
        return await mapped(settled, self._referring) if self._offloads else settled

    async def _referring(self, message: ToolMessage) -> ToolMessage:
        (stored,) = await self._blobs.stored([message])
        return stored

    async def _evicted(self, message: ToolMessage) -> ToolMessage:
        message = restored(message)
        if self._results is None:
            return message
        return await self._results.evicted(message, message.tool_call_id, self.backend)

    # --- messages of people ---

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Store messages of people that are too large, and media."""
        large = self._large(state)
        return self._waited(partial(self._put_away, large)) if large else None

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `before_agent`."""
        large = self._large(state)
        return await self._put_away(large) if large else None

    def _large(self, state: Any) -> list[AnyMessage]:
        messages = state.get("messages", ())
        return [each for each in messages if self._is_oversized(each) or (self._offloads and has_media(each))]

    def _is_oversized(self, message: AnyMessage) -> bool:
        evictor = self._messages
        return evictor is not None and isinstance(message, HumanMessage) and evictor.is_oversized(message)

    async def _put_away(self, large: list[AnyMessage]) -> dict[str, Any] | None:
        messages = [await self._shortened(message) for message in large]
        stored = await self._blobs.stored(messages) if self._offloads else messages
        changed = [new for new, old in zip(stored, large, strict=True) if new is not old]
        return {"messages": changed} if changed else None

    async def _shortened(self, message: AnyMessage) -> AnyMessage:
        if self._messages is None or not isinstance(message, HumanMessage):
            return message
        return await self._messages.evicted(message, message.id or "", self.backend)

    def _waited(self, call: Callable[[], Any]) -> Any:
        return call_sync(self.backend, call, f"The sync form of {self.name}", "its async form (ainvoke)")


def inheriting(
    rules: Sequence[FilesystemPermission], middleware: Sequence[AgentMiddleware[Any, Any, Any]]
) -> list[AgentMiddleware[Any, Any, Any]]:
    """Give `rules` to each FilesystemMiddleware in `middleware` that has no rules of its own."""
    return [each.with_permissions(rules) if rules and _has_no_rules(each) else each for each in middleware]


def _has_no_rules(middleware: object) -> TypeGuard[FilesystemMiddleware]:
    return isinstance(middleware, FilesystemMiddleware) and not middleware.permissions


def _without_new_media(request: ModelRequest[Any], error: Exception) -> ModelRequest[Any]:
    """The refused request without its latest media. Raises `error` if it has none."""
    messages = without_new_media(request.messages)
    if messages == request.messages:
        raise error
    return request.override(messages=messages)


def _remembering(request: ModelRequest[Any], response: ModelResponse[Any]) -> ExtendedModelResponse[Any]:
    """The response; the state loses the media that were refused, which would be refused again."""
    messages = request.state.get("messages", ())
    refused = [new for new, old in zip(without_new_media(messages), messages, strict=True) if new is not old]
    return ExtendedModelResponse(response, Command(update={"messages": refused}))


async def _typed(message: ToolMessage) -> ToolMessage:
    """Turn file blocks with audio or video into audio or video blocks."""
    if isinstance(message.content, str):
        return message
    return message.model_copy(update={"content": [typed_block(block) for block in message.content]})


def _result_chars(token_limit: int | None) -> int:
    return MAX_RESULT_CHARS if token_limit is None else min(MAX_RESULT_CHARS, token_limit * CHARS_PER_TOKEN)


if not TYPE_CHECKING:  # With `__getattr__` visible, type checkers would accept any name.
    __getattr__, __dir__ = names_of_deepagents(__name__)
