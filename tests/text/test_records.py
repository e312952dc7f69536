import json
from base64 import b64encode
from datetime import UTC, datetime
from types import MappingProxyType, SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepfs.errors import InvalidContentError
from deepfs.text import records
from deepfs.text.lines import decode
from deepfs.text.records import (
    content_bytes,
    decode_file,
    encode_file,
    new_file,
    searchable_content,
    size_of,
    text_of,
    timestamp,
    to_v1,
)
from deepfs.types import FileDataV1, FileDataV2

PNG = b"\x89PNG\r\n\x1a\n\0"
CREATED = "2026-01-02T03:04:05.000006+00:00"
MODIFIED = "2026-02-03T04:05:06.000007+00:00"

contents = st.binary(max_size=40) | st.text(max_size=40).filter(lambda text: "\0" not in text)


# --- decoding ---


STORED = [
    ({"content": "a\nb"}, FileDataV2("a\nb")),
    ({"content": "a", "encoding": "utf-8", "created_at": CREATED}, FileDataV2("a", "utf-8", CREATED)),
    ({"content": "AA==", "encoding": "base64", "mime_type": "x/y"}, FileDataV2("AA==", "base64", mime_type="x/y")),
    ({"content": ["a", "b", ""], "modified_at": MODIFIED}, FileDataV2("a\nb\n", modified_at=MODIFIED)),
    ({"content": []}, FileDataV2("")),
    ({"content": "é", "mimeType": "text/plain"}, FileDataV2("é", mime_type="text/plain")),
    ({"content": "é".encode(), "mimeType": "text/plain"}, FileDataV2("é", mime_type="text/plain")),
    ({"content": bytearray(PNG), "mimeType": "x/y"}, FileDataV2("iVBORw0KGgoA", "base64", mime_type="x/y")),
    ({"content": memoryview(PNG)}, FileDataV2("iVBORw0KGgoA", "base64")),
    ({"content": {"0": 0, "1": 255}}, FileDataV2("AP8=", "base64")),
    ({"content": "a", "created_at": None, "modified_at": None, "later": {"x": 1}}, FileDataV2("a")),
    (MappingProxyType({"content": "a"}), FileDataV2("a")),
    (FileDataV1(["a", "b"], CREATED, MODIFIED), FileDataV2("a\nb", "utf-8", CREATED, MODIFIED)),
]


def test_every_stored_format_is_decoded() -> None:
    assert [(stored, expected) for stored, expected in STORED if decode_file(stored, "/f") != expected] == []


MALFORMED = [
    ({}, "content is NoneType"),
    ({"content": 5}, "content is int"),
    ({"content": ["a", 1]}, "content is list"),
    ({"content": {"type": "Buffer"}}, "content is dict"),
    ({"content": {"0": 256}}, "content is dict"),
    ({"content": {"1": 1}}, "content is dict"),
    ({"content": "a", "encoding": "latin-1"}, "encoding is 'latin-1'"),
    ({"content": "a", "encoding": 8}, "encoding is int"),
    ({"content": "a", "encoding": ["utf-8"]}, "encoding is list"),
    ({"content": "a", "created_at": 17}, "created_at is int"),
    ({"content": "a", "modified_at": []}, "modified_at is list"),
    ({"content": "a", "mimeType": 1}, "mimeType is int"),
    (["a"], "the file is list"),
]


def test_a_malformed_record_is_refused_with_its_field_and_path(subtests: pytest.Subtests) -> None:
    for stored, field in MALFORMED:
        with (
            subtests.test(stored=stored, field=field),
            pytest.raises(
                InvalidContentError, match=f"^Error: Invalid content of '/dir/f': it is malformed: {field}, not"
            ),
        ):
            decode_file(stored, "/dir/f")


# --- new files ---


def test_a_timestamp_has_six_digits_whatever_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    monkeypatch.setattr(records, "datetime", SimpleNamespace(now=lambda zone: now.astimezone(zone)))
    assert timestamp() == "2026-01-02T03:04:05.000000+00:00"


