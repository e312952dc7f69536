"""Permissions of deepagents apply to files of deepfs: no symlink and no spelling of a path bypasses them."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import deepagents
import pytest
from anyio import to_thread
from deepagents import FilesystemMiddleware, FilesystemPermission
from deepagents import backends as peer_backends
from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from deepfs import CompositeBackend, FilesystemBackend, MemoryBackend, run_sync
from deepfs.backends import LocalShellBackend
from deepfs.compat.deepagents import from_deepagents, to_deepagents
from deepfs.policy import AuditedBackend, PermissionedBackend, WrapperBackend
from deepfs.policy import FilesystemPermission as OurPermission
from support.scripted import ScriptedModel, calls

SECRET: Final = "token=4711"
Step = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """LangGraph needs asyncio."""
    return "asyncio"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A directory with a secret, and symlinks within it that lead to the secret."""
    root = tmp_path / "disk"
    (root / "secrets").mkdir(parents=True)
    (root / "open").mkdir()
    (root / "secrets" / "key.txt").write_text(f"{SECRET}\n")
    (root / "open" / "note.txt").write_text("token=none\n")
    (root / "link").symlink_to("secrets")
    (root / "chain").symlink_to("open/../link")
    (root / "key.txt").symlink_to("secrets/key.txt")
    return root


def shape(root: Path) -> dict[str, str | None]:
    """Everything beneath `root`: files with their content, symlinks with their target, None for directories."""
    found: dict[str, str | None] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        found[name] = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else None
    return found


# --- backends over a directory ---------------------------------------------------------------------------------------


