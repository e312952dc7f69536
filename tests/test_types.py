"""Records are immutable and read like dicts; results take their arguments as those of deepagents do."""

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from deepfs.errors import ErrorCode, NotFoundError
from deepfs.types import (
    ContextLine,
    DeleteResult,
    EditResult,
    FileDataV1,
    FileDataV2,
    FileInfo,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    Record,
    Result,
    WriteResult,
    failure,
)

STAMP = "2026-01-02T03:04:05.000006+00:00"

RECORDS: list[tuple[Record, dict[str, Any]]] = [
    (FileInfo("/a"), {"path": "/a"}),
    (FileInfo("/d/", is_dir=True), {"path": "/d/", "is_dir": True}),
    (FileInfo("/a", False, 0, STAMP), {"path": "/a", "is_dir": False, "size": 0, "modified_at": STAMP}),
    (ContextLine(1, ""), {"line": 1, "text": ""}),
    (GrepMatch("/a", 2, "x"), {"path": "/a", "line": 2, "text": "x"}),
    (
        GrepMatch("/a", 2, "x", [ContextLine(1, "w")], []),
        {"path": "/a", "line": 2, "text": "x", "context_before": [{"line": 1, "text": "w"}], "context_after": []},
    ),
    (FileDataV1(["a", ""], STAMP), {"content": ["a", ""], "created_at": STAMP}),
    (FileDataV2("a"), {"content": "a", "encoding": "utf-8"}),
    (
        FileDataV2("YQ==", "base64", STAMP, STAMP, "image/png"),
        {
            "content": "YQ==",
            "encoding": "base64",
            "created_at": STAMP,
            "modified_at": STAMP,
            "mime_type": "image/png",
        },
    ),
]

RESULTS: list[tuple[type[Result], Any]] = [
    (LsResult, [FileInfo("/a")]), (ReadResult, FileDataV2("a")), (ReadRawResult, FileDataV2("a")),
    (GrepResult, [GrepMatch("/a", 1, "a")]), (GlobResult, [FileInfo("/a")]), (WriteResult, "/a"),
    (EditResult, "/a"), (DeleteResult, "/a"),
]  # fmt: skip


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


class TestRecords:
    def test_records_are_mappings_of_the_fields_that_are_set(self) -> None:
        for record, items in RECORDS:
            assert isinstance(record, Mapping)
            assert dict(record) == {**record} == items
            assert list(record) == list(record.keys()) == list(items)
            assert list(record.values()) == list(items.values())
            assert list(record.items()) == list(items.items())
            assert len(record) == len(items)
            for key in (*({*record.__struct_fields__} - {*items}), "no such key", "get", 1):
                assert key not in record
                with pytest.raises(KeyError):
                    record[key]  # type: ignore[index]
            assert record

    def test_records_equal_dicts_of_the_same_items_both_ways(self) -> None:
        for record, items in RECORDS:
            assert record == items
            assert items == record
            assert (record != items) is False
            assert record != {**items, "more": 1}
            assert {**items, "more": None} != record
            assert record != list(items)
            assert record != None  # noqa: E711

    def test_json_and_copies_have_the_same_items(self) -> None:
        for record, items in RECORDS:
            encoded = msgspec.json.encode(record)
            assert msgspec.json.decode(encoded) == msgspec.to_builtins(record) == items
            assert msgspec.json.decode(encoded, type=type(record)) == record
            same = msgspec.convert(items, type(record))
            assert type(record)(**items) == record
            assert hash(record) == hash(same) == hash(copy.deepcopy(record))
            for copied in (same, copy.copy(record), copy.deepcopy(record), through_pickle(record)):
                assert type(copied) is type(record)
                assert copied == record == items

    def test_records_cannot_be_changed(self) -> None:
        for record, items in RECORDS:
            for name in (*record.__struct_fields__, "new"):
                with pytest.raises(AttributeError):
                    setattr(record, name, "x")
                with pytest.raises(TypeError):
                    record[name] = "x"  # type: ignore[index]
                with pytest.raises((AttributeError, TypeError)):
                    delattr(record, name)
            assert record == items


class TestResults:
    def test_the_error_comes_first_then_the_payload(self) -> None:
        for kind, payload in RESULTS:
            name = kind.__struct_fields__[1]
            failed, succeeded = kind("told"), kind(None, payload)
            assert (failed.error, getattr(failed, name), failed.ok) == ("told", None, False)
            assert (succeeded.error, getattr(succeeded, name), succeeded.ok) == (None, payload, True)
            assert succeeded == kind(**{name: payload}) == through_pickle(succeeded)

    def test_plain_dicts_become_records(self) -> None:
        info = {"path": "/a", "size": 1, "a later key": True}
        match = {"path": "/a", "line": 2, "text": "a", "context_before": [{"line": 1, "text": ""}]}
        results: list[Any] = [
            (LsResult(entries=[info]).entries, FileInfo),  # type: ignore[list-item]
            (GlobResult(matches=[FileInfo("/a", size=1), info]).matches, FileInfo),  # type: ignore[list-item]
            (GrepResult(matches=[match]).matches, GrepMatch),  # type: ignore[list-item]
            ((GrepResult(matches=[match]).matches or [])[0].context_before, ContextLine),  # type: ignore[list-item]
        ]
        for records, kind in results:
            assert {type(record) for record in records} == {kind}
        read = ReadResult(file_data={"content": "a", "encoding": "utf-8"})  # type: ignore[arg-type]
        assert type(read.file_data) is FileDataV2
        assert type(ReadRawResult(data={"content": "a"}).data) is FileDataV2  # type: ignore[arg-type]
        assert type(ReadRawResult(data={"content": ["a"]}).data) is FileDataV1  # type: ignore[arg-type]

    def test_a_failure_has_an_error_text_and_code(self) -> None:
        for kind, _ in RESULTS:
            failed = failure(kind, NotFoundError("/x"))
            assert type(failed) is kind
            told = ("Error: File '/x' not found", ErrorCode.FILE_NOT_FOUND, False)
            assert (failed.error, failed.code, failed.ok) == told
