"""Calls of tools that models make, right and wrong ones, and what both libraries and programs answer."""

import json
import subprocess
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

from benchmarks.machine import ripgrep
from deepfs import FilesystemBackend, FilesystemMiddleware
from deepfs.backends.local_shell import LocalShellBackend


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


class Answered(NamedTuple):
    call: Call
    ours: Answer
    theirs: Answer


_DATA: Final = json.loads(Path(__file__).with_suffix(".json").read_text())
_FILES: Final[dict[str, bytes]] = {
    **{name: text.encode() for name, text in _DATA["files"].items()},
    "bom.txt": b"\xef\xbb\xbftitle\nbody\n",
    "latin.txt": "caf\xe9\n".encode("latin-1"),
    "data/blob.bin": bytes(range(256)) * 8,
    "data/archive.zip": b"PK\3\4\xff\xfe\0" + bytes(64),
    "data/dot.png": b"\x89PNG\r\n\x1a\n" + bytes(64),
    "data/bundle.min.js": f"{'var a=1;' * 2500}needle(42);{'var b=2;' * 2500}\n".encode(),
    "data/log.txt": b"".join(b"%06d request served\n" % number for number in range(20_000)),
}
CALLS: Final = tuple(Call(*row) for section in _DATA["calls"].values() for row in section)


def _tree(root: Path, many: int) -> Path:
    for name, content in _FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "many").mkdir()
    for number in range(many):
        (root / f"many/file-{number:05}.txt").touch()
    return root


class Model(GenericFakeChatModel):
    """A fake model that remembers the messages and tools of its last request."""

    seen: list[BaseMessage] = Field(default_factory=list)
    tools: list[Any] = Field(default_factory=list)

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        self.seen = messages
        return super()._generate(messages, *args, **options)

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> "Model":
        self.tools = list(tools)
        return self


def answers(root: Path, calls: Sequence[Call] = CALLS, many: int = 6_000) -> list[Answered]:
    """Make two equal trees under `root`, with `many` files in `/many`, and let agents of both make the calls."""
    ours, theirs = _tree(root / "ours", many), _tree(root / "theirs", many)
    shell, files = (PeerMiddleware(backend=made(theirs, virtual_mode=True)) for made in (PeerShell, PeerFiles))
    both = (
        _answers(calls, FilesystemMiddleware(LocalShellBackend(ours)), FilesystemMiddleware(FilesystemBackend(ours))),
        _answers(calls, shell, files),
    )
    return [Answered(*each) for each in zip(calls, *both, strict=True)]


def _answers(calls: Sequence[Call], shell: Any, files: Any) -> Iterator[Answer]:
    turns = (message for call in calls for message in (_turn(call), AIMessage("Done.")))
    model = Model(messages=turns)
    agents = {True: create_agent(model, middleware=[shell]), False: create_agent(model, middleware=[files])}
    for call in calls:
        yield _answer(agents[call.executes], model)


def _turn(call: Call) -> AIMessage:
    return AIMessage("", tool_calls=[{"id": "1", "name": call.tool, "args": call.arguments}])


def _answer(agent: Any, model: Model) -> Answer:
    try:
        agent.invoke({"messages": [HumanMessage("Go.")]})
    except Exception as error:
        return Answer(f"(raised {type(error).__name__}: {error})", True)
    # State has references in place of media, which requests do not.
    [message] = [each for each in model.seen if isinstance(each, ToolMessage)]
    content = message.content if isinstance(message.content, str) else json.dumps(message.content)
    return Answer(content, message.status == "error")


class Question(NamedTuple):
    """A call that lists or searches, and the command that answers the same, where `{path}` is the path of the call."""

    tool: str
    arguments: dict[str, Any]
    command: tuple[str, ...]


def _grep(output_mode: str, flag: str, pattern: str, path: str) -> Question:
    command = (ripgrep(), "--no-config", "--no-ignore", "--no-heading", flag, "-F", pattern, "{path}")
    return Question("grep", {"pattern": pattern, "path": path, "output_mode": output_mode}, command)


def questions() -> list[Question]:
    """What a model asks about the sources of Django."""
    listed = ("/django", "/django/contrib/admin", "/django/db/models")
    named = (
        ("*.py", "/django/contrib/admin"),
        ("*.html", "/"),
        ("base.py", "/"),
        ("django/db/backends/*/*.py", "/"),
        ("urls.py", "/django"),
    )
    searched = (
        ("class Migration", "/"),
        ("def get_queryset", "/"),
        ("SECRET_KEY", "/"),
        ("import_module", "/django"),
        ("RegexValidator", "/django"),
        ("TODO", "/django"),
        ("select_related", "/django/db"),
        ("csrf_token", "/django/contrib/admin"),
    )
    modes = (("content", "-n"), ("files_with_matches", "-l"), ("count", "-c"))
    files = (ripgrep(), "--no-config", "--no-ignore", "--files", "--glob")
    return [
        *(Question("ls", {"path": path}, ("ls", "-1ps", "--block-size=1", "{path}")) for path in listed),
        *(Question("glob", {"pattern": name, "path": path}, (*files, name, "{path}")) for name, path in named),
        *(_grep(*mode, *search) for mode in modes for search in searched),
    ]


def results(root: Path, asked: Sequence[Question]) -> list[tuple[str, str, str]]:
    """The answers of deepfs, deepagents and the program, to each question about the files of `root`.

    The program is given absolute paths, as models give them, and shows them as if `root` were the root.
    """
    calls = [Call("", question.tool, question.arguments, executes=False) for question in asked]
    ours, theirs = FilesystemMiddleware(FilesystemBackend(root)), PeerMiddleware(backend=PeerFiles(root, True))
    both = zip(_answers(calls, ours, ours), _answers(calls, theirs, theirs), strict=True)
    return [(one.text, other.text, _run(root, each)) for each, (one, other) in zip(asked, both, strict=True)]


def _run(root: Path, question: Question) -> str:
    place = f"{root}{question.arguments['path']}".rstrip("/")
    command = [place if word == "{path}" else word for word in question.command]
    done = subprocess.run(command, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return done.stdout.removesuffix("\n").replace(f"{root}/", "/")
