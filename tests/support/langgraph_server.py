"""A small server with the threads and runs of LangGraph's API, which runs real graphs in threads."""

import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from langchain_core.messages import BaseMessage

__all__ = ["LangGraphServer", "asgi", "running_langgraph_server"]


@dataclass
class LangGraphServer:
    """A running server. Each graph needs a checkpointer."""

    graphs: Mapping[str, Any]
    url: str = ""
    refusal: str = "not found"
    """What it says where there is nothing at a path."""
    requests: list[tuple[str, str, Any, Mapping[str, str]]] = field(default_factory=list)
    """Method, path, body and headers (in lower case) of each request."""
    threads: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def answer(self, method: str, path: str, body: Any) -> Any:
        """The answer to a request; None if there is nothing at the path."""
        with self._lock:
            match [method, *path.strip("/").split("/")]:
                case ["POST", "threads"]:
                    return self._new_thread(body)
                case ["GET", "threads", thread] if thread in self.threads:
                    return self._thread(thread)
                case ["POST", "threads", thread, "runs"] if body["assistant_id"] in self.graphs:
                    return self._new_run(thread, body)
                case ["GET", "threads", thread, "runs"]:
                    return [run for run in reversed(self.runs.values()) if run["thread_id"] == thread]
                case ["GET", "threads", _, "runs", run] if run in self.runs:
                    return self.runs[run]
                case ["POST", "threads", _, "runs", run, "cancel"] if run in self.runs:
                    self._end(run, "interrupted")
                    return {}
        return None

    def bodies(self, path_end: str) -> list[Any]:
        """The bodies of the posts to a path."""
        return [body for method, path, body, _ in self.requests if method == "POST" and path.endswith(path_end)]

    def _new_thread(self, body: Any) -> dict[str, Any]:
        made = {"thread_id": str(uuid4()), "status": "idle", "metadata": body.get("metadata") or {}}
        self.threads[made["thread_id"]] = made
        return made

    def _thread(self, thread: str) -> dict[str, Any]:
        state = next(iter(self.graphs.values())).get_state({"configurable": {"thread_id": thread}})
        asked = [{"id": each.id, "value": each.value} for each in state.interrupts]
        is_busy = any(run["status"] in {"running", "pending"} for run in self._of(thread))
        status = "busy" if is_busy else "interrupted" if asked else self.threads[thread]["status"]
        return {**self.threads[thread], "status": status, "values": state.values, "interrupts": {"task": asked}}

    def _new_run(self, thread: str, body: Any) -> dict[str, Any]:
        active = [run for run in self._of(thread) if run["status"] in {"running", "pending"}]
        if body.get("multitask_strategy") == "interrupt":
            for each in active:
                self._end(each["run_id"], "interrupted")
            active = []
        run = {"run_id": str(uuid4()), "thread_id": thread, "status": "pending" if active else "running", "body": body}
        self.runs[run["run_id"]] = run
        if not active:
            threading.Thread(target=self._work, args=(run,), daemon=True).start()
        return run

    def _of(self, thread: str) -> list[dict[str, Any]]:
        return [run for run in self.runs.values() if run["thread_id"] == thread]

    def _work(self, run: dict[str, Any]) -> None:
        config = {"configurable": {"thread_id": run["thread_id"]}}
        try:
            self.graphs[run["body"]["assistant_id"]].invoke(run["body"]["input"], config)
        except Exception as error:
            reason = {"error": type(error).__name__, "message": str(error)}
            self.threads[run["thread_id"]] |= {"status": "error", "error": reason}
            self._end(run["run_id"], "error")
        else:
            self._end(run["run_id"], "success")

    def _end(self, run_id: str, status: str) -> None:
        with self._lock:
            run = self.runs[run_id]
            if run["status"] in {"running", "pending"}:
                run["status"] = status
            following = next((each for each in self._of(run["thread_id"]) if each["status"] == "pending"), None)
            if following and not any(each["status"] == "running" for each in self._of(run["thread_id"])):
                following["status"] = "running"
                threading.Thread(target=self._work, args=(following,), daemon=True).start()


def _plain(value: object) -> Any:
    return value.model_dump() if isinstance(value, BaseMessage) else str(value)


@contextmanager
def running_langgraph_server(graphs: Mapping[str, Any]) -> Iterator[LangGraphServer]:
    """Run a server with these graphs, which have one checkpointer."""
    state = LangGraphServer(graphs)
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(state)) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


def _handler(state: LangGraphServer) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 5

        def _serve(self) -> None:
            path = urlsplit(self.path).path
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            headers = {name.lower(): value for name, value in self.headers.items()}
            state.requests.append((self.command, path, body, headers))
            answer = state.answer(self.command, path, body)
            content = json.dumps({"detail": state.refusal} if answer is None else answer, default=_plain).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _serve  # noqa: N815

        def log_message(self, *args: Any) -> None:
            """Stay silent."""

    return Handler


def asgi(state: LangGraphServer) -> Callable[..., Awaitable[None]]:
    """The server as an ASGI application, which agents on it reach without a URL."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        content = (await receive()).get("body") or b"{}"
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        state.requests.append((scope["method"], scope["path"], json.loads(content), headers))
        answer = state.answer(scope["method"], scope["path"].removeprefix("/noauth"), json.loads(content))
        body = json.dumps({"detail": state.refusal} if answer is None else answer, default=_plain).encode()
        status = 404 if answer is None else 200
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        )
        await send({"type": "http.response.body", "body": body})

    return app
