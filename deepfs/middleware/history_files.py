"""The files that hold the messages of a conversation which a summary stands for: their names, and their text."""

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from json import dumps
from typing import Any, Final, NamedTuple
from uuid import uuid4
from xml.sax.saxutils import escape, quoteattr

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langgraph.config import get_config

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.middleware._base import artifacts_root
from deepfs.middleware._messages import digest_of, is_reference
from deepfs.text import paths
from deepfs.text.lines import version
from deepfs.text.media import OCTET_STREAM, extension
from deepfs.types import Result

__all__ = ["HistoryFiles", "NotKeptError", "history_name", "section_heading"]


_DATA_URL: Final = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,")
_PAYLOAD_KEYS: Final = frozenset({"base64", "data", "file_data"})
_MIN_PAYLOAD: Final = 64
"""Shorter values of `_PAYLOAD_KEYS` are treated as text."""
_MEDIA_TYPES: Final = frozenset({"image", "image_url", "audio", "input_audio", "video", "file", "document"})
_SHOWN_AS_TOOL_CALLS: Final = frozenset({"tool_use", "function_call", "tool_call", "input_json_delta"})
_SUMMARISED_AS_BLOCKS: Final = frozenset({"image", "audio", "video"})
"""The blocks with a URL that LangChain shows to a model which summarises."""
_UNSTORABLE: Final = re.compile("[\0\r\ud800-\udfff]")


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

    def render(self, messages: Sequence[BaseMessage]) -> str:
        """The messages as XML-like elements, one after another.

        Args:
            messages: The messages.
        """
        # No backend stores some characters as text, and edits may change CR: they become XML references.
        texts = (_UNSTORABLE.sub(lambda found: f"&#{ord(found[0])};", self._message(each)) for each in messages)
        return "".join(f"{text}\n" for text in texts)

    def replace_media(self, messages: Sequence[AnyMessage]) -> list[AnyMessage]:
        """The messages with references to files in the place of their media, for a model that summarises them.

        Args:
            messages: The messages.
        """
        referenced: list[AnyMessage] = []
        for message in messages:
            content = message.content
            if not isinstance(content, str):
                content = [self._reference(block) for block in content]
            same = content == message.content
            referenced.append(message if same else message.model_copy(update={"content": content}))
        return referenced

    def _reference(self, block: Any) -> Any:
        if not isinstance(block, Mapping):
            return block
        files: list[str] = []
        without_media = self._without_media(block, files)
        if not files:
            return block
        kind = _media_kind(str(block.get("type")))
        if kind in _SUMMARISED_AS_BLOCKS and len(files) == 1:
            return {"type": kind, "url": files[0]}
        shown = f"<{kind} url={quoteattr(files[0])} />" if len(files) == 1 else _json(without_media)
        return {"type": "text", "text": shown}

    def _message(self, message: BaseMessage) -> str:
        blocks = message.content if isinstance(message.content, list) else [message.content]
        parts = list(filter(None, map(self._block, blocks)))
        attributes: dict[str, Any] = {"type": message.type, "id": message.id, "name": message.name}
        calls: list[str] = []
        if isinstance(message, ToolMessage):
            failed = "error" if message.status == "error" else None
            attributes.update(tool_call_id=message.tool_call_id, status=failed)
        elif isinstance(message, AIMessage):
            calls += [_call("tool_call", call, _json(call["args"])) for call in message.tool_calls]
            wrong = message.invalid_tool_calls
            calls += [_call("invalid_tool_call", each, str(each.get("args") or "")) for each in wrong]
        shown = " ".join(f"{key}={quoteattr(str(value))}" for key, value in attributes.items() if value)
        opening = f"<message {shown}>"
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
        if kind in _SHOWN_AS_TOOL_CALLS:
            return ""
        files: list[str] = []
        without_media = self._without_media(block, files)
        if kind in _MEDIA_TYPES and len(files) == 1:
            return f"<{_media_kind(str(kind))} url={quoteattr(files[0])} />"
        return f"<block type={quoteattr(str(kind))}>{escape(_json(without_media))}</block>"

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
        return value if url is None else self._extract(value, value[url.end() :], url[1], files)

    def _entry(self, block: Mapping[str, Any], key: Any, files: list[str]) -> Any:
        value = block[key]
        is_payload = key in _PAYLOAD_KEYS and isinstance(value, str) and len(value) >= _MIN_PAYLOAD
        if is_payload and not value.startswith("data:"):
            return self._extract(value, value, block.get("mime_type") or block.get("media_type"), files)
        return self._without_media(value, files)

    def _extract(self, value: str, payload: str, mime_type: Any, files: list[str]) -> str:
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


def _media_kind(block_type: str) -> str:
    return block_type.removesuffix("_url").removeprefix("input_")


