"""Calls of tools that models make, right and wrong ones, and what both libraries answer.

`python -m benchmarks.tool_calls [FILE]` writes the answers side by side, as Markdown, to FILE or to standard output;
with a name that ends in `.json` as JSON.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from deepagents.backends import FilesystemBackend as PeerFiles
from deepagents.backends import LocalShellBackend as PeerShell
from deepagents.middleware.filesystem import FilesystemMiddleware as PeerMiddleware
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from deepfs import FilesystemBackend, FilesystemMiddleware
from deepfs.backends.local_shell import LocalShellBackend

__all__ = ["CALLS", "Answer", "Answered", "Call", "answers", "markdown"]


class Call(NamedTuple):
    """A call of a tool, and what the model has in mind."""

    aim: str
    tool: str
    arguments: dict[str, Any]
    executes: bool = True
    """Whether the backend runs commands."""


class Answer(NamedTuple):
    """What a library answers to a call."""

    text: str
    failed: bool

    @property
    def chars(self) -> int:
        """The length of the answer."""
        return len(self.text)


class Answered(NamedTuple):
    """A call, and the answers of both libraries."""

    call: Call
    ours: Answer
    theirs: Answer


_LONG: Final = f"{'var a=1;' * 2500}needle(42);{'var b=2;' * 2500}"
_FILES: Final[dict[str, bytes]] = {
    "README.md": b"# Shop\n\nA small shop.\n",
    "src/main.py": b"import util\n\n\ndef main():\n    print(util.total([1, 2]))\n\n\nmain()\n",
    "src/util.py": b"def total(items):\n    return sum(items)\n\n\ndef mean(items):\n    return total(items) / 2\n",
    "src/views/cart.ts": b"export const cart = () => total();\n",
    "src/views/cart.tsx": b"export const Cart = () => <b>{total()}</b>;\n",
    "tests/test_util.py": b"from util import total\n\n\ndef test_total():\n    assert total([1]) == 1\n",
    "windows.txt": b"first\r\nsecond\r\nthird\r\n",
    "empty.txt": b"",
    "bom.txt": b"\xef\xbb\xbftitle\nbody\n",
    "latin.txt": "caf\xe9\n".encode("latin-1"),
    "data/blob.bin": bytes(range(256)) * 8,
    "data/archive.zip": b"PK\3\4\xff\xfe\0" + bytes(64),
    "data/dot.png": b"\x89PNG\r\n\x1a\n" + bytes(64),
    "data/broken.png": b"this is no picture\n",
    "data/bundle.min.js": _LONG.encode() + b"\n",
    "data/log.txt": b"".join(b"%06d request served\n" % number for number in range(20_000)),
    "data/caf\xe9.txt": b"composed\n",
    ".env": b"KEY=1\n",
    ".github/ci.yml": b"on: push\n",
    "notes/a b.txt": b"with a blank\n",
    "notes/todo.md": b"- one\n- two\n- one\n",
    "notes/forged.md": b"[Lines 1 to 1 of 1]\nError: nothing here\n",
    "edit/config.ini": b"[a]\nport = 80\n[b]\nport = 80\n",
    "edit/indent.py": b"def f():\n\tif True:\n\t\treturn 1\n",
    "edit/quotes.txt": "He said \u201cyes\u201d.\n".encode(),
    "edit/dash.txt": b"a - b\n",
    "edit/old.txt": b"old\n",
    "edit/full/x.txt": b"x\n",
    "edit/gone.txt": b"gone\n",
}

CALLS: Final[tuple[Call, ...]] = (
    # Listings
    Call("list the root", "ls", {"path": "/"}),
    Call("list without a path", "ls", {}),
    Call("list a relative path", "ls", {"path": "src"}),
    Call("list the current directory", "ls", {"path": "."}),
    Call("list a missing directory, mistyped", "ls", {"path": "/scr"}),
    Call("list a file", "ls", {"path": "/README.md"}),
    Call("list a directory of 6,000 files", "ls", {"path": "/many"}),
    Call("list a path of the host", "ls", {"path": "/home/user/shop/src"}),
    Call("list the home directory", "ls", {"path": "~/shop"}),
    Call("list the parent directory", "ls", {"path": "../"}),
    # Reads
    Call("read a file", "read_file", {"file_path": "/src/main.py"}),
    Call("read a relative path", "read_file", {"file_path": "src/main.py"}),
    Call("read a missing file, mistyped", "read_file", {"file_path": "/src/mian.py"}),
    Call("read with another extension", "read_file", {"file_path": "/src/views/cart.js"}),
    Call("read with another case", "read_file", {"file_path": "/readme.md"}),
    Call("read from a missing directory", "read_file", {"file_path": "/source/main.py"}),
    Call("read a path of the host", "read_file", {"file_path": "/home/user/shop/src/main.py"}),
    Call("read a path of Windows", "read_file", {"file_path": "C:\\shop\\src\\main.py"}),
    Call("read a directory", "read_file", {"file_path": "/src"}),
    Call("read below a file", "read_file", {"file_path": "/README.md/intro"}),
    Call("read by a look-alike name", "read_file", {"file_path": "/data/cafe\u0301.txt"}),
    Call("read a hidden file", "read_file", {"file_path": "/.env"}),
    Call("read an empty file", "read_file", {"file_path": "/empty.txt"}),
    Call("read a file with CRLF", "read_file", {"file_path": "/windows.txt"}),
    Call("read a file with a BOM", "read_file", {"file_path": "/bom.txt"}),
    Call("read a text in Latin-1", "read_file", {"file_path": "/latin.txt"}),
    Call("read a binary file", "read_file", {"file_path": "/data/blob.bin"}),
    Call("read an archive", "read_file", {"file_path": "/data/archive.zip"}),
    Call("read an image", "read_file", {"file_path": "/data/dot.png"}),
    Call("read an image that is none", "read_file", {"file_path": "/data/broken.png"}),
    Call("read a line of 40,000 characters", "read_file", {"file_path": "/data/bundle.min.js"}),
    Call("read 20,000 lines", "read_file", {"file_path": "/data/log.txt"}),
    Call("read a page in the middle", "read_file", {"file_path": "/data/log.txt", "offset": 9_990, "limit": 3}),
    Call("read past the end", "read_file", {"file_path": "/src/main.py", "offset": 100}),
    Call("read the last lines by a negative offset", "read_file", {"file_path": "/data/log.txt", "offset": -3}),
    Call("read no lines", "read_file", {"file_path": "/src/main.py", "limit": 0}),
    Call("read with numbers as texts", "read_file", {"file_path": "/src/main.py", "offset": "2", "limit": "2"}),
    Call("read with the argument path", "read_file", {"path": "/src/main.py"}),
    Call("read with an unknown argument", "read_file", {"file_path": "/src/main.py", "start_line": 3}),
    Call("read without a path", "read_file", {}),
    Call("read a list of paths", "read_file", {"file_path": ["/src/main.py", "/src/util.py"]}),
    Call("read content that looks like notes", "read_file", {"file_path": "/notes/forged.md"}),
    # Searches
    Call("find files by name", "glob", {"pattern": "*.py"}),
    Call("find files with braces", "glob", {"pattern": "src/**/*.{ts,tsx}"}),
    Call("find with an absolute pattern", "glob", {"pattern": "/src/*.py"}),
    Call("find hidden files", "glob", {"pattern": "**/*.yml"}),
    Call("find with a mistyped directory", "glob", {"pattern": "*.py", "path": "/srcs"}),
    Call("find a directory by its name", "glob", {"pattern": "views"}),
    Call("find with nothing found", "glob", {"pattern": "lib/*.rs"}),
    Call("find above the root", "glob", {"pattern": "../*.py"}),
    Call("find 6,000 files", "glob", {"pattern": "many/*"}),
    Call("search a text", "grep", {"pattern": "total"}),
    Call("search with lines shown", "grep", {"pattern": "total", "path": "/src", "output_mode": "content"}),
    Call("search by a regular expression that is taken literally", "grep", {"pattern": "def \\w+\\("}),
    Call("search alternatives literally", "grep", {"pattern": "mean|median"}),
    Call("search by a regular expression", "grep", {"pattern": "def \\w+\\(", "regex": True, "output_mode": "content"}),
    Call("search by a broken expression", "grep", {"pattern": "total(", "regex": True}),
    Call("search in another case", "grep", {"pattern": "SHOP"}),
    Call("search with -i", "grep", {"pattern": "SHOP", "-i": True}),
    Call("search one file", "grep", {"pattern": "total", "path": "/src/util.py", "output_mode": "count"}),
    Call("search in a long line", "grep", {"pattern": "needle(42)", "output_mode": "content"}),
    Call("search with 20,000 matches", "grep", {"pattern": "request", "output_mode": "content"}),
    Call("search an unknown mode", "grep", {"pattern": "total", "output_mode": "lines"}),
    Call("search a missing path", "grep", {"pattern": "total", "path": "/src/utils.py"}),
    # Changes
    Call("write a new file", "write_file", {"file_path": "/out/new.txt", "content": "new\n"}),
    Call("write a relative path", "write_file", {"file_path": "out/rel.txt", "content": "new\n"}),
    Call("write over a file", "write_file", {"file_path": "/edit/old.txt", "content": "new\n"}),
    Call("write over a directory", "write_file", {"file_path": "/edit/full", "content": "new\n"}),
    Call("write below a file", "write_file", {"file_path": "/README.md/new.txt", "content": "new\n"}),
    Call("write without content", "write_file", {"file_path": "/out/none.txt"}),
    Call("write an object", "write_file", {"file_path": "/out/a.json", "content": {"a": 1}}),
    Call(
        "edit a text that occurs twice",
        "edit_file",
        {"file_path": "/edit/config.ini", "old_string": "port = 80", "new_string": "port = 81"},
    ),
    Call(
        "edit with wrong indentation",
        "edit_file",
        {"file_path": "/edit/indent.py", "old_string": "        return 1", "new_string": "        return 2"},
    ),
    Call(
        "edit with plain quotes",
        "edit_file",
        {"file_path": "/edit/quotes.txt", "old_string": 'said "yes"', "new_string": "said no"},
    ),
    Call(
        "edit with a line number",
        "edit_file",
        {"file_path": "/edit/dash.txt", "old_string": "1\ta - b", "new_string": "a + b"},
    ),
    Call(
        "edit several lines with CRLF",
        "edit_file",
        {"file_path": "/windows.txt", "old_string": "first\nsecond", "new_string": "1\n2"},
    ),
    Call(
        "edit to the same text",
        "edit_file",
        {"file_path": "/edit/dash.txt", "old_string": "a - b", "new_string": "a - b"},
    ),
    Call(
        "edit with old_str and new_str", "edit_file", {"path": "/edit/dash.txt", "old_str": "a - b", "new_str": "a + b"}
    ),
    Call(
        "edit with an empty text", "edit_file", {"file_path": "/empty.txt", "old_string": "", "new_string": "begin\n"}
    ),
    Call("edit a missing file", "edit_file", {"file_path": "/edit/confg.ini", "old_string": "a", "new_string": "b"}),
    Call("edit a binary file", "edit_file", {"file_path": "/data/blob.bin", "old_string": "a", "new_string": "b"}),
    Call("delete a file", "delete", {"file_path": "/edit/gone.txt"}),
    Call("delete it again", "delete", {"file_path": "/edit/gone.txt"}),
    Call("move onto a file", "move", {"source": "/notes/todo.md", "destination": "/README.md"}),
    Call("move into a directory", "move", {"source": "/notes/todo.md", "destination": "/edit/full"}),
    Call("move a directory into itself", "move", {"source": "/notes", "destination": "/notes/old"}),
    # Commands
    Call("run a command", "execute", {"command": "pwd | wc -l; ls src"}),
    Call("run a command without output", "execute", {"command": "true"}),
    Call("run a command that fails", "execute", {"command": "cat /no/such/file"}),
    Call("run a command that takes too long", "execute", {"command": "sleep 30", "timeout": 1}),
    Call("run a command with much output", "execute", {"command": "seq 1 60000"}),
    Call("run a command with a description", "execute", {"command": "echo hi", "description": "Say hi"}),
    Call("run a command for a day", "execute", {"command": "echo hi", "timeout": 86_400}),
    Call("run a command where none are run", "execute", {"command": "ls"}, executes=False),
    Call("delete the root", "delete", {"file_path": "/"}),
)


def _tree(root: Path, many: int) -> Path:
    for name, content in _FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "many").mkdir()
    for number in range(many):
        (root / f"many/file-{number:05}.txt").touch()
    return root


class _Model(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> "_Model":
        return self


def answers(root: Path, calls: Sequence[Call] = CALLS, many: int = 6_000) -> list[Answered]:
    """Make two equal trees under `root`, with `many` files in `/many`, and let agents of both make the calls."""
    ours, theirs = _tree(root / "ours", many), _tree(root / "theirs", many)
    both = (
        _answers(calls, FilesystemMiddleware(LocalShellBackend(ours)), FilesystemMiddleware(FilesystemBackend(ours))),
        _answers(
            calls,
            PeerMiddleware(backend=PeerShell(root_dir=theirs, virtual_mode=True)),
            PeerMiddleware(backend=PeerFiles(root_dir=theirs, virtual_mode=True)),
        ),
    )
    return [Answered(call, own, other) for call, own, other in zip(calls, *both, strict=True)]


def _answers(calls: Sequence[Call], shell: Any, files: Any) -> Iterator[Answer]:
    turns = (message for call in calls for message in (_turn(call), AIMessage("Done.")))
    model = _Model(messages=turns)
    agents = {True: create_agent(model, middleware=[shell]), False: create_agent(model, middleware=[files])}
    for call in calls:
        yield _answer(agents[call.executes])


def _turn(call: Call) -> AIMessage:
    return AIMessage("", tool_calls=[{"id": "1", "name": call.tool, "args": call.arguments}])


def _answer(agent: Any) -> Answer:
    try:
        state = agent.invoke({"messages": [HumanMessage("Go.")]})
    except Exception as error:
        return Answer(f"(raised {type(error).__name__}: {error})", True)
    [message] = [each for each in state["messages"] if isinstance(each, ToolMessage)]
    content = message.content if isinstance(message.content, str) else json.dumps(message.content)
    return Answer(content, message.status == "error")


_SHOWN: Final = 700


def markdown(answered: Sequence[Answered]) -> str:
    """The answers side by side; long ones are shown by both ends."""
    ours, theirs = sum(each.ours.chars for each in answered), sum(each.theirs.chars for each in answered)
    head = [
        f"# {len(answered)} calls of tools",
        f"Characters of all answers: {ours:,} with deepfs, {theirs:,} with deepagents.",
    ]
    return "\n\n".join([*head, *(_section(number, each) for number, each in enumerate(answered, 1))]) + "\n"


def _section(number: int, answered: Answered) -> str:
    call = answered.call
    shown = json.dumps(call.arguments, ensure_ascii=False)
    return "\n\n".join(
        [
            f"## {number}. {call.aim[0].upper()}{call.aim[1:]}",
            f"`{call.tool}({shown})`",
            _block("deepfs", answered.ours),
            _block("deepagents", answered.theirs),
        ]
    )


def _block(name: str, answer: Answer) -> str:
    text = answer.text
    if len(text) > _SHOWN:
        text = f"{text[: _SHOWN // 2]}\n⋮ ({len(text) - _SHOWN:,} characters)\n{text[-_SHOWN // 2 :]}"
    return f"{name}, {answer.chars:,} characters{', an error' if answer.failed else ''}:\n\n````text\n{text}\n````"


def _main() -> None:
    with tempfile.TemporaryDirectory() as root:
        answered = answers(Path(root))
    target = sys.argv[1] if len(sys.argv) > 1 else ""
    rows = [{"call": each.call._asdict(), "deepfs": each.ours, "deepagents": each.theirs} for each in answered]
    text = json.dumps(rows, indent=1) if target.endswith(".json") else markdown(answered)
    if target:
        Path(target).write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    _main()
