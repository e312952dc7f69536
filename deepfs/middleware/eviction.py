"""Replaces a text that is too large for the model's context by its head and tail, and stores all of it in a file."""

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, TypeVar

from langchain_core.messages import BaseMessage, ToolMessage

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.middleware.rendering import output_and_notes
from deepfs.policy.permissions import approved
from deepfs.text.visible import fenced, one_line

__all__ = ["CHARS_PER_TOKEN", "Evictor"]

MessageT = TypeVar("MessageT", bound=BaseMessage)

CHARS_PER_TOKEN: Final = 4
_HEAD: Final = 1_000
_TAIL: Final = 500
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class Evictor:
    """Stores the texts of messages that are too long in files.

    The name of a file is made from a key and a hash of key and text: unsafe characters of the key are replaced, the
    same text of a key is stored once, and different texts have different names. If the text cannot be stored, or the
    model could not read the file, the message says so and keeps as much of head and tail as the limit allows.

    Args:
        backend: The backend that stores the files.
        token_limit: The longest text that stays in a message, in tokens of four characters.
        directory: The directory of the files.
    """

    def __init__(self, backend: BackendProtocol, token_limit: int, directory: str) -> None:
        self._backend = backend
        self._max_chars = token_limit * CHARS_PER_TOKEN
        self._directory = directory

    def is_oversized(self, message: BaseMessage) -> bool:
        """Whether the text of a message is over the limit.

        Args:
            message: The message.
        """
        return _length(message.content) > self._max_chars

    async def evicted(self, message: MessageT, key: str, reader: BackendProtocol | None = None) -> MessageT:
        """Store the text of a message that is over the limit. Blocks of media stay in the message.

        Args:
            message: The message.
            key: What the name of the file starts with.
            reader: The backend as the model has it, under the rules for the model; None is the backend that stores.

        Returns:
            The message, or a copy that names the file.
        """
        if not self.is_oversized(message):
            return message
        text, notes = _text_and_notes(message)
        path = f"{self._directory}/{_name(key, text)}"
        failed = await self._failure(path, "\n".join([text, *notes]), reader or self._backend)
        # Tools may have cut what they return.
        whole = "All that the tool returned" if isinstance(message, ToolMessage) else "All of it"
        preview = "\n".join([self._preview(text, path if failed is None else None, failed or whole), *notes])
        return message.model_copy(update={"content": _replaced(message.content, preview)})

    async def _failure(self, path: str, text: str, reader: BackendProtocol) -> str | None:
        """Store the text; return the reason if it cannot be stored, or if `reader` may not read the file."""
        try:
            return await _refused(reader, path) or await self._stored(path, _storable(text))
        except Exception as error:  # The tool's result must not be lost with a failing storage.
            return f"Error: {type(error).__name__}"

    async def _stored(self, path: str, text: str) -> str | None:
        written = await self._backend.awrite(path, text, overwrite=True)
        if written.code is not ErrorCode.UNSUPPORTED:
            return written.error
        created = await self._backend.awrite(path, text)
        # The name has a hash of the text, so an existing file holds the same text.
        return None if created.code is ErrorCode.ALREADY_EXISTS else created.error

    def _preview(self, text: str, path: str | None, about: str) -> str:
        """Head and tail of the text, which is stored at `path`, as `about` names it, or was not because of `about`."""
        lines = text.count("\n") + 1
        size = f"{len(text):,} characters, {lines:,} {'line' if lines == 1 else 'lines'}"
        if path is not None:
            note = f"[Too large to show: {size}. {about} is in {path}: page with read_file, or search with grep.]"
            head, tail = min(_HEAD, self._max_chars // 2), min(_TAIL, self._max_chars // 4)
        else:
            note = (
                f"[Too large to show: {size}. It could not be stored either ({one_line(about)}): the middle is lost.]"
            )
            head, tail = self._max_chars // 2, self._max_chars // 4
        left_out = f"[… {len(text) - head - tail:,} characters …]"
        start, end = fenced("text", text[:head], text[len(text) - tail :])
        return "\n".join([note, start, left_out, end])


async def _refused(reader: BackendProtocol, path: str) -> str | None:
    """The error if rules deny reading `path` even with a person's approval, otherwise None."""
    with approved():
        read = await reader.aread(path, 0, 1)
    return read.error if read.code is ErrorCode.PERMISSION_DENIED else None


# --- names -----------------------------------------------------------------------------------------------------------


def _name(key: str, text: str) -> str:
    digest = sha256(f"{key}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return "-".join(filter(None, [_UNSAFE.sub("_", key)[:48].strip("_"), digest]))


def _storable(text: str) -> str:
    """Replace the characters that no backend stores as text: NUL and lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


# --- the content of messages -----------------------------------------------------------------------------------------

Content = str | Sequence[str | dict[str, Any]]


def _texts(content: Content) -> list[str]:
    """The texts of the content, without its media."""
    if isinstance(content, str):
        return [content]
    return [text for text in map(_block_text, content) if text is not None]


def _block_text(block: Any) -> str | None:
    if isinstance(block, str):
        return block
    is_text = isinstance(block, dict) and isinstance(block.get("text"), str)
    return block["text"] if is_text else None


def _length(content: Content) -> int:
    return sum(map(len, _texts(content)))


def _text(content: Content) -> str:
    return "\n".join(_texts(content))


def _text_and_notes(message: BaseMessage) -> tuple[str, list[str]]:
    """The text of a message; of the result of a command, the output, and the notes that follow it."""
    text = _text(message.content)
    return output_and_notes(text) if isinstance(message, ToolMessage) and message.name == "execute" else (text, [])


def _replaced(content: Content, text: str) -> Any:
    """Replace all texts of the content by `text`, and keep its media."""
    if isinstance(content, str):
        return text
    media = [block for block in content if _block_text(block) is None]
    return [{"type": "text", "text": text}, *media] if media else text