def _call(kind: str, call: Mapping[str, Any], arguments: str) -> str:
    identity, name = quoteattr(str(call.get("id") or "")), quoteattr(str(call.get("name") or ""))
    return f"  <{kind} id={identity} name={name}>{escape(arguments)}</{kind}>"


def _json(value: Any) -> str:
    return dumps(value, ensure_ascii=False, default=str)


_DIRECTORY: Final = "conversation_history"
_MAX_BYTES: Final = 10_000_000
"""The largest history file: searches skip larger files."""
_MOST_FILES: Final = 1_000
_ATTEMPTS: Final = 20
_ANCHOR: Final = 1_000


# --- names -----------------------------------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}")
_KNOWN = re.compile(r"[A-Za-z0-9_-]{1,100}(\.(id|sub)-[0-9a-f]{32}){0,2}")


def history_name(known: object) -> str:
    """The name of the history file of the conversation that runs, without `.md`.

    A thread id that is used as it is has no dot, so it never equals a name with a hash, which has one.
    """
    try:
        configurable = get_config().get("configurable", {})
    except RuntimeError:  # Not in a graph.
        configurable = {}
    thread = configurable.get("thread_id")
    outer, _, _ = str(configurable.get("checkpoint_ns") or "").rpartition("|")
    if thread is not None and not outer:
        return _file_name(str(thread))
    if isinstance(known, str) and _KNOWN.fullmatch(known):
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


class NotKeptError(Exception):
    """The history could not be stored."""


class HistoryFiles:
    """The history files in a backend.

    A message that a file holds already is not written again: neither after a process was killed before it saved the
    summary, nor by two runs of one thread.

    Args:
        backend: The backend of the files. An agent's rules do not apply here: they restrict only the model.
    """

    def __init__(self, backend: BackendProtocol) -> None:
        self._backend = backend
        self._root = artifacts_root(backend)
        self._directory = paths.join(self._root, _DIRECTORY)

    async def append(self, name: str, messages: Sequence[BaseMessage]) -> list[str]:
        """Append the messages that the files do not hold yet.

        Args:
            name: The name of the file, without `.md`.
            messages: The messages.

        Returns:
            The paths of the files that hold the messages.

        Raises:
            NotKeptError: If not all could be stored.
        """
        try:
            transcript = self.transcript()
            passages = [each for message in messages for each in _passages(message, transcript)]
            media = list(transcript.media.items())
            for uploaded in await self._backend.aupload_files(media) if media else ():
                if uploaded.error:
                    raise NotKeptError(f"{uploaded.path}: {uploaded.error}")
            last = await self._last(name, 1)
            new, holding = await self._new(name, last, passages)
            return list(dict.fromkeys([*holding, *[await self._append(name, last, each) for each in _sections(new)]]))
        except NotKeptError:
            raise
        except Exception as error:  # The conversation must go on even if the storage fails.
            raise NotKeptError(type(error).__name__) from error

    def transcript(self) -> Transcript:
        """A transcript whose media are files beside the history."""
        return Transcript(f"{self._directory}/media", paths.join(self._root, "blobs"))

    async def _new(
        self, name: str, last: int, passages: "Sequence[_Passage]"
    ) -> tuple["Sequence[_Passage]", Sequence[str]]:
        """The passages that no file holds, and the paths of the files that hold the others.

        A killed run, or one at the same time, has filled the last files. So the search goes back from the last file as
        long as there is something to find, and to the one before it in any case.
        """
        holding: list[str] = []
        for number in range(last, 0, -1):
            content = await self._content(self._path(name, number)) or ""
            missing = [each for each in passages if not each.is_in(content)]
            if len(missing) < len(passages):
                holding.insert(0, self._path(name, number))
            elif number < last:
                break
            passages = missing
            if not passages:
                break
        return passages, holding

    async def _append(self, name: str, last: int, passages: "Sequence[_Passage]") -> str:
        """Append a section to the last file, keeping what other runs append meanwhile; return the file's path."""
        result: Result | None = None
        for _ in range(_ATTEMPTS):
            last = await self._last(name, last)
            path, content = await self._end(name, last, len(_section(passages).encode()))
            new = [each for each in passages if not each.is_in(content or "")]
            if not new:
                return path
            result = await self._append_section(path, content, _section(new))
            if result.error is None:
                return path
            if result.code not in _CHANGED_MEANWHILE:
                break
        raise NotKeptError(result.error if result and result.error else "no attempt")

    async def _append_section(self, path: str, content: str | None, section: str) -> Result:
        if content is None:
            return await self._backend.awrite(path, section)
        # The anchor must be unique: if the end occurs twice, it is the whole text. The condition keeps two runs from
        # writing the same messages.
        end = content[-_ANCHOR:]
        anchor = end if content.count(end) == 1 else content
        return await self._backend.aedit(path, anchor, anchor + section, if_match=version(content))

    async def _last(self, name: str, number: int) -> int:
        """The number of the last file, which is at least `number`; 1 if there is none.

        A storage may answer a read of a missing file with an empty text, so it is not believed that many empty files
        stand in a row. Raises NotKeptError if there are too many files.
        """
        last = number
        for following in range(number + 1, number + _MOST_FILES):
            has_content = await self._has_content(self._path(name, following))
            if has_content is None:
                return following - 1
            if has_content:
                last = following
            elif following - last >= _ATTEMPTS:
                return last
        raise NotKeptError(f"over {_MOST_FILES:,} history files")

    async def _end(self, name: str, number: int, size: int) -> tuple[str, str | None]:
        """The path of the file to append to, and its content; the content is None if the file must be created."""
        path = self._path(name, number)
        content = await self._content(path)
        if content is None:
            return path, None
        is_full = not content or len(content.encode()) + size > _MAX_BYTES
        return (self._path(name, number + 1), None) if is_full else (path, content)

    def _path(self, name: str, number: int) -> str:
        return f"{self._directory}/{name}.md" if number == 1 else f"{self._directory}/{name}.{number}.md"

    async def _has_content(self, path: str) -> bool | None:
        """Whether there is more than an empty text; None if the path does not exist.

        Raises NotKeptError if the read fails in another way.
        """
        read = await self._backend.aread(path, 0, 1)
        if read.error is None:
            return bool(read.file_data and read.file_data.content)
        if read.code is ErrorCode.FILE_NOT_FOUND:
            return None
        if read.code in _UNREADABLE:
            return True
        raise NotKeptError(f"{path}: {read.error}")

    async def _content(self, path: str) -> str | None:
        """The text of a file; `""` for what cannot be appended to, None if the path does not exist."""
        (found,) = await self._backend.adownload_files([path])
        if found.content is not None:
            try:
                text = found.content.decode()
            except UnicodeDecodeError:
                return ""
            return "" if "\0" in text else text
        if found.error not in _NO_TEXT:
            raise NotKeptError(f"{path}: {found.error}")
        return None if found.error == ErrorCode.FILE_NOT_FOUND else ""


