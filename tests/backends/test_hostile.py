"""Generated hostile paths, patterns and contents: every call returns a result in time and reveals nothing of the host.

The same small tree is created again after every few calls. No call raises, no result names a directory of the host,
files outside the root of a disk do not change, and no file lies beneath a file.
"""

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from deepfs.errors import ErrorCode
from deepfs.types import Result
from support.counts import few_or_many, telling
from support.disks import tree
from support.every_backend import Storage, storage
from support.files import everything_in

__all__ = ["storage"]

SECONDS = 5
"""The time limit of one operation; far more than it needs, since other processes share the machine."""

FILES = {"/a.txt": b"one\ntwo\n", "/dir/b.py": b"needle\r\n", "/dir/.hid/c": b"needle", "/bin": b"\xff", "/empty": b""}


# --- generated calls ---

NAMES = [
    "a.txt", "dir", "b.py", ".hid", "bin", "empty", "..", ".", "...", "~", "~root", " ", "\t", "\n", "\r", "\\", "\\\\",
    "C:", "c:\\x", "\0", "\ud800", "\udcff", "\ufeff", "\u202e", "e\u0301", "\u00e9", "%", "_", "+", "'", '"', "*", "?",
    "[", "]", "{", "}", "{a,b}", "[!", "$HOME", "`id`", ";", "|", "&", "-rf", "--", "#", ":", "@", "!", "^", "(", ")",
    "CON", "nul", ".~deepfs-0123456789abcdef", ".~deepfs-", "x" * 255, "x" * 256, "\u00e9" * 128, "\U0001f600" * 64,
    "proc", "self", "environ", "etc", "passwd", "outside", "secret", "disk", "store", "deep", "memory",
]  # fmt: skip
PATTERNS = [
    "**", "**/", "/**", "***", "**/**/**", "*.py", "[a-", "[]a]", "[^/]", "[[:alpha:]]", "[z-a]", "{a,{b,{c,d}}}",
    "{" * 50, "{a,b}" * 9, "*" * 300, "?" * 300, "*a" * 60 + "b", "**/" * 99 + "x", "!*", "a//b", "./a", "../*", "\\",
    "(a*)*b", "(a|a)*$", "(?P<n>", "(?=a)", "\\1", "\\Aone", "\\C", "\\pN", "[[:^ascii:]]", "a{1000}", "(a{99}){99}",
    "x*" * 50, "(?i)NEEDLE", "(?s).", "(?-m)^", "^$", "", "\\x{10FFFF}", "\\Q*", "(", ")", "needle", "one\ntwo", "\\n",
    "{,}", "\\.", "\\b", "\\z", "a{1001}",
]  # fmt: skip
PLACES = ["/", "", "//", "/dir/", "a.txt", "/../a.txt", "/dir/../../outside/secret", "/link/secret", "/dir/up/secret"]

CONTENTS = ["", "\n", "\r", "x" * 100_000, "\n" * 5000, "\0", "one", "needle", "\ufeff", "\ud800"]
INTEGERS = [0, 1, 2, -1, -7, 2000, 1001, 2**31, 2**63, 2**70, -(2**70)]
VERSIONS = [None, "", "s-0-0-0-0", "s-", "0" * 32]

Call = tuple[str, list[Any], dict[str, Any]]


