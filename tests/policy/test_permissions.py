"""Permissions: what they match, refuse and hide, and what a refusal reveals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

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
from deepfs.operations import Glob, Operation, PathFilter
from deepfs.policy import ApprovalNeededError, DeniedError, as_approved, decide, decide_beneath
from deepfs.search.request import GrepScan
from deepfs.types import ExecuteResponse, FileInfo, GlobResult, GrepResult, LsResult

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
    @pytest.mark.parametrize(
        ("pattern", "path", "matches"),
        [
            ("/secret/**", "/secret", True),
            ("/secret/**", "/secret/a/b", True),
            ("/secret/**", "/secret/.env", True),
            ("/secret/**", "/secrets", False),
            ("/secret/", "/secret", True),
            ("/secret/", "/secret/a", True),
            ("/secret", "/secret/a", False),
            ("/secret", "/Secret", False),
            ("/*", "/.env", True),
            ("/*", "/a/b", False),
            ("/**", "/", True),
            ("/", "/", True),
            ("/", "/a", False),
            ("/**/*.env", "/.env", True),
            ("/**/*.env", "/a/b/x.env", True),
            ("/{a,b/**}", "/b", True),
            ("/{a,b/**}", "/a/x", False),
            ("/a?c", "/a/c", False),
            ("/[!a]", "/b", True),
            ("/a\\*", "/a*", True),
            ("/a\\*", "/ab", False),
            ("/a/./b//c", "/a/b/c", True),
        ],
    )
    def test_patterns(self, pattern: str, path: str, matches: bool) -> None:
        rule = FilesystemPermission(["read"], [pattern], "deny")
        assert rule.matches("read", path) is matches
        assert not rule.matches("write", path)
        assert decide([rule], "read", path) == (("deny", rule) if matches else ("allow", None))

    def test_the_first_matching_rule_decides_and_the_default_is_allow(self) -> None:
        allow = FilesystemPermission(["read"], ["/work/**"])
        deny = FilesystemPermission(["read", "write"], ["/**"], "deny")
        assert decide([allow, deny], "read", "/work/x") == ("allow", allow)
        assert decide([deny, allow], "read", "/work/x") == ("deny", deny)
        assert decide([allow, deny], "write", "/work/x") == ("deny", deny)
        assert decide([], "write", "/work/x") == ("allow", None)
        assert decide([allow, deny], "read", "//work/./x/").mode == "allow"

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"paths": ["work"]}, ValueError),
            ({"paths": ["/a/../b"]}, ValueError),
            ({"paths": ["/~"]}, ValueError),
            ({"paths": ["~/a"]}, ValueError),
            ({"paths": ["/a["]}, ValueError),
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
        ],
    )
    def test_invalid_rules_are_refused(self, arguments: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error):
            FilesystemPermission(**{"operations": ["read"], "paths": ["/x"], **arguments})

    def test_an_unknown_operation_raises(self) -> None:
        rules = [FilesystemPermission(["read"], ["/**"], "deny")]
        operation: Any = "Read"
        for judge in (decide, decide_beneath):
            with pytest.raises(ValueError, match="unknown operation 'Read'; known are read, write, execute"):
                judge(rules, operation, "/a")

    @pytest.mark.parametrize("rules", [None, 5, "deny", [None], ["deny"], [{"mode": "deny"}]])
    def test_wrong_types_of_rules_are_refused(self, rules: Any) -> None:
        with pytest.raises(TypeError, match="rules is a list of FilesystemPermission"):
            PermissionedBackend(MemoryBackend(), rules)

    def test_decide_beneath_returns_the_strictest_possible_decision(self) -> None:
        allow = FilesystemPermission(["read"], ["/work/**"])
        ask = FilesystemPermission(["read"], ["/work/keys/*.pem"], "interrupt")
        deny = FilesystemPermission(["read"], ["/**/.env"], "deny")
        assert decide_beneath([ask], "read", "/").mode == "interrupt"
        assert decide_beneath([ask], "read", "/work/keys").mode == "interrupt"
        assert decide_beneath([ask], "read", "/work/keys/a.pem").mode == "interrupt"
        assert decide_beneath([ask], "read", "/work/other").mode == "allow"
        assert decide_beneath([ask], "write", "/").mode == "allow"
        assert decide_beneath([ask, deny], "read", "/").mode == "deny"
        assert decide_beneath([allow, deny], "read", "/work").mode == "allow"
        assert decide_beneath([allow, deny], "read", "/work/deep").mode == "allow"
        assert decide_beneath([allow, deny], "read", "/").mode == "deny"


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


@pytest.mark.parametrize("operation", ON_A_PATH)
async def test_a_refusal_does_not_reveal_what_exists_at_the_path(operation: str) -> None:
    answers = set()
    for path in ("/secret/a", "/secret/deep", "/secret/missing", "/secret/a/beneath", "//secret/./a/"):
        memory = secret_files()
        before = dict(memory._files)
        result = await ON_A_PATH[operation](PermissionedBackend(memory, [SECRET]), path)
        assert result.code == "permission_denied"
        assert memory._files == before
        normal = "/" + "/".join(name for name in path.split("/") if name not in ("", "."))
        answers.add(result.error.replace(normal, "PATH"))
    assert len(answers) == 1
    assert answers.pop() in ("Error: permission denied for read on PATH", "Error: permission denied for write on PATH")


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


async def test_searches_and_listings_show_nothing_denied() -> None:
    backend = PermissionedBackend(secret_files(), [SECRET])
    assert [info.path for info in (await backend.als("/")).entries or ()] == ["/open/"]
    for pattern in ("*", "**", "/secret/*", "{secret,open}/*", "**/b", "[s]ecret/**"):
        assert not [info for info in (await backend.aglob(pattern)).matches or () if "secret" in info.path]
    for options in ({}, {"glob": "secret/**"}, {"regex": True}, {"context_lines": 2}, {"max_count": 1}):
        found = await backend.agrep("needle", **options)
        assert not [match for match in found.matches or () if "secret" in match.path]


async def test_without_a_path_a_search_finds_what_rules_allow_beneath_a_denied_root() -> None:
    only_open = [FilesystemPermission(["read"], ["/open/**"], "allow"), FilesystemPermission(["read"], ["/**"], "deny")]
    backend = PermissionedBackend(secret_files(), only_open)
    found, named = await backend.agrep("needle"), await backend.aglob("**", None)
    assert {match.path.split("/")[1] for match in found.matches or ()} == {"open"}
    assert {info.path.split("/")[1] for info in named.matches or ()} == {"open"}
    assert (await backend.agrep("needle", "/")).code == (await backend.aglob("**")).code == "permission_denied"


@pytest.mark.parametrize(
    ("around", "at"),
    [
        (lambda ruled: PermissionedBackend(ruled, [SECRET]), "/open"),
        (lambda ruled: CompositeBackend(MemoryBackend(), {"/m/": ruled}), "/m/open"),
        (lambda ruled: CompositeBackend(ruled, {"/m/": MemoryBackend()}), "/open"),
    ],
    ids=["rules", "mount", "rest"],
)
async def test_a_search_without_a_path_has_none_in_the_backends_within(around: Any, at: str) -> None:
    only_open = [FilesystemPermission(["read"], ["/open/**"], "allow"), FilesystemPermission(["read"], ["/**"], "deny")]
    backend = around(PermissionedBackend(secret_files(), only_open))
    for found in (await backend.agrep("needle"), await backend.aglob("**", None)):
        assert (found.code, [place.path for place in found.matches]) == (None, [f"{at}/c", f"{at}/d"])
    assert (await backend.agrep("needle", "/")).code == (await backend.aglob("**", "/")).code == "permission_denied"


@pytest.mark.parametrize("mode", ["deny", "interrupt"])
async def test_a_search_without_a_path_is_refused_where_nothing_may_be_read(mode: Any) -> None:
    backend = PermissionedBackend(secret_files(), [FilesystemPermission(["read"], ["/**"], mode)])
    assert (await backend.agrep("needle")).code == "permission_denied"
    assert (await backend.aglob("**", None)).code == "permission_denied"


def test_without_a_path_a_search_on_disk_follows_no_link_to_what_is_denied(root: Path) -> None:
    only_open = [FilesystemPermission(["read"], ["/open/**"], "allow"), FilesystemPermission(["read"], ["/**"], "deny")]
    backend = PermissionedBackend(FilesystemBackend(root), only_open)
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
    memory = files(b="needle")
    await memory.aupload_files([("/a/x.bin", b"needle\0"), ("/a/y.bin", b"needle\0"), ("/c.bin", b"needle\0")])
    denied = FilesystemPermission(["read"], ["/a/**"], "deny")
    assert (await memory.agrep("needle")).skipped == 3
    for where in (None, "/c.bin"):
        assert (await PermissionedBackend(memory, [denied]).agrep("needle", where)).skipped == 1
    assert (await PermissionedBackend(memory, [denied]).agrep("needle", glob="a/*")).skipped == 0


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


async def test_denied_files_are_not_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    searched: list[str] = []
    scan = GrepScan.scan

    def watched(self: GrepScan, path: str, content: bytes | str) -> None:
        searched.append(path)
        scan(self, path, content)

    monkeypatch.setattr(GrepScan, "scan", watched)
    tree = CompositeBackend(secret_files(), {"/disk/": FilesystemBackend(tmp_path)})
    for path in ("/disk/secret/a", "/disk/open/.hidden/a", "/disk/open/b"):
        assert (await tree.awrite(path, "needle")).ok
    rules = [FilesystemPermission(["read"], ["/**/secret/**", "/disk/open/[.]*"], "deny")]
    backend = PermissionedBackend(PermissionedBackend(tree, rules), [FilesystemPermission(["read"], ["/*/d"], "deny")])
    found = [match.path for match in (await backend.agrep("needle")).matches or ()]
    assert found == ["/disk/open/b", "/open/c"]
    assert sorted(searched) == ["/open/b", "/open/c"]


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


async def test_skipped_is_the_same_if_denied_files_are_filtered_at_any_layer() -> None:
    for wrapped in (lambda backend: backend, WrapperBackend):
        tree = CompositeBackend(files(b="needle"), {"/m/": wrapped(MemoryBackend())})
        await tree.aupload_files([(path, b"needle\0") for path in ("/m/a/x.bin", "/m/a/y.bin", "/m/c.bin", "/c.bin")])
        denied = FilesystemPermission(["read"], ["/m/a/**"], "deny")
        assert (await PermissionedBackend(tree, [denied]).agrep("needle")).skipped == 2


async def test_counting_skipped_files_needs_one_search_only() -> None:
    memory = files(**{f"denied__{number}": "x" for number in range(50)})
    await memory.aupload_files([("/b.bin", b"x\0"), ("/denied/c.bin", b"x\0")])
    searches: list[str] = []

    class Counting(PermissionedBackend):
        async def run(self, operation: Operation) -> Any:
            searches.append(operation.name)
            return await super().run(operation)

    backend = Counting(memory, [FilesystemPermission(["read"], ["/denied/**"], "deny")])
    assert (await backend.agrep("x")).skipped == 1
    assert searches == ["grep"]


async def test_a_wrapper_that_renames_paths_does_not_filter_by_the_outer_rules() -> None:
    class Beneath(WrapperBackend):
        """Shows the directory `/in` of its backend as the root."""

        async def agrep(self, pattern: str, path: str | None = None, *args: Any, **options: Any) -> GrepResult:
            found = await self.inner.agrep(pattern, f"/in{path or ''}", *args, **options)
            matches = [replace(match, path=match.path.removeprefix("/in")) for match in found.matches or ()]
            return replace(found, matches=matches)

    shown = Beneath(files(in__a="needle", in__in__a="needle"))
    backend = PermissionedBackend(shown, [FilesystemPermission(["read"], ["/in/**"], "deny")])
    assert [match.path for match in (await backend.agrep("needle")).matches or ()] == ["/a"]


async def test_the_error_of_a_refused_change_names_no_denied_mount() -> None:
    tree = CompositeBackend(files(top__a="x"), {"/top/secret/": MemoryBackend()})
    backend = PermissionedBackend(tree, [FilesystemPermission(["read"], ["/top/secret/**"], "deny")])
    assert "secret" not in str((await backend.adelete("/top")).error)
    assert "secret" not in str((await backend.amove("/top", "/to")).error)


# --- trees ---


@pytest.mark.parametrize(
    ("rule", "deleted", "copied", "moved"),
    [
        (FilesystemPermission(["read"], ["/top/in/key"], "deny"), True, False, False),
        (FilesystemPermission(["write"], ["/top/in/key"], "deny"), False, True, False),
        (FilesystemPermission(["write"], ["/top/in"], "deny"), False, True, False),
        (FilesystemPermission(["write"], ["/to/in/key"], "deny"), True, False, False),
        (FilesystemPermission(["write"], ["/**/key"], "interrupt"), False, False, False),
        (FilesystemPermission(["write"], ["/**/absent"], "deny"), True, True, True),
    ],
)
async def test_operations_on_trees_need_permission_for_every_path(
    rule: FilesystemPermission, deleted: bool, copied: bool, moved: bool
) -> None:
    for call, may in (("adelete", deleted), ("acopy", copied), ("amove", moved)):
        memory = files(top__in__key="k", top__other="o")
        before = dict(memory._files)
        backend = PermissionedBackend(memory, [rule])
        result = await getattr(backend, call)(*(["/top"] if call == "adelete" else ["/top", "/to"]))
        assert result.ok is may, call
        if not may:
            assert memory._files == before
            assert result.code == "permission_denied"
            assert "key" not in result.error


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
    assert not backend.write("/a", "x").ok
    with as_approved():
        assert backend.write("/a", "x").ok


# --- mounts ---


async def test_rules_work_around_a_composite_and_within_a_mount() -> None:
    def tree() -> CompositeBackend:
        return CompositeBackend(files(own="needle"), {"/m/": files(secret__a="needle", b="needle")})

    around = PermissionedBackend(tree(), [FilesystemPermission(["read"], ["/m/secret/**"], "deny")])
    within = CompositeBackend(
        files(own="needle"), {"/m/": PermissionedBackend(files(secret__a="needle", b="needle"), [SECRET])}
    )
    for backend in (around, within):
        found = await backend.agrep("needle")
        assert [match.path for match in found.matches or ()] == ["/m/b", "/own"]
        assert [info.path for info in (await backend.als("/m")).entries or ()] == ["/m/b"]
        assert (await backend.aread("/m/secret/a")).code == "permission_denied"
        assert not (await backend.acopy("/m", "/n")).ok or not (await backend.aglob("a", "/n")).matches


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
@pytest.mark.parametrize("operation", ON_A_PATH)
def test_symlinks_to_denied_paths_are_denied(operation: str, mounted: bool, root: Path) -> None:
    backend, prefix = rooted(root, mounted)
    for path in LINKED:
        result = run_sync(ON_A_PATH[operation], backend, prefix + path)
        assert result.code == "permission_denied", path
        assert "secret" not in result.error or "secret" in path
        assert (root / "secret" / "key").read_text() == "needle secret"
        assert sorted(child.name for child in (root / "secret").iterdir()) == ["deep", "key"]


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


def test_what_a_disk_has_judged_is_not_resolved_again(root: Path) -> None:
    resolved: list[str] = []

    class Disk(FilesystemBackend):
        judges_results = True

        async def aresolve_paths(self, paths: list[str]) -> list[str | None]:
            resolved.extend(paths)
            return await super().aresolve_paths(paths)

    (root / "open" / "binary").write_bytes(b"needle\0")
    backend = PermissionedBackend(Disk(root), [SECRET])
    assert [info.path for info in backend.ls("/open").entries or ()] == [
        "/open/binary",
        "/open/circle",
        "/open/file",
        "/open/to_file",
        "/open/up/",
    ]
    assert [info.path for info in backend.glob("to_*", "/open").matches or ()] == ["/open/to_file"]
    found = backend.grep("needle", "/open")
    assert ([match.path for match in found.matches or ()], found.skipped) == (["/open/file", "/open/to_file"], 1)
    assert set(resolved) == {"/open", "/"}


def test_an_override_that_judges_nothing_reveals_nothing(root: Path) -> None:
    everything = [FileInfo(f"/open/{name}", False) for name in ("file", "to_file", "to_key")]

    class Globbing(FilesystemBackend):
        async def aglob(self, pattern: str, path: str | None = "/") -> GlobResult:
            return GlobResult(matches=everything)

    class Listing(FilesystemBackend):
        def ls(self, path: str) -> LsResult:
            return LsResult(entries=everything)

    class Mixin:
        async def aglob(self, pattern: str, path: str | None = "/") -> GlobResult:
            return GlobResult(matches=everything)

    class Mixed(Mixin, FilesystemBackend):  # type: ignore[misc]
        pass

    class Derived(Globbing):
        pass

    class Resolving(FilesystemBackend):
        async def aresolve_paths(self, paths: list[str]) -> list[str | None]:
            return await super().aresolve_paths(paths)

    assert not Resolving.judges_results
    assert FilesystemBackend.judges_results
    shown = ["/open/file", "/open/to_file"]
    for kind in (Globbing, Mixed, Derived):
        assert not kind.judges_results
        assert [info.path for info in PermissionedBackend(kind(root), [SECRET]).glob("*").matches or ()] == shown
    assert [info.path for info in PermissionedBackend(Listing(root), [SECRET]).ls("/open").entries or ()] == shown


class Unjudged(FilesystemBackend):
    """Searches by itself, and looks at no rule."""

    async def aglob(self, pattern: str, path: str | None = "/") -> GlobResult:
        return GlobResult(matches=[FileInfo(f"/open/{name}", False) for name in ("file", "to_file", "to_key")])


class Inheriting(FilesystemBackend):
    """Has the declaration of its base."""


class Declaring(FilesystemBackend):
    judges_results = True


class Denying(FilesystemBackend):
    judges_results = False


class DeclaringUnjudged(Unjudged):
    judges_results = True


@pytest.mark.parametrize(
    ("bases", "judges"),
    [
        ((Inheriting,), True),
        ((Inheriting, Declaring), True),
        ((Inheriting, Unjudged), False),
        ((Declaring, Unjudged), False),
        ((Unjudged, Declaring), False),
        ((Inheriting, Denying), False),
        ((DeclaringUnjudged,), True),
        ((Inheriting, DeclaringUnjudged), True),
    ],
)
def test_a_class_judges_if_all_its_bases_do_or_it_declares_so(
    bases: tuple[type, ...], judges: bool, root: Path
) -> None:
    kind: Any = type("Kind", bases, {})
    assert kind.judges_results == judges
    if not judges and kind.run is Unjudged.run:
        found = PermissionedBackend(kind(root), [SECRET]).glob("*").matches or ()
        assert [info.path for info in found] == ["/open/file", "/open/to_file"]


def test_equal_filters_are_one_object(root: Path) -> None:
    """Searches that are carried out together ask each filter once."""
    asked: list[PathFilter | None] = []

    class Disk(FilesystemBackend):
        async def run(self, operation: Operation) -> Any:
            if isinstance(operation, Glob):
                asked.append(operation.hidden)
            return await super().run(operation)

    backend = PermissionedBackend(Disk(root), [SECRET])
    for _ in range(2):
        assert backend.glob("*", "/open").ok
    assert asked[0] is asked[1] is not None


@pytest.mark.parametrize("mounted", [False, True])
def test_a_directory_with_symlinks_to_denied_paths_is_not_copied_or_moved(mounted: bool, root: Path) -> None:
    backend, prefix = rooted(root, mounted)
    for target in ("/elsewhere", f"{prefix}/elsewhere"):
        assert backend.copy(f"{prefix}/open", target).code == "permission_denied"
        assert backend.move(f"{prefix}/open", target).code == "permission_denied"


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


async def test_overrides_of_the_inner_backend_are_called_once() -> None:
    class Counting(MemoryBackend):
        hits = 0

        def read(self, path: str, offset: int = 0, limit: int = 2000) -> Any:
            self.hits += 1
            return super().read(path, offset, limit)

        async def agrep(self, *args: Any, **options: Any) -> GrepResult:
            self.hits += 1
            return await super().agrep(*args, **options)

    within = Counting()
    backend = PermissionedBackend(PermissionedBackend(within, [SECRET]), [SECRET])
    await backend.aread("/a")
    await backend.agrep("x")
    assert within.hits == 2


def test_names_that_are_not_valid_in_paths_hide_nothing_else(tmp_path: Path) -> None:
    for name in ("C:", "..\\x", "\\\\server", "~", "plain"):
        for place in (tmp_path, tmp_path / "d", tmp_path / "secret"):
            place.mkdir(exist_ok=True)
            (place / name).write_text("needle")
    disk = FilesystemBackend(tmp_path)
    files = PermissionedBackend(disk, [FilesystemPermission(["read", "write"], ["/secret/**", "/**/server"], "deny")])
    for directory in ("/", "/d"):
        expected = [entry.path for entry in disk.ls(directory).entries or () if entry.path != "/secret/"]
        assert [entry.path for entry in files.ls(directory).entries or ()] == expected
        assert len(expected) == 5 + (directory == "/")
    for plain, ruled in ((disk.glob("**"), files.glob("**")), (disk.grep("needle"), files.grep("needle"))):
        assert plain.matches
        shown = [found.path for found in plain.matches if not found.path.startswith("/secret/")]
        assert [found.path for found in ruled.matches or ()] == shown
    assert files.delete("/d").ok
    assert not (tmp_path / "d").exists()


def test_rules_apply_to_names_that_are_not_valid_in_paths(tmp_path: Path) -> None:
    (tmp_path / "C:").write_text("needle")
    files = PermissionedBackend(FilesystemBackend(tmp_path), [FilesystemPermission(["read"], ["/C:"], "deny")])
    assert (files.ls("/").entries, files.grep("needle").matches) == ([], [])
