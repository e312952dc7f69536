"""Generated hostile paths, patterns and contents: every answer is a result, in time, and tells nothing of the host.

Each example runs a few operations on the same small tree. Whatever they are, nothing is raised, no text names a
directory of the host, what stands beside the root of a disk stays as it is, and the tree is a tree.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepfs.errors import ErrorCode
from deepfs.types import Result
from support.counts import few_or_many, telling
from support.disks import tree
from support.every_backend import Storage, storage

__all__ = ["storage"]

SECONDS = 5
"""Within which every operation answers; far more than it takes, since other processes share the machine."""

FILES = {"/a.txt": b"one\ntwo\n", "/dir/b.py": b"needle\r\n", "/dir/.hid/c": b"needle", "/bin": b"\xff", "/empty": b""}


# --- what is generated ---

NAMES = [
    "a.txt", "dir", "b.py", ".hid", "bin", "empty", "..", ".", "...", "~", "~root", " ", "\t", "\n", "\r", "\\", "\\\\",
    "C:", "c:\\x", "\0", "\ud800", "\udcff", "\ufeff", "\u202e", "e\u0301", "\u00e9", "%", "_", "+", "'", '"', "*", "?",
    "[", "]", "{", "}", "{a,b}", "[!", "$HOME", "`id`", ";", "|", "&", "-rf", "--", "#", ":", "@", "!", "^", "(", ")",
    "CON", "nul", ".~deepfs-0123456789abcdef", ".~deepfs-", "x" * 255, "x" * 256, "\u00e9" * 128, "\U0001f600" * 64,
    "proc", "self", "environ", "etc", "passwd", "outside", "secret", "disk", "store", "deep", "memory",
]  # fmt: skip
PATTERNS = [
    "**", "**/", "/**", "***", "**/**/**", "*.py", "[a-", "[]a]", "[^/]", "[[:alpha:]]", "[z-a]", "{a,{b,{c,d}}}", "{,}",
    "{" * 50, "{a,b}" * 9, "*" * 300, "?" * 300, "*a" * 60 + "b", "**/" * 99 + "x", "!*", "a//b", "./a", "../*", "\\",
    "(a*)*b", "(a|a)*$", "(?P<n>", "(?=a)", "\\1", "\\Aone", "\\C", "\\pN", "[[:^ascii:]]", "a{1000}", "(a{99}){99}",
    "x*" * 50, "(?i)NEEDLE", "(?s).", "(?-m)^", "^$", "", "\\x{10FFFF}", "\\Q*", "(", ")", "needle", "one\ntwo", "\\n",
    "\\.", "\\b", "\\z", "a{1001}",
]  # fmt: skip
PLACES = ["/", "", "//", "/dir/", "a.txt", "/../a.txt", "/dir/../../outside/secret", "/link/secret", "/dir/up/secret"]

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
SEGMENTS = st.sampled_from(NAMES) | ANY_TEXT
PATHS = st.one_of(
    st.lists(SEGMENTS, max_size=6).map("/".join),
    st.lists(SEGMENTS, max_size=6).map(lambda names: "/" + "/".join(names)),
    st.sampled_from([*FILES, *PLACES, "x/" * 3000, "/x" * 60]),
)
GLOBS = st.sampled_from(PATTERNS) | st.lists(st.sampled_from(PATTERNS) | SEGMENTS, max_size=4).map("/".join) | ANY_TEXT
REGEXES = st.sampled_from(PATTERNS) | st.lists(st.sampled_from(PATTERNS), max_size=4).map("".join) | ANY_TEXT
CONTENTS = ["", "\n", "\r", "x" * 100_000, "\n" * 5000, "\0", "one", "needle", "\ufeff", "\ud800"]
TEXTS = ANY_TEXT | st.sampled_from(CONTENTS)
BYTES = st.binary(max_size=50) | TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass"))
INTEGERS = st.sampled_from([0, 1, 2, -1, 2000, 1001, 2**31, 2**63, 2**70, -(2**70)])
VERSIONS = st.none() | ANY_TEXT | st.sampled_from(["", "s-0-0-0-0", "s-", "0" * 32])

_GREP = {
    "regex": st.booleans(),
    "ignore_case": st.booleans(),
    "context_lines": INTEGERS,
    "max_count": st.none() | INTEGERS,
}
CALLS = st.one_of(
    st.tuples(st.just(name), st.tuples(*arguments), st.fixed_dictionaries({}, optional=options))
    for name, arguments, options in [
        ("ls", [PATHS], {}),
        ("read", [PATHS], {"offset": INTEGERS, "limit": INTEGERS}),
        ("read_raw", [PATHS], {}),
        ("write", [PATHS, TEXTS], {"overwrite": st.booleans(), "if_match": VERSIONS}),
        ("edit", [PATHS, TEXTS, TEXTS], {"replace_all": st.booleans(), "if_match": VERSIONS}),
        ("glob", [GLOBS], {"path": PATHS}),
        ("grep", [REGEXES], {"path": PATHS, "glob": GLOBS, **_GREP}),
        ("delete", [PATHS], {}),
        ("move", [PATHS, PATHS], {"overwrite": st.booleans()}),
        ("copy", [PATHS, PATHS], {"overwrite": st.booleans()}),
        ("upload_files", [st.lists(st.tuples(PATHS, BYTES), max_size=4)], {}),
        ("download_files", [st.lists(PATHS, max_size=4)], {}),
    ]
)


# --- what must hold ---


class Guard:
    """Calls a backend, and judges each answer."""

    def __init__(self, storage: Storage, host: Path) -> None:
        self.storage = storage
        self.host = str(host)
        self.answers: Counter[str] = Counter()
        self.slowest = 0.0

    def call(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Call an operation; whatever it is given, it answers, in time and without a word about the host."""
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
            told = repr(outcome)
            assert self.host not in told
            assert "TOP SECRET" not in told

    def reset(self) -> None:
        """Delete all there is, whatever it is called, and store the tree anew."""
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
        """Every listing is sorted, and what is listed is there; nothing lies beneath a file."""
        pending = ["/"]
        while pending:
            directory = pending.pop()
            entries = self.storage.backend.ls(directory).entries
            assert entries is not None, directory
            found = [entry.path for entry in entries]
            assert found == sorted(found)
            assert len({path.rstrip("/") for path in found}) == len(found)
            pending += [path for path in found if path.endswith("/")]


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


@pytest.mark.parametrize("examples", few_or_many(300, 5_000, seconds=1800))
def test_every_call_is_answered_and_tells_nothing(
    guard: Guard, examples: int, record_property: Callable[[str, object], None]
) -> None:
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(calls=st.lists(CALLS, min_size=2, max_size=6))
    def check(calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> None:
        guard.reset()
        for name, arguments, options in calls:
            guard.call(name, arguments, options)
        guard.check_tree()

    check()
    answers = ", ".join(f"{count:,} {code}" for code, count in guard.answers.most_common())
    telling(record_property)(f"{guard.answers.total():,} answers, the slowest after {guard.slowest:.2f} s: {answers}")
