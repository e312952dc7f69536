"""A sandbox that lies: it answers each command with what a test says."""

import gzip
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from deepfs.errors import DeepFSError
from deepfs.sandboxes import wire
from deepfs.sandboxes.base import BaseSandbox
from deepfs.text.entries import EntryChange
from deepfs.types import ExecuteResponse

__all__ = ["LyingSandbox", "attempted", "framed", "operations"]


def words_of(command: str) -> list[bytes]:
    """The words of a command: the nonce, the length of a part, the operation and its arguments."""
    for prefix in wire._INTERPRETERS.values():
        if command.startswith(prefix):
            given = command[len(prefix) : command.index(" <<'")]
            return [b64decode(word.strip("'")) for word in given.split(" ")[1:]]
    raise AssertionError("the command runs no known script")


def framed(nonce: bytes, part: str, length: int, checksum: str, engine: str = "py") -> str:
    return f"@deepfs {nonce.decode()} {engine} {length} {checksum}\n{part}\n@end {nonce.decode()}\n"


def _checksum(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()


def operations(sandbox: BaseSandbox) -> list[Callable[[], Any]]:
    """Calls of all file operations."""
    checksum = sha256(b"one\ntwo\n").hexdigest()
    return [
        lambda: sandbox.als("/d"),
        lambda: sandbox.alist_tree("/d"),
        lambda: sandbox.aglob("**", "/d"),
        lambda: sandbox.agrep("o", "/d"),
        lambda: sandbox.agrep("o.e", "/d", regex=True),
        lambda: sandbox.aread("/d/a.txt"),
        lambda: sandbox.aread_raw("/d/e/b.bin"),
        lambda: sandbox.adownload_files(["/d/a.txt", "/d/none"]),
        lambda: sandbox.aresolve_paths(["/d/a.txt", "/d"]),
        lambda: sandbox.awrite("/d/new", "x"),
        lambda: sandbox.awrite("/d/a.txt", "x", if_match=checksum),
        lambda: sandbox.aedit("/d/c.txt", "one", "two"),
        lambda: sandbox.achange_entries([EntryChange("/d/m", "make_directory")]),
        lambda: sandbox.aupload_files([("/d/u", b"1"), ("/d/v", b"2")]),
        lambda: sandbox.amove("/d/u", "/d/w"),
        lambda: sandbox.acopy("/d/w", "/d/x"),
        lambda: sandbox.adelete("/d/x"),
    ]


class LyingSandbox(BaseSandbox):
    """A sandbox that answers each command with what `answer` makes of its words; counts its commands."""

    def __init__(self, answer: Callable[[list[bytes]], str | bytes | ExecuteResponse], root: str = "/work") -> None:
        super().__init__(root)
        self.answer = answer
        self.commands = 0
        self._calls._engine = "py"

    @property
    def id(self) -> str:
        return f"lying:{id(self)}"

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        self.commands += 1
        words = words_of(command)
        told = self.answer(words)
        if isinstance(told, ExecuteResponse):
            return told
        if isinstance(told, bytes):
            text = b64encode(gzip.compress(told, 1)).decode()
            told = framed(words[0], text[: self.answer_bytes], len(text), _checksum(text))
        return ExecuteResponse(told, 0)


async def attempted(call: Callable[[], Any]) -> Any:
    """The result of a call; an error of deepfs is one."""
    try:
        return await call()
    except DeepFSError as error:
        return error