@given(contents)
def test_content_round_trips(content: str | bytes) -> None:
    raw = content.encode() if isinstance(content, str) else content
    data = new_file(content)
    assert data.encoding == ("base64" if decode(raw) is None else "utf-8")
    assert content_bytes(data) == raw
    assert size_of(data) == len(raw)
    assert text_of(data, "/f") == decode(raw)
    assert searchable_content(data) in (raw, decode(raw))
    assert decode_file(encode_file(data), "/f") == data


def test_a_new_file_is_created_now_unless_created_at_is_given() -> None:
    assert new_file("a", now=MODIFIED) == FileDataV2("a", "utf-8", MODIFIED, MODIFIED)
    assert new_file("a", created_at=CREATED, now=MODIFIED).created_at == CREATED
    stamped = new_file(PNG, mime_type="image/png")
    assert stamped.created_at == stamped.modified_at is not None
    assert stamped.mime_type == "image/png"


def test_new_text_must_be_text(subtests: pytest.Subtests) -> None:
    for content in ["a\0", "\udcff"]:
        with subtests.test(content=content), pytest.raises(InvalidContentError):
            new_file(content)


# --- encoding ---


@given(st.text(st.sampled_from("a\n\r\u2028"), max_size=20))
def test_v1_round_trips_text(text: str) -> None:
    stored = encode_file(FileDataV2(text, "utf-8", CREATED, MODIFIED), "v1")
    assert stored == {"content": text.split("\n"), "created_at": CREATED, "modified_at": MODIFIED}
    assert decode_file(stored, "/f") == FileDataV2(text, "utf-8", CREATED, MODIFIED)


def test_v1_accepts_text_that_is_stored_as_base64() -> None:
    assert to_v1(FileDataV2(b64encode(b"a\nb").decode(), "base64")) == FileDataV1(["a", "b"])


def test_v1_refuses_binary() -> None:
    with pytest.raises(InvalidContentError, match=r"'/f\.png': it is binary"):
        encode_file(new_file(PNG), "v1", "/f.png")


def test_stored_v2_is_the_plain_dict_that_deepagents_reads() -> None:
    stored = encode_file(FileDataV2("a", "utf-8", CREATED, MODIFIED))
    assert type(stored) is dict
    assert stored == {"content": "a", "encoding": "utf-8", "created_at": CREATED, "modified_at": MODIFIED}
    assert json.loads(json.dumps(stored)) == msgspec.json.decode(msgspec.json.encode(stored)) == stored
    assert encode_file(FileDataV2("AA==", "base64", mime_type="image/png")) == {
        "content": "AA==",
        "encoding": "base64",
        "mime_type": "image/png",
    }


# --- content ---


def test_invalid_base64_is_an_error_when_the_content_is_used(subtests: pytest.Subtests) -> None:
    for content in ["AA", "A", "A===", "é", "AA==AA==", "$$$$"]:
        with subtests.test(content=content):
            data = decode_file({"content": content, "encoding": "base64"}, "/f")
            with pytest.raises(InvalidContentError, match="'/f': it is stored as invalid base64"):
                content_bytes(data, "/f")


def test_base64_may_contain_line_breaks_and_spaces() -> None:
    data = FileDataV2("iVBO\r\nRw0K\n GgoA\n", "base64")
    assert content_bytes(data) == PNG
    assert size_of(data) == len(PNG)


BINARY = [
    (FileDataV2("a\0b"), "/f"),
    (FileDataV2("a\ud800"), "/f"),
    (new_file(PNG), "/f"),
    (FileDataV2("text"), "/f.png"),
]


def test_binary_by_content_or_name_has_no_text() -> None:
    assert [(data, path) for data, path in BINARY if text_of(data, path) is not None] == []


def test_stored_lone_surrogates_do_not_break_size_and_bytes() -> None:
    data = FileDataV2("a\ud800")
    assert size_of(data) == len(content_bytes(data)) == 4
