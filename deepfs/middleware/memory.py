"""The middleware that shows an agent of LangChain its memory files."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypedDict

from langchain_core.messages import SystemMessage
from langchain_core.runnables import RunnableConfig

from deepfs.errors import ErrorCode
from deepfs.middleware._base import (
    AgentState,
    CallStep,
    ModelCallSteps,
    ModelRequest,
    PrivateStateAttr,
    Steps,
    is_of,
    resolve_backend,
    step_of_call,
    wait_for,
)
from deepfs.middleware._messages import with_prompt
from deepfs.middleware.prompts import PROMPTS, check_template
from deepfs.middleware.provider_caching import MAX_BREAKPOINTS, count_breakpoints
from deepfs.storage.gathering import gather_each
from deepfs.text.arguments import check_string
from deepfs.text.visible import one_line, without_tags
from deepfs.types import ReadResult

if TYPE_CHECKING:
    from deepfs.backends.protocol import BackendProtocol

__all__ = ["MEMORY_SYSTEM_PROMPT", "MemoryMiddleware", "MemoryState", "MemoryStateUpdate"]

_log = getLogger("deepfs")

_LINES = 2_000
_MAX_CHARS = 40_000
"""The most characters of one file in the system message."""

MEMORY_SYSTEM_PROMPT: Final = f"{PROMPTS['memory']}\n\n{{agent_memory}}"
"""The default of `system_prompt`."""


class MemoryState(AgentState[Any]):
    """The state of an agent with memory."""

    memory_contents: NotRequired[Annotated[dict[str, str], PrivateStateAttr]]
    """The texts by path, if `system_prompt` is None. Threads of deepagents have them in any case; they are not used."""


class MemoryStateUpdate(TypedDict):
    """What `before_agent` returns."""

    memory_contents: dict[str, str]


class MemoryMiddleware(ModelCallSteps):
    """Puts the text of files at the end of the system message, as they are when the model is called.

    The prompt presents them as reference and not as orders, since the agent and others may write them. For a file that
    does not exist, only the path is shown; for one that cannot be read or is not text, the reason; and of a large one,
    the beginning. Comments (`<!-- … -->`) are left out. What could pass for the end of a file is escaped: `<` before
    `file` is `&lt;`.

    Args:
        backend: The backend of the files; None is a StateBackend.
        sources: The paths of the files.
        add_cache_control: Whether the system message ends in a cache breakpoint if the model is a `ChatAnthropic` and
            the request has fewer than four others.
        system_prompt: The paragraph with the files, a template with `{agent_memory}` in it. With None the model does
            not see them; their texts are in the state, under `memory_contents`.

    Raises:
        TypeError: If `sources` is not a list of strings, or `system_prompt` no text.
        ValueError: If `system_prompt` has no `{agent_memory}`, or other places.
    """

    state_schema: type[Any] = MemoryState

    def __init__(
        self,
        *,
        backend: Any = None,
        sources: Sequence[str],
        add_cache_control: bool = False,
        system_prompt: str | None = MEMORY_SYSTEM_PROMPT,
    ) -> None:
        super().__init__()
        self.backend: BackendProtocol = resolve_backend(backend)
        if isinstance(sources, str) or not isinstance(sources, Iterable):
            raise TypeError(f"sources is a list of paths, not {sources!r}")
        self.sources: list[str] = [check_string("a path of sources", path) for path in sources]
        self.system_prompt: str | None = check_template(system_prompt, ["agent_memory"])
        self._add_cache_control = add_cache_control
        self._missing: set[str] = set()

    def before_agent(self, state: Any, runtime: Any, config: RunnableConfig | None = None) -> dict[str, Any] | None:
        """Put the texts into the state if `system_prompt` is None."""
        has_no_work = self.system_prompt is not None or "memory_contents" in state
        return None if has_no_work else wait_for(self.backend, partial(self.abefore_agent, state, runtime), self.name)

    async def abefore_agent(
        self, state: Any, runtime: Any, config: RunnableConfig | None = None
    ) -> dict[str, Any] | None:
        """As `before_agent`."""
        if self.system_prompt is not None or "memory_contents" in state:
            return None
        contents: dict[str, str] = {}
        for outcome in await self.backend.adownload_files(self.sources):
            if outcome.content is not None:
                contents[outcome.path] = outcome.content.decode()
            elif outcome.error != ErrorCode.FILE_NOT_FOUND:
                raise ValueError(f"The memory file {outcome.path} cannot be read: {outcome.error}")
        return {**MemoryStateUpdate(memory_contents=contents)}

    def _model_call(self, request: ModelRequest[Any], handler: Callable[..., Any]) -> Steps[Any]:
        """Append the files to the system message."""
        prepared = yield CallStep(partial(self.modify_request, request), partial(self._prepare, request))
        return (yield step_of_call(handler, prepared))

    def modify_request(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """Return the request with the files at the end of its system message."""
        return wait_for(self.backend, partial(self._prepare, request), self.name)

    async def _prepare(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        system = request.system_message
        if self.system_prompt is not None:
            found = await gather_each(lambda path: self.backend.aread(path, 0, _LINES), self.sources)
            reads = list(zip(self.sources, found, strict=True))
            shown = [_show(path, read) for path, read in reads]
            missing = {path for path, read in reads if read.code is ErrorCode.FILE_NOT_FOUND}
            for path in missing - self._missing:  # Told once: the agent may be meant to write it.
                _log.warning("there is no memory file at %s yet", one_line(path))
            self._missing |= missing
            system = with_prompt(system, self.system_prompt.format(agent_memory="\n\n".join(shown)))
        has_breakpoint = self._add_cache_control and is_of(request.model, "langchain_anthropic", "ChatAnthropic")
        if has_breakpoint and count_breakpoints(request) < MAX_BREAKPOINTS:
            system = _with_breakpoint(system)
        return request if system is request.system_message else request.override(system_message=system)


def _with_breakpoint(message: SystemMessage | None) -> SystemMessage | None:
    """The message with a cache breakpoint at its last block."""
    if message is None or not message.content:
        return message
    content = message.content
    *blocks, last = [{"type": "text", "text": content}] if isinstance(content, str) else content
    block = {"type": "text", "text": last} if isinstance(last, str) else last
    return message.model_copy(update={"content": [*blocks, {**block, "cache_control": {"type": "ephemeral"}}]})


def _show(path: str, read: ReadResult) -> str:
    data = read.file_data
    if data is None:
        missing = read.code is ErrorCode.FILE_NOT_FOUND
        return f"<file path={path!r}>({'nothing yet' if missing else _safe(one_line(read.error or ''))})</file>"
    if data.encoding != "utf-8":
        return f"<file path={path!r}>(not a text)</file>"
    text = _safe(_without_comments(data.content[: _MAX_CHARS + 1].replace("\r\n", "\n")))
    is_cut = read.next_offset or len(data.content) > _MAX_CHARS or len(text) > _MAX_CHARS
    cut = "\n(cut: read the rest with read_file)" if is_cut else ""
    return f"<file path={path!r}>\n{text[:_MAX_CHARS].rstrip()}{cut}\n</file>"


def _without_comments(text: str) -> str:
    """The text without comments of HTML. One that has no end stays."""
    kept: list[str] = []
    start = 0
    while (opening := text.find("<!--", start)) >= 0 and (end := text.find("-->", opening + 4)) >= 0:
        kept.append(text[start:opening])
        start = end + 3
    return "".join([*kept, text[start:]])


_safe = partial(without_tags, tag="file")
