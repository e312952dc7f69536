"""The middleware that summarises long conversations, and first writes the messages that it removes to a file."""

import logging
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from json import dumps
from typing import Annotated, Any, Final, NamedTuple, NotRequired
from uuid import uuid4
from xml.sax.saxutils import escape, quoteattr

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, RemoveMessage, ToolMessage
from langgraph.config import get_config
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from deepfs._langgraph.channel import FilesystemState
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.middleware._backends import (
    AgentState,
    LangChainSummarization,
    PrivateStateAttr,
    artifacts_root,
    resolve_backend,
)
from deepfs.middleware._media_blocks import digest_of, is_reference
from deepfs.sync import call_sync
from deepfs.text import paths
from deepfs.text.media import OCTET_STREAM, extension
from deepfs.types import Result

__all__ = ["SummarizationMiddleware", "Transcript", "section_heading"]

_log = logging.getLogger("deepfs")

_DIRECTORY: Final = "conversation_history"
_MAX_BYTES: Final = 10_000_000
"""The largest history file: searches skip larger files."""
_ATTEMPTS: Final = 20
_ANCHOR: Final = 1_000
_STATE_KEY: Final = "conversation_history_name"
_MAX_WAITING: Final = 100


class _HistoryState(AgentState[Any], FilesystemState):
    conversation_history_name: NotRequired[Annotated[str | None, PrivateStateAttr]]
    """The name of the history file, without `.md`; used again where no thread id determines it."""


class _Plan(NamedTuple):
    """A summary, and the first messages of the conversation, which it replaces."""

    removed: Sequence[AnyMessage]
    summary: Sequence[AnyMessage]

    def fits(self, messages: Sequence[AnyMessage]) -> bool:
        """Whether the conversation still begins with the messages to remove, unedited."""
        return list(self.removed) == list(messages[: len(self.removed)])

    def update(self, messages: Sequence[AnyMessage], files: Sequence[str], name: str) -> dict[str, Any]:
        """The update of the state, in which the summary names the files."""
        first, *others = self.summary
        kept = messages[len(self.removed) :]
        everything = [RemoveMessage(id=REMOVE_ALL_MESSAGES), _naming(first, files), *others, *kept]
        return {"messages": everything, _STATE_KEY: name}


class SummarizationMiddleware(LangChainSummarization):
    """Summarises as LangChain's SummarizationMiddleware does, and keeps what a summary removes.

    The removed messages are first appended to `/conversation_history/<thread>.md`, below the `artifacts_root` of a
    composite, and the summary names that file. Media go to `/conversation_history/media`. A file that would grow over
    10 MB continues in `<thread>.2.md`, and so on. For subagents, and for thread ids that are long or have characters
    other than letters, digits, `_` and `-`, the name of the file ends with a hash. If the file cannot be written,
    nothing is removed, and a warning is logged; the summary is kept for the next attempt.

    Args:
        model: The model that summarises.
        backend: The backend of the files; None is a StateBackend.
        **options: The other arguments of LangChain's class.

    Raises:
        TypeError: If `backend` is not a backend.
    """

    state_schema: type[_HistoryState] = _HistoryState

    def __init__(self, model: Any, *, backend: Any = None, **options: Any) -> None:
        super().__init__(model, **options)
        self.backend: BackendProtocol = resolve_backend(backend)
        self._history = _History(self.backend)
        self._waiting: dict[str, _Plan] = {}

    @property
    def name(self) -> str:
        """The name of LangChain's class, so that either class replaces the other in an agent."""
        return "SummarizationMiddleware"

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Summarise the conversation if it has become too long."""
        name = _history_name(state)
        plan = self._retried(name, state) or _plan(state, super().before_model(state, runtime))
        if plan is None:
            return None
        kept: dict[str, Any] | None = self._waited(partial(self._settled, plan, name, state["messages"]))
        return kept

    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """As `before_model`."""
        name = _history_name(state)
        plan = self._retried(name, state) or _plan(state, await super().abefore_model(state, runtime))
        return None if plan is None else await self._settled(plan, name, state["messages"])

    def _retried(self, name: str, state: Any) -> _Plan | None:
        """The summary of an earlier attempt whose file could not be written, if it still fits the conversation."""
        plan = self._waiting.get(name)
        return plan if plan is not None and plan.fits(state["messages"]) else None

    async def _settled(self, plan: _Plan, name: str, messages: Sequence[AnyMessage]) -> dict[str, Any] | None:
        try:
            files = await self._history.appended(name, plan.removed)
        except _NotKeptError as error:
            self._wait_with(plan, name)
            _log.warning("The conversation is not summarised, because its history cannot be stored: %s", error)
            return None
        self._waiting.pop(name, None)
        return plan.update(messages, files, name)

    def _wait_with(self, plan: _Plan, name: str) -> None:
        while len(self._waiting) >= _MAX_WAITING:
            self._waiting.pop(next(iter(self._waiting)), None)
        self._waiting[name] = plan

    def _waited(self, call: Callable[[], Any]) -> Any:
        return call_sync(self.backend, call, f"The sync form of {self.name}", "its async form (ainvoke)")


def _plan(state: Any, update: dict[str, Any] | None) -> _Plan | None:
    """The plan for LangChain's summary; None if it did not summarise."""
    if update is None:
        return None
    messages: Sequence[AnyMessage] = state["messages"]
    known = {message.id for message in messages}
    made = [message for message in update["messages"] if not isinstance(message, RemoveMessage)]
    kept = {message.id for message in made} & known
    removed = [message for message in messages if message.id not in kept]
    summary = [message for message in made if message.id not in known]
    return _Plan(removed, summary) if removed and summary else None


