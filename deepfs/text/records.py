"""Files as records: how they are stored, and how a read shows them."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, cast, get_args

from msgspec.structs import asdict

from deepfs.errors import InvalidContentError, TooLargeError, error_about, quote
from deepfs.text import media, paths
from deepfs.text.lines import Window, check_text, decode, facts, is_text, utf8_size, version, window
from deepfs.types import Encoding, FileDataV1, FileDataV2, FileFormat, ReadResult

FileContent: TypeAlias = FileDataV2 | FileDataV1 | Mapping[str, Any] | str | bytes
"""A file: a record, the dict of a record as graph state has it, a text, or bytes."""

_ENCODINGS: Final = get_args(Encoding)
_PLAIN_FIELDS: Final = 4
"""The number of fields of a file without a MIME type, which is the usual one."""
_BASE64_SPACE = " \t\r\n"


def timestamp() -> str:
    """Now as ISO 8601, UTC, with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def time_text(time: datetime) -> str:
    """A time as files have it: ISO 8601, UTC, with microseconds. Without a time zone it is taken for UTC."""
    given = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return given.isoformat(timespec="microseconds")


def new_file(
    content: str | bytes, *, created_at: str | None = None, now: str | None = None, mime_type: str | None = None
) -> FileDataV2:
    """A file modified `now` with `content`; bytes are stored as text where they are text, else as base64.

    `created_at` defaults to `now`. Raises InvalidContentError for a str that is not text.
    """
    now = now or timestamp()
    if isinstance(content, str):
        check_text(content)
        encoding: Encoding = "utf-8"
    else:
        content, encoding = _encode(content)
    return FileDataV2(content, encoding, created_at or now, now, mime_type)


def text_file(text: str, created_at: str | None) -> FileDataV2:
    """As `new_file`, of what was found to be text already: for a long one, that takes time."""
    now = timestamp()
    return FileDataV2(text, "utf-8", created_at or now, now)


def decode_file(value: Mapping[str, Any], path: str) -> FileDataV2:
    """The file stored as `value` at `path`; unknown keys are ignored, timestamps may be missing.

    Raises InvalidContentError, which names the malformed field. Base64 is not validated here, but when it is decoded.
    """
    if isinstance(value, FileDataV2):
        return value
    if type(value) is dict and (data := _plain_file(value)) is not None:
        return data
    if not isinstance(value, Mapping):
        raise _malformed_error(path, "the file", "a mapping", value)
    content, encoding = _decode_content(value, path)
    mime_type = _optional_text(value, "mime_type", path) or _optional_text(value, "mimeType", path)
    created_at, modified_at = (_optional_text(value, field, path) for field in ("created_at", "modified_at"))
    return FileDataV2(content, encoding, created_at, modified_at, mime_type)


def decode_files(files: Mapping[str, FileContent]) -> dict[str, FileDataV2]:
    """The files in `files`, by their normalised paths. Base64 is validated.

    Raises:
        TypeError: `files` is no mapping, a path is no string, or a file is of another type.
        ValueError: A path is invalid, that of a file and of a directory, or there twice; or a record is malformed.
    """
    if not isinstance(files, Mapping):
        raise TypeError(f"files must be a mapping of paths to files, not {type(files).__name__}")
    decoded: dict[str, FileDataV2] = {}
    for given, value in files.items():
        if not isinstance(given, str):
            raise TypeError(f"the paths of files must be strings, not {type(given).__name__}")
        path = paths.normalize(given)
        if path in decoded:
            raise ValueError(f"files has {quote(path)} twice, in different spellings")
        decoded[path] = _file_given(value, path)
    for path in decoded:
        if above := [directory for directory in ("/", *paths.ancestors(path)) if directory in decoded]:
            raise ValueError(f"files has {quote(above[0])}, a directory, as a file")
    return decoded


def _file_given(value: FileContent, path: str) -> FileDataV2:
    try:
        if isinstance(value, str | bytes):
            return new_file(value)
    except InvalidContentError as error:
        raise error_about(error.code, path, error.reason) from None
    if not isinstance(value, Mapping):
        raise TypeError(f"the file {quote(path)} must be a record, a dict, a text or bytes, not {type(value).__name__}")
    file = decode_file(value, path)
    content_bytes(file, path)
    return file


def _plain_file(value: dict[str, Any]) -> FileDataV2 | None:
    """The file, if `value` has exactly the form that deepfs writes; this takes a third of the time of a full check."""
    content: Any = value.get("content")
    encoding: Any = value.get("encoding")
    created_at, modified_at = value.get("created_at"), value.get("modified_at")
    is_plain = type(content) is type(created_at) is type(modified_at) is str and len(value) == _PLAIN_FIELDS
    if not is_plain or encoding not in _ENCODINGS:
        return None
    return FileDataV2(content, encoding, created_at, modified_at)


def to_v1(data: FileDataV2, path: str = "") -> FileDataV1:
    """`data` in the legacy form, which holds text only: InvalidContentError for a binary file."""
    text = data.content if data.encoding == "utf-8" else decode(content_bytes(data, path))
    if text is None:
        raise InvalidContentError(path, "it is binary; the file format v1 holds text only.")
    return FileDataV1(text.split("\n"), data.created_at, data.modified_at)


def encode_file(data: FileDataV2, file_format: FileFormat = "v2", path: str = "") -> dict[str, Any]:
    """The plain dict to store; a field that is not set is absent."""
    if file_format == "v1" or data.mime_type is not None or data.created_at is None or data.modified_at is None:
        fields = asdict(to_v1(data, path) if file_format == "v1" else data)
        return {name: value for name, value in fields.items() if value is not None}
    return {  # The usual file, without a loop.
        "content": data.content,
        "encoding": data.encoding,
        "created_at": data.created_at,
        "modified_at": data.modified_at,
    }