def factory(root: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return to_deepagents(lambda _: FilesystemBackend(root))


def theirs(root: Path) -> Any:
    return peer_backends.FilesystemBackend(root, virtual_mode=True)


class _Ours(WrapperBackend):
    """A user's wrapper that changes nothing."""


KINDS: Final[dict[str, tuple[str, Callable[[Path], Any]]]] = {
    "wrapped": ("", lambda root: to_deepagents(AuditedBackend(_Ours(FilesystemBackend(root)), lambda _: None))),
    "factory": ("", factory),
    "deep mount": (
        "/a/b/disk",
        lambda root: to_deepagents(
            _Ours(
                CompositeBackend(
                    MemoryBackend(), {"/a/": CompositeBackend(MemoryBackend(), {"/b/disk": FilesystemBackend(root)})}
                )
            )
        ),
    ),
    "mount beside a shell": (
        "/disk",
        lambda root: to_deepagents(
            CompositeBackend(LocalShellBackend(root.parent / "shell"), {"/disk/": FilesystemBackend(root)})
        ),
    ),
    "mount of theirs": (
        "/disk",
        lambda root: peer_backends.CompositeBackend(
            default=to_deepagents(MemoryBackend()), routes={"/disk/": to_deepagents(FilesystemBackend(root))}
        ),
    ),
    "there and back": ("", lambda root: to_deepagents(from_deepagents(theirs(root)))),
}


def spellings(mount: str, path: str) -> list[str]:
    """Spellings of one path in the directory; each is refused or reaches the path."""
    names = path.strip("/").split("/")
    return [
        f"{mount}/{path}",
        f"{mount}/{path}"[1:],
        f"//{mount.lstrip('/')}/{path}",
        f"{mount}//{path}/",
        f"{mount}/./{path}/.",
        f"{mount}/.\\{path}",
        f"/.\\{mount.lstrip('/')}/{path}",
        f"{mount}\\" + "\\".join(names),
        f"{mount}/" + "/./".join(names),
        f"{mount}/" + "\\.\\".join(names),
        f"{mount}/open/../{path}",
    ]


def attempts(mount: str) -> list[Step]:
    steps: list[Step] = [("grep", {"pattern": "token", "output_mode": "content"}), ("glob", {"pattern": "*key*"})]
    for way in ("secrets", "link", "chain"):
        for path in spellings(mount, way):
            steps += [
                ("ls", {"path": path}),
                ("glob", {"pattern": "*", "path": path}),
                ("grep", {"pattern": "token", "path": path, "output_mode": "content"}),
                ("delete", {"file_path": path}),
            ]
    for way in ("key.txt", "link/key.txt", "chain/key.txt", "secrets/key.txt"):
        for path in spellings(mount, way):
            steps += [
                ("read_file", {"file_path": path}),
                ("grep", {"pattern": "token", "path": path, "output_mode": "content"}),
                ("edit_file", {"file_path": path, "old_string": "token", "new_string": "stolen"}),
                ("write_file", {"file_path": path, "content": "overwritten"}),
                ("delete", {"file_path": path}),
            ]
    for path in spellings(mount, "link/new.txt"):
        steps.append(("write_file", {"file_path": path, "content": "new"}))
    return steps


def rules(mount: str) -> list[FilesystemPermission]:
    hidden = [f"{mount}/secrets", f"{mount}/secrets/**"]
    return [FilesystemPermission(operations=["read", "write"], paths=hidden, mode="deny")]


class Tools:
    """The file tools of an agent of deepagents."""

    def __init__(self, backend: Any, permissions: list[FilesystemPermission]) -> None:
        middleware: Any = FilesystemMiddleware(backend=backend, permissions=permissions)
        self.tools = {tool.name: tool for tool in middleware.tools}
        self.runtime = ToolRuntime(
            state={}, context=None, config={}, stream_writer=lambda _: None, tool_call_id="call", store=None
        )

    def answers(self, steps: list[Step]) -> list[str]:
        return [str(self.tools[name].func(runtime=self.runtime, **options).content) for name, options in steps]

    async def aanswers(self, steps: list[Step]) -> list[str]:
        return [
            str((await self.tools[name].coroutine(runtime=self.runtime, **options)).content) for name, options in steps
        ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.anyio
async def test_symlinks_and_spellings_do_not_bypass_permissions(kind: str, how: str, disk: Path) -> None:
    mount, build = KINDS[kind]
    steps = [*attempts(mount), ("read_file", {"file_path": f"{mount}/open/note.txt"})]
    before = await to_thread.run_sync(shape, disk)
    tools = await to_thread.run_sync(lambda: Tools(build(disk), rules(mount)))
    answers = await (tools.aanswers(steps) if how == "async" else to_thread.run_sync(tools.answers, steps))
    assert [(step, answer) for step, answer in zip(steps, answers, strict=True) if SECRET in answer] == []
    assert "token=none" in answers[-1]
    assert await to_thread.run_sync(shape, disk) == before


def test_spellings_do_not_bypass_permissions_without_symlinks() -> None:
    policy: Any = to_deepagents(PermissionedBackend(MemoryBackend(), []))
    store = peer_backends.StoreBackend(store=InMemoryStore(), namespace=lambda _: ("a",))
    mounted = peer_backends.CompositeBackend(default=store, routes={"/m/": to_deepagents(MemoryBackend())})
    for mount, backend in (("", policy), ("/m", mounted)):
        assert backend.write(f"{mount}/secrets/key.txt", f"{SECRET}\n").error is None
        assert backend.write(f"{mount}/open/note.txt", "token=none\n").error is None
        steps = [*attempts(mount), ("read_file", {"file_path": f"{mount}/open/note.txt"})]
        answers = Tools(backend, rules(mount)).answers(steps)
        assert [(step, answer) for step, answer in zip(steps, answers, strict=True) if SECRET in answer] == []
        assert "token=none" in answers[-1]
        assert backend.download_files([f"{mount}/secrets/key.txt"])[0].content == f"{SECRET}\n".encode()


def test_symlinks_that_cannot_be_resolved_are_refused_and_others_followed(disk: Path) -> None:
    for link, target in (("out", "/etc"), ("loop", "loop"), ("alias.txt", "open/note.txt")):
        (disk / link).symlink_to(target)
    steps: list[Step] = [
        ("ls", {"path": "/out"}),
        ("read_file", {"file_path": "/loop"}),
        ("read_file", {"file_path": "/alias.txt"}),
    ]
    out, loop, alias = Tools(to_deepagents(FilesystemBackend(disk)), rules("")).answers(steps)
    assert (out, loop) == ("Error: cannot resolve /out", "Error: cannot resolve /loop")
    assert "token=none" in alias


def test_approval_is_asked_for_the_target_of_a_symlink(disk: Path) -> None:
    ask = [FilesystemPermission(operations=["read"], paths=["/secrets/**"], mode="interrupt")]
    steps: list[Step] = [("read_file", {"file_path": "/link/key.txt"})]
    model = ScriptedModel(messages=iter(calls(*steps)))
    agent = deepagents.create_deep_agent(
        model=model, backend=to_deepagents(FilesystemBackend(disk)), permissions=ask, checkpointer=InMemorySaver()
    )
    result = agent.invoke({"messages": ["go"]}, {"configurable": {"thread_id": "1"}})
    assert "__interrupt__" in result
    assert not any(isinstance(message, ToolMessage) for message in result["messages"])


def test_permissions_of_deepfs_apply_to_backends_of_deepagents(disk: Path) -> None:
    """The other direction: a policy of deepfs over a directory of deepagents."""
    hidden = OurPermission(["read", "write"], ["/secrets/**"], "deny")
    (disk / "loop").symlink_to("loop")
    for adapted in (
        from_deepagents(theirs(disk)),
        CompositeBackend(theirs(disk)),
        CompositeBackend(own_subclass(disk)),
    ):
        backend = PermissionedBackend(adapted, [hidden])
        assert backend.read("/link/key.txt").code == "permission_denied"
        assert backend.write("/link/new.txt", "x").code == "permission_denied"
        assert backend.read("/loop").code == "permission_denied"
        assert backend.read("/open/note.txt").ok
        assert {match.path for match in backend.grep("token").matches or ()} == {"/open/note.txt"}


def own_subclass(root: Path) -> Any:
    class Own(peer_backends.FilesystemBackend):
        pass

    return Own(root, virtual_mode=True)


def test_symlinks_in_mounts_of_deepagents_are_resolved(disk: Path) -> None:
    class Own(peer_backends.CompositeBackend):
        pass

    adapted = from_deepagents(Own(default=to_deepagents(MemoryBackend()), routes={"/disk/": theirs(disk)}))
    asked = ["/disk/link/key.txt", "/disk", "/disk/open", "/other", "/disk/../x"]
    assert run_sync(adapted.aresolve_paths, asked) == ["/disk/secrets/key.txt", "/disk", "/disk/open", "/other", None]
