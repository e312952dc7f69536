"""History files hold each message once, whatever happens while they are written."""

import re
from typing import Any

import anyio
import pytest
from langchain_core.messages import HumanMessage

from deepfs import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError
from deepfs.middleware.history_files import HistoryFiles, NotKeptError
from deepfs.testing import FaultyBackend, LatencyBackend
from deepfs.types import EditResult, FileDownloadResponse, ReadResult, WriteResult
from support.conversations import HISTORY, text_of

pytestmark = pytest.mark.anyio

MESSAGES = [HumanMessage(f"word {number}", id=f"m{number}") for number in range(9)]


def ids(files: BackendProtocol) -> list[str]:
    found = sorted(info.path for info in files.glob("*.md", "/conversation_history").matches or ())
    return [each for path in found for each in re.findall(r'id="(m\d)"', text_of(files, path))]


async def test_the_same_messages_are_written_once_also_at_once() -> None:
    files = MemoryBackend()
    history = HistoryFiles(LatencyBackend(files, 0.001))
    async with anyio.create_task_group() as group:
        for count in (3, 6, 9, 9):
            group.start_soon(history.append, "1", MESSAGES[:count])
    assert sorted(ids(files)) == [f"m{number}" for number in range(9)]
    assert await history.append("1", MESSAGES) == [HISTORY]


async def test_a_cancelled_write_is_made_good_by_the_next() -> None:
    files = MemoryBackend()
    history = HistoryFiles(LatencyBackend(files, {"write": 0, "edit": 0, "read": 0.005}))
    for delay in (0.001, 0.004, 0.006, 0.009, 0.012):
        with anyio.move_on_after(delay):
            await history.append("1", MESSAGES[:5])
    await history.append("1", MESSAGES)
    assert ids(files) == [f"m{number}" for number in range(9)]


@pytest.mark.parametrize("operation", ["write", "edit"])
async def test_a_lost_answer_does_not_double_messages(operation: str) -> None:
    files, lost = MemoryBackend(), {operation: BackendError("Error: connection lost")}
    history = HistoryFiles(FaultyBackend(files, lost, late=True))
    if operation == "edit":
        await HistoryFiles(files).append("1", MESSAGES[:2])
    with pytest.raises(NotKeptError):
        await history.append("1", MESSAGES)
    lost.clear()
    assert await history.append("1", MESSAGES) == [HISTORY]
    assert ids(files) == [f"m{number}" for number in range(9)]


async def test_messages_of_full_files_are_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepfs.middleware.history_files._MAX_BYTES", 3_000)
    files = MemoryBackend()
    history = HistoryFiles(files)
    large = [HumanMessage(f"{number}" + "ä<" * 2_000, id=f"m{number}") for number in range(3)]
    paths = await history.append("1", [*MESSAGES, *large[1:]])
    sizes = {info.path: info.size for info in files.ls("/conversation_history").entries or ()}
    assert paths == sorted(sizes, key=len)
    assert await history.append("1", [*MESSAGES, *large[1:]]) == paths
    same = HumanMessage(large[2].content, id="m2b")
    assert await history.append("1", [same]) != paths, "equal contents of other messages are written"
    assert max(size or 0 for size in sizes.values()) <= 3_000


async def test_messages_of_the_file_before_the_last_are_not_written_again() -> None:
    files = MemoryBackend()
    history = HistoryFiles(files)
    await history.append("1", MESSAGES[:5])
    files.write("/conversation_history/1.2.md", "of another run")
    assert await history.append("1", MESSAGES) == [HISTORY, "/conversation_history/1.2.md"]
    assert ids(files) == [f"m{number}" for number in (*range(5, 9), *range(5))]


class Lenient(BackendProtocol):
    """A storage after the documentation of deepagents, whose `read` answers a missing file with an empty text."""

    def __init__(self, text: str = "") -> None:
        self.files: dict[str, str] = {}
        self.text = text
        self.reads = 0

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        self.reads += 1
        return ReadResult(file_data={"content": self.files.get(file_path, self.text)})  # type: ignore[arg-type]

    def write(self, file_path: str, content: str) -> Any:
        self.files[file_path] = content
        return WriteResult(path=file_path)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> Any:
        self.files[file_path] = self.files[file_path].replace(old_string, new_string)
        return EditResult(path=file_path, occurrences=1)

    def download_files(self, paths: list[str]) -> Any:
        return [
            FileDownloadResponse(path, self.files[path].encode())
            if path in self.files
            else FileDownloadResponse(path, error="file_not_found")
            for path in paths
        ]


async def test_a_missing_file_that_reads_as_empty_text_ends_the_search_for_the_last() -> None:
    files = Lenient()
    for message in MESSAGES:
        assert await HistoryFiles(files).append("t", [message]) == ["/conversation_history/t.md"]
    assert [*files.files] == ["/conversation_history/t.md"]
    assert files.files["/conversation_history/t.md"].count("## Summarized") == len(MESSAGES)
    assert files.reads < 200 * len(MESSAGES)
