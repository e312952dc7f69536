"""The services behind the SDKs of sandboxes, as processes of this machine."""

import asyncio
import json
import subprocess
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio.to_thread
from aiohttp import ClientSession, MultipartWriter, web
from daytona._async.filesystem import AsyncFileSystem
from daytona._async.process import AsyncProcess
from daytona_toolbox_api_client_async import ApiClient, Configuration, FileSystemApi, ProcessApi
from deno_sandbox.rpc import AsyncRpcClient
from deno_sandbox.sandbox import AsyncSandbox as DenoAsyncSandbox
from modal._utils.async_utils import synchronizer
from modal.container_process import ContainerProcess, _ContainerProcess
from modal.exception import ExecTimeoutError, SandboxFilesystemError

__all__ = ["DenoService", "ModalService", "daytona_sandbox"]


def _start(command: list[str], stderr: int = subprocess.PIPE) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env={})


async def _outcome(command: list[str], seconds: float, stderr: int = subprocess.PIPE) -> tuple[bytes, bytes, int]:
    """What a command printed and its return code; TimeoutExpired where it took too long."""

    def run() -> tuple[bytes, bytes, int]:
        with _start(command, stderr) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return out, err or b"", process.returncode

    return await asyncio.to_thread(run)


# --- Daytona: HTTP ----------------------------------------------------------------------------------------------------


async def _execute(request: web.Request) -> web.Response:
    asked = await request.json()
    try:
        output, _, code = await _outcome(["/bin/bash", "-c", asked["command"]], asked["timeout"], subprocess.STDOUT)
    except subprocess.TimeoutExpired:
        return web.json_response({"message": "command execution timeout"}, status=408)
    code = 128 - code if code < 0 else code
    return web.json_response({"exitCode": code, "result": output.decode(errors="replace")})


async def _upload(request: web.Request) -> web.Response:
    path = ""
    async for part in await request.multipart():
        if part.name and part.name.endswith(".path"):
            path = await part.text()
        else:
            await anyio.to_thread.run_sync(Path(path).write_bytes, bytes(await part.read()))
    return web.json_response({})


async def _download(request: web.Request) -> web.StreamResponse:
    with MultipartWriter("form-data") as writer:
        for path in (await request.json())["paths"]:
            try:
                part, name = writer.append(BytesIO(await anyio.to_thread.run_sync(Path(path).read_bytes))), "file"
            except OSError as error:
                part, name = writer.append(str(error)), "error"
            # As the service has it: aiohttp would quote the slashes.
            part.headers["Content-Disposition"] = f'form-data; name="{name}"; filename="{path}"'
    return web.Response(body=writer)