def _naming(summary: AnyMessage, files: Sequence[str]) -> AnyMessage:
    where = " and ".join(files)
    note = f"[All that it stands for is in {where}: page with read_file, or search with grep.]"
    return summary.model_copy(update={"content": f"{summary.text}\n\n{note}"})


# --- names -----------------------------------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}")


def _history_name(state: Any) -> str:
    """The name of the history file of this conversation, without `.md`.

    A thread id that is used as it is has no dot, so it never equals a name with a hash, which has one.
    """
    configurable = get_config().get("configurable", {})
    thread = configurable.get("thread_id")
    outer, _, _ = str(configurable.get("checkpoint_ns") or "").rpartition("|")
    if thread is not None and not outer:
        return _file_name(str(thread))
    known = state.get(_STATE_KEY)
    if isinstance(known, str) and known:
        return known
    return f"session_{uuid4().hex}" if thread is None else f"{_file_name(str(thread))}.sub-{_digest(outer)}"


def _file_name(thread: str) -> str:
    if _PLAIN.fullmatch(thread):
        return thread
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", thread)[:40].strip("_")
    return f"{readable or 'thread'}.id-{_digest(thread)}"


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


# --- files -----------------------------------------------------------------------------------------------------------


class _NotKeptError(Exception):
    """The history could not be stored."""


