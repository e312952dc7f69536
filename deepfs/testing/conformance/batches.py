"""`achange_files`: several conditional changes of whole files."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

import pytest

from deepfs.backends.protocol import BackendProtocol
from deepfs.testing.suite import BackendSuite, Both, assert_ok, gather, list_paths, only
from deepfs.text.lines import version
from deepfs.types import ContentChange, FileUploadResponse

_CONTENTS: Final = {
    "/new/text.txt": "héllo\r\n".encode(),
    "/new/empty": b"",
    "/new/mark.txt": b"\xef\xbb\xbfwith a mark",
    "/new/nul.txt": b"a\x00b",
    "/new/deep/er/all.bin": bytes(range(256)),
}
_OLD: Final = {"text": b"old", "bytes": b"\x00old"}
_NEW: Final = {"text": b"new", "bytes": b"\xff\x00new"}


def _errors(outcomes: Sequence[FileUploadResponse]) -> list[str | None]:
    return [outcome.error for outcome in outcomes]


class ChangingFilesConformance(BackendSuite):
    """Whole files of any bytes are created, replaced and deleted, each on its condition."""

    async def _change(self, backend: BackendProtocol, *changes: ContentChange) -> list[str | None]:
        """Make changes of which each may fail, and return their errors."""
        outcomes = await backend.achange_files(list(changes))
        assert [outcome.path for outcome in outcomes] == [change.path for change in changes]
        return _errors(outcomes)

    async def test_changes_create_files_of_any_bytes(self, backend: BackendProtocol) -> None:
        changes = [ContentChange(path, content) for path, content in _CONTENTS.items()]
        assert await self._change(backend, *changes) == [None] * len(changes)
        assert await self._peek_each(*_CONTENTS) == [*_CONTENTS.values()]
        assert await list_paths(backend, "/new/deep") == ["/new/deep/er/"]

    async def test_a_change_replaces_only_where_it_says_so(self, backend: BackendProtocol) -> None:
        for kind, content in _NEW.items():
            path = f"/{kind}"
            await self.raw_put(path, b"kept")
            assert await self._change(backend, ContentChange(path, content)) == ["already_exists"]
            assert await self.raw_peek(path) == b"kept"
            assert await self._change(backend, ContentChange(path, content, overwrite=True)) == [None]
            assert await self.raw_peek(path) == content

    async def test_a_change_with_if_match_replaces_that_version(self, backend: BackendProtocol) -> None:
        for kind, content in _NEW.items():
            path = f"/{kind}"
            await self.raw_put(path, _OLD[kind])
            read = assert_ok(await backend.aread(path)).version
            for stale in ("no version", version(b"another")):
                changes = [ContentChange(path, content, overwrite, stale) for overwrite in (False, True)]
                for change in changes:
                    assert await self._change(backend, change) == ["conflict"]
            missing = ContentChange("/none", content, if_match=version(_OLD[kind]))
            assert await self._change(backend, missing) == ["conflict"]
            assert await self._peek_each(path, "/none") == [_OLD[kind], None]
            assert await self._change(backend, ContentChange(path, content, if_match=read)) == [None]
            assert await self.raw_peek(path) == content
            assert await self._change(backend, ContentChange(path, b"x", if_match=version(content))) == [None]

    async def test_changes_delete_files_and_no_directories(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a": "a", "/dir/b": b"\x00b", "/dir/c": "c"})
        outcomes = await self._change(
            backend,
            ContentChange("/dir/a", None),
            ContentChange("/dir/b", None, if_match=version(b"\x00b")),
            ContentChange("/dir/c", None, if_match=version(b"other")),
            ContentChange("/dir", None),
            ContentChange("/none", None),
            ContentChange("/dir/none", None, if_match=version(b"a")),
            ContentChange("/", None),
        )
        assert outcomes[:4] == [None, None, "conflict", "is_directory"]
        assert outcomes[4:] == ["file_not_found", "file_not_found", "permission_denied"]
        assert await self._peek_each("/dir/a", "/dir/b", "/dir/c") == [None, None, b"c"]

    async def test_changes_succeed_and_fail_one_by_one(self, backend: BackendProtocol) -> None:
        await self.put({"/file": "kept", "/dir/x": "kept"})
        changes = [
            ContentChange("/new/a", b"a"),
            ContentChange("/../up", b"x"),
            ContentChange("/dir", b"x", overwrite=True),
            ContentChange("/file/beneath", b"x"),
            ContentChange("new//b", b"\x00b"),
            ContentChange("~/home", None),
        ]
        outcomes = await self._change(backend, *changes)
        assert outcomes[:3] == [None, "invalid_path", "is_directory"]
        assert outcomes[3:] == ["not_a_directory", None, "invalid_path"]
        stored = await self._peek_each("/new/a", "/new/b", "/file", "/file/beneath", "/dir/x")
        assert stored == [b"a", b"\x00b", b"kept", None, b"kept"]

    async def test_bytes_that_are_no_text_are_refused_where_no_file_can_be(self, backend: BackendProtocol) -> None:
        await self.put({"/file": "kept", "/dir/x": "kept"})
        directory, beneath = await self._change(
            backend, ContentChange("/dir", b"\x00"), ContentChange("/file/beneath", b"\x00")
        )
        assert directory == "is_directory"
        assert beneath in ("not_a_directory", "invalid_path")
        assert await self._peek_each("/file", "/dir/x") == [b"kept", b"kept"]

    async def test_changes_are_made_in_order(self, backend: BackendProtocol) -> None:
        await self.put({"/name": "file"})
        replaced = [ContentChange("/name", None), ContentChange("/name/file", b"in a directory")]
        assert await self._change(backend, *replaced) == [None, None]
        assert await self._peek_each("/name", "/name/file") == [None, b"in a directory"]
        assert await list_paths(backend, "/name") == ["/name/file"]
        first = [ContentChange("/a", b"a"), ContentChange("/a/beneath", b"x")]
        assert await self._change(backend, *first) == [None, "not_a_directory"]

    async def test_a_call_has_one_change_for_a_path(self, backend: BackendProtocol) -> None:
        with pytest.raises(ValueError, match="two changes"):
            await backend.achange_files([ContentChange("/a", b"a"), ContentChange("//a", None)])
        assert await self.raw_peek("/a") is None
        assert await backend.achange_files([]) == []

    async def test_a_call_may_have_many_changes(self, backend: BackendProtocol) -> None:
        names = [f"/many/{number % 7}/{number}" for number in self.some(range(200))]
        await backend.aupload_files([(name, b"old") for name in names[::2]])
        changes = [
            ContentChange(
                name, None if number % 4 == 0 else b"new", if_match=version(b"old") if number % 2 == 0 else None
            )
            for number, name in enumerate(names)
        ]
        assert await self._change(backend, *changes) == [None] * len(names)
        downloads = await backend.adownload_files(names)
        assert [item.content for item in downloads] == [None if n % 4 == 0 else b"new" for n in range(len(names))]

    async def test_all_changes_are_made_or_none(self, backend: BackendProtocol) -> None:
        await self.put({"/a": "a", "/b": b"\x00b"})
        changes = [
            ContentChange("/c", b"\x00c"),
            ContentChange("/a", None, if_match=version(b"a")),
            ContentChange("/b", b"new", if_match=version(b"\x00b")),
        ]
        refused = _errors(await backend.achange_files([*changes, ContentChange("/none", None)], all_or_none=True))
        assert await self._peek_each("/a", "/b", "/c") == [b"a", b"\x00b", None], "nothing is changed"
        made = _errors(await backend.achange_files(changes, all_or_none=True))
        if made == ["unsupported"] * 3:
            assert refused == ["unsupported"] * 4
            assert await self._peek_each("/a", "/b", "/c") == [b"a", b"\x00b", None], "nothing is changed"
        else:
            assert made == [None] * 3
            assert refused == ["conflict"] * 3 + ["file_not_found"]
            assert await self._peek_each("/a", "/b", "/c") == [None, b"new", b"\x00c"]

    async def test_one_change_is_made_or_not(self, backend: BackendProtocol) -> None:
        for error in (None, "already_exists"):
            outcome = only(await backend.achange_files([ContentChange("/a", b"\x00")], all_or_none=True))
            assert outcome.error == error

    async def _race_changes(self, both: Both, changes: Sequence[ContentChange], other: str) -> int:
        """Make single changes of one path at once; all but one must end with `other`. Returns the number of that."""
        calls = [partial(both[number % 2].achange_files, [change]) for number, change in enumerate(changes)]
        errors = [only(outcomes).error for outcomes in await gather(calls)]
        assert Counter(errors) == {None: 1, other: len(changes) - 1}
        return errors.index(None)

    async def test_of_concurrent_creations_one_succeeds(self, both: Both, backend: BackendProtocol) -> None:
        for kind, objects in {"text": both, "bytes": (backend, backend)}.items():
            contents = [_NEW[kind] + str(number).encode() for number in self.some(range(12))]
            winner = await self._race_changes(
                objects, [ContentChange(f"/new/{kind}", content) for content in contents], "already_exists"
            )
            assert await self.raw_peek(f"/new/{kind}") == contents[winner]

    async def test_of_concurrent_changes_of_a_version_one_succeeds(self, both: Both, backend: BackendProtocol) -> None:
        for kind, objects in {"text": both, "bytes": (backend, backend)}.items():
            path = f"/{kind}"
            await self.raw_put(path, _OLD[kind])
            contents = [_NEW[kind] + str(number).encode() for number in self.some(range(12))]
            winner = await self._race_changes(
                objects,
                [ContentChange(path, content, if_match=version(_OLD[kind])) for content in contents],
                "conflict",
            )
            assert await self.raw_peek(path) == contents[winner]
