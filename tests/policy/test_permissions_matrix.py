"""Rules × operations × spellings of paths, checked against an oracle that shares no code with the library.

The oracle matches patterns segment by segment, walks plain sets of paths, and uses no backend. An operation that it
allows must succeed and have its normal effect; an operation that it denies must change and show nothing.
"""

import itertools
import random
import re
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepfs import CompositeBackend, FilesystemPermission, MemoryBackend, PermissionedBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.policy.rules import CompiledRules

TREE: Final = ("/a/k", "/a/b/k", "/a/b/.h/k", "/a/B/k", "/m/k", "/m/a/k", "/m/a/.env", "/top", "/.env")
"""Every file holds its own path and the word `needle`; `/m` is a mount in the mounted tree."""
NAMES: Final = ("a", "b", "B", "k", "m", ".h", ".env", "top", "*", "**", "?", "[ab]", "{a,m}", "*.env")


# --- the oracle ---


def alternatives(pattern: str) -> Iterator[str]:
    """The pattern with each alternative of its braces, which are not nested."""
    before, brace, rest = pattern.partition("{")
    if not brace:
        yield pattern
        return
    inside, _, after = rest.partition("}")
    for option in inside.split(","):
        yield from alternatives(before + option + after)


def fits(segments: Sequence[str], names: Sequence[str]) -> bool:
    if not segments:
        return not names
    if segments[0] == "**":
        return any(fits(segments[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], segments[0]) and fits(segments[1:], names[1:])


def split(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def matches(pattern: str, path: str) -> bool:
    whole = pattern + "**" if pattern.endswith("/") and split(pattern) else pattern
    # A final `**/*` means the same as a final `**`.
    return any(fits(split(re.sub(r"/\*\*/\*$", "/**", each)), split(path)) for each in alternatives(whole))


def allows(rules: Sequence[FilesystemPermission], operation: str, path: str) -> bool:
    for rule in rules:
        if operation in rule.operations and any(matches(pattern, path) for pattern in rule.paths):
            return rule.mode == "allow"
    return True


def standing(path: str, files: Sequence[str]) -> list[str]:
    """The files at or beneath a path, and the directories between the path and these files."""
    path = path.rstrip("/")
    beneath = [file for file in files if file == path or file.startswith(f"{path}/")]
    directories = {file[:end] for file in beneath for end, sign in enumerate(file) if sign == "/" and end > len(path)}
    return [*beneath, *directories]


def expected(rules: Sequence[FilesystemPermission], operation: str, path: str, target: str) -> bool:
    """Whether the rules allow the operation; `target` is the destination of copy and move."""

    def every(needed: str, under: str = path, at: str = path) -> bool:
        touched = {at, *(at.rstrip("/") + each[len(under.rstrip("/")) :] for each in standing(under, TREE))}
        return all(allows(rules, needed, each) for each in touched)

    return {
        "ls": lambda: allows(rules, "read", path),
        "read": lambda: allows(rules, "read", path),
        "glob": lambda: allows(rules, "read", path),
        "grep": lambda: allows(rules, "read", path),
        "download": lambda: allows(rules, "read", path),
        "write": lambda: allows(rules, "write", path),
        "upload": lambda: allows(rules, "write", path),
        "edit": lambda: allows(rules, "write", path) and allows(rules, "read", path),
        "delete": lambda: every("write"),
        "copy": lambda: every("read") and every("write", at=target),
        "move": lambda: every("read") and every("write") and every("write", at=target),
    }[operation]()


OPERATIONS: Final = ("ls", "read", "glob", "grep", "download", "write", "upload", "edit", "delete", "copy", "move")


def carried_out(backend: BackendProtocol, operation: str, path: str, target: str) -> Any:
    return {
        "ls": lambda: backend.ls(path),
        "read": lambda: backend.read(path),
        "glob": lambda: backend.glob("{**,**/.*,**/.*/**}", path),
        "grep": lambda: backend.grep("needle", path, "{**,**/.*,**/.*/**}"),
        "download": lambda: backend.download_files([path])[0],
        "write": lambda: backend.write(path, "new", overwrite=True),
        "upload": lambda: backend.upload_files([(path, b"new")])[0],
        "edit": lambda: backend.edit(path, "needle", "new"),
        "delete": lambda: backend.delete(path),
        "copy": lambda: backend.copy(path, target),
        "move": lambda: backend.move(path, target),
    }[operation]()


def code(result: Any) -> str | None:
    return result.error if not hasattr(result, "code") else result.code


def shown(result: Any) -> list[str]:
    found = getattr(result, "entries", None) or getattr(result, "matches", None) or []
    return [info.path.rstrip("/") for info in found]


# --- the trees ---


def in_memory(files: Sequence[str]) -> MemoryBackend:
    memory = MemoryBackend()
    memory.upload_files([(file, f"needle {file}".encode()) for file in files])
    return memory


def flat() -> BackendProtocol:
    return in_memory(TREE)


def mounted() -> BackendProtocol:
    inner = [file[2:] for file in TREE if file.startswith("/m/")]
    return CompositeBackend(in_memory([file for file in TREE if not file.startswith("/m/")]), {"/m/": in_memory(inner)})


def snapshot(backend: BackendProtocol) -> dict[str, bytes | None]:
    found = [info.path for info in backend.glob("{**,**/.*,**/.*/**}").matches or ()]
    return {item.path: item.content for item in backend.download_files(found)}


def check(
    rules: Sequence[FilesystemPermission],
    tree: Callable[[], BackendProtocol],
    operation: str,
    spelled: str,
    target: str = "/to",
) -> None:
    path = "/" + "/".join(split(spelled))
    ruled, unruled = tree(), tree()
    result = carried_out(PermissionedBackend(ruled, rules), operation, spelled, target)
    situation = (rules, operation, spelled, target)
    if not expected(rules, operation, path, target):
        assert code(result) == "permission_denied", situation
        assert snapshot(ruled) == snapshot(unruled), situation
        return
    plain = carried_out(unruled, operation, spelled, target)
    assert code(result) == code(plain), situation
    assert snapshot(ruled) == snapshot(unruled), situation
    if operation in ("ls", "glob", "grep"):
        assert shown(result) == [each for each in shown(plain) if allows(rules, "read", each)], situation


# --- the matrix ---

RULES: Final = [
    [FilesystemPermission(["read"], ["/a/b/**"], "deny")],
    [FilesystemPermission(["write"], ["/a/b"], "deny")],
    [FilesystemPermission(["read", "write"], ["/**/.env"], "deny")],
    [FilesystemPermission(["read", "write"], ["/a/**"]), FilesystemPermission(["read", "write"], ["/**"], "deny")],
    [FilesystemPermission(["read", "write"], ["/m/"], "interrupt")],
    [FilesystemPermission(["write"], ["/to/**/k"], "deny")],
    [FilesystemPermission(["read"], ["/a/[!b]/*"], "deny"), FilesystemPermission(["write"], ["/*"], "deny")],
    [FilesystemPermission(["read"], ["/**/*/**"], "deny")],
]
PLACES: Final = (
    "/",
    "/a",
    "/a/b",
    "/a/b/k",
    "/a/b/.h",
    "/a/B/k",
    "/A",
    "/m",
    "/m/a/.env",
    "/.env",
    "/none",
    "/a/none/x",
)
SPELLINGS: Final = ("{}", "{}/", "/{}", "/.{}", "{}/.", "{}//", ".{}")


@pytest.mark.parametrize("tree", [flat, mounted])
def test_every_operation_on_every_place(tree: Any) -> None:
    spellings = itertools.cycle(SPELLINGS)
    for rules, operation, place in itertools.product(RULES, OPERATIONS, PLACES):
        check(rules, tree, operation, next(spellings).format(place))


patterns = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))
permissions = st.builds(
    FilesystemPermission,
    st.sampled_from([["read"], ["write"], ["read", "write"]]),
    st.lists(patterns | patterns.map(lambda pattern: f"{pattern}/"), min_size=1, max_size=2),
    st.sampled_from(["allow", "deny", "deny", "interrupt"]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(permissions, min_size=1, max_size=4), st.sampled_from(OPERATIONS), st.randoms(), st.booleans())
def test_generated_rules_match_the_oracle(
    rules: list[FilesystemPermission], operation: str, choice: random.Random, is_mounted: bool
) -> None:
    place = choice.choice([*PLACES, *TREE])
    target = choice.choice(["/to", "/a/to", "/m/to", "/.to"])
    check(rules, mounted if is_mounted else flat, operation, choice.choice(SPELLINGS).format(place), target)


@settings(max_examples=300, deadline=None)
@given(patterns, st.sampled_from(TREE))
def test_may_match_beneath_covers_every_match(pattern: str, path: str) -> None:
    rule = FilesystemPermission(["read"], [pattern], "deny")
    assert rule.matches("read", path) is matches(pattern, path)
    if matches(pattern, path):
        above = ["/", *(path[:end] for end, sign in enumerate(path) if sign == "/" and end)]
        assert all(rule.may_match_beneath("read", directory) for directory in above)


@settings(max_examples=300, deadline=None)
@given(patterns | patterns.map(lambda pattern: f"{pattern}/"), st.sampled_from(["/", "/a", "/a/b", "/m"]))
@example("/*/**/*/", "/")
@example("/*/", "/")
def test_what_a_rule_covers_it_matches(pattern: str, directory: str) -> None:
    rule = FilesystemPermission(["read"], [pattern], "allow")
    if rule.covers("read", directory):
        beneath = [path for path in TREE if path.startswith(directory.rstrip("/") + "/")]
        assert all(rule.matches("read", path) for path in [directory, *beneath, directory.rstrip("/") + "/x"])


FOUND = (*TREE, "/a", "/a/b", "/m", "/m/a/B", "/a/b/C:\\x")
AS_STORED = ("{}", "{}", "{}", "{}/", "/.{}", "{}/.", "/{}")


@settings(max_examples=400, deadline=None)
@given(
    st.lists(permissions, min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(FOUND), st.sampled_from(AS_STORED), st.booleans()), max_size=12),
)
def test_what_is_known_of_directories_changes_no_decision(
    rules: list[FilesystemPermission], asked: list[tuple[str, str, bool]]
) -> None:
    """A search asks about directories and files in turn, perhaps by names as a storage has them."""
    compiled = CompiledRules(rules)
    for path, spelling, is_dir in asked:
        if not is_dir:
            assert (compiled.mode("read", spelling.format(path)) == "allow") is allows(rules, "read", path)
        elif compiled.hides("read", spelling.format(path), {"deny", "interrupt"}):
            assert not any(allows(rules, "read", each) for each in FOUND if each.startswith(f"{path}/"))
        assert compiled.mode("read", f"{path}/../x") == "deny"


def test_many_rules_take_no_memory_for_each_directory() -> None:
    rule = FilesystemPermission(["read"], ["/a/**", *(f"/**/name{number}" for number in range(100))], "deny")
    compiled = CompiledRules([rule])
    compiled.mode("read", "/first/a")
    tracemalloc.start()
    for number in range(1_000):
        assert compiled.mode("read", f"/{number}/name7") == "deny"
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000
