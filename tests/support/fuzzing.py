"""Random calls of every operation of a backend, with arguments of right and wrong types."""

import math
import secrets
from collections.abc import AsyncIterator, Sequence
from pathlib import PurePosixPath
from random import Random
from typing import Any

import pytest

from deepfs import run_sync
from deepfs.errors import DeepFSError, ErrorCode

__all__ = ["fuzz", "seed_of"]


class Text(str):
    """A text of a derived class."""


WRONG: Sequence[Any] = [
    *(None, 3, -1, 2**70, 3.5, math.nan, math.inf, True, b"/a", bytearray(b"x"), [], ["/a"], [None], [("/a",)]),
    *({}, {"/a": b"x"}, (), object(), PurePosixPath("/a"), Exception("x"), int, print, [[1, 2]], [("/a", "text")]),
]
PATHS = [
    *("/a", "/d/b", "/d", "/", "", "a", "//", "/./a", "/../a", "..", "~", "~root/x", "/a/b/c", "/no/x", "/ask/x"),
    *("C:\\x", "\\\\host\\x", "/\0", "/\ud800", "/\udcff\udcff", "/é", "/\n", "/\r[x]", "/\u2028", "/\u202e", "/a "),
    *("/" + "x" * 255, "/" + "x" * 256, "/x" * 3_000, "/" + "é" * 128, "x" * 1_000_000, "/.git", "/.gitignore"),
    *(
        "/disk/a",
        "/disk",
        "/store/a",
        "/store/d/b",
        "/ruled/no/x",
        "/.history/x",
        "/.~deepfs-0123456789abcdef",
        Text("/a"),
    ),
]
TEXTS = [
    *(
        "",
        "one",
        "two\n",
        "one\ntwo\n",
        "\n",
        "\r\n",
        "\r",
        "\0",
        "\ud800",
        "\ufeff",
        "\ufeffone",
        "é" * 100,
        Text("one"),
    ),
    *("x" * 300_000, "\n" * 5_000, "one\r\ntwo\n" * 500, "\x1b[0m", "</file>", "!*\n[a-\n**/\n"),
]
PATTERNS = [
    *(
        "**",
        "*.py",
        "*",
        "a",
        "",
        "[",
        "[a-",
        "{a,b}",
        "{" * 60,
        "{a,b}" * 12,
        "*" * 400,
        "**/" * 120,
        "../*",
        "/",
        "!",
        "\0",
    ),
    *(
        "\ud800",
        "(",
        "(a*)*b",
        "(?=a)",
        "a{1001}",
        "(a{99}){99}",
        "\\",
        "\\C",
        "one",
        "one\ntwo",
        "x" * 100_000,
        Text("one"),
    ),
]
NUMBERS = [0, 1, 2, -1, 2_000, 1_001, 2**31, 2**63, 2**70, -(2**70)]
VERSIONS = [None, "", "0" * 32, "x" * 100_000, "\ud800", "\0"]
SWITCHES = [True, False]
TIMES = [None, 1, 5.5, 1e300, math.inf]
COMMANDS = ["true", "", "exit 3", "\0", "\ud800", "x" * 300_000, "printf '\\377\\n' >&2", "sleep 0 &", "cd /; true"]
"""Commands run on this machine, so they are no random texts."""
CONTENTS = [b"", b"one\n", b"\0\xff", b"x" * 300_000, bytearray(b"one"), memoryview(b"one")]
UPLOADS = [[(path, CONTENTS[number % 6])] for number, path in enumerate(PATHS)] + [[], [("/a", b"x"), ("/a", b"y")]]
DOWNLOADS = [[path] for path in PATHS] + [[], ["/a", "/a", "/d"]]
CHUNKS = [[], [b"one"], [b"x" * 300_000, b"", b"y"]]

