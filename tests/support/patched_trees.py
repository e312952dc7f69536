"""Random pairs of trees of files."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fuzzing import seed_of

__all__ = ["Tree", "as_files", "changed", "lay", "random_pairs"]

Tree = dict[str, tuple[bytes, int]]
"""The content and the mode of each file."""

_NAMES = [
    "a.txt", "b/c.txt", "b/f", "a/f", "new/x.py", "a b.txt", "ünï.txt", 'q".txt', "tab\there", "trail ", "-x", "d/e/f",
    "back\\slash", "a/b/old", "dev/null", "b b/b b", "--- a", "é/n\u2028l",
]  # fmt: skip
_LINES = [
    *("", "x", "}", "  y", "-- old/name", "++ new/name", "-- ", "\\ x", "@@ -1 +1 @@", "\x0c", "é\u2028", "a\rb", " "),
]


def as_files(root: Path) -> Tree:
    """The files of a directory."""
    found = [Path(parent, name) for parent, _, names in os.walk(root) for name in names]
    return {str(file.relative_to(root)): (file.read_bytes(), file.stat().st_mode & 0o777) for file in found}


def lay(root: Path, tree: Tree) -> Path:
    """Make a directory hold these files and nothing else."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, (content, mode) in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
        (root / name).chmod(mode)
    return root


def random_pairs(pairs: int, config: pytest.Config) -> Iterator[tuple[str, random.Random, Tree, Tree]]:
    """Yield for each pair its seed, the chance that goes on from it, a tree, and the tree after some changes."""
    base = seed_of(config)
    for number in range(pairs):
        seed = f"{base} {number}"
        chance = random.Random(seed)
        before = random_tree(chance)
        yield seed, chance, before, changed(chance, before)


def random_tree(chance: random.Random) -> Tree:
    """Some files."""
    return {name: (_content(chance), chance.choice([0o644] * 4 + [0o755])) for name in chance.sample(_NAMES, 4)}


def _content(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.1:
        return b""
    if kind < 0.14:
        return bytes(chance.randrange(256) for _ in range(20)) + b"\0"
    lines = [chance.choice([*_LINES, f"line {chance.randrange(30)}"]) for _ in range(chance.randrange(1, 25))]
    if chance.random() < 0.3:
        lines = lines[:4] * chance.randrange(2, 6)
    end = chance.choice(["\n", "\n", "\n", "\r\n"])
    text = end.join(lines) + (end if chance.random() < 0.75 else "")
    return (("\ufeff" if chance.random() < 0.1 else "") + text).encode()


def changed(chance: random.Random, tree: Tree) -> Tree:
    """The tree after some changes of any kind."""
    new = dict(tree)
    for name, (content, mode) in tree.items():
        action = chance.random()
        if action < 0.5:
            new[name] = _edited(chance, content), mode
        elif action < 0.6:
            del new[name]
        elif action < 0.7:
            free = [each for each in _NAMES if each not in {*tree, *new}]
            new[chance.choice(free)] = chance.choice([content, _edited(chance, content)]), new.pop(name)[1]
        elif action < 0.75:
            new[name] = content, 0o755 if mode == 0o644 else 0o644
        elif action < 0.8:
            new[name] = content.replace(b"\r\n", b"\n") if b"\r\n" in content else content.replace(b"\n", b"\r\n"), mode
        elif action < 0.85:
            new[name] = content.removesuffix(b"\n") if content.endswith(b"\n") else content + b"\n", mode
    if chance.random() < 0.4:
        new.setdefault(chance.choice(_NAMES), (_content(chance), chance.choice([0o644, 0o755])))
    return new


def _edited(chance: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True) if b"\0" not in content else [content]
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(lines) + 1)
        made = [b"line %d\n" % chance.randrange(30) for _ in range(chance.randrange(3))]
        lines[place : place + chance.randrange(3)] = made
    return b"".join(lines)