class Hostile:
    """Random calls, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)

    def _one(self, *makers: Callable[[], Any]) -> Any:
        return self._chance.choice(makers)()

    def _of(self, values: Sequence[Any]) -> Any:
        return self._chance.choice(values)

    def _some(self, maker: Callable[[], Any], most: int = 4) -> list[Any]:
        return [maker() for _ in range(self._chance.randint(0, most))]

    def anything(self) -> str:
        """Text of any code points, surrogates included."""
        ends = [0x7F, 0xFF, 0x2FFF, 0xFFFF, 0x10FFFF]
        return "".join(chr(self._chance.randint(0, self._of(ends))) for _ in range(self._chance.randint(0, 12)))

    def segment(self) -> str:
        return self._one(lambda: self._of(NAMES), lambda: self._of(NAMES), self.anything)

    def path(self) -> str:
        return self._one(
            lambda: self._of([*FILES]),
            lambda: self._of(PLACES),
            lambda: "/".join(self._some(self.segment, 6)),
            lambda: self._of(["/", "/disk/", "/store/", "/dir/"]) + "/".join(self._some(self.segment)),
        )

    def regex(self) -> str:
        return self._one(
            lambda: self._of(PATTERNS), lambda: "".join(self._some(lambda: self._of(PATTERNS))), self.anything
        )

    def glob(self) -> str:
        return self._one(
            lambda: self._of(PATTERNS),
            lambda: "/".join(self._some(lambda: self._one(lambda: self._of(PATTERNS), self.segment))),
            self.anything,
        )

    def text(self) -> str:
        return self._one(lambda: self._of(CONTENTS), lambda: self._of(["one", "needle", "\n"]), self.anything)

    def old(self) -> str:
        return self._one(lambda: self._of(["one", "two", "needle", "e", "\n"]), self.text)

    def data(self) -> bytes:
        return self._one(lambda: self._chance.randbytes(20), lambda: self.text().encode("utf-8", "surrogatepass"))

    def integer(self) -> int:
        return self._of(INTEGERS)

    def version(self) -> str | None:
        return self._one(lambda: self._of(VERSIONS), self.anything)

    def flag(self) -> bool:
        return self._chance.random() < 0.5

    def call(self) -> Call:
        """A random operation with its arguments and a random subset of its options."""
        name, makers, options = self._of(
            [
                ("ls", [self.path], {}),
                ("read", [self.path], {"offset": self.integer, "limit": self.integer}),
                ("read_raw", [self.path], {}),
                ("write", [self.path, self.text], {"overwrite": self.flag, "if_match": self.version}),
                (
                    "edit",
                    [lambda: self._one(lambda: self._of([*FILES]), self.path), self.old, self.text],
                    {"replace_all": self.flag, "if_match": self.version},
                ),
                ("glob", [self.glob], {"path": self.path}),
                ("grep", [self.regex], self._grep_options()),
                ("delete", [self.path], {}),
                ("move", [self.path, self.path], {"overwrite": self.flag}),
                ("copy", [self.path, self.path], {"overwrite": self.flag}),
                ("upload_files", [lambda: self._some(lambda: (self.path(), self.data()))], {}),
                ("download_files", [lambda: self._some(self.path)], {}),
            ]
        )
        chosen = {option: make() for option, make in options.items() if self.flag()}
        return name, [make() for make in makers], chosen

    def _grep_options(self) -> dict[str, Callable[[], Any]]:
        return {
            "path": self.path,
            "glob": self.glob,
            "regex": self.flag,
            "ignore_case": self.flag,
            "context_lines": lambda: self._of([0, 1, 3, 1000, self.integer()]),
            "max_count": self.integer,
        }


# --- checks ---


class Guard:
    """Calls a backend and checks each result."""

    def __init__(self, storage: Storage, host: Path) -> None:
        self.storage = storage
        self.host = str(host)
        self.answers: Counter[str] = Counter()
        self.slowest = 0.0

    def call(self, name: str, arguments: list[Any], options: dict[str, Any]) -> None:
        """Call an operation, and check that it returns in time a valid result that does not name the host."""
        begun = time.monotonic()
        answer = getattr(self.storage.backend, name)(*arguments, **options)
        seconds = time.monotonic() - begun
        assert seconds < SECONDS, f"{seconds:.1f} s"
        self.slowest = max(self.slowest, seconds)
        for outcome in answer if isinstance(answer, list) else [answer]:
            code = outcome.code if isinstance(outcome, Result) else outcome.error
            self.answers[code or "ok"] += 1
            assert (outcome.error is None) == (code is None)
            assert code is None or code in ErrorCode.__members__.values()
            (outcome.error or "").encode()
            assert self.host not in everything_in(outcome)
            assert "TOP SECRET" not in everything_in(outcome)

    def reset(self) -> None:
        """Delete all files and store the tree again."""
        backend = self.storage.backend
        for prefix in self.storage.prefixes:
            for entry in backend.ls(prefix or "/").entries or ():
                if not any(f"{mount}/".startswith(entry.path) for mount in self.storage.prefixes if mount):
                    assert backend.delete(entry.path).ok
            uploads = backend.upload_files([(prefix + path, content) for path, content in FILES.items()])
            assert {upload.error for upload in uploads} == {None}
        if self.storage.root is not None:
            (self.storage.root / "link").symlink_to(self.storage.root.parent / "outside")
            (self.storage.root / "dir" / "up").symlink_to("../..")

    def check_tree(self) -> None:
        """Check that listings are sorted, listed directories exist, and no file and directory share a name."""
        pending = ["/"]
        while pending:
            directory = pending.pop()
            entries = self.storage.backend.ls(directory).entries
            assert entries is not None, directory
            found = [entry.path for entry in entries]
            assert found == sorted(found)
            assert len({path.rstrip("/") for path in found}) == len(found)
            # A link may lead to a directory above it, once it was moved: the tree then goes on without end.
            pending += [path for path in found if path.endswith("/") and not self._is_link(path)]

    def _is_link(self, path: str) -> bool:
        root, path = self.storage.root, path.rstrip("/")
        return root is not None and any(
            os.path.islink(f"{root}{path.removeprefix(prefix)}")
            for prefix in self.storage.prefixes
            if path.startswith(prefix)
        )


@pytest.fixture
def guard(storage: Storage, tmp_path: Path) -> Iterator[Guard]:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("TOP SECRET")
    guard = Guard(storage, tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    yield guard
    assert tree(outside) == {"secret": b"TOP SECRET"}
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("store.db")) == [
        name for name in before if not name.startswith("store.db")
    ]
    guard.reset()


@pytest.mark.parametrize("count", few_or_many(400, 10_000))
def test_every_hostile_call_returns_a_result_that_reveals_nothing(
    guard: Guard, count: int, record_property: Callable[[str, object], None], pytestconfig: pytest.Config
) -> None:
    seed = int(pytestconfig.getoption("--hypothesis-seed") or secrets.randbits(32))
    hostile = Hostile(seed)
    for number in range(count):
        if number % 4 == 0:
            guard.check_tree()
            guard.reset()
            calls: list[Call] = []
        calls.append(hostile.call())
        try:
            guard.call(*calls[-1])
        except BaseException as error:
            error.add_note(f"seed {seed}, call {number}, the last of {calls}")
            raise

    answers = ", ".join(f"{times:,} {code}" for code, times in guard.answers.most_common())
    telling(record_property)(f"{count:,} calls, the slowest {guard.slowest * 1000:.0f} ms: {answers}")