SIGNATURES: dict[str, tuple[list[Sequence[Any]], dict[str, Sequence[Any]]]] = {
    "ls": ([PATHS], {}),
    "read": ([PATHS], {"offset": NUMBERS, "limit": NUMBERS}),
    "read_raw": ([PATHS], {}),
    "write": ([PATHS, TEXTS], {"overwrite": SWITCHES, "if_match": VERSIONS}),
    "edit": ([PATHS, TEXTS, TEXTS], {"replace_all": SWITCHES, "if_match": VERSIONS}),
    "glob": ([PATTERNS], {"path": PATHS}),
    "grep": (
        [PATTERNS],
        {
            "path": [None, *PATHS],
            "glob": [None, *PATTERNS],
            "regex": SWITCHES,
            "ignore_case": SWITCHES,
            "context_lines": [0, 1, 1_000, *NUMBERS],
            "max_count": [None, *NUMBERS],
        },
    ),
    "delete": ([PATHS], {"if_match": VERSIONS}),
    "move": ([PATHS, PATHS], {"overwrite": SWITCHES}),
    "copy": ([PATHS, PATHS], {"overwrite": SWITCHES}),
    "upload_files": ([UPLOADS], {}),
    "download_files": ([DOWNLOADS], {}),
    "upload_stream": ([PATHS, CHUNKS], {}),
    "download_stream": ([PATHS], {"chunk_size": [1_000, 65_536, 2**40]}),
}
EXECUTE: dict[str, tuple[list[Sequence[Any]], dict[str, Sequence[Any]]]] = {"execute": ([COMMANDS], {"timeout": TIMES})}


class Call:
    """A random call; `is_right` if all its arguments have the types of the contract."""

    def __init__(self, chance: Random, *, executes: bool) -> None:
        known = {**SIGNATURES, **(EXECUTE if executes and chance.random() < 0.05 else {})}
        self._chance = chance
        self.is_right = True
        self.name = "execute" if "execute" in known else chance.choice([*known])
        placed, options = known[self.name]
        self.placed = [self._one(values) for values in placed]
        self.options = {name: self._one(values) for name, values in options.items() if chance.random() < 0.5}

    def _one(self, values: Sequence[Any]) -> Any:
        if self._chance.random() > 0.07:
            return self._chance.choice(values)
        self.is_right = False
        return self._chance.choice(WRONG)

    def __repr__(self) -> str:
        return f"{self.name}({self.placed!r:.300}, {self.options!r:.300})"

    def run(self, backend: Any) -> Any:
        if self.name == "upload_stream":
            path, chunks = self.placed
            return run_sync(backend.aupload_stream, path, stream(chunks) if chunks in CHUNKS else chunks)
        if self.name == "download_stream":
            return run_sync(downloaded, backend, *self.placed, self.options)
        return getattr(backend, self.name)(*self.placed, **self.options)


async def stream(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def downloaded(backend: Any, path: Any, options: dict[str, Any]) -> int:
    return sum([len(chunk) async for chunk in backend.adownload_stream(path, **options)])


def check(call: Call, backend: Any, host: str) -> str:
    """Make a call, check what comes of it, and return its outcome in a word."""
    try:
        answer = call.run(backend)
    except DeepFSError as error:
        assert call.name in ("execute", "download_stream"), "this operation returns its errors"
        str(error).encode()
        return error.code
    except (TypeError, ValueError) as error:
        assert not call.is_right, "the arguments have the right types"
        return type(error).__name__
    if isinstance(answer, int):
        return "ok"
    for outcome in answer if isinstance(answer, list) else [answer]:
        error = getattr(outcome, "error", None)
        code = getattr(outcome, "code", error)
        assert (error is None) == (code is None)
        assert code is None or code in ErrorCode.__members__.values()
        (error or "").encode()
        assert len(error or "") < 11_000
        assert host not in (error or ""), "an error names a path of the host"
    return "ok"


def fuzz(backend: Any, seed: int, count: int, host: str = "\0no such text\0") -> None:
    """Make so many random calls. No error may show `host`, the path of the files on this machine."""
    chance = Random(seed)
    executes = backend.capabilities.executes
    outcomes: dict[str, int] = {}
    for number in range(count):
        call = Call(chance, executes=executes)
        if number % 20 == 0:
            backend.upload_files([("/a", b"one\ntwo\n"), ("/d/b", b"one\r\n\xff"), ("/d/c.py", b"one")])
        try:
            outcome = check(call, backend, host)
        except BaseException as error:
            error.add_note(f"seed {seed}, call {number}: {call!r}")
            raise
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes["ok"] > count / 20
    assert outcomes["TypeError"] > count / 100


def seed_of(config: pytest.Config) -> int:
    return int(config.getoption("--hypothesis-seed") or secrets.randbits(32))