class _History:
    """The history files in a backend."""

    def __init__(self, backend: BackendProtocol) -> None:
        # The history is written without an agent's rules, which restrict only the model.
        self._backend = backend
        self._directory = paths.join(artifacts_root(backend), _DIRECTORY)

    async def appended(self, name: str, messages: Sequence[BaseMessage]) -> list[str]:
        """Append the messages, and return the paths of the files that hold them. Raises _NotKeptError."""
        try:
            transcript = Transcript(f"{self._directory}/media", paths.join(artifacts_root(self._backend), "blobs"))
            text = transcript.rendered(messages)
            await self._upload(transcript.media)
            heading = section_heading(datetime.now(UTC).isoformat(timespec="microseconds"))
            written = [await self._append(name, f"{heading}{piece}\n") for piece in _pieces(text)]
        except _NotKeptError:
            raise
        except Exception as error:  # The conversation must go on even if the storage fails.
            raise _NotKeptError(type(error).__name__) from error
        return list(dict.fromkeys(written))

    async def _upload(self, media: dict[str, bytes]) -> None:
        for uploaded in await self._backend.aupload_files(list(media.items())) if media else ():
            if uploaded.error:
                raise _NotKeptError(f"{uploaded.path}: {uploaded.error}")

    async def _append(self, name: str, section: str) -> str:
        """Append the section to the last file, keeping what other runs append meanwhile; return the file's path."""
        last: Result | None = None
        for _ in range(_ATTEMPTS):
            path, content = await self._end(name, len(section.encode()))
            last = await self._changed(path, content, section)
            if last.error is None:
                return path
            if last.code not in _CHANGED_MEANWHILE:
                break
        raise _NotKeptError(last.error if last else "no attempt")

    async def _changed(self, path: str, content: str | None, section: str) -> Result:
        if content is None:
            return await self._backend.awrite(path, section)
        # An edit of the end keeps what another run appended after it. The anchor must be unique: if the end occurs
        # twice, it is the whole text.
        end = content[-_ANCHOR:]
        anchor = end if content.count(end) == 1 else content
        return await self._backend.aedit(path, anchor, anchor + section)

    async def _end(self, name: str, size: int) -> tuple[str, str | None]:
        """The path of the file to append to, and its content; the content is None if the file must be created."""
        number = 1
        while await self._exists(self._path(name, number + 1)):
            number += 1
        path = self._path(name, number)
        content = await self._content(path)
        if content is None:
            return path, None
        is_full = not content or len(content.encode()) + size > _MAX_BYTES
        return (self._path(name, number + 1), None) if is_full else (path, content)

    def _path(self, name: str, number: int) -> str:
        return f"{self._directory}/{name}.md" if number == 1 else f"{self._directory}/{name}.{number}.md"

    async def _exists(self, path: str) -> bool:
        """Whether the path exists. Raises _NotKeptError if the read fails in another way."""
        read = await self._backend.aread(path, 0, 1)
        if read.error is None or read.code in _UNREADABLE:
            return True
        if read.code is ErrorCode.FILE_NOT_FOUND:
            return False
        raise _NotKeptError(f"{path}: {read.error}")

    async def _content(self, path: str) -> str | None:
        """The text of a file; `""` for a directory or content that is not UTF-8, None if the path does not exist."""
        (found,) = await self._backend.adownload_files([path])
        if found.content is not None:
            return _decoded(found.content)
        if found.error not in _NO_TEXT:
            raise _NotKeptError(f"{path}: {found.error}")
        return None if found.error == ErrorCode.FILE_NOT_FOUND else ""


_UNREADABLE = frozenset({ErrorCode.IS_DIRECTORY, ErrorCode.INVALID_CONTENT, ErrorCode.TOO_LARGE, ErrorCode.BINARY_FILE})
"""The errors of a read of a path that exists, but is not readable text."""
_NO_TEXT = frozenset({ErrorCode.FILE_NOT_FOUND, ErrorCode.IS_DIRECTORY})
_CHANGED_MEANWHILE = frozenset(
    {
        ErrorCode.ALREADY_EXISTS,
        ErrorCode.AMBIGUOUS_MATCH,
        ErrorCode.CONFLICT,
        ErrorCode.FILE_NOT_FOUND,
        ErrorCode.NO_MATCH,
    }
)


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return ""