def content_bytes(data: FileDataV2, path: str = "") -> bytes:
    """The bytes of the file. Raises InvalidContentError if its base64 is invalid."""
    if data.encoding == "utf-8":
        return data.content.encode("utf-8", "surrogatepass")
    try:
        return b64decode("".join(data.content.split()), validate=True)
    except ValueError as error:
        raise InvalidContentError(path, f"it is stored as invalid base64: {error}") from error


def size_of(data: FileDataV2) -> int:
    """The size of the file in bytes, computed without decoding it."""
    content = data.content
    if data.encoding == "utf-8":
        return utf8_size(content)
    digits = len(content) - sum(map(content.count, _BASE64_SPACE))
    return max(0, digits * 3 // 4 - content.count("="))


def text_of(data: FileDataV2, path: str) -> str | None:
    """The text of the file, with its BOM; None if it is binary by the name in `path` or by content."""
    if media.is_binary_name(path):
        return None
    if data.encoding == "utf-8":
        return data.content if is_text(data.content) else None
    return decode(content_bytes(data, path))


def searchable_content(data: FileDataV2, path: str = "") -> str | bytes:
    """The content in its cheapest form: text as stored, or bytes."""
    return data.content if data.encoding == "utf-8" else content_bytes(data, path)


def _decode_content(value: Mapping[str, Any], path: str) -> tuple[str, Encoding]:
    content = value.get("content")
    if isinstance(content, str):
        return content, _encoding(value, path)
    if isinstance(content, list | tuple) and all(isinstance(line, str) for line in content):
        return "\n".join(content), _encoding(value, path)
    data = _bytes(content)
    if data is None:
        raise _malformed_error(path, "content", "a text, a list of lines or bytes", content)
    return _encode(data)


def _encoding(value: Mapping[str, Any], path: str) -> Encoding:
    encoding = value.get("encoding", "utf-8")
    if encoding not in _ENCODINGS:
        raise _malformed_error(path, "encoding", "'utf-8' or 'base64'", encoding)
    return cast("Encoding", encoding)


def _encode(content: bytes) -> tuple[str, Encoding]:
    text = decode(content)
    return (b64encode(content).decode("ascii"), "base64") if text is None else (text, "utf-8")


def _bytes(content: object) -> bytes | None:
    """The bytes of a bytes-like object, or of a JavaScript array, in JSON an object of its indices; else None."""
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    if not isinstance(content, Mapping):
        return None
    try:
        return bytes(content[str(index)] for index in range(len(content)))
    except (KeyError, TypeError, ValueError):
        return None


def _optional_text(value: Mapping[str, Any], field: str, path: str) -> str | None:
    text = value.get(field)
    if text is None or isinstance(text, str):
        return text
    raise _malformed_error(path, field, "a text", text)


def _malformed_error(path: str, field: str, expected: str, value: object) -> InvalidContentError:
    found = quote(value) if isinstance(value, str) else type(value).__name__
    return InvalidContentError(path, f"it is malformed: {field} is {found}, not {expected}.")


MAX_WINDOW_BYTES = 10 * 1024 * 1024
"""The largest window of text that a read returns."""
_LONGEST_CHARACTER = 4


def read_text(path: str, text: str, offset: int, limit: int, *, at: FileDataV2) -> ReadResult:
    """Lines `offset` to `offset + limit` of `text`, with the timestamps of `at`.

    Raises TooLargeError if they are over `MAX_WINDOW_BYTES`.
    """
    known = facts(text)
    shown = window(text, offset, limit, known.lines)
    if len(shown.text) > MAX_WINDOW_BYTES // _LONGEST_CHARACTER and utf8_size(shown.text) > MAX_WINDOW_BYTES:
        raise TooLargeError(path, utf8_size(text), MAX_WINDOW_BYTES)
    data = FileDataV2(shown.text, "utf-8", at.created_at, at.modified_at, media.mime_type(path))
    return read_window(data, shown, known.version)


def read_window(data: FileDataV2, shown: Window, content_version: str) -> ReadResult:
    """The result of a read of the window `shown`, whose lines `data` holds."""
    return ReadResult(
        file_data=data,
        start_line=shown.start_line,
        end_line=shown.end_line,
        total_lines=shown.total_lines,
        next_offset=shown.next_offset,
        version=content_version,
    )


def read_binary(path: str, content: bytes, *, at: FileDataV2, content_version: str, limit: int) -> ReadResult:
    """The whole binary file as base64. Raises TooLargeError if it is over `limit` bytes."""
    if len(content) > limit:
        raise TooLargeError(path, len(content), limit)
    mime_type = media.mime_type(path) if media.is_binary_name(path) else media.sniff(content)
    encoded = b64encode(content).decode("ascii")
    data = FileDataV2(encoded, "base64", at.created_at, at.modified_at, mime_type)
    return ReadResult(file_data=data, version=content_version)


def read_data(path: str, data: FileDataV2, offset: int, limit: int, *, max_binary: int) -> ReadResult:
    """The result of a read of a file whose whole content is in memory."""
    text = text_of(data, path)
    if text is not None:
        return read_text(path, text, offset, limit, at=data)
    content = content_bytes(data, path)
    return read_binary(path, content, at=data, content_version=version(content), limit=max_binary)