_UNREADABLE = frozenset({ErrorCode.IS_DIRECTORY, ErrorCode.INVALID_CONTENT, ErrorCode.TOO_LARGE, ErrorCode.BINARY_FILE})
"""The errors of a read of a path that exists, but is not readable text."""
_NO_TEXT = frozenset({ErrorCode.FILE_NOT_FOUND, ErrorCode.IS_DIRECTORY, ErrorCode.TOO_LARGE})
_CHANGED_MEANWHILE = frozenset(
    {
        ErrorCode.ALREADY_EXISTS,
        ErrorCode.AMBIGUOUS_MATCH,
        ErrorCode.CONFLICT,
        ErrorCode.FILE_NOT_FOUND,
        ErrorCode.NO_MATCH,
    }
)


# --- sections --------------------------------------------------------------------------------------------------------


class _Passage(NamedTuple):
    """A message as text, or a part of one that is larger than a file."""

    text: str
    mark: str
    """The text that shows that a file holds this passage; empty if nothing does."""
    part: str = ""
    """What the heading of its own section says about a part."""

    def is_in(self, content: str) -> bool:
        """Whether the content of a file holds this passage."""
        return bool(self.mark) and self.mark in content


def _passages(message: BaseMessage, transcript: Transcript) -> Iterator[_Passage]:
    text = transcript.render([message])
    parts = list(_parts(text))
    if len(parts) == 1:
        # In the text of a message, `<` is escaped, so no message holds the element of another.
        yield _Passage(text, text if message.id else "")
        return
    for number, part in enumerate(parts, 1):
        label = f"part {number} of {len(parts)}, {_digest(text)}"
        yield _Passage(f"{part}\n", label if message.id else "", f" ({label})")


def _parts(text: str) -> Iterator[str]:
    """Split the text into parts that fit into one file; usually there is one."""
    data, start = text.encode(), 0
    while start < len(data):
        end = min(start + _MAX_BYTES - _ANCHOR, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        yield data[start:end].decode()
        start = end


def _sections(passages: Iterable[_Passage]) -> Iterator[Sequence[_Passage]]:
    """Group the passages so that each group fits into one file; a part of a message is a group of its own."""
    group: list[_Passage] = []
    size = 0
    for passage in passages:
        length = len(passage.text.encode())
        if group and (passage.part or group[-1].part or size + length > _MAX_BYTES - _ANCHOR):
            yield group
            group, size = [], 0
        group.append(passage)
        size += length
    if group:
        yield group


def _section(passages: Sequence[_Passage]) -> str:
    time = datetime.now(UTC).isoformat(timespec="microseconds")
    end = "" if passages[0].part else "\n"
    return f"{section_heading(f'{time}{passages[0].part}')}{''.join(each.text for each in passages)}{end}"


def section_heading(time: str) -> str:
    """The heading of a section."""
    return f"## Summarized at {time}\n\n"