def _pieces(text: str) -> Iterator[str]:
    """Split the text into pieces that fit into one file; usually there is one."""
    data, start = text.encode(), 0
    while start < len(data):
        end = min(start + _MAX_BYTES - _ANCHOR, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        yield data[start:end].decode()
        start = end


_DATA_URL: Final = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,")
_PAYLOAD_KEYS: Final = frozenset({"base64", "data", "file_data"})
_MIN_PAYLOAD: Final = 64
"""Shorter values of `_PAYLOAD_KEYS` are treated as text."""
_MEDIA_TYPES: Final = frozenset({"image", "image_url", "audio", "input_audio", "video", "file", "document"})
_SHOWN_AS_TOOL_CALLS: Final = frozenset({"tool_use", "function_call", "tool_call", "input_json_delta"})
_UNSTORABLE: Final = re.compile("[\0\r\ud800-\udfff]")


def section_heading(time: str) -> str:
    """The heading of a section."""
    return f"## Summarized at {time}\n\n"


class Transcript:
    """Renders messages as text; `media` collects the media files that the text names, by path.

    Args:
        directory: The directory of the media files.
        blobs: The directory of the media that messages refer to by hash.
    """

    def __init__(self, directory: str, blobs: str = "/blobs") -> None:
        self._directory = directory
        self._blobs = blobs
        self.media: dict[str, bytes] = {}

    def rendered(self, messages: Sequence[BaseMessage]) -> str:
        """The messages as XML-like elements, one after another.

        Args:
            messages: The messages.
        """
        return "".join(f"{_storable(self._message(message))}\n" for message in messages)

    def _message(self, message: BaseMessage) -> str:
        parts = list(filter(None, map(self._block, _blocks(message.content))))
        calls = list(_calls(message)) if isinstance(message, AIMessage) else []
        opening = f"<message {_attributes(message)}>"
        if not calls:
            return f"{opening}{chr(10).join(parts)}</message>"
        content = [f"  <content>{chr(10).join(parts)}</content>"] if parts else []
        return "\n".join([opening, *content, *calls, "</message>"])

    def _block(self, block: Any) -> str:
        if isinstance(block, str):
            return escape(block)
        if not isinstance(block, Mapping):
            return escape(str(block))
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            return escape(block["text"])
        return "" if kind in _SHOWN_AS_TOOL_CALLS else self._other_block(block, str(kind))

    def _other_block(self, block: Mapping[str, Any], kind: str) -> str:
        files: list[str] = []
        without_media = self._without_media(block, files)
        if kind in _MEDIA_TYPES and len(files) == 1:
            return f"<{kind.removesuffix('_url').removeprefix('input_')} url={quoteattr(files[0])} />"
        return f"<block type={quoteattr(kind)}>{escape(_json(without_media))}</block>"

    def _without_media(self, value: Any, files: list[str]) -> Any:
        """Replace all media in `value` by paths of files, and append these paths to `files`."""
        digest = digest_of(value) if is_reference(value) else None
        if digest is not None:
            files.append(f"{self._blobs}/{digest}")
            return {"type": value["type"], "url": files[-1]}
        if isinstance(value, Mapping):
            return {key: self._entry(value, key, files) for key in value}
        if isinstance(value, (list, tuple)):
            return [self._without_media(each, files) for each in value]
        url = _DATA_URL.match(value) if isinstance(value, str) else None
        return value if url is None else self._extracted(value, value[url.end() :], url[1], files)

    def _entry(self, block: Mapping[str, Any], key: Any, files: list[str]) -> Any:
        value = block[key]
        is_payload = key in _PAYLOAD_KEYS and isinstance(value, str) and len(value) >= _MIN_PAYLOAD
        if is_payload and not value.startswith("data:"):
            return self._extracted(value, value, block.get("mime_type") or block.get("media_type"), files)
        return self._without_media(value, files)

    def _extracted(self, value: str, payload: str, mime_type: Any, files: list[str]) -> str:
        """Add a file with the decoded `payload` and return its path; return `value` if `payload` is not base64."""
        try:
            content = b64decode(payload, validate=True)
        except (Base64Error, ValueError):
            return value
        kind = mime_type if isinstance(mime_type, str) else OCTET_STREAM
        name = f"{sha256(content).hexdigest()[:32]}{extension(kind) or '.bin'}"
        path = paths.join(self._directory, name)
        self.media[path] = content
        files.append(path)
        return path


def _blocks(content: Any) -> Sequence[Any]:
    return content if isinstance(content, list) else [content]


def _attributes(message: BaseMessage) -> str:
    attributes: dict[str, Any] = {"type": message.type, "id": message.id, "name": message.name}
    if isinstance(message, ToolMessage):
        failed = "error" if message.status == "error" else None
        attributes.update(tool_call_id=message.tool_call_id, status=failed)
    return " ".join(f"{key}={quoteattr(str(value))}" for key, value in attributes.items() if value)


def _calls(message: AIMessage) -> Iterator[str]:
    for call in message.tool_calls:
        yield _call("tool_call", call, _json(call["args"]))
    for wrong in message.invalid_tool_calls:
        yield _call("invalid_tool_call", wrong, str(wrong.get("args") or ""))


def _call(kind: str, call: Mapping[str, Any], arguments: str) -> str:
    identity, name = quoteattr(str(call.get("id") or "")), quoteattr(str(call.get("name") or ""))
    return f"  <{kind} id={identity} name={name}>{escape(arguments)}</{kind}>"


def _json(value: Any) -> str:
    return dumps(value, ensure_ascii=False, default=str)


def _storable(text: str) -> str:
    """Replace characters that no backend stores as text, and CR, which edits may change, by XML references."""
    return _UNSTORABLE.sub(lambda found: f"&#{ord(found[0])};", text)
