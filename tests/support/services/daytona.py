"""The service of Daytona: HTTP, with JSON and forms."""

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import pytest
from aiohttp import MultipartWriter, web
from daytona import AsyncDaytona, AsyncSandbox, DaytonaConfig

from support.machines import Machine

__all__ = ["ID", "open_daytona"]

ID = "daytona-1"


class _Service:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def routes(self) -> list[web.RouteDef]:
        toolbox = f"/toolbox/{ID}"
        return [
            web.post("/api/sandbox", self.create),
            web.post(f"{toolbox}/process/execute", self.execute),
            web.post(f"{toolbox}/files/bulk-upload", self.upload),
            web.post(f"{toolbox}/files/bulk-download", self.download),
        ]

    async def create(self, request: web.Request) -> web.Response:
        asked = await request.json()
        told: dict[str, Any] = {
            "id": ID,
            "name": "one",
            "organizationId": "one",
            "user": "daytona",
            "env": {},
            "labels": asked["labels"],
            "public": False,
            "networkBlockAll": False,
            "kvm": False,
            "target": "here",
            "cpu": 1,
            "gpu": 0,
            "memory": 1,
            "disk": 1,
            "state": "started",
            "toolboxProxyUrl": str(request.url.with_path("/toolbox")),
        }
        return web.json_response(told)

    async def execute(self, request: web.Request) -> web.Response:
        asked = await request.json()
        program = await self._machine.start("/bin/bash", "-c", asked["command"], stderr=subprocess.STDOUT)
        done = await program.wait(asked["timeout"])
        if done.is_late:
            return web.json_response({"message": "command execution timeout"}, status=408)
        code = 128 + done.signal if done.signal else done.code
        return web.json_response({"exitCode": code, "result": done.stdout.decode(errors="replace")})

    async def upload(self, request: web.Request) -> web.Response:
        path = ""
        async for part in await request.multipart():
            if part.name and part.name.endswith(".path"):
                path = await part.text()
            else:
                await self._machine.write(path, bytes(await part.read()))
        return web.json_response({})

    async def download(self, request: web.Request) -> web.StreamResponse:
        with MultipartWriter("form-data") as writer:
            for path in (await request.json())["paths"]:
                try:
                    part, name = writer.append(BytesIO(await self._machine.read(path))), "file"
                except OSError as error:
                    part, name = writer.append(str(error)), "error"
                # As the real service sends it; aiohttp would quote the slashes.
                part.headers["Content-Disposition"] = f'form-data; name="{name}"; filename="{path}"'
        return web.Response(body=writer)


@asynccontextmanager
async def open_daytona(machine: Machine) -> AsyncIterator[AsyncSandbox]:
    """A sandbox made by the SDK."""
    app = web.Application(client_max_size=1 << 26)
    app.add_routes(_Service(machine).routes())
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/api"
    try:
        # The alternative to polling, a socket for events, has nothing to do with commands and files.
        with pytest.deprecated_call(match="Polling-only mode"):
            client = AsyncDaytona(DaytonaConfig(api_key="key", api_url=url, target="here", use_deprecated_polling=True))
        async with client:
            yield await client.create()
    finally:
        await runner.cleanup()
