"""Each operation leaves a record that can be stored, whatever texts and values it is called with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.policy import AuditedBackend, AuditRecord

pytestmark = pytest.mark.anyio

HOSTILE = ["\ud800", "\udcff\udcff", "/a\ud83d", "\0", "\n\r\u2028", "\x1b[2J", "\u202e", "x" * 5_000_000, ""]


class Log(list[dict[str, Any]]):
    """Stores each record as a log does: as a line of JSON."""

    def __call__(self, record: AuditRecord) -> None:
        line = msgspec.json.encode(record)
        assert b"\n" not in line
        assert len(line) < 200_000
        self.append(msgspec.json.decode(line))


async def test_every_operation_has_a_record_whatever_the_text(tmp_path: Path) -> None:
    for text in HOSTILE:
        text = text if len(text) < 1_000 else "x" * 5_000_000
        log = Log()
        backend = AuditedBackend(LocalShellBackend(tmp_path), log)
        await backend.als(text)
        await backend.aread(text)
        await backend.aread_raw(text)
        await backend.awrite("/a", text)
        await backend.awrite(text, "x", overwrite=True)
        await backend.awrite("/a", "x", if_match=text)
        await backend.aedit("/a", text, "x")
        await backend.aedit("/a", "x", text)
        await backend.aglob(text)
        await backend.agrep(text, text, text)
        await backend.adelete("/b", if_match=text)
        await backend.amove(text, text)
        await backend.acopy("/b", text)
        await backend.aupload_files([(text, b"x"), ("/b", b"x")])
        await backend.adownload_files([text])
        with_error = [name for name, call in (("execute", backend.aexecute),) if not await runs(call, f"true {text}")]
        assert [entry["operation"] for entry in log] == [
            *("ls", "read", "read_raw", "write", "write", "write", "edit", "edit", "glob", "grep", "delete", "move"),
            *("copy", "upload_files", "download_files", "execute"),
        ]
        assert all(log[-1]["error"] for _ in with_error)


async def runs(call: Callable[[str], Any], command: str) -> bool:
    try:
        await call(command)
    except (ValueError, UnicodeError):
        return False
    return True


async def test_a_record_tells_what_was_cut_of_it() -> None:
    log = Log()
    await AuditedBackend(MemoryBackend(), log).agrep("x" * 5_000_000)
    assert log[0]["arguments"]["pattern"].startswith("xxx")
    assert log[0]["arguments"]["pattern"].endswith("[5,000,000 characters]")
    assert len(log[0]["arguments"]["pattern"]) < 11_000
