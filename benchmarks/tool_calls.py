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
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatResult
from pydantic import Field

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

_SECTIONS: Final = json.loads(Path(__file__).with_suffix(".json").read_text())
"""The calls, with their aims, by what they are about."""

CALLS: Final[tuple[Call, ...]] = tuple(Call(*row) for section in _SECTIONS.values() for row in section)


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
    """Makes the calls, and keeps the messages of its last request: state has references in place of media."""

    seen: list[BaseMessage] = Field(default_factory=list)

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        self.seen = messages
        return super()._generate(messages, *args, **options)

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
        yield _answer(agents[call.executes], model)


def _turn(call: Call) -> AIMessage:
    return AIMessage("", tool_calls=[{"id": "1", "name": call.tool, "args": call.arguments}])


def _answer(agent: Any, model: _Model) -> Answer:
    try:
        agent.invoke({"messages": [HumanMessage("Go.")]})
    except Exception as error:
        return Answer(f"(raised {type(error).__name__}: {error})", True)
    [message] = [each for each in model.seen if isinstance(each, ToolMessage)]
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
