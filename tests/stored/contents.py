"""Content of the stored files. Archives of earlier versions hold the same: entries may be added but never changed."""

from typing import Final

__all__ = [
    "CLASH",
    "DIRECTORY",
    "LEFTOVER",
    "LONG_STEPS",
    "MESSAGE",
    "MODES",
    "REPORT",
    "SHARED",
    "STORE",
    "STORE_V1",
    "VERSIONS",
    "Command",
]

Command = list[object]
"""The name of an operation of a backend, and its arguments."""

IMAGE: Final = b"\x89PNG\r\n\x1a\n\x00\xff\xfe"
UNICODE: Final = "/日本/naïve ﬁle – ünïcödé.txt"

DIRECTORY: Final[dict[str, bytes]] = {
    "/AGENTS.md": b"# Memory\n\nThe build runs on port 8123.\n",
    "/bom.txt": b"\xef\xbb\xbfbom\nsecond\n",
    "/crlf.txt": b"one\r\ntwo\r\nthree\r\n",
    "/deep/a/b/c.py": b"def f():\n    return 1\n",
    "/empty.txt": b"",
    "/image.png": IMAGE,
    "/latin1.txt": b"caf\xe9\n",
    "/no-newline.txt": b"first\nlast",
    "/notes..txt": b"dots\n",
    "/run.sh": b"#!/bin/sh\necho edited\n",
    "/secret.txt": b"edited secret\n",
    UNICODE: "größe\n".encode(),
}
"""The files in a directory of FilesystemBackend, without a symlink and without the files that an agent put there."""

MODES: Final = {"/run.sh": 0o755, "/secret.txt": 0o600}
LEFTOVER: Final = ".~deepfs-"
"""Prefix of the names of unfinished files; a killed process left one."""

VERSIONS: Final[dict[str, list[bytes]]] = {
    "/plan.md": [b"one\n", b"two\n", b"three\r\n"],
    "/gone.bin": [IMAGE],
    "/moved.txt": [b"moved\n"],
    "/größe.txt": ["µ\n".encode()],
}
"""The versions in the history of each path. Now `/plan.md` is `four`, `/gone.bin` is deleted, `/moved.txt` is moved."""

STORE: Final[dict[str, bytes]] = {
    "/bom.txt": b"\xef\xbb\xbfbom\n",
    "/crlf.txt": b"one\r\ntwo\r\n",
    "/docs/a.md": b"# A\n\nedited\n",
    "/docs/moved.md": b"# B\n",
    "/empty.txt": b"",
    "/image.png": IMAGE,
    UNICODE: "größe\n".encode(),
}
"""The files of a namespace of a store, and of a thread, after all steps."""

STORE_V1: Final[dict[str, bytes]] = {"/a.txt": b"one\nTWO\nthree\n", "/b.txt": "größe".encode()}
"""The files of a namespace, or of a thread, in the older format."""

SHARED: Final = "".join(f"line {number}\n" for number in range(10))
"""A file that two tasks of one step edit."""
CLASH: Final = "nobody\n"
"""A file that two tasks of one step edit in the same place."""
LONG_STEPS: Final = 55
"""The number of steps of a long thread; more than LangGraph keeps as single changes."""

REPORT: Final = "".join(f"{number:04}: a line of a large result\n" for number in range(100))
"""A result of a tool that was moved to a file."""
MESSAGE: Final = "".join(f"{number:04}: a line of a large message\n" for number in range(100))
"""A message of a person that was moved to a file."""


def commands_of_store() -> list[list[Command]]:
    """The steps that produce the files of STORE."""
    return [
        [
            ["write", "/bom.txt", "\ufeffbom\n"],
            ["write", "/crlf.txt", "one\r\nTWO\r\n"],
            ["write", "/docs/a.md", "# A\n\nfirst\n"],
            ["write", "/docs/b.md", "# B\n"],
            ["write", "/docs/c.md", "# C\n"],
            ["write", "/empty.txt", ""],
            ["upload", "/image.png", IMAGE],
            ["write", UNICODE, "größe\n"],
        ],
        [["edit", "/docs/a.md", "first", "second"], ["edit", "/crlf.txt", "TWO\n", "two\n"]],
        [["delete", "/docs/c.md"], ["move", "/docs/b.md", "/docs/moved.md"]],
        [["edit", "/docs/a.md", "second", "edited"]],
    ]


def commands_of_v1() -> list[list[Command]]:
    """The steps that produce the files of STORE_V1."""
    return [
        [["write", "/a.txt", "one\ntwo\nthree\n"], ["write", "/b.txt", "größe"], ["write", "/c.txt", "c"]],
        [["edit", "/a.txt", "two", "TWO"], ["delete", "/c.txt"]],
    ]
