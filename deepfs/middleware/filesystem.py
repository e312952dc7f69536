"""The middleware that gives an agent of LangChain a filesystem."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, Literal, Self, get_args

from langchain_core.exceptions import ModelInvalidRequestError
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from deepfs._langgraph.channel import FilesystemState
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.protocol import supports_execute as supports_execution
from deepfs.middleware._base import (
    AgentMiddleware,
    ExtendedModelResponse,
    ModelCallSteps,
    ModelRequest,
    ModelResponse,
    Steps,
    ToolCallSteps,
    artifacts_root,
    resolve_backend,
    step_of_call,
    step_of_wait,
    wait_for,
)
from deepfs.middleware._messages import (
    ToolResult,
    has_media,
    has_references,
    map_messages,
    may_be_json,
    messages_of,
    retype_block,
    with_parsed_blocks,
    with_prompt,
)
from deepfs.middleware.arguments import (
    ARGUMENTS,
    TOOL_NAMES,
    FsToolName,
    ToolArguments,
    canonical_arguments,
    file_tool_name,
)
from deepfs.middleware.offloading import CHARS_PER_TOKEN as NUM_CHARS_PER_TOKEN
from deepfs.middleware.offloading import Blobs, Evictor
from deepfs.middleware.prompts import PROMPTS
from deepfs.middleware.rendering import MAX_RESULT_CHARS
from deepfs.middleware.tools import (
    FILE_TOOLS,
    GLOB_TRUNCATION_NOTE,
    MAX_EXECUTE_SECONDS,
    MAX_GREP_COUNT,
    ToolLimits,
    make_tools,
    not_offered,
)
from deepfs.middleware.unsupported_content import acceptable, without_new_media
from deepfs.policy.permissions import PermissionedBackend
from deepfs.policy.rules import FilesystemOperation, FilesystemPermission, check_rules
from deepfs.search.request import SEARCH_SECONDS as GLOB_TIMEOUT
from deepfs.text import paths
from deepfs.text.media import MAX_MEDIA_BYTES as MAX_VIDEO_INPUT_BYTES
from deepfs.text.visible import EMPTY_CONTENT_WARNING

__all__ = [
    "DEFAULT_READ_LIMIT", "DEFAULT_READ_OFFSET", "DELETE_TOOL_DESCRIPTION", "EDIT_FILE_TOOL_DESCRIPTION",
    "EMPTY_CONTENT_WARNING", "EXECUTE_TOOL_DESCRIPTION", "GLOB_PATHLESS_DENIED_HINT", "GLOB_TIMEOUT",
    "GLOB_TOOL_DESCRIPTION", "GLOB_TRUNCATION_NOTE", "GLOB_UNREADABLE_NOTE", "GREP_GLOB_DESCRIPTION",
    "GREP_OUTPUT_MODE_DESCRIPTION", "GREP_TOOL_DESCRIPTION", "GREP_TRUNCATION_NOTE", "LIST_FILES_TOOL_DESCRIPTION",
    "MAX_VIDEO_INPUT_BYTES", "NO_LINES_REQUESTED_WARNING", "NUM_CHARS_PER_TOKEN", "READ_FILE_TOOL_DESCRIPTION",
    "READ_FILE_TRUNCATION_MSG", "READ_FILE_VIDEO_TOOL_DESCRIPTION", "REMOVE_ALL_MESSAGES",
    "TOOLS_EXCLUDED_FROM_EVICTION", "TOO_LARGE_HUMAN_MSG", "TOO_LARGE_TOOL_MSG", "WRITE_FILE_TOOL_DESCRIPTION",
    "DeleteSchema", "EditFileSchema", "ExecuteSchema", "FilesystemMiddleware", "FilesystemOperation",
    "FilesystemPermission", "FilesystemState", "FsToolName", "GlobSchema", "GrepSchema", "LsSchema", "ReadFileSchema",
    "ReadVideoFileSchema", "WriteFileSchema", "supports_execution",
]  # fmt: skip

_RESULTS_DIRECTORY: Final = "large_tool_results"
_MESSAGES_DIRECTORY: Final = "large_messages"

ModelTool = Literal["apply_patch", "memory"]  # Previews and what hides tools name them as well.
_MODEL_TOOLS: Final[tuple[ModelTool, ...]] = get_args(ModelTool)


class FilesystemMiddleware(ModelCallSteps, ToolCallSteps):
    """Gives an agent the tools of `filesystem_tools`, and moves long texts and media to files.

    The model is offered `execute` only if the backend runs commands, and no tools that change files if the backend or
    the rules refuse every change. Calls that name an argument as other tools do (`path` for `file_path`) are rewritten
    before anything else sees them. A long text is stored in a file below the `artifacts_root` of a composite; its head
    and tail, and the path of the file, take its place.

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
        grep_max_count: The most matches of a search whose call names no number; None is no limit.
        tools: The names of the tools that the agent gets, `read_file` among them; None and `"all"` are all of them.
        offload_binary_content: Whether images, audio, video and documents in messages of people and results of tools
            are stored under `/blobs`, each content once, and state holds references. Each request of the model has
            the media themselves.
        model_tools: Further tools, which models were trained on: `"apply_patch"` of OpenAI, `"memory"` of Anthropic.
        permissions: Rules for the tools, those of deepagents too. A call that matches a rule of mode `"interrupt"` is
            refused, unless an ApprovalMiddleware with the same rules asks a person first, as `create_deep_agent` adds
            it.

    Raises:
        TypeError: If `backend` is not a backend, or an item of `permissions` is not a rule.
        ValueError: If `tools` or `model_tools` names an unknown tool, `tools` leaves out `read_file`, or a limit is not
            positive.
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
        grep_max_count: int | None = MAX_GREP_COUNT,
        tools: Sequence[FsToolName] | Literal["all"] | None = None,
        offload_binary_content: bool = True,
        permissions: Sequence[FilesystemPermission] | None = None,
        model_tools: Sequence[ModelTool] = (),
    ) -> None:
        super().__init__()
        if isinstance(tools, str) and tools != "all":
            raise ValueError(f"tools is a list of names, or 'all', not {tools!r}")
        if tools is not None and tools != "all" and "read_file" not in tools:
            raise ValueError("tools must have read_file: long results are stored in files that the model reads")
        unknown = [str(name) for name in model_tools if name not in _MODEL_TOOLS]
        if unknown:
            raise ValueError(f"no such tool: {', '.join(unknown)}; model_tools are {', '.join(_MODEL_TOOLS)}")
        self._chosen = tools if tools is None or isinstance(tools, str) else list(tools)  # Copies are made of it later.
        self.offload_binary_content = offload_binary_content
        self.model_tools: Sequence[ModelTool] = tuple(model_tools)
        self._storage = resolve_backend(backend)
        self._descriptions = custom_tool_descriptions
        chars = MAX_RESULT_CHARS
        if tool_token_limit_before_evict is not None:
            chars = min(chars, tool_token_limit_before_evict * NUM_CHARS_PER_TOKEN)
        self._limits = ToolLimits(chars, execute_seconds=max_execute_timeout, grep_count=grep_max_count)
        self._prompt = PROMPTS["filesystem"] if system_prompt is None else system_prompt
        self._token_limits = (tool_token_limit_before_evict, human_message_token_limit_before_evict)
        self._result_evictor = self._evictor(tool_token_limit_before_evict, _RESULTS_DIRECTORY)
        self._message_evictor = self._evictor(human_message_token_limit_before_evict, _MESSAGES_DIRECTORY)
        self._blobs = Blobs(self._storage)
        self.backend: BackendProtocol = self._storage
        self.tools: list[BaseTool] = []
        self._equip(permissions)

    def _equip(self, permissions: Sequence[FilesystemPermission] | None) -> None:
        self.permissions: Sequence[FilesystemPermission] = check_rules(permissions or ())
        self.backend = PermissionedBackend(self._storage, self.permissions) if self.permissions else self._storage
        self.tools = make_tools(self.backend, self._limits, self._descriptions, self._chosen)
        self.tools += [_model_tool(name, self.backend) for name in self.model_tools]
        self._hidden = not_offered(self.backend)

    def with_permissions(self, permissions: Sequence[FilesystemPermission]) -> Self:
        """Return a copy over the same storage, with other rules.

        Args:
            permissions: The rules, which replace those of this middleware.

        Raises:
            TypeError: If an item is not a rule.
        """
        other = copy(self)
        other._equip(permissions)
        return other

    def with_backend(self, backend: Any, *, keeps_media: bool = False) -> Self:
        """Return a copy over `backend`, with the same rules and limits.

        Args:
            backend: The backend.
            keeps_media: Whether the media of messages stay where they are, for a conversation that goes on.

        Raises:
            TypeError: If `backend` is not a backend.
        """
        other = copy(self)
        other._storage = resolve_backend(backend)
        if not keeps_media:
            other._blobs = Blobs(other._storage)
        results, messages = self._token_limits
        other._result_evictor = other._evictor(results, _RESULTS_DIRECTORY)
        other._message_evictor = other._evictor(messages, _MESSAGES_DIRECTORY)
        other._equip(self.permissions)
        return other

    def _evictor(self, token_limit: int | None, directory: str) -> Evictor | None:
        # The evictor writes without the rules, which restrict only the model.
        if token_limit is None:
            return None
        return Evictor(self._storage, token_limit, paths.join(artifacts_root(self._storage), directory))

    # --- calls of the model ---

    def _model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Steps[Any]:
        """Append the prompt, fill in media, and hide tools that the backend cannot serve.

        A request that the provider refuses is sent once more without the media that are new in it.
        """
        prepared = request.override(
            system_message=with_prompt(request.system_message, self._prompt),
            messages=acceptable(request.messages, request.model),
            tools=[tool for tool in request.tools if file_tool_name(tool) not in self._hidden],
        )
        if any(map(has_references, prepared.messages)):
            filled = yield step_of_wait(self.backend, partial(self._blobs.fill, prepared.messages), self.name)
            # Their sizes are known only now.
            prepared = prepared.override(messages=acceptable(filled, request.model))
        try:
            return rename_arguments((yield step_of_call(handler, prepared)), request.tools)
        except ModelInvalidRequestError:
            reduced = prepared.override(messages=without_new_media(prepared.messages))
            if reduced.messages == prepared.messages:
                raise
        response = rename_arguments((yield step_of_call(handler, reduced)), request.tools)
        # The state loses the media that were refused, which would be refused again.
        messages = request.state.get("messages", ())
        refused = [new for new, old in zip(without_new_media(messages), messages, strict=True) if new is not old]
        return ExtendedModelResponse(response, Command(update={"messages": refused}))

    # --- results of tools ---

    def _tool_call(self, request: ToolCallRequest, handler: Callable[..., Any]) -> Steps[ToolResult]:
        """Store a result that is too large."""
        result: ToolResult = yield step_of_call(handler, request)
        if self._has_work(request, result):
            result = yield step_of_wait(self.backend, partial(self._settle, request, result), self.name)
        return result

    def _has_work(self, request: ToolCallRequest, result: ToolResult) -> bool:
        if any(may_be_json(each) or (self.offload_binary_content and has_media(each)) for each in messages_of(result)):
            return True
        if request.tool_call["name"] in FILE_TOOLS:
            return any(isinstance(message.content, list) for message in messages_of(result))
        return self._result_evictor is not None and any(map(self._result_evictor.is_oversized, messages_of(result)))

    async def _settle(self, request: ToolCallRequest, result: ToolResult) -> ToolResult:
        prepare = _type_blocks if request.tool_call["name"] in FILE_TOOLS else self._evict

        async def settle(message: ToolMessage) -> ToolMessage:
            settled = await prepare(message)
            return (await self._blobs.store([settled]))[0] if self.offload_binary_content else settled

        return await map_messages(result, settle)  # type: ignore[no-any-return]

    async def _evict(self, message: ToolMessage) -> ToolMessage:
        message = with_parsed_blocks(message)
        if self._result_evictor is None:
            return message
        return await self._result_evictor.evict(message, message.tool_call_id, self.backend)

    # --- messages of people ---

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Store messages of people that are too large, and media."""
        if not self._large(state):
            return None
        return wait_for(self.backend, partial(self.abefore_agent, state, runtime), self.name)

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `before_agent`."""
        large = self._large(state)
        messages = list(large)
        for place, message in enumerate(large):
            if self._message_evictor is not None and isinstance(message, HumanMessage):
                messages[place] = await self._message_evictor.evict(message, message.id or "", self.backend)
        stored = await self._blobs.store(messages) if self.offload_binary_content and large else messages
        changed = [new for new, old in zip(stored, large, strict=True) if new is not old]
        return {"messages": changed} if changed else None

    def _large(self, state: Any) -> list[AnyMessage]:
        """The messages of people that are too large, and those with media."""
        large: list[AnyMessage] = []
        for message in state.get("messages", ()):
            evictor = self._message_evictor if isinstance(message, HumanMessage) else None
            is_oversized = evictor is not None and evictor.is_oversized(message)
            if is_oversized or (self.offload_binary_content and has_media(message)):
                large.append(message)
        return large


