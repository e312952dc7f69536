"""A directory of a backend as a backend of its own, to run the suite at any place of a tree."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from msgspec.structs import replace

from deepfs.backends.protocol import BackendProtocol, StoragePlace
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import DeepFSError
from deepfs.text import paths
from deepfs.types import ChangeEvent, FileDownloadResponse, FileUploadResponse, GlobResult, GrepResult, LsResult, Result

__all__ = ["RootedBackend"]

ResultT = TypeVar("ResultT", bound=Result)


class RootedBackend(WrapperBackend):
    """The files of `inner` beneath `root`, with paths relative to `root`."""

    def __init__(self, inner: BackendProtocol, root: str) -> None:
        super().__init__(inner)
        self.root = root

    def _in(self, path: str) -> str:
        return (self.root + paths.normalize(path)).rstrip("/")

    def _out(self, result: ResultT, **changed: Any) -> ResultT:
        error = result.error and result.error.replace(f"'{self.root}'", "'/'").replace(f"'{self.root}/", "'/")
        return replace(result, error=error, **changed)

    def _shown(self, records: Any) -> Any:
        return records and [replace(record, path=record.path.removeprefix(self.root)) for record in records]

    async def astorage_place(self, path: str) -> StoragePlace:
        return await self.inner.astorage_place(self._in(path) or "/")

    async def als(self, path: str) -> LsResult:
        result = await super().als(self._in(path))
        return self._out(result, entries=self._shown(result.entries))

    async def aread(self, path: str, offset: int = 0, limit: int = 2000) -> Any:
        return self._out(await super().aread(self._in(path), offset, limit))

    async def aread_raw(self, path: str) -> Any:
        return self._out(await super().aread_raw(self._in(path)))

    async def awrite(self, path: str, content: str, **options: Any) -> Any:
        return self._placed(await super().awrite(self._in(path), content, **options))

    async def aedit(self, path: str, old: str, new: str, replace_all: bool = False, **options: Any) -> Any:
        return self._placed(await super().aedit(self._in(path), old, new, replace_all, **options))

    async def adelete(self, path: str, **options: Any) -> Any:
        return self._placed(await super().adelete(self._in(path), **options))

    async def acopy(self, src: str, dst: str, **options: Any) -> Any:
        return self._placed(await super().acopy(self._in(src), self._in(dst), **options))

    async def amove(self, src: str, dst: str, **options: Any) -> Any:
        return self._placed(await super().amove(self._in(src), self._in(dst), **options))

    def _placed(self, result: Any) -> Any:
        return self._out(result, path=result.path and result.path.removeprefix(self.root))

    async def aglob(self, pattern: str, path: str = "/") -> GlobResult:
        result = await super().aglob(pattern, self._in(path))
        return self._out(result, matches=self._shown(result.matches))

    async def agrep(self, pattern: str, path: str | None = None, glob: str | None = None, **options: Any) -> GrepResult:
        result = await super().agrep(pattern, self._in(path or "/"), glob, **options)
        return self._out(result, matches=self._shown(result.matches))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return await self._each(files, lambda item: item[0], lambda item, path: (path, item[1]), super().aupload_files)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return await self._each(paths, str, lambda _, path: path, super().adownload_files)

    async def awatch(self, path: str = "/") -> AsyncGenerator[ChangeEvent, None]:
        async with aclosing(super().awatch(self._in(path) or "/")) as events:
            async for event in events:
                yield replace(event, path=event.path.removeprefix(self.root) or "/")

    async def _each(
        self,
        items: list[Any],
        path_of: Callable[[Any], str],
        at: Callable[[Any, str], Any],
        call: Callable[[list[Any]], Awaitable[list[Any]]],
    ) -> list[Any]:
        """Make one call for all items; those with invalid paths are passed on unchanged, to be refused."""
        moved = []
        for item in items:
            try:
                moved.append(at(item, self._in(path_of(item))))
            except DeepFSError:
                moved.append(item)
        return [replace(response, path=path_of(item)) for item, response in zip(items, await call(moved), strict=True)]
