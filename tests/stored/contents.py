"""What the stored files hold. Archives of earlier versions hold the same, so nothing here may change; it may grow."""

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
"""An operation of a backend by name, and its arguments."""

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
"""A directory of FilesystemBackend, without what has other modes, and what an agent put there."""

MODES: Final = {"/run.sh": 0o755, "/secret.txt": 0o600}
LEFTOVER: Final = ".~deepfs-"
"""What the name of an unfinished file begins with: a process that was killed left one."""

VERSIONS: Final[dict[str, list[bytes]]] = {
    "/plan.md": [b"one\n", b"two\n", b"three\r\n"],
    "/gone.bin": [IMAGE],
    "/moved.txt": [b"moved\n"],
    "/größe.txt": ["µ\n".encode()],
}
"""What the history of each path holds; `/plan.md` is `four` now, `/gone.bin` deleted and `/moved.txt` elsewhere."""

STORE: Final[dict[str, bytes]] = {
    "/bom.txt": b"\xef\xbb\xbfbom\n",
    "/crlf.txt": b"one\r\ntwo\r\n",
    "/docs/a.md": b"# A\n\nedited\n",
    "/docs/moved.md": b"# B\n",
    "/empty.txt": b"",
    "/image.png": IMAGE,
    UNICODE: "größe\n".encode(),
}
"""The files of a namespace of a store, and those of a thread, after all of its steps."""

STORE_V1: Final[dict[str, bytes]] = {"/a.txt": b"one\nTWO\nthree\n", "/b.txt": "größe".encode()}
"""The files of a namespace, or of a thread, of the older format."""

SHARED: Final = "".join(f"line {number}\n" for number in range(10))
"""The file that two tasks of one step edit."""
CLASH: Final = "nobody\n"
"""The file that two tasks of one step want to change in one place."""
LONG_STEPS: Final = 55
"""Steps of a thread that are more than LangGraph keeps single changes of."""

REPORT: Final = "".join(f"{number:04}: a line of a large result\n" for number in range(100))
"""What a tool returned that was put away in a file."""
MESSAGE: Final = "".join(f"{number:04}: a line of a large message\n" for number in range(100))
"""What a person said that was put away in a file."""


def commands_of_store() -> list[list[Command]]:
    """The steps that lead to the files of STORE."""
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
    """The steps that lead to the files of STORE_V1."""
    return [
        [["write", "/a.txt", "one\ntwo\nthree\n"], ["write", "/b.txt", "größe"], ["write", "/c.txt", "c"]],
        [["edit", "/a.txt", "two", "TWO"], ["delete", "/c.txt"]],
    ]