def _model_tool(name: ModelTool, backend: BackendProtocol) -> BaseTool:
    if name == "apply_patch":
        from deepfs.middleware.apply_patch import apply_patch_tool

        return apply_patch_tool(backend)
    from deepfs.middleware.anthropic_memory import memory_tool

    return memory_tool(backend)


def give_rules(
    rules: Sequence[FilesystemPermission], middleware: Sequence[AgentMiddleware[Any, Any, Any]]
) -> list[AgentMiddleware[Any, Any, Any]]:
    """Give `rules` to each FilesystemMiddleware in `middleware` that has no rules of its own."""
    return [
        each.with_permissions(rules)
        if rules and isinstance(each, FilesystemMiddleware) and not each.permissions
        else each
        for each in middleware
    ]


def rules_of(middleware: Sequence[AgentMiddleware[Any, Any, Any]]) -> Sequence[FilesystemPermission]:
    """The rules of the last FilesystemMiddleware in `middleware`; none if there is none."""
    given = [each.permissions for each in middleware if isinstance(each, FilesystemMiddleware)]
    return given[-1] if given else ()


def rename_arguments(response: ModelResponse[Any], tools: Sequence[Any]) -> ModelResponse[Any]:
    """The response, with the arguments of the calls of file tools under the names that approvals look for."""
    named = {tool.name: tool for tool in tools if isinstance(tool, BaseTool)}
    found = getattr(response, "model_response", response)  # Another middleware may have wrapped the response.
    for place, message in enumerate(found.result):
        if not isinstance(message, AIMessage):
            continue
        canonical = [canonical_arguments(named.get(call["name"]), call["args"]) for call in message.tool_calls]
        if any(arguments is not None for arguments in canonical):
            pairs = zip(message.tool_calls, canonical, strict=True)
            calls = [call if arguments is None else {**call, "args": arguments} for call, arguments in pairs]
            found.result[place] = message.model_copy(update={"tool_calls": calls})
    return response


