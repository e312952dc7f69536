"""History files hold each message once, whatever happens while they are written."""

import re

import anyio
import pytest
from langchain_core.messages import HumanMessage

from deepfs import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import BackendError
from deepfs.middleware.history_files import HistoryFiles, NotKeptError
from deepfs.testing import FaultyBackend, LatencyBackend
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
            group.start_soon(history.appended, "1", MESSAGES[:count])
    assert sorted(ids(files)) == [f"m{number}" for number in range(9)]
    assert await history.appended("1", MESSAGES) == [HISTORY]


async def test_a_cancelled_write_is_made_good_by_the_next() -> None:
    files = MemoryBackend()
    history = HistoryFiles(LatencyBackend(files, {"write": 0, "edit": 0, "read": 0.005}))
    for delay in (0.001, 0.004, 0.006, 0.009, 0.012):
        with anyio.move_on_after(delay):
            await history.appended("1", MESSAGES[:5])
    await history.appended("1", MESSAGES)
    assert ids(files) == [f"m{number}" for number in range(9)]


@pytest.mark.parametrize("operation", ["write", "edit"])
async def test_a_lost_answer_does_not_double_messages(operation: str) -> None:
    files, lost = MemoryBackend(), {operation: BackendError("Error: connection lost")}
    history = HistoryFiles(FaultyBackend(files, lost, late=True))
    if operation == "edit":
        await HistoryFiles(files).appended("1", MESSAGES[:2])
    with pytest.raises(NotKeptError):
        await history.appended("1", MESSAGES)
    lost.clear()
    assert await history.appended("1", MESSAGES) == [HISTORY]
    assert ids(files) == [f"m{number}" for number in range(9)]


async def test_messages_of_full_files_are_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepfs.middleware.history_files._MAX_BYTES", 3_000)
    files = MemoryBackend()
    history = HistoryFiles(files)
    large = [HumanMessage(f"{number}" + "ä<" * 2_000, id=f"m{number}") for number in range(3)]
    paths = await history.appended("1", [*MESSAGES, *large[1:]])
    sizes = {info.path: info.size for info in files.ls("/conversation_history").entries or ()}
    assert paths == sorted(sizes, key=len)
    assert await history.appended("1", [*MESSAGES, *large[1:]]) == paths
    same = HumanMessage(large[2].content, id="m2b")
    assert await history.appended("1", [same]) != paths, "equal contents of other messages are written"
    assert max(size or 0 for size in sizes.values()) <= 3_000
