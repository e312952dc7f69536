"""Trees on disk for searches."""

import os
from pathlib import Path

__all__ = ["MAX_BYTES", "many", "trap", "write"]

MAX_BYTES = 100_000
"""The size limit of files for searches of the trap."""


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return root


def trap(tmp_path: Path) -> Path:
    """A tree with all the cases that the engines could treat differently."""
    root = tmp_path / "root"
    write(
        root,
        {
            "plain.txt": b"needle\nno\nneedle needle\n",
            "ends.txt": b"needle",
            "empty.txt": b"",
            "crlf.txt": b"a needle\r\nb\r\nneedle\r\n",
            "returns.txt": b"a\rneedle\rb\r\r\nneedle\r",
            "marked.txt": b"\xef\xbb\xbfneedle first\nneedle second",
            "marked twice.txt": b"\xef\xbb\xbf\xef\xbb\xbfneedle",
            "utf-16.txt": "needle\n".encode("utf-16"),
            "utf-16 be.txt": b"\xfe\xff" + "needle\n".encode("utf-16-be"),
            "latin.txt": "é needle".encode("latin-1"),
            "broken end.txt": b"needle\n\xc3",
            "nul.txt": b"needle\n\0",
            "late nul.txt": b"needle\n" + b"x" * 70_000 + b"\0",
            "other nul.txt": b"nothing\0",
            "name.png": b"needle",
            "logo.svg": b"<needle/>",
            "long.txt": b"x" * 6000 + b"needle\n" + "é".encode() * 4990 + b"needle\nneedle\n",
            "wide.txt": "😀".encode() * 5001 + b"needle\n",
            "huge line.txt": b"y" * 90_000 + b"needle" + b"y" * 9_000,
            "just.txt": (b"needle\n" + b"z" * MAX_BYTES)[:MAX_BYTES],
            "over.txt": (b"needle\n" + b"z" * MAX_BYTES)[: MAX_BYTES + 1],
            "over other.txt": b"z" * (MAX_BYTES + 1),
            "é/ü/日本.txt": "needle 日本".encode(),
            "sub/-e": b"needle -e",
            "sub/--files": b"--files needle",
            "sub/a:1:b": b"needle",
            "sub/new\nline": b"needle\n",
            "sub/ space ": b"needle",
            "sub/.hidden": b"needle",
            "sub/.~deepfs-0123456789abcdef": b"needle",
            "sub/a.b/x": b"needle",
            "sub/a/x": b"needle",
            "sub/a-b/x": b"needle",
            ".git/config": b"needle",
            ".gitignore": b"*.log\n/build\n!keep.log\nsub/deep/**\n!sub/deep/kept\n",
            "a.log": b"needle",
            "sub/keep.log": b"needle",
            "build/out": b"needle",
            "sub/build/out": b"needle",
            "sub/.gitignore": b"!a.log\nspace*\n",
            "sub/a.log": b"needle",
            "sub/deep/lost": b"needle",
            "sub/deep/kept": b"needle",
            ".ignore": b"plain.txt",
            ".rgignore": b"*",
        },
    )
    write(tmp_path / "outside", {"secret.txt": b"needle of others"})
    with open(os.fsencode(root) + b"/bad \xff.txt", "wb") as file:
        file.write(b"needle")
    os.mkdir(os.fsencode(root) + b"/bad \xff")
    with open(os.fsencode(root) + b"/bad \xff/file", "wb") as file:
        file.write(b"needle")
    os.mkfifo(root / "fifo")
    (root / "linked.txt").symlink_to("plain.txt")
    (root / "linked over.txt").symlink_to("over.txt")
    (root / "sub" / "linked up").symlink_to("../ends.txt")
    (root / "absolute").symlink_to(root / "crlf.txt")
    (root / "linked directory").symlink_to("sub")
    (root / "leads outside").symlink_to(tmp_path / "outside" / "secret.txt")
    (root / "outside directory").symlink_to(tmp_path / "outside")
    (root / "sub" / "nowhere").symlink_to("none")
    (root / "circle").symlink_to("circle")
    return root


def many(root: Path, count: int) -> Path:
    """`count` files, a hundred per directory; every tenth contains two needles."""
    texts = (b"nothing\n", b"a needle\nand a needle\n")
    return write(root, {f"{n // 100:03}/{n % 100:02}.txt": texts[n % 10 == 0] for n in range(count)})
