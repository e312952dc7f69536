"""The bytes that a conversation with images leaves in a SQLite checkpointer, with and without storing media by hash."""

import base64
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from deepagents.backends import FilesystemBackend as PeerBackend
from deepagents.middleware.filesystem import FilesystemMiddleware as PeerMiddleware
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from benchmarks import inputs
from benchmarks.bench import Bench
from deepfs import FilesystemBackend, FilesystemMiddleware

TITLE: Final = "Checkpoints of 100 turns with 20 images"

_TURNS: Final = 100
_IMAGES: Final = 20
_BYTES: Final = 1_000_000
_QUICK_BYTES: Final = 20_000


async def measure(bench: Bench) -> None:
    """Count what each library writes for the same conversation, with its media inline and stored by hash."""
    size = _QUICK_BYTES if bench.quick else _BYTES
    with inputs.scratch() as directory:
        ours, peer = (
            [_written(partial(middleware, stores), directory / f"{name}-{stores}", size) for stores in (False, True)]
            for name, middleware in (("ours", _ours), ("peer", _peer))
        )
    work = f"{_TURNS} turns with {_IMAGES} images of {size // 1000:,} kB in a SQLite checkpointer"
    for what, place in (("the last checkpoint", 0), ("all that is written", 1)):
        share = 100 * ours[1][place] / ours[0][place]
        claim = f"{work}: {what}, at most 1 % of that with media inline"
        bench.at_most(claim, 1, [share], " %", reduced=bench.quick)
    bench.note(
        "Half of the images are read by a tool, half are sent by a person, whose messages LangGraph saves before any "
        "node runs. Last checkpoint and all writes of langchain's create_agent: with deepfs "
        f"{_mega(ours[0])} inline, {_mega(ours[1])} by hash; with deepagents {_mega(peer[0])} inline, {_mega(peer[1])} "
        "with offload_binary_content=True, which is not its default."
    )


def _mega(sizes: tuple[int, int]) -> str:
    last, written = sizes
    return f"{last / 1e6:,.2f} and {written / 1e6:,.0f} MB"


def _ours(stores: bool, root: Path) -> Any:
    return FilesystemMiddleware(FilesystemBackend(root), offload_binary_content=stores)


def _peer(stores: bool, root: Path) -> Any:
    return PeerMiddleware(backend=PeerBackend(root, virtual_mode=True), offload_binary_content=stores)


# --- the conversation ------------------------------------------------------------------------------------------------


class _Model(GenericFakeChatModel):
    """A fake model that offers no tools to its script."""

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> "_Model":
        return self


def _written(middleware: Callable[[Path], Any], root: Path, size: int) -> tuple[int, int]:
    """The bytes of the last checkpoint of the conversation, and of all its checkpoints and writes."""
    made = random.Random(1)
    images = [b"\x89PNG\r\n\x1a\n" + made.randbytes(size) for _ in range(_IMAGES)]
    root.mkdir()
    for number, image in enumerate(images):
        root.joinpath(f"{number}.png").write_bytes(image)
    with SqliteSaver.from_conn_string(":memory:") as saver:
        agent = create_agent(_Model(messages=_answers()), middleware=[middleware(root)], checkpointer=saver)
        written = sum(_turn(agent, saver, _said(turn, images)) for turn in range(_TURNS))
        return _kept(saver), written


def _image(turn: int) -> int | None:
    """The number of the image that is shown in a turn, if any."""
    number, others = divmod(turn, _TURNS // _IMAGES)
    return None if others else number


def _answers() -> Iterator[AIMessage]:
    for turn in range(_TURNS):
        number = _image(turn)
        if number is not None and number % 2:
            call = {"id": f"call-{turn}", "name": "read_file", "args": {"file_path": f"/{number}.png"}}
            yield AIMessage("", tool_calls=[call])
        yield AIMessage("I see.")


def _said(turn: int, images: Sequence[bytes]) -> HumanMessage:
    number = _image(turn)
    if number is None or number % 2:
        return HumanMessage("Go on.")
    payload = base64.b64encode(images[number]).decode("ascii")
    return HumanMessage([{"type": "image", "base64": payload, "mime_type": "image/png"}])


def _turn(agent: Any, saver: SqliteSaver, said: HumanMessage) -> int:
    """The bytes that one turn writes; only what the next turn needs stays in memory."""
    agent.invoke({"messages": [said]}, {"configurable": {"thread_id": "1"}})
    sums = "SELECT sum(length(checkpoint)) FROM checkpoints", "SELECT sum(length(value)) FROM writes"
    size = sum(saver.conn.execute(each).fetchone()[0] for each in sums)
    saver.conn.execute("DELETE FROM writes")
    saver.conn.execute("DELETE FROM checkpoints WHERE checkpoint_id < (SELECT max(checkpoint_id) FROM checkpoints)")
    return int(size) - _kept(saver)


def _kept(saver: SqliteSaver) -> int:
    return int(saver.conn.execute("SELECT sum(length(checkpoint)) FROM checkpoints").fetchone()[0])
