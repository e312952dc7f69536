"""Permissions: what they match, refuse and hide, and what a refusal reveals."""

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from deepfs import (
    CompositeBackend,
    FilesystemBackend,
    FilesystemPermission,
    MemoryBackend,
    PermissionedBackend,
    run_sync,
)
from deepfs.backends.protocol import BackendProtocol, SandboxBackendProtocol, supports_execute
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import BackendError
from deepfs.operations import Operation
from deepfs.policy import ApprovalNeededError, DeniedError, as_approved, decide, decide_beneath
from deepfs.types import ExecuteResponse, FileInfo, GlobResult, LsResult

pytestmark = pytest.mark.anyio

SECRET = FilesystemPermission(["read", "write"], ["/secret/**"], "deny")


def files(**contents: str) -> MemoryBackend:
    """A backend with these files; a key is a path with `__` for `/`."""
    memory = MemoryBackend()
    for name, content in contents.items():
        assert memory.write("/" + name.replace("__", "/"), content).ok
    return memory


def secret_files() -> MemoryBackend:
    return files(secret__a="needle a", secret__deep__b="needle b", open__c="needle c", open__d="needle d")


# --- rules ---


class TestRules:
    def test_patterns(self) -> None:
        """Those that the matrix does not draw."""
        for pattern, matching, others in (
            ("/secret/**", ("/secret", "/secret/.env"), ("/secrets", "/")),
            ("/secret/", ("/secret", "/secret/a"), ("/secrets",)),
            ("/", ("/",), ("/a",)),
            ("/{a,b/**}", ("/a", "/b"), ("/a/x",)),
            ("/[!a]?c", ("/bbc",), ("/abc", "/b/c")),
            ("/a\\*", ("/a*",), ("/ab",)),
            ("/a/./b//c", ("/a/b/c",), ("/a/b",)),
        ):
            rule = FilesystemPermission(["read"], [pattern], "deny")
            for path in (*matching, *others):
                assert rule.matches("read", path) is (path in matching), (pattern, path)
                assert decide([rule], "read", path) == (("deny", rule) if path in matching else ("allow", None))
                assert not rule.matches("write", path)

    def test_brackets_that_read_as_a_name_are_told(self) -> None:
        for pattern, literal in (
            ("/app/[slug]/page.tsx", r"/app/\[slug\]/page.tsx"),
            ("/pages/[id].vue", r"/pages/\[id\].vue"),
            ("/app/[[...path]]/**", r"/app/\[\[...path\]\]/**"),
        ):
            hint = re.escape(f"If the brackets are part of a name, write {literal}")
            with pytest.warns(match=f"{hint}$") as warnings:
                FilesystemPermission(["write"], [pattern], "deny")
            assert [each.filename for each in warnings] == [__file__]
            assert FilesystemPermission(["write"], [literal]).matches("write", pattern.replace("**", "a"))
        for pattern in ("/[0-9]/a", "/[abc]/**", "/[sS]/a", "/[sS]ecrets/**", "/[!ab]/x", "/[a-zA-Z]/a", "/{id,slug}"):
            FilesystemPermission(["write"], [pattern], "deny")

    def test_invalid_rules_are_refused(self) -> None:
        for path in ("work", "/a/../b", "/~", "~/a", "/a["):
            with pytest.raises(ValueError, match=r"path|pattern"):
                FilesystemPermission(["read"], [path])
        wrong: list[tuple[dict[str, Any], type[Exception]]] = [
            ({"paths": "/work"}, TypeError),
            ({"paths": [1]}, TypeError),
            ({"paths": [None]}, TypeError),
            ({"paths": [b"/work"]}, TypeError),
            ({"paths": []}, ValueError),
            ({"paths": iter(["/work"])}, TypeError),
            ({"operations": "read"}, TypeError),
            ({"operations": iter(["read"])}, TypeError),
            ({"operations": []}, ValueError),
            ({"operations": ["Read"]}, ValueError),
            ({"mode": "ask"}, ValueError),
            ({"operations": ["read", "execute"], "paths": ["/work/**"]}, ValueError),
        ]
        for arguments, error in wrong:
            with pytest.raises(error):
                FilesystemPermission(**{"operations": ["read"], "paths": ["/x"], **arguments})
        rules: Any
        for rules in (None, 5, "deny", [None], ["deny"], [{"mode": "deny"}]):
            with pytest.raises(TypeError, match="rules is a list of FilesystemPermission"):
                PermissionedBackend(MemoryBackend(), rules)
        operation: Any = "Read"
        for judge in (decide, decide_beneath):
            with pytest.raises(ValueError, match="unknown operation 'Read'; known are read, write, execute"):
                judge([FilesystemPermission(["read"], ["/**"], "deny")], operation, "/a")


