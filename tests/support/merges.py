"""Random programs of trees and workspaces that are changed at once and merged, and what a merge may never do.

Each line and each binary file that is written is unique, so what is gone can be told from what was written.
A line is *removed* if a side saw it and then changed a file so that its own tree has it less often. The rules:

- Of all lines of the tree and of the workspace before a merge, each that no side removed is afterwards in the tree, in
  the workspace, or (so in the tree as well) in a copy of a conflict. With the strategies `mine` and `theirs`, those of
  one side may be gone at the paths that are conflicts for `refuse`, and only there.
- A merged text has the lines of both sides, without those that one of them took away.
- If the tree did not change since the workspace was made, it is like the workspace afterwards.
- A second merge changes nothing, and the workspace shows what the tree has at the merged paths.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Final, TypeAlias

from msgspec import Struct, field

from deepfs.backends.protocol import BackendProtocol
from deepfs.text import paths
from deepfs.text.lines import version
from deepfs.workspaces import MergeResult, OverlayBackend

__all__ = ["MakeWorkspace", "play_merges", "read_tree"]

MakeWorkspace: TypeAlias = Callable[[BackendProtocol], Awaitable[OverlayBackend]]
Tree: TypeAlias = Mapping[str, bytes]

_FILES: Final = ("/a", "/b", "/c.txt", "/d/a", "/d/b", "/d/e/a", "/d/e/f.bin", "/x/a", "/x/y/z", "/é \n'")
_DIRECTORIES: Final = ("/d", "/d/e", "/x", "/x/y", "/new", "/a", "/b")
_STRATEGIES: Final = ("keep", "keep", "keep", "refuse", "mine", "theirs")
_CLASHES: Final = frozenset({"is_directory", "not_a_directory", "conflict", "already_exists", "file_not_found"})


async def read_tree(backend: BackendProtocol) -> dict[str, bytes]:
    """All files."""
    listing = await backend.alist_tree("/")
    files = [each.path for each in listing.entries if each.kind == "file"]
    return {each.path: each.unwrap() for each in await backend.adownload_files(files)} if files else {}


def _lines(content: bytes) -> set[bytes]:
    return {content} if b"\0" in content else set(content.splitlines()) - {b""}


def _lines_of(tree: Tree) -> set[bytes]:
    return set().union(*map(_lines, tree.values()))


def _count_lines(tree: Tree) -> Counter[bytes]:
    return sum((Counter(_lines(content)) for content in tree.values()), Counter[bytes]())


def _repeats(content: bytes | None) -> bool:
    lines = (content or b"").splitlines()
    return len(lines) != len(set(lines))


class _Side(Struct):
    """A tree or a workspace, and what each file was when the workspace changed it first."""

    name: str
    backend: BackendProtocol
    below: "_Side | None" = None
    bases: dict[str, bytes | None] = field(default_factory=dict)
    is_touched: bool = False
    """Whether the workspace changed since it was made or merged whole."""
    is_alone: bool = True
    """Whether nothing changed below since then."""


class _Program:
    def __init__(self, seed: int, tree: BackendProtocol) -> None:
        self.random = Random(seed)
        self.written = 0
        self.removed: set[bytes] = set()
        self.played: list[str] = []
        self.sides = [_Side("tree", tree)]

    # --- changes ---

    def line(self) -> str:
        self.written += 1
        return f"line {self.written}"

    def content(self) -> bytes:
        if not self.random.randrange(5):
            return b"\0\xff" + self.line().encode()
        end = self.random.choice(("\n", "\n", "\r\n"))
        text = end.join(self.line() for _ in range(self.random.randrange(7))) + self.random.choice(("", end))
        return text.encode()

    def path(self, tree: Tree) -> str:
        """Mostly that of a file."""
        chosen = self.random.randrange(10)
        if chosen < 6 and tree:
            return self.random.choice(sorted(tree))
        return self.random.choice(_FILES if chosen < 9 else _DIRECTORIES)

    async def change(self, side: _Side) -> None:
        backend, random = side.backend, self.random
        before = await read_tree(backend)
        path, other = self.path(before), self.path(before)
        if not random.randrange(3):
            path = random.choice(_DIRECTORIES)
        if not random.randrange(4):
            other = random.choice(_DIRECTORIES)
        kind = random.choice(
            ("write", "edit", "edit", "edit", "edit", "delete", "move", "move", "copy", "upload", "swap")
        )
        if kind == "edit" and not (path in before and self.texts_of(before[path])):
            path = next((each for each in sorted(before) if self.texts_of(before[each])), "")
            kind = "edit" if path else "write"
        self.played.append(f"{side.name}: {kind} {path!r} {other!r}")
        if kind == "write":
            await backend.awrite(path, self.content().decode(errors="ignore").replace("\0", ""), overwrite=True)
        elif kind == "upload":
            await backend.aupload_files([(path, self.content())])
        elif kind == "delete":
            await backend.adelete(path)
        elif kind == "edit":
            old = random.choice(self.texts_of(before[path]))
            new = random.choice(
                (self.line(), f"{old}\n{self.line()}", f"{self.line()}\n{old}", f"{self.line()}\n{self.line()}")
            )
            edited = await backend.aedit(path, old, new, replace_all=True)
            assert edited.ok, (path, edited)
        elif kind == "swap":
            for src, dst in ((path, "/swap"), (other, path), ("/swap", other)):
                await backend.amove(src, dst)
        elif kind == "move":
            await backend.amove(path, other, overwrite=random.random() < 0.5)
        else:
            await backend.acopy(path, other, overwrite=random.random() < 0.5)
        self.note(side, before, await read_tree(backend))

    def texts_of(self, content: bytes) -> list[str]:
        return [] if b"\0" in content else [line.decode() for line in content.splitlines() if line]

    def note(self, side: _Side, before: Tree, after: Tree) -> None:
        """Remember what a change removed, and from what it started."""
        self.removed |= set(_count_lines(before) - _count_lines(after))
        side.is_touched = True
        changed = {path for path in {**before, **after} if before.get(path) != after.get(path)}
        if side.below is not None:
            for path in changed:
                side.bases.setdefault(path, before.get(path))
        if changed:
            self.note_above(side, None)

    def note_above(self, side: _Side, but: _Side | None) -> None:
        """Remember that `side` changed below the others."""
        for each in self.sides:
            if each.below is side and each is not but:
                each.is_alone = not each.is_touched
                self.note_above(each, but)

    # --- merges ---

    async def merge(self, side: _Side) -> None:
        assert side.below is not None
        assert isinstance(side.backend, OverlayBackend)
        workspace, target, random = side.backend, side.below.backend, self.random
        mine, theirs = await read_tree(workspace), await read_tree(target)
        strategy = random.choice(_STRATEGIES)
        chosen = None if random.random() < 0.7 else [self.path(mine) for _ in range(2)]
        asked = await workspace.amerge(paths=chosen, strategy="refuse") if strategy in ("mine", "theirs") else None
        decided = {conflict.path for conflict in asked.conflicts} if asked else set()
        if asked is not None and asked.conflicts:
            assert (await read_tree(workspace), await read_tree(target)) == (mine, theirs), "refuse changes nothing"
        self.played.append(f"{side.name}: merge {strategy} {chosen}")
        result = await workspace.amerge(paths=chosen, strategy=strategy)
        self.played.append(repr(result))
        assert set(result.refused.values()) <= _CLASHES, result
        my_after, their_after = await read_tree(workspace), await read_tree(target)
        self.check_kept(result, strategy, decided, (mine, theirs), (my_after, their_after))
        self.check_texts(side, result, (mine, theirs), their_after)
        for path in result.merged:
            assert my_after.get(path) == their_after.get(path), path
        if side.is_alone and chosen is None and not any(up in mine for path in mine for up in paths.ancestors(path)):
            assert result.ok, result
            assert their_after == mine, (their_after, mine)
            assert my_after == mine
        if theirs != their_after:
            side.below.is_touched = True
            self.note_above(side.below, side)
        if mine != my_after:
            self.note_above(side, None)
        if strategy != "refuse" or not result.conflicts:
            for path in result.merged:
                side.bases.pop(path, None)
        if side.below.below is not None:
            for path in {**theirs, **their_after}:
                if theirs.get(path) != their_after.get(path):
                    side.below.bases.setdefault(path, theirs.get(path))
        if chosen is None and result.ok:
            side.is_alone, side.is_touched, side.bases = True, False, {}
            assert await workspace.achanges() == []
        for old, new in ((mine, my_after), (theirs, their_after)):
            self.removed |= set(_count_lines(old) - _count_lines(new))
        if chosen is None or result.ok:
            # Of a part that was not merged, the ends of a move whose old place has another file are two files now.
            again = await workspace.amerge(paths=chosen, strategy=strategy)
            assert (await read_tree(workspace), await read_tree(target)) == (my_after, their_after), again
            assert [each.path for each in again.conflicts] == [each.path for each in result.conflicts], again

    def check_kept(
        self,
        result: MergeResult,
        strategy: str,
        decided: set[str],
        before: tuple[Tree, Tree],
        after: tuple[Tree, Tree],
    ) -> None:
        (mine, theirs), (my_after, their_after) = before, after
        there = _lines_of(my_after) | _lines_of(their_after)
        lost = (_lines_of(mine) | _lines_of(theirs)) - there - self.removed
        if strategy in ("mine", "theirs"):
            given_up = theirs if strategy == "mine" else mine
            lost -= set().union(*(_lines(given_up[path]) for path in decided if path in given_up))
        assert not lost, ("lost", lost)
        for conflict in result.conflicts if strategy == "keep" and not result.refused else ():
            kept = {version(their_after[path]) for path in conflict.kept}
            for path, seen, wanted in (("mine", mine, conflict.mine), ("theirs", theirs, conflict.theirs)):
                content = seen.get(conflict.path)
                assert content is None or version(content) == wanted, (path, conflict)
                assert content is None or wanted in kept, (path, conflict)
            assert my_after.get(conflict.path) == mine.get(conflict.path), conflict
            assert their_after.get(conflict.path) == theirs.get(conflict.path), conflict

    def check_texts(self, side: _Side, result: MergeResult, before: tuple[Tree, Tree], after: Tree) -> None:
        mine, theirs = before
        for path in result.merged:
            one, other, base, now = mine.get(path), theirs.get(path), side.bases.get(path), after.get(path)
            if any(_repeats(each) for each in (one, other)):
                continue
            if (
                None in (one, other, base, now)
                or now in (one, other)
                or any(b"\0" in each for each in (one, other, base))
            ):
                continue
            both, origin = (_lines(one), _lines(other)), _lines(base)
            assert _lines(now) == (both[0] & both[1]) | ((both[0] | both[1]) - origin), (path, one, other, base, now)


async def play_merges(seed: int, tree: BackendProtocol, make: MakeWorkspace) -> None:
    """Play a program; the seed decides all. Raises AssertionError, with the program, for a rule that is broken."""
    program = _Program(seed, tree)
    random = program.random
    try:
        for path in random.sample(_FILES, random.randrange(2, 7)):
            await tree.aupload_files([(path, program.content())])
        for number in range(random.choice((1, 1, 2, 2, 3))):
            below = random.choice(program.sides) if random.random() < 0.3 else program.sides[0]
            program.sides.append(_Side(f"fork {number} of {below.name}", await make(below.backend), below))
        for _ in range(random.choice((1, 1, 2))):
            for _ in range(random.randrange(1, 8)):
                await program.change(random.choice(program.sides if random.random() < 0.7 else program.sides[1:]))
            for side in random.sample(program.sides[1:], len(program.sides) - 1):
                await program.merge(side)
    except BaseException as error:
        error.add_note("\n".join([f"seed = {seed}", *program.played]))
        raise
