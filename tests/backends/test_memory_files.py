"""A MemoryBackend begins with given files, such as those of a LangGraph run, and gives them back as state."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from deepfs import MemoryBackend
from deepfs.types import FileDataV1, FileDataV2

CREATED, MODIFIED = "2024-01-02T03:04:05.000006+00:00", "2025-01-02T03:04:05.000006+00:00"
TIMES = {"created_at": CREATED, "modified_at": MODIFIED}

GIVEN: dict[str, Any] = {
    "/v2.txt": {"content": "two\n", "encoding": "utf-8", **TIMES},
    "/v1.txt": {"content": ["one", ""], **TIMES},
    "/binary": {"content": "AP8=", "encoding": "base64", **TIMES},
    "/dir/record": FileDataV2("record\n", "utf-8", CREATED, MODIFIED, "text/x-own"),
    "/dir/old": FileDataV1(["old", ""], CREATED, MODIFIED),
    "text": "text\n",
    "//dir//bytes": b"\x00\xff",
}
CONTENTS = {
    "/v2.txt": b"two\n",
    "/v1.txt": b"one\n",
    "/binary": b"\x00\xff",
    "/dir/record": b"record\n",
    "/dir/old": b"old\n",
    "/text": b"text\n",
    "/dir/bytes": b"\x00\xff",
}


def contents(files: MemoryBackend) -> Mapping[str, bytes]:
    names = [info.path for info in files.glob("**").unwrap()]
    return {item.path: item.unwrap() for item in files.download_files(names)}


def test_every_form_of_a_file_is_taken_with_its_times() -> None:
    files = MemoryBackend(files=GIVEN)
    assert contents(files) == CONTENTS
    assert [entry.path for entry in files.ls("/dir").unwrap()] == ["/dir/bytes", "/dir/old", "/dir/record"]
    for path in ("/v2.txt", "/v1.txt", "/binary", "/dir/record", "/dir/old"):
        raw = files.read_raw(path).unwrap()
        assert (raw.created_at, raw.modified_at) == (CREATED, MODIFIED), path
    assert files.read_raw("/text").unwrap().created_at is not None


WRONG: list[tuple[Any, type[Exception], str]] = [
    (["/a"], TypeError, "files must be a mapping of paths to files, not list"),
    ({1: "x"}, TypeError, "the paths of files must be strings, not int"),
    ({"/../a": "x"}, ValueError, "Invalid path '/../a'"),
    ({"/a\0": "x"}, ValueError, "Invalid path"),
    ({"/": "x"}, ValueError, "files has '/', a directory, as a file"),
    ({"": "x"}, ValueError, "files has '/', a directory, as a file"),
    ({"/a/b/c": "x", "/a": "x"}, ValueError, "files has '/a', a directory, as a file"),
    ({"/a": "x", "a/": "y"}, ValueError, "files has '/a' twice, in different spellings"),
    ({"/a": None}, TypeError, "the file '/a' must be a record, a dict, a text or bytes, not NoneType"),
    ({"/a": ["x"]}, TypeError, "the file '/a' must be a record, a dict, a text or bytes, not list"),
    ({"/a": {}}, ValueError, "Invalid content of '/a': it is malformed: content is NoneType"),
    ({"/a": {"content": "x", "encoding": "latin-1"}}, ValueError, "'/a': it is malformed: encoding is 'latin-1'"),
    ({"/a": {"content": "x", "created_at": 1}}, ValueError, "'/a': it is malformed: created_at is int"),
    ({"/a": {"content": "!", "encoding": "base64"}}, ValueError, "'/a': it is stored as invalid base64"),
    ({"/a": FileDataV2("!", "base64")}, ValueError, "'/a': it is stored as invalid base64"),
    ({"/a": "\ud800"}, ValueError, "Invalid content of '/a'"),
]


def test_what_is_no_file_is_an_error_that_names_it() -> None:
    for given, kind, told in WRONG:
        with pytest.raises(kind) as raised:
            MemoryBackend(files={"/good": "x", **given} if isinstance(given, dict) else given)
        assert told in str(raised.value)


def test_files_are_given_back_as_plain_data() -> None:
    files = MemoryBackend(files=GIVEN)
    exported = files.to_files()
    assert list(exported) == sorted(CONTENTS)
    assert exported["/v1.txt"] == {"content": "one\n", "encoding": "utf-8", **TIMES}
    again = MemoryBackend(files=json.loads(json.dumps(exported)))
    assert again.to_files() == exported
    assert contents(again) == CONTENTS
    exported["/v2.txt"]["content"] = "changed"
    assert contents(files) == CONTENTS