async def _type_blocks(message: ToolMessage) -> ToolMessage:
    """Turn file blocks with audio or video into audio or video blocks."""
    if isinstance(message.content, str):
        return message
    return message.model_copy(update={"content": [retype_block(block) for block in message.content]})


# --- names that programs import from here in deepagents, with the values that are true for deepfs ---

LsSchema: type[ToolArguments] = ARGUMENTS["ls"]
ReadFileSchema: type[ToolArguments] = ARGUMENTS["read_file"]
WriteFileSchema: type[ToolArguments] = ARGUMENTS["write_file"]
EditFileSchema: type[ToolArguments] = ARGUMENTS["edit_file"]
DeleteSchema: type[ToolArguments] = ARGUMENTS["delete"]
ExecuteSchema: type[ToolArguments] = ARGUMENTS["execute"]
GlobSchema: type[ToolArguments] = ARGUMENTS["glob"]
GrepSchema: type[ToolArguments] = ARGUMENTS["grep"]
ReadVideoFileSchema: type[ToolArguments] = ARGUMENTS["read_file"]

LIST_FILES_TOOL_DESCRIPTION: Final = PROMPTS["ls"]
READ_FILE_TOOL_DESCRIPTION: Final = PROMPTS["read_file"]
READ_FILE_VIDEO_TOOL_DESCRIPTION: Final = PROMPTS["read_file"]
WRITE_FILE_TOOL_DESCRIPTION: Final = PROMPTS["write_file"]
EDIT_FILE_TOOL_DESCRIPTION: Final = PROMPTS["edit_file"]
DELETE_TOOL_DESCRIPTION: Final = PROMPTS["delete"]
GLOB_TOOL_DESCRIPTION: Final = PROMPTS["glob"]
GREP_TOOL_DESCRIPTION: Final = PROMPTS["grep"]
EXECUTE_TOOL_DESCRIPTION: Final = PROMPTS["execute"]
GREP_GLOB_DESCRIPTION: Final = GrepSchema.model_fields["glob"].description
GREP_OUTPUT_MODE_DESCRIPTION: Final = GrepSchema.model_fields["output_mode"].description
DEFAULT_READ_OFFSET: Final = 0
DEFAULT_READ_LIMIT: Final = ReadFileSchema.model_fields["limit"].default

TOOLS_EXCLUDED_FROM_EVICTION: Final = tuple(name for name in TOOL_NAMES if name in FILE_TOOLS)

NO_LINES_REQUESTED_WARNING: Final = "[No line was read: limit was {limit}]"
TOO_LARGE_TOOL_MSG: Final = (
    "[Too large to show. All that the tool returned for {tool_call_id} is in {file_path}: "
    "page with read_file, or search with grep.]\n{content_sample}\n"
)
TOO_LARGE_HUMAN_MSG: Final = (
    "[Too large to show. All of it is in {file_path}: page with read_file, or search with grep.]\n{content_sample}\n"
)
READ_FILE_TRUNCATION_MSG: Final = "\n[The text of {file_path} was cut. Read on with a larger offset]"
GREP_TRUNCATION_NOTE: Final = "There are more matches than"
GLOB_UNREADABLE_NOTE: Final = "Some directories could not be read; narrowing the search does not show them"
GLOB_PATHLESS_DENIED_HINT: Final = ". Name a directory that you may read in path, and a pattern relative to it."