# --- refusals ---

ON_A_PATH: dict[str, Callable[[Any, str], Any]] = {
    "ls": lambda backend, path: backend.als(path),
    "read": lambda backend, path: backend.aread(path),
    "read_raw": lambda backend, path: backend.aread_raw(path),
    "write": lambda backend, path: backend.awrite(path, "x"),
    "overwrite": lambda backend, path: backend.awrite(path, "x", overwrite=True),
    "bad write": lambda backend, path: backend.awrite(path, "\0"),
    "edit": lambda backend, path: backend.aedit(path, "needle", "x"),
    "glob": lambda backend, path: backend.aglob("*", path),
    "grep": lambda backend, path: backend.agrep("needle", path),
    "delete": lambda backend, path: backend.adelete(path),
    "copy from": lambda backend, path: backend.acopy(path, "/copy"),
    "copy to": lambda backend, path: backend.acopy("/open/c", path, overwrite=True),
    "move from": lambda backend, path: backend.amove(path, "/moved"),
    "move to": lambda backend, path: backend.amove("/open/c", path, overwrite=True),
}


async def test_a_refusal_does_not_reveal_what_exists_at_the_path() -> None:
    for call in ON_A_PATH.values():
        answers = set()
        for path in ("/secret/a", "/secret/deep", "/secret/missing", "/secret/a/beneath", "//secret/./a/"):
            memory = secret_files()
            before = dict(memory._files)
            result = await call(PermissionedBackend(memory, [SECRET]), path)
            assert result.code == "permission_denied"
            assert memory._files == before
            normal = "/" + "/".join(name for name in path.split("/") if name not in ("", "."))
            answers.add(result.error.replace(normal, "PATH"))
        assert len(answers) == 1
        assert answers <= {f"Error: permission denied for {needed} on PATH" for needed in ("read", "write")}


async def test_batches_are_checked_item_by_item_and_stay_in_order() -> None:
    memory = secret_files()
    backend = PermissionedBackend(memory, [SECRET])
    fetched = await backend.adownload_files(["/open/c", "/secret/a", "/secret/none", "/none", "/..", "/open/d"])
    assert [item.error for item in fetched] == [
        None, "permission_denied", "permission_denied", "file_not_found", "invalid_path", None,
    ]  # fmt: skip
    assert [item.content for item in fetched if item.content] == [b"needle c", b"needle d"]
    stored = await backend.aupload_files([("/secret/a", b"x"), ("/open/new", b"y"), ("//secret//new", b"z")])
    assert [(item.path, item.error) for item in stored] == [
        ("/secret/a", "permission_denied"), ("/open/new", None), ("//secret//new", "permission_denied"),
    ]  # fmt: skip
    assert sorted(memory._files) == ["/open/c", "/open/d", "/open/new", "/secret/a", "/secret/deep/b"]


async def test_edits_and_conditional_changes_need_read_permission() -> None:
    memory = files(a="content")
    backend = PermissionedBackend(memory, [FilesystemPermission(["read"], ["/a"], "deny")])
    assert (await backend.aedit("/a", "guess", "x")).error == "Error: permission denied for read on /a"
    assert (await backend.awrite("/a", "x", if_match="guess")).code == "permission_denied"
    assert (await backend.awrite("/a", "x", overwrite=True)).ok
    assert (await backend.adelete("/a", if_match="guess")).code == "permission_denied"
    assert (await backend.adelete("/a")).ok


# --- hidden files ---


ONLY_OPEN = [FilesystemPermission(["read"], ["/open/**"], "allow"), FilesystemPermission(["read"], ["/**"], "deny")]


