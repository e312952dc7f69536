"""`map_contents`, in a hook and in a layer: no way out of a backend shows the contents that it hides."""

import base64
import re
from typing import Any

import pytest

from deepfs import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.backends.wrapper import WrapperBackend
from deepfs.operations import DownloadStream, Operation, UploadStream
from deepfs.policy import Call, HookedBackend, map_contents
from deepfs.types import ExecuteResponse, FileDataV1, ReadRawResult, error_from

pytestmark = pytest.mark.anyio


def hide(text: str) -> str:
    return re.sub(r"token-\d+", "[hidden]", text)


def hide_result(call: Call, result: Any) -> Any:
    return map_contents(result, hide)


class Redacting(WrapperBackend):
    async def run(self, operation: Operation) -> Any:
        match operation:
            case UploadStream() | DownloadStream():
                return await BackendProtocol.run(self, operation)
        return map_contents(await super().run(operation), hide)


async def what_leaves(backend: BackendProtocol) -> dict[str, Any]:
    await backend.aupload_files([("/a.txt", b"one\ntoken-123\nthree\n"), ("/b.bin", b"\xff\x00 token-123")])
    (match,) = (await backend.agrep("token", "/a.txt")).unwrap()
    (beside,) = (await backend.agrep("one", context_lines=1)).unwrap()
    unlike = await backend.aedit("/a.txt", "one\ntoken-124\nthree\n", "x")
    return {
        "read": (await backend.aread("/a.txt")).unwrap().content,
        "read of a binary file": base64.b64decode((await backend.aread("/b.bin")).unwrap().content),
        "read_raw": (await backend.aread_raw("/a.txt")).unwrap().content,
        "a match": match.text,
        "a line beside a match": [line.text for line in beside.context_after or ()],
        "a failed edit": unlike.error,
        "its exception": str(error_from(unlike)),
        "downloads": [each.content for each in await backend.adownload_files(["/a.txt", "/b.bin"])],
        "a stream": b"".join([chunk async for chunk in backend.adownload_stream("/a.txt")]),
    }


@pytest.mark.parametrize(
    "layer", [Redacting, lambda inner: HookedBackend(inner, after=[hide_result])], ids=["layer", "hook"]
)
async def test_contents_are_hidden_wherever_they_leave(layer: Any) -> None:
    stored, shown = await what_leaves(MemoryBackend()), await what_leaves(layer(MemoryBackend()))
    assert [way for way, left in stored.items() if "token-123" not in repr(left)] == []
    assert [way for way, left in shown.items() if "token-123" in repr(left)] == []
    lineless = {"a failed edit", "its exception"}
    assert {way for way, left in shown.items() if "[hidden]" not in repr(left)} == lineless
    assert all("one" not in shown[way] for way in lineless)
    assert shown["read of a binary file"] == b"\xff\x00 [hidden]"


def test_what_else_has_contents() -> None:
    assert map_contents(ExecuteResponse("token-1", exit_code=0), hide) == ExecuteResponse("[hidden]", exit_code=0)
    old = ReadRawResult(data=FileDataV1(["a", "token-1"]))
    assert map_contents(old, hide) == ReadRawResult(data=FileDataV1(["a", "[hidden]"]))


async def test_all_else_stays() -> None:
    backend = MemoryBackend()
    for result in (await backend.awrite("/a", "x"), await backend.aread("/none"), await backend.als("/"), None):
        assert map_contents(result, hide) is result
