"""The text of PDF and Word documents, for models that do not take these."""

import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread
from typing import IO, Final

from deepfs.errors import InvalidContentError, NotSupportedError
from deepfs.sync import is_inline
from deepfs.text.documents import Status
from deepfs.text.media import mime_type, sniff
from deepfs.threads import pool
from deepfs.threads.deadline import Deadline

MAX_SECONDS: Final = 20
"""The longest time for the text of a document."""
_STEP_S: Final = 0.05
_WORD: Final = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_HEAD: Final = 1024
"""Characters of base64 that show the format; a multiple of four."""
_REASONS: Final[Mapping[int, str]] = {
    Status.DAMAGED: "it is damaged, or not of the format that its name says",
    Status.TOO_LARGE: "it takes too much memory",
    Status.ENCRYPTED: "it is protected by a password",
}


def document_kind(path: str, content: str) -> str:
    """`pdf` or `docx`, by the content (base64) and, of an archive, by the name; `""` for another format."""
    kind = sniff(b64decode(content[:_HEAD]))
    if kind == "application/pdf":
        return "pdf"
    return "docx" if kind == "application/zip" and mime_type(path) == _WORD else ""


async def document_text(path: str, content: str, kind: str) -> str:
    """The text of a document, read by a process that is killed after `MAX_SECONDS` and limited in memory.

    Args:
        path: Its path, for errors.
        content: The document in base64.
        kind: As `document_kind` returns it.

    Raises:
        InvalidContentError: If the document cannot be read.
        NotSupportedError: If what reads it is not installed, or cannot be started.
        DeadlineError: If its time is up.
    """
    if is_inline():
        return _read(Deadline(MAX_SECONDS), path, content, kind)
    return await pool.run_long(_read, path, content, kind, timeout=MAX_SECONDS)


def _read(deadline: Deadline, path: str, content: str, kind: str) -> str:
    # The process finds the packages that this one has, and nothing in the directory that it starts in.
    command = [sys.executable, "-P", "-m", "deepfs.text.documents", kind]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env)
    except OSError as error:
        raise NotSupportedError(path, "no process can be started that reads it") from error
    with process:
        text = _communicate(process, b64decode(content), deadline, path)
    if process.returncode == Status.NEEDS_PYPDF:
        raise NotSupportedError(path, 'the text of PDF needs pypdf: pip install "deepfs[documents]"')
    if process.returncode != Status.DONE:
        raise InvalidContentError(path, _REASONS.get(process.returncode, _REASONS[Status.DAMAGED]))
    return text.decode(errors="replace")


def _communicate(process: "subprocess.Popen[bytes]", content: bytes, deadline: Deadline, path: str) -> bytes:
    # A thread sends the input, since `communicate(timeout=…)` sends no more of it after its first timeout.
    stdin, process.stdin = process.stdin, None
    try:
        Thread(target=_send, args=(stdin, content), daemon=True).start()
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=_STEP_S)[0]
            deadline.check(path)
    finally:
        process.kill()


def _send(stdin: IO[bytes] | None, content: bytes) -> None:
    assert stdin is not None
    with suppress(OSError), stdin:  # The process may end before it has read all.
        stdin.write(content)