async def test_without_a_path_a_search_finds_what_rules_allow_beneath_a_denied_root() -> None:
    ruled = PermissionedBackend(secret_files(), ONLY_OPEN)
    around: list[tuple[BackendProtocol, str]] = [
        (ruled, "/open"),
        (PermissionedBackend(ruled, [SECRET]), "/open"),
        (CompositeBackend(MemoryBackend(), {"/m/": ruled}), "/m/open"),
        (CompositeBackend(ruled, {"/m/": MemoryBackend()}), "/open"),
    ]
    for backend, at in around:
        for found in (await backend.agrep("needle"), await backend.aglob("**", None)):
            assert (found.code, [place.path for place in found.matches or ()]) == (None, [f"{at}/c", f"{at}/d"])
        assert (await backend.agrep("needle", "/")).code == (await backend.aglob("**", "/")).code == "permission_denied"
    modes: tuple[Any, ...] = ("deny", "interrupt")
    for mode in modes:
        nothing = PermissionedBackend(secret_files(), [FilesystemPermission(["read"], ["/**"], mode)])
        assert (await nothing.agrep("needle")).code == (await nothing.aglob("**", None)).code == "permission_denied"


def test_without_a_path_a_search_on_disk_follows_no_link_to_what_is_denied(root: Path) -> None:
    backend = PermissionedBackend(FilesystemBackend(root), ONLY_OPEN)
    assert {match.path for match in backend.grep("needle").matches or ()} <= {"/open/file", "/open/to_file"}


async def test_denied_matches_do_not_count_towards_the_limit() -> None:
    memory = files(a__1="needle\n" * 50, b="needle\n" * 3)
    backend = PermissionedBackend(memory, [FilesystemPermission(["read"], ["/a/**"], "deny")])
    found = await backend.agrep("needle", max_count=2)
    assert [(match.path, match.line) for match in found.matches or ()] == [("/b", 1), ("/b", 2)]
    assert found.truncated
    found = await backend.agrep("needle", max_count=3)
    assert len(found.matches or ()) == 3
    assert not found.truncated


async def test_skipped_counts_only_readable_files() -> None:
    denied = FilesystemPermission(["read"], ["/m/a/**"], "deny")
    for wrapped in (lambda backend: backend, WrapperBackend):
        tree = CompositeBackend(files(b="needle"), {"/m/": wrapped(MemoryBackend())})
        await tree.aupload_files([(path, b"needle\0") for path in ("/m/a/x.bin", "/m/a/y.bin", "/m/c.bin", "/c.bin")])
        assert (await tree.agrep("needle")).skipped == 4
        ruled = PermissionedBackend(tree, [denied])
        assert (await ruled.agrep("needle")).skipped == 2
        assert (await ruled.agrep("needle", "/m/c.bin")).skipped == 1
        assert (await ruled.agrep("needle", glob="m/a/*")).skipped == 0


class Asked(WrapperBackend):
    """Counts the searches of its files and fails each."""

    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self.searches = 0

    async def run(self, operation: Operation) -> Any:
        if operation.name in ("grep", "glob"):
            self.searches += 1
            raise BackendError("Error: No connection")
        return await super().run(operation)


async def test_mounts_without_readable_paths_are_not_searched() -> None:
    mounts = {path: Asked(MemoryBackend()) for path in ("/secret/m", "/mail", "/mail/inbox", "/asked")}
    rules = [
        FilesystemPermission(["read"], ["/mail/inbox/**"], "allow"),
        FilesystemPermission(["read"], ["/secret/**", "/mail/**"], "deny"),
        FilesystemPermission(["read"], ["/asked/**"], "interrupt"),
    ]
    backend = PermissionedBackend(CompositeBackend(files(a="needle"), mounts), rules)
    for found in (await backend.agrep("needle"), await backend.aglob("*")):
        assert [record.path for record in found.matches or ()] == ["/a"]
        # Allowed files could be in the mount `/mail`, so it is searched; its own path is denied, so no error names it.
        assert found.error == "Error: Not everything could be searched; No connection (in '/mail/inbox/')"
    assert [asked.searches for asked in mounts.values()] == [0, 2, 2, 0]
    with as_approved():
        assert "/asked/" in str((await backend.agrep("needle")).error)


async def test_the_error_of_a_refused_change_names_no_denied_mount() -> None:
    tree = CompositeBackend(files(top__a="x"), {"/top/secret/": MemoryBackend()})
    backend = PermissionedBackend(tree, [FilesystemPermission(["read"], ["/top/secret/**"], "deny")])
    assert "secret" not in str((await backend.adelete("/top")).error)
    assert "secret" not in str((await backend.amove("/top", "/to")).error)


# --- trees ---