@asynccontextmanager
async def daytona_sandbox() -> AsyncIterator[Any]:
    """The parts of the SDK's sandbox that talk to the service, and a service on this machine."""
    app = web.Application(client_max_size=1 << 26)
    app.add_routes(
        [
            web.post("/process/execute", _execute),
            web.post("/files/bulk-upload", _upload),
            web.post("/files/bulk-download", _download),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = runner.addresses[0]
    async with ClientSession() as session, ApiClient(Configuration(host=f"http://127.0.0.1:{address[1]}")) as client:
        client.http_session = session
        process = AsyncProcess("python", ProcessApi(client))
        yield SimpleNamespace(id="daytona-1", process=process, fs=AsyncFileSystem(FileSystemApi(client)))
    await runner.cleanup()


# --- Deno: JSON-RPC ---------------------------------------------------------------------------------------------------


class DenoService:
    """The far end of the connection of Deno's SDK."""

    closed = False
    _debug = False

    def __init__(self) -> None:
        self.sandbox = DenoAsyncSandbox(None, AsyncRpcClient(self), "deno-1")
        self._out: asyncio.Queue[str] = asyncio.Queue()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._outputs: dict[int, asyncio.Task[None]] = {}
        self._streams: dict[int, bytearray] = {}
        self._complete: dict[int, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = count(1000)

    async def close(self) -> None:
        self.closed = True
        for task in self._tasks:
            task.cancel()
        if (listener := self.sandbox._rpc._listen_task) is not None:
            listener.cancel()
            with suppress(asyncio.CancelledError):
                await listener

    async def __aiter__(self) -> AsyncGenerator[str, None]:
        while True:
            yield await self._out.get()

    async def send(self, data: str) -> None:
        message = json.loads(data)
        method, params = message["method"], message.get("params", {})
        if method.startswith("$sandbox.stream."):
            self._take(method.rpartition(".")[2], params)
            return
        task = asyncio.create_task(self._answer(message["id"], method, params))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self, step: str, params: dict[str, Any]) -> None:
        number = params["streamId"]
        self._complete.setdefault(number, asyncio.Event())
        self._streams.setdefault(number, bytearray()).extend(b64decode(params.get("data", "")))
        if step == "end":
            self._complete[number].set()

    async def _answer(self, number: int, method: str, params: dict[str, Any]) -> None:
        try:
            result = {"ok": await getattr(self, f"_{method}")(**params)}
        except OSError as error:
            result = {"error": {"message": str(error)}}
        self._put({"id": number, "result": result})

    def _put(self, message: dict[str, Any]) -> None:
        self._out.put_nowait(json.dumps({"jsonrpc": "2.0", **message}))

    async def _spawn(self, command: str, args: list[str], **_: str) -> dict[str, int]:
        process = await asyncio.to_thread(_start, [f"/bin/{command}", *args])
        self._processes[process.pid] = process
        numbers = [next(self._numbers), next(self._numbers)]
        self._outputs[process.pid] = asyncio.create_task(self._output(process, numbers))
        return {"pid": process.pid, "stdoutStreamId": numbers[0], "stderrStreamId": numbers[1]}

    async def _output(self, process: "subprocess.Popen[bytes]", numbers: list[int]) -> None:
        streams = await asyncio.to_thread(process.communicate)
        await asyncio.sleep(0.01)  # The SDK drops what comes before it has seen the answer to the spawn.
        for number, data in zip(numbers, streams, strict=True):
            if data:
                shown = {"streamId": number, "data": b64encode(data).decode()}
                self._put({"method": "$sandbox.stream.enqueue", "params": shown})
            self._put({"method": "$sandbox.stream.end", "params": {"streamId": number}})

    async def _processWait(self, pid: int) -> dict[str, Any]:  # noqa: N802
        await asyncio.shield(self._outputs[pid])
        code = self._processes[pid].returncode
        return {"success": code == 0, "code": code, "signal": None}

    async def _processKill(self, pid: int) -> None:  # noqa: N802
        self._processes[pid].kill()
        await asyncio.shield(self._outputs[pid])

    async def _readFile(self, path: str) -> str:  # noqa: N802
        return b64encode(await anyio.to_thread.run_sync(Path(path).read_bytes)).decode()

    async def _writeFile(self, path: str, contentStreamId: int) -> None:  # noqa: N802, N803
        await self._complete.setdefault(contentStreamId, asyncio.Event()).wait()
        await anyio.to_thread.run_sync(Path(path).write_bytes, bytes(self._streams[contentStreamId]))


# --- Modal: the worker behind a process -------------------------------------------------------------------------------


class ModalService:
    """A sandbox whose processes are the SDK's, with a worker on this machine behind them."""

    object_id = "sb-1"

    def __init__(self) -> None:
        self.exec = SimpleNamespace(aio=self._exec)
        self.filesystem = SimpleNamespace(
            read_bytes=SimpleNamespace(aio=self._read), write_bytes=SimpleNamespace(aio=self._write)
        )

    async def _exec(self, *args: str, timeout: int, text: bool) -> ContainerProcess[bytes]:
        if sum(map(len, args)) > 2**16:
            raise ValueError("too long")
        return await _new_process.aio(args, timeout, text)

    async def _read(self, path: str) -> bytes:
        try:
            return await anyio.to_thread.run_sync(Path(path).read_bytes)
        except OSError as error:
            raise SandboxFilesystemError(str(error)) from error

    async def _write(self, content: bytes, path: str) -> None:
        await anyio.to_thread.run_sync(Path(path).write_bytes, content)


class _Worker:
    """Runs a command when the SDK asks for the first of its output; all of this on the SDK's own event loop."""

    def __init__(self, args: tuple[str, ...], timeout: float) -> None:
        self._args = args
        self._timeout = timeout
        self._done: asyncio.Task[tuple[bytes, bytes, int]] | None = None

    async def _finished(self) -> tuple[bytes, bytes, int]:
        self._done = self._done or asyncio.create_task(self._run())
        return await self._done

    async def _run(self) -> tuple[bytes, bytes, int]:
        try:
            return await _outcome(["/bin/sh", *self._args[1:]], self._timeout)
        except subprocess.TimeoutExpired:
            raise ExecTimeoutError("deadline") from None

    async def exec_stdio_read(
        self, task_id: str, exec_id: str, descriptor: int, deadline: float | None, *, start_offset: int = 0
    ) -> AsyncGenerator[Any, None]:
        data = (await self._finished())[descriptor - 1]
        if data[start_offset:]:
            yield SimpleNamespace(data=data[start_offset:])

    async def exec_wait(self, task_id: str, exec_id: str, deadline: float | None) -> Any:
        code = (await self._finished())[2]
        kind, value = ("signal", -code) if code < 0 else ("code", code)
        return SimpleNamespace(WhichOneof=lambda _: kind, **{kind: value})


@synchronizer.wrap
async def _new_process(args: tuple[str, ...], timeout: float, text: bool) -> _ContainerProcess[bytes]:
    """Made on the event loop that the SDK has for itself."""
    return _ContainerProcess("exec-1", "task-1", None, _Worker(args, timeout), text=text)
