"""The gRPC services of Modal: the control plane, and the worker that runs a sandbox."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.message import Message
from grpclib.const import Cardinality, Handler
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream
from modal import Sandbox
from modal.client import Client
from modal_proto import api_pb2
from modal_proto import task_command_router_pb2 as router

from support.machines import Machine, Outcome, Program

__all__ = ["ID", "open_modal"]

ID = "sb-" + 22 * "1"
_TASK = "ta-1"
_CHUNK = 64 * 1024
_FILE_TOOLS = "/__modal/.bin/modal-sandbox-fs-tools"

Answer = Callable[[Any], Awaitable[Message]]


class _Served:
    """Some methods of a service: all that the SDK calls."""

    def __init__(self, name: str, methods: Mapping[str, Handler]) -> None:
        self._mapping = {f"/{name}/{method}": handler for method, handler in methods.items()}

    def __mapping__(self) -> Mapping[str, Handler]:
        return self._mapping


def _unary(answer: Answer, asked: type[Message], told: type[Message]) -> Handler:
    async def handle(stream: Stream[Any, Any]) -> None:
        await stream.send_message(await answer(await stream.recv_message()))

    return Handler(handle, Cardinality.UNARY_UNARY, asked, told)


class _Exec:
    """A command on the worker."""

    def __init__(self, program: Program, seconds: int) -> None:
        self._outcome = asyncio.create_task(program.wait(seconds or None))

    async def outcome(self) -> Outcome:
        return await asyncio.shield(self._outcome)


class _FileTool:
    """The program of the worker that reads and writes files."""

    def __init__(self, machine: Machine, asked: str) -> None:
        [(self._action, given)] = json.loads(asked).items()
        self._path: str = given["path"]
        self._machine = machine
        self._content = bytearray()
        self._complete = asyncio.Event()
        if self._action == "ReadFile":
            self._complete.set()
        self._outcome: Outcome | None = None

    def take(self, data: bytes) -> None:
        self._content += data

    def end(self) -> None:
        self._complete.set()

    async def outcome(self) -> Outcome:
        await self._complete.wait()
        if self._outcome is None:
            self._outcome = await self._run()
        return self._outcome

    async def _run(self) -> Outcome:
        try:
            if self._action == "ReadFile":
                return Outcome(await self._machine.read(self._path), b"", 0)
            await self._machine.write(self._path, bytes(self._content))
            return Outcome(b"", b"", 0)
        except OSError as error:
            told = {"error_kind": "NotFound", "message": error.strerror}
            return Outcome(b"", json.dumps(told).encode(), 1)


class _Worker:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._execs: dict[str, _Exec | _FileTool] = {}

    def served(self) -> _Served:
        return _Served(
            "modal.task_command_router.TaskCommandRouter",
            {
                "TaskExecStart": _unary(self._start, router.TaskExecStartRequest, router.TaskExecStartResponse),
                "TaskExecWait": _unary(self._wait, router.TaskExecWaitRequest, router.TaskExecWaitResponse),
                "TaskExecStdioRead": Handler(
                    self._read,
                    Cardinality.UNARY_STREAM,
                    router.TaskExecStdioReadRequest,
                    router.TaskExecStdioReadResponse,
                ),
                "TaskExecStdinWriteStream": Handler(
                    self._write,
                    Cardinality.STREAM_UNARY,
                    router.TaskExecStdinWriteStreamRequest,
                    router.TaskExecStdinWriteStreamResponse,
                ),
            },
        )

    async def _start(self, asked: router.TaskExecStartRequest) -> Message:
        # The program is started even if the client has gone.
        await asyncio.shield(asyncio.create_task(self._started(asked)))
        return router.TaskExecStartResponse()

    async def _started(self, asked: router.TaskExecStartRequest) -> None:
        program, *arguments = asked.command_args
        self._execs[asked.exec_id] = (
            _FileTool(self._machine, *arguments)
            if program == _FILE_TOOLS
            else _Exec(await self._machine.start(program, *arguments), asked.timeout_secs)
        )

    async def _wait(self, asked: router.TaskExecWaitRequest) -> Message:
        done = await self._execs[asked.exec_id].outcome()
        if done.signal:
            return router.TaskExecWaitResponse(signal=done.signal)
        return router.TaskExecWaitResponse(code=done.code)

    async def _read(self, stream: Stream[Any, Any]) -> None:
        asked = await stream.recv_message()
        done = await self._execs[asked.exec_id].outcome()
        is_stdout = asked.file_descriptor == router.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        data = done.stdout if is_stdout else done.stderr
        for at in range(asked.offset, len(data), _CHUNK):
            await stream.send_message(router.TaskExecStdioReadResponse(data=data[at : at + _CHUNK]))

    async def _write(self, stream: Stream[Any, Any]) -> None:
        begun = await stream.recv_message()
        tool = self._execs[begun.start.exec_id]
        async for part in stream:
            tool.take(part.data)
        tool.end()
        await stream.send_message(router.TaskExecStdinWriteStreamResponse())


class _ControlPlane:
    """The control plane: it knows the sandboxes and their workers."""

    worker: str

    def served(self) -> _Served:
        return _Served(
            "modal.client.ModalClient",
            {
                "SandboxWait": _unary(self._sandbox, api_pb2.SandboxWaitRequest, api_pb2.SandboxWaitResponse),
                "SandboxGetTaskId": _unary(
                    self._task, api_pb2.SandboxGetTaskIdRequest, api_pb2.SandboxGetTaskIdResponse
                ),
                "TaskGetCommandRouterAccess": _unary(
                    self._access,
                    api_pb2.TaskGetCommandRouterAccessRequest,
                    api_pb2.TaskGetCommandRouterAccessResponse,
                ),
            },
        )

    async def _sandbox(self, asked: api_pb2.SandboxWaitRequest) -> Message:
        return api_pb2.SandboxWaitResponse()

    async def _task(self, asked: api_pb2.SandboxGetTaskIdRequest) -> Message:
        return api_pb2.SandboxGetTaskIdResponse(task_id=_TASK)

    async def _access(self, asked: api_pb2.TaskGetCommandRouterAccessRequest) -> Message:
        return api_pb2.TaskGetCommandRouterAccessResponse(url=self.worker, jwt="token")


class _Server(Server):
    """A server that can end the connections which its clients leave open."""

    def __init__(self, served: _Served) -> None:
        super().__init__([served])
        self._protocols: list[H2Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        self._protocols.append(protocol)
        return protocol

    async def end_connections(self) -> None:
        for protocol in self._protocols:
            protocol.processor.close()
        await asyncio.sleep(0)  # The loop closes the sockets in its next turn.


@asynccontextmanager
async def _serving(served: _Served) -> AsyncIterator[str]:
    server = _Server(served)
    await server.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server._server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()
        await server.end_connections()


@asynccontextmanager
async def open_modal(machine: Machine) -> AsyncIterator[Sandbox]:
    """A sandbox as the SDK represents it."""
    plane = _ControlPlane()
    async with (
        _serving(_Worker(machine).served()) as plane.worker,
        _serving(plane.served()) as url,
        Client(url, api_pb2.CLIENT_TYPE_CLIENT, ("id", "secret")) as client,
    ):
        sandbox = await Sandbox.from_id.aio(ID, client=client)
        yield sandbox
        await sandbox.detach.aio()
