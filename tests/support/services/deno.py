"""The service of Deno: JSON-RPC over a websocket."""

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from deno_sandbox import AsyncDenoDeploy
from deno_sandbox.sandbox import AsyncSandbox
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from support.machines import Machine, Outcome, Program

__all__ = ["ID", "open_deno"]

ID = "deno-1"
_CHUNK = 64 * 1024


class _Connection:
    """The connection of one client: its programs, and the byte streams in both directions."""

    def __init__(self, socket: ServerConnection, machine: Machine) -> None:
        self._socket = socket
        self._machine = machine
        self._programs: dict[int, Program] = {}
        self._outcomes: dict[int, asyncio.Task[Outcome]] = {}
        self._outputs: dict[int, tuple[int, int]] = {}
        self._streams: dict[int, bytearray] = {}
        self._complete: dict[int, asyncio.Event] = {}
        self._numbers = count(1000)

    async def serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            async for data in self._socket:
                message = json.loads(data)
                method, params = message["method"], message.get("params", {})
                if method.startswith("$sandbox.stream."):
                    self._take(method.rpartition(".")[2], params)
                else:
                    tasks.create_task(self._answer(message["id"], method, params))
            for program in self._programs.values():
                program.kill()

    def _take(self, step: str, params: dict[str, Any]) -> None:
        number = params["streamId"]
        self._streams.setdefault(number, bytearray()).extend(b64decode(params.get("data", "")))
        if step == "end":
            self._completion(number).set()

    def _completion(self, number: int) -> asyncio.Event:
        return self._complete.setdefault(number, asyncio.Event())

    async def _answer(self, number: int, method: str, params: dict[str, Any]) -> None:
        try:
            result = {"ok": await getattr(self, f"_{method}")(**params)}
        except OSError as error:
            result = {"error": {"message": str(error)}}
        await self._put({"id": number, "result": result})

    async def _put(self, message: dict[str, Any]) -> None:
        await self._socket.send(json.dumps({"jsonrpc": "2.0", **message}))

    async def _spawn(self, command: str, args: list[str], **_: str) -> dict[str, int]:
        program = await self._machine.start(command, *args)
        self._programs[program.pid] = program
        self._outcomes[program.pid] = asyncio.create_task(program.wait())
        streams = self._outputs[program.pid] = (next(self._numbers), next(self._numbers))
        return {"pid": program.pid, "stdoutStreamId": streams[0], "stderrStreamId": streams[1]}

    async def _send_output(self, pid: int, done: Outcome) -> None:
        for number, data in zip(self._outputs.pop(pid), (done.stdout, done.stderr), strict=True):
            for at in range(0, len(data), _CHUNK):
                shown = {"streamId": number, "data": b64encode(data[at : at + _CHUNK]).decode()}
                await self._put({"method": "$sandbox.stream.enqueue", "params": shown})
            await self._put({"method": "$sandbox.stream.end", "params": {"streamId": number}})

    async def _processWait(self, pid: int) -> dict[str, Any]:  # noqa: N802
        done = await asyncio.shield(self._outcomes.pop(pid))
        del self._programs[pid]
        # Not earlier: the SDK drops output that arrives before the answer to `spawn`.
        await self._send_output(pid, done)
        code = -done.signal if done.signal else done.code
        return {"success": code == 0, "code": code, "signal": None}

    async def _processKill(self, pid: int) -> None:  # noqa: N802
        if pid in self._programs:
            self._programs[pid].kill()

    async def _readFile(self, path: str) -> str:  # noqa: N802
        return b64encode(await self._machine.read(path)).decode()

    async def _writeFile(self, path: str, contentStreamId: int) -> None:  # noqa: N802, N803
        await self._completion(contentStreamId).wait()
        await self._machine.write(path, bytes(self._streams.pop(contentStreamId)))


@asynccontextmanager
async def open_deno(machine: Machine) -> AsyncIterator[AsyncSandbox]:
    """A sandbox made by the SDK."""

    async def handle(socket: ServerConnection) -> None:
        await _Connection(socket, machine).serve()

    def named(socket: ServerConnection, request: Request, response: Response) -> None:
        response.headers["x-deno-sandbox-id"] = ID

    async with serve(handle, "127.0.0.1", 0, process_response=named, max_size=1 << 26) as server:
        [(host, port, *_)] = (socket.getsockname() for socket in server.sockets)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DENO_SANDBOX_ENDPOINT", f"http://{host}:{port}")
            client = AsyncDenoDeploy({"token": "token"})
        async with client.sandbox.create() as sandbox:
            yield sandbox