async def test_a_refused_change_of_a_tree_names_no_denied_path_in_it() -> None:
    memory = files(top__in__key="k", top__other="o")
    before = dict(memory._files)
    backend = PermissionedBackend(memory, [FilesystemPermission(["write"], ["/**/key"], "interrupt")])
    for result in (
        await backend.adelete("/top"),
        await backend.acopy("/top", "/to"),
        await backend.amove("/top", "/to"),
    ):
        assert (result.code, "key" in str(result.error)) == ("permission_denied", False)
    assert memory._files == before


# --- execute, approval ---


class Commands(SandboxBackendProtocol, MemoryBackend):
    id = "commands"

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        return ExecuteResponse(command, 0)


async def test_execute_is_a_separate_permission() -> None:
    everything = FilesystemPermission(["read", "write"], ["/**"], "deny")
    allowed = PermissionedBackend(Commands(), [everything])
    assert supports_execute(allowed)
    assert (await allowed.aexecute("ls")).output == "ls"
    denied = PermissionedBackend(Commands(), [FilesystemPermission(["execute"], mode="deny")])
    assert not supports_execute(denied)
    with pytest.raises(DeniedError, match="permission denied for execute"):
        await denied.aexecute("ls")
    asking = PermissionedBackend(Commands(), [FilesystemPermission(["execute"], mode="interrupt")])
    assert supports_execute(asking)
    with pytest.raises(ApprovalNeededError, match="approval is needed"):
        await asking.aexecute("ls")
    with as_approved():
        assert (await asking.aexecute("ls")).output == "ls"


async def test_interrupts_are_denied_until_approved() -> None:
    backend = PermissionedBackend(files(a="needle"), [FilesystemPermission(["read"], ["/a"], "interrupt")])
    result = await backend.aread("/a")
    assert (result.code, result.error) == (
        "permission_denied", "Error: permission denied for read on /a: approval is needed",
    )  # fmt: skip
    assert (await backend.agrep("needle")).matches == []
    with as_approved():
        assert (await backend.aread("/a")).ok
        assert len((await backend.agrep("needle")).matches or ()) == 1
    assert not (await backend.aread("/a")).ok


def test_approval_applies_to_sync_calls() -> None:
    class Waits(MemoryBackend):
        is_synchronous = False

    backend = PermissionedBackend(Waits(), [FilesystemPermission(["write"], ["/a"], "interrupt")])
    with as_approved():
        assert backend.write("/a", "x").ok


# --- links ---


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "secret" / "deep").mkdir(parents=True)
    (root / "open").mkdir()
    (root / "secret" / "key").write_text("needle secret")
    (root / "secret" / "deep" / "key").write_text("needle secret")
    (root / "open" / "file").write_text("needle open")
    (root / "open" / "to_key").symlink_to("../secret/key")
    (root / "open" / "to_new").symlink_to("../secret/new")
    (root / "open" / "to_dir").symlink_to("../secret")
    (root / "open" / "to_deep").symlink_to(root / "secret" / "deep")
    (root / "open" / "twice").symlink_to("to_dir/deep")
    (root / "open" / "to_file").symlink_to("file")
    (root / "open" / "circle").symlink_to("circle")
    (root / "open" / "up").symlink_to("..")
    return root


LINKED = [
    "/open/to_key", "/open/to_new", "/open/to_dir", "/open/to_dir/key", "/open/to_dir/new/er", "/open/to_deep/key",
    "/open/twice/key", "/open/up/secret/key", "/open/up/open/to_key", "//open//to_dir/./key/",
]  # fmt: skip


@pytest.mark.parametrize("mounted", [False, True])
def test_symlinks_to_denied_paths_are_denied(mounted: bool, root: Path) -> None:
    backend, prefix = rooted(root, mounted)
    for (name, call), path in product(ON_A_PATH.items(), LINKED):
        result = run_sync(call, backend, prefix + path)
        assert result.code == "permission_denied", (name, path)
        assert "secret" not in result.error or "secret" in path
        assert (root / "secret" / "key").read_text() == "needle secret"
        assert sorted(child.name for child in (root / "secret").iterdir()) == ["deep", "key"]
    for target in ("/elsewhere", f"{prefix}/elsewhere"):
        assert backend.copy(f"{prefix}/open", target).code == "permission_denied"
        assert backend.move(f"{prefix}/open", target).code == "permission_denied"


