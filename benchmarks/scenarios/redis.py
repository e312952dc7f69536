"""Files in Redis, beside a backend over GET, SET and SCAN as users of deepagents write it."""

import json
from collections.abc import Hashable
from functools import partial
from typing import Any, Final

from deepagents.backends.protocol import BackendProtocol, EditResult, GlobResult, LsResult, WriteResult
from deepagents.backends.utils import (
    create_file_data,
    grep_matches_from_files,
    perform_string_replacement,
    slice_read_response,
    update_file_data,
)
from redis.asyncio import Redis

from benchmarks import inputs, stores
from benchmarks.bench import Bench, Contender
from benchmarks.peers import grep_rows, listed_paths
from benchmarks.scenarios.storages import _OPERATIONS, timed
from deepfs.backends import RedisBackend

_HANDWRITTEN: Final = "by hand"


class _Handwritten(BackendProtocol):
    """A key for each file, with its record as JSON. No change is conditional, and each listing reads all names."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def _names(self, path: str) -> list[str]:
        pattern = f"peer:{path.rstrip('/')}/*"
        return sorted([key.decode()[5:] async for key in self._client.scan_iter(pattern, count=1000)])

    async def _file(self, path: str) -> Any:
        stored = await self._client.get(f"peer:{path}")
        return None if stored is None else json.loads(stored)

    async def als(self, path: str) -> LsResult:
        above = path.rstrip("/") + "/"
        children = {name[: name.find("/", len(above)) + 1] or name for name in await self._names(path)}
        return LsResult(entries=[{"path": child, "is_dir": child.endswith("/")} for child in sorted(children)])

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> Any:
        return slice_read_response(await self._file(file_path), offset, limit)

    async def awrite(self, file_path: str, content: str, overwrite: bool = True) -> WriteResult:
        await self._client.set(f"peer:{file_path}", json.dumps(create_file_data(content)))
        return WriteResult(path=file_path)

    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        data = await self._file(file_path)
        done = perform_string_replacement(data["content"], old_string, new_string, replace_all)
        assert not isinstance(done, str)
        await self._client.set(f"peer:{file_path}", json.dumps(update_file_data(data, done[0])))
        return EditResult(path=file_path, occurrences=done[1])

    async def aglob(self, pattern: str, path: str | None = "/") -> GlobResult:
        suffix = pattern.removeprefix("*")
        names = await self._names(path or "/")
        return GlobResult(matches=[{"path": name} for name in names if name.endswith(suffix)])

    async def agrep(self, pattern: str, path: str | None = None, glob: str | None = None, **options: Any) -> Any:
        names = await self._names(path or "/")
        stored = await self._client.mget([f"peer:{name}" for name in names]) if names else []
        files = {name: json.loads(text) for name, text in zip(names, stored, strict=True) if text}
        return grep_matches_from_files(files, pattern, path or "/", glob, **options)


_SAME: Final = ("writes", "edits, there and back", "ls", "greps", "reads")


async def redis(bench: Bench) -> None:
    """RedisBackend and a backend written by hand: operations on 100 small files, and searches of Django."""
    paths = [f"/notes/{number:03}.md" for number in range(10 if bench.quick else 100)]
    with stores.redis() as url:
        async with RedisBackend(url, "ours") as ours, Redis.from_url(url) as client:
            backends = {"deepfs": ours, _HANDWRITTEN: _Handwritten(client)}
            for operation in (each for each in _OPERATIONS if each.name in _SAME):
                contenders = [
                    Contender(
                        name,
                        f"await fs.{operation.call}",
                        partial(timed, operation, backend, paths),
                        lambda results, row=operation.row: list(map(row, results)),
                    )
                    for name, backend in backends.items()
                ]
                await bench.race(f"{len(paths)} {operation.name}", contenders, "answers", rounds=9, seconds=4)
            tree = inputs.python_files()
            for backend in backends.values():
                for path, text in tree.items():
                    await backend.awrite(path, text, overwrite=True)
            for call, argument, rows in (
                ("ls", "/django", listed_paths),
                ("glob", "*.py", listed_paths),
                ("grep", "OneToOneField", grep_rows),
                ("grep", "import", grep_rows),
            ):
                shown = f"await fs.a{call}({argument!r})"
                contenders = [
                    Contender(name, shown, partial(getattr(backend, f"a{call}"), argument), _sorted(rows))
                    for name, backend in backends.items()
                ]
                await bench.race(f"{shown}, {len(tree):,} files", contenders, "rows", rounds=9, seconds=9)
    bench.note("The backend written by hand loses edits of two processes at once; deepfs does not.")


def _sorted(rows: Any) -> Any:
    def found(result: Any) -> list[Hashable]:
        return sorted(rows(result))

    return found
