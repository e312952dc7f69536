"""The middleware that shows an agent of LangChain its memory files."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from deepfs.errors import ErrorCode
from deepfs.middleware._backends import TRACE_POLICY, AgentMiddleware, ModelRequest, ModelResponse, resolve_backend
from deepfs.middleware._messages import with_prompt
from deepfs.middleware.prompts import PROMPTS
from deepfs.sync import call_sync
from deepfs.text.arguments import check_string
from deepfs.text.visible import one_line, without_tags
from deepfs.types import ReadResult

if TYPE_CHECKING:
    from deepfs.backends.protocol import BackendProtocol

__all__ = ["MemoryMiddleware"]

_LINES = 2_000
_MAX_CHARS = 40_000
"""The most characters of one file in the system message."""


class MemoryMiddleware(AgentMiddleware[Any, Any, Any]):
    """Puts the text of files at the end of the system message, as they are when the model is called.

    The prompt presents them as reference and not as orders, since the agent and others may write them. For a file that
    does not exist, only the path is shown; for one that cannot be read or is not text, the reason; and of a large one,
    the beginning. What could pass for the end of a file is escaped: `<` before `file` is `&lt;`.

    Args:
        backend: The backend of the files; None is a StateBackend.
        sources: The paths of the files.

    Raises:
        TypeError: If `sources` is not a list of strings.
    """

    trace_policy = TRACE_POLICY

    def __init__(self, *, backend: Any = None, sources: Sequence[str]) -> None:
        super().__init__()
        self.backend: BackendProtocol = resolve_backend(backend)
        self._sources = _checked(sources)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Append the files to the system message."""
        call = partial(self._prepared, request)
        return handler(call_sync(self.backend, call, f"The sync form of {self.name}", "its async form (ainvoke)"))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """As `wrap_model_call`."""
        return await handler(await self._prepared(request))

    async def _prepared(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        shown = [_shown(path, await self.backend.aread(path, 0, _LINES)) for path in self._sources]
        memory = "\n\n".join([PROMPTS["memory"], *shown])
        return request.override(system_message=with_prompt(request.system_message, memory))


def _checked(sources: Sequence[str]) -> list[str]:
    if isinstance(sources, str) or not isinstance(sources, Iterable):
        raise TypeError(f"sources is a list of paths, not {sources!r}")
    checked = list(sources)
    for path in checked:
        check_string("a path of sources", path)
    return checked


def _shown(path: str, read: ReadResult) -> str:
    data = read.file_data
    if data is None:
        missing = read.code is ErrorCode.FILE_NOT_FOUND
        return f"<file path={path!r}>({'nothing yet' if missing else _safe(one_line(read.error or ''))})</file>"
    if data.encoding != "utf-8":
        return f"<file path={path!r}>(not a text)</file>"
    text = _safe(data.content[: _MAX_CHARS + 1].replace("\r\n", "\n"))
    is_cut = read.next_offset or len(data.content) > _MAX_CHARS or len(text) > _MAX_CHARS
    cut = "\n(cut: read the rest with read_file)" if is_cut else ""
    return f"<file path={path!r}>\n{text[:_MAX_CHARS].rstrip()}{cut}\n</file>"


_safe = partial(without_tags, tag="file")