def rooted(root: Path, mounted: bool) -> tuple[PermissionedBackend, str]:
    """The directory with its secrets denied, as the root or within nested mounts; and its path in the backend."""
    disk = FilesystemBackend(root)
    if not mounted:
        return PermissionedBackend(disk, [SECRET]), ""
    inner = PermissionedBackend(CompositeBackend(MemoryBackend(), {"/disk/": disk}), [])
    tree = CompositeBackend(MemoryBackend(), {"/at/": inner})
    return PermissionedBackend(
        tree, [FilesystemPermission(["read", "write"], ["/at/disk/secret/**"], "deny")]
    ), "/at/disk"


@pytest.mark.parametrize("mounted", [False, True])
def test_symlinks_to_denied_paths_are_not_shown(mounted: bool, root: Path) -> None:
    backend, prefix = rooted(root, mounted)
    shown = [info.path.removeprefix(prefix) for info in backend.ls(f"{prefix}/open").entries or ()]
    assert shown == ["/open/circle", "/open/file", "/open/to_file", "/open/up/"]
    found = backend.grep("needle", prefix or None)
    assert [match.path.removeprefix(prefix) for match in found.matches or ()] == ["/open/file", "/open/to_file"]
    listed = backend.glob("**", prefix or "/")
    assert [info.path.removeprefix(prefix) for info in listed.matches or ()] == ["/open/file", "/open/to_file"]


def test_an_override_that_judges_nothing_reveals_nothing(root: Path) -> None:
    everything = [FileInfo(f"/open/{name}", False) for name in ("file", "to_file", "to_key")]

    class Mixin:
        """Searches by itself, and looks at no rule."""

        async def aglob(self, pattern: str, path: str | None = "/") -> GlobResult:
            return GlobResult(matches=everything)

    class Inheriting(FilesystemBackend):
        pass

    class Resolving(FilesystemBackend):
        async def aresolve_paths(self, paths: list[str]) -> list[str | None]:
            return await super().aresolve_paths(paths)

    class Unjudged(Mixin, FilesystemBackend):  # type: ignore[misc]
        pass

    class Declaring(FilesystemBackend):
        judges_results = True

    class Denying(FilesystemBackend):
        judges_results = False

    class DeclaringUnjudged(Unjudged):
        judges_results = True

    class Listing(FilesystemBackend):
        def ls(self, path: str) -> LsResult:
            return LsResult(entries=everything)

    def kind(*bases: type) -> Any:
        return type("Kind", bases, {})

    for judging in (kind(Inheriting), kind(Inheriting, Declaring), kind(Inheriting, DeclaringUnjudged)):
        assert judging.judges_results
    assert not kind(Inheriting, Denying).judges_results
    assert not Resolving.judges_results
    shown = ["/open/file", "/open/to_file"]
    for unjudged in (kind(Unjudged), kind(Inheriting, Unjudged), kind(Declaring, Unjudged), kind(Unjudged, Declaring)):
        assert not unjudged.judges_results
        assert [info.path for info in PermissionedBackend(unjudged(root), [SECRET]).glob("*").matches or ()] == shown
    assert [info.path for info in PermissionedBackend(Listing(root), [SECRET]).ls("/open").entries or ()] == shown


def test_a_directory_with_symlinks_to_denied_paths_can_be_deleted(root: Path) -> None:
    backend, _ = rooted(root, mounted=False)
    assert backend.delete("/open").ok
    assert not (root / "open").exists()
    assert (root / "secret" / "deep" / "key").exists()


def test_copies_made_through_a_symlink_need_write_permission_too(tmp_path: Path) -> None:
    (tmp_path / "src" / "real").mkdir(parents=True)
    (tmp_path / "src" / "real" / "file").write_text("x")
    (tmp_path / "src" / "second").symlink_to("real")
    memory = MemoryBackend()
    tree = CompositeBackend(memory, {"/disk/": FilesystemBackend(tmp_path)})
    for denied in ("/to/second/**", "/to/real/file", "/to/second/file"):
        backend = PermissionedBackend(tree, [FilesystemPermission(["write"], [denied], "deny")])
        assert backend.copy("/disk/src", "/to").code == "permission_denied"
        assert not memory._files
    backend = PermissionedBackend(tree, [FilesystemPermission(["write"], ["/elsewhere/**"], "deny")])
    assert backend.copy("/disk/src", "/to").code == "unsupported", "a linked directory goes to no other storage"
    assert backend.copy("/disk/src/real", "/to").ok
