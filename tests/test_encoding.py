"""Results and records in JSON, as endpoints of FastAPI and models of pydantic send them."""

import json
from typing import Any

import pydantic
import pytest

from deepfs import MemoryBackend
from deepfs.errors import ErrorCode
from deepfs.policy import AuditRecord, Change, UndoResult, Version
from deepfs.types import ChangeEvent, ExecuteResponse, FileInfo, GrepResult, ReadResult, Result

FILES = MemoryBackend(files={"/a.txt": "one\ntwo\n"})
ANSWERS: list[tuple[Any, dict[str, Any]]] = [
    (FILES.read("/none"), {"error": "Error: File '/none' not found", "code": "file_not_found"}),
    (FILES.grep("two"), {"matches": [{"path": "/a.txt", "line": 2, "text": "two"}]}),
    (FILES.write("/b", "x"), {"path": "/b"}),
    (FILES.upload_files([("/c", b"\xff")])[0], {"path": "/c"}),
    (FILES.download_files(["/c"])[0], {"path": "/c", "content": "/w=="}),
    (ExecuteResponse("done", exit_code=1), {"output": "done", "exit_code": 1}),
    (FileInfo("/d/", is_dir=True), {"path": "/d/", "is_dir": True}),
    (ChangeEvent("/a", "created"), {"path": "/a", "kind": "created"}),
    (Version(1, "2026-01-01"), {"number": 1, "saved_at": "2026-01-01"}),
    (
        Change("c", "write", ["/a"], "2026-01-01"),
        {"id": "c", "operation": "write", "paths": ["/a"], "changed_at": "2026-01-01"},
    ),
    (UndoResult("r", [], {"/a": ErrorCode.CONFLICT}), {"run": "r", "conflicts": {"/a": "conflict"}}),
    (
        AuditRecord("2026-01-01", "read", {"path": "/a"}, ok=True, seconds=0.5),
        {"at": "2026-01-01", "operation": "read", "arguments": {"path": "/a"}, "ok": True, "seconds": 0.5},
    ),
]


@pytest.mark.parametrize(("answer", "expected"), ANSWERS)
def test_answers_are_objects_of_their_fields(answer: Any, expected: dict[str, Any]) -> None:
    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(type(answer))
    sent = adapter.dump_json(answer)
    assert {name: value for name, value in json.loads(sent).items() if value} == expected
    assert json.loads(json.dumps(answer.to_dict())) == json.loads(sent)
    assert adapter.validate_json(sent) == answer
    assert "object" in str(adapter.json_schema(mode="serialization"))


def test_what_encodes_by_dict_finds_the_fields() -> None:
    found: GrepResult = FILES.grep("two")
    assert dict(found) == {"matches": found.matches, "truncated": False, "skipped": 0}
    assert found["matches"] is found.matches
    with pytest.raises(KeyError):
        found["nothing"]


def test_a_model_holds_results() -> None:
    class Answer(pydantic.BaseModel):
        read: ReadResult
        files: list[FileInfo]

    answer = Answer(read=FILES.read("/a.txt"), files=FILES.ls("/").unwrap())
    assert Answer.model_validate_json(answer.model_dump_json()) == answer
    with pytest.raises(pydantic.ValidationError):
        Answer.model_validate({"read": {"total_lines": "many"}, "files": []})


def test_the_base_encodes() -> None:
    assert Result(error="Error: x").to_dict() == {"error": "Error: x"}
