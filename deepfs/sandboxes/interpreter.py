"""The interpreter of `VirtualShell`, as a program: it runs in a process of its own, and imports nothing of deepfs.

A script can exhaust the stack or the memory of an interpreter, or keep it busy where it looks at no clock; then only
this process ends. It reads requests from stdin and answers each on stdout. A message is the size of a header, the
header in JSON, and contents, whose sizes the header has.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any, Final

MAX_BYTES: Final = 400 * 1024 * 1024
"""The largest message."""
_MEMORY_BYTES: Final = 2 * 1024**3
"""The most address space of the process."""


def send(stream: IO[bytes], header: dict[str, Any], contents: Iterable[bytes] = ()) -> None:
    """Write a message."""
    contents = list(contents)
    encoded = json.dumps({**header, "sizes": [len(content) for content in contents]}).encode()
    stream.write(b"".join([len(encoded).to_bytes(8, "big"), encoded, *contents]))
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[bytes, list[bytes]]:
    """Read a message: the header as it is, and the contents. Raises EOFError if there is none, or too large a one."""
    header = _read(stream, int.from_bytes(_read(stream, 8), "big"))
    sizes = json.loads(header)["sizes"]
    if sum(sizes) > MAX_BYTES:
        raise EOFError
    return header, [_read(stream, size) for size in sizes]


def _read(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size) if 0 <= size <= MAX_BYTES else b""
    if len(data) != size:
        raise EOFError
    return data


def analyze(command: str) -> dict[str, Any]:
    """What a command refers to by its words; `error` says why it is no script."""
    from bashkit import Bash, BashError

    try:
        found = Bash().analyze(command)
    except BashError as error:
        return {"error": str(error)}
    return {
        "commands": [[each.name, each.args] for each in found.commands if not each.is_assignment_only],
        "redirects": [each.path for each in found.redirects],
        "is_opaque": found.is_opaque or bool(found.functions),
    }


def run(
    command: str, limits: dict[str, Any], entries: list[list[Any]], contents: list[bytes]
) -> tuple[dict[str, Any], list[bytes]]:
    """Run a command on a new filesystem.

    Each entry is a path, its kind, its mode (None for the usual one) and the target of a link; the contents are those
    of the files, in order. Returned are the header, and the contents of the files that are not as they were.
    """
    from bashkit import Bash, FileSystem

    files = FileSystem()
    for each in files.read_dir("/"):
        files.remove(f"/{each['name']}", True)
    left_out: list[str] = []
    before: dict[str, bytes] = {}
    given = iter(contents)
    for path, kind, mode, target in entries:
        content = next(given) if kind == "file" else b""
        try:
            if kind == "link":
                files.symlink(target, path)
            elif kind == "directory":
                files.mkdir(path, True)
            else:
                files.write_file(path, content)
                before[path] = content
            if mode is not None:
                files.chmod(path, mode)
        except RuntimeError:  # A control character in its name, or it is too deep.
            left_out.append(path)
    if "/tmp" in command and not files.exists("/tmp"):
        files.mkdir("/tmp")
    bash = Bash(cwd="/", env={"HOME": "/"}, **limits)
    bash.mount("/", files)
    began = time.monotonic()
    result = bash.execute_sync(command)
    header: dict[str, Any] = {
        "stdout": result.stdout,
        "stderr": result.stderr,
        "exit_code": result.exit_code,
        "error": result.error,
        "seconds": time.monotonic() - began,
        "is_cut": result.stdout_truncated or result.stderr_truncated,
        "left_out": left_out,
        "files": [],
        "directories": [],
        "links": [],
    }
    changed: list[bytes] = []
    pending = ["/"] if result.error is None else []
    while pending:
        directory = pending.pop()
        for each in files.read_dir(directory):
            path, facts = f"{directory.rstrip('/')}/{each['name']}", each["metadata"]
            if facts["file_type"] == "directory":
                header["directories"].append(path)
                pending.append(path)
            elif facts["file_type"] == "file":
                content = files.read_file(path)
                is_same = before.get(path) == content
                header["files"].append([path, facts["mode"], is_same])
                if not is_same:
                    changed.append(content)
            else:
                header["links"].append(path)
    return header, changed


def main() -> None:
    """Answer requests until stdin ends."""
    packages, seconds = sys.argv[1:]
    sys.path.insert(0, packages)
    with suppress(ImportError, OSError, ValueError):  # Not on every system.
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(float(seconds)) + 5,) * 2)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES,) * 2)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Nothing else gets between the answers.
    with suppress(EOFError):
        while True:
            header, contents = receive(sys.stdin.buffer)
            request = json.loads(header)
            if "analyze" in request:
                send(answers, analyze(request["analyze"]))
            else:
                send(answers, *run(request["command"], request["limits"], request["entries"], contents))


if __name__ == "__main__":
    main()
