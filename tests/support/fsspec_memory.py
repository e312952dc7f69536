"""A flat, async filesystem of fsspec in memory, as object stores are."""

import asyncio
from datetime import UTC, datetime
from itertools import count
from typing import Any, ClassVar

from fsspec.asyn import AsyncFileSystem

__all__ = ["AsyncMemory"]

_versions = count(1)


class AsyncMemory(AsyncFileSystem):
    """Keys with content and version. A directory exists while there are keys in it."""

    protocol = "asyncmemory"
    cachable = False
    calls: ClassVar[list[str]] = []
    """The names of the calls of all objects."""

    def __init__(self, keys: dict[str, tuple[bytes, int, datetime]] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.keys: dict[str, tuple[bytes, int, datetime]] = {} if keys is None else keys

    async def _call(self, name: str) -> None:
        self.calls.append(name)
        await asyncio.sleep(0)

    def _described(self, key: str) -> dict[str, Any]:
        content, version, changed = self.keys[key]
        return {"name": key, "type": "file", "size": len(content), "etag": str(version), "last_modified": changed}

    async def _info(self, path: str, **options: Any) -> dict[str, Any]:
        await self._call("info")
        path = self._strip_protocol(path)
        if path in self.keys:
            return self._described(path)
        if any(key.startswith(f"{path}/" if path else "") for key in self.keys):
            return {"name": path, "type": "directory", "size": 0}
        raise FileNotFoundError(path)

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        await self._call("ls")
        path = self._strip_protocol(path)
        inside = f"{path}/" if path else ""
        found: dict[str, dict[str, Any]] = {}
        for key in sorted(self.keys):
            if key.startswith(inside):
                name, deeper, _ = key[len(inside) :].partition("/")
                name = inside + name
                found[f"{name}{deeper}"] = (
                    {"name": name, "type": "directory", "size": 0} if deeper else self._described(key)
                )
        if not found and path in self.keys:
            return [self._described(path)]
        if not found and path:
            raise FileNotFoundError(path)
        return [*found.values()] if detail else [info["name"] for info in found.values()]

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        await self._call("cat_file")
        path = self._strip_protocol(path)
        if path not in self.keys:
            raise FileNotFoundError(path)
        return self.keys[path][0][start:end]

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        await self._call("pipe_file")
        path = self._strip_protocol(path)
        if mode == "create" and path in self.keys:
            raise FileExistsError(path)
        self.keys[path] = (bytes(value), next(_versions), datetime.now(UTC))

    async def _rm_file(self, path: str, **options: Any) -> None:
        await self._call("rm_file")
        if self.keys.pop(self._strip_protocol(path), None) is None:
            raise FileNotFoundError(path)
