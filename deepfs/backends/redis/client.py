"""Connections to a Redis server: a pool for each event loop, scripts sent again, and the errors of redis-py."""

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
from msgspec import Struct

from deepfs._drivers import FORBIDDEN, WRONG_CREDENTIALS, Condition, condition_of, failure_by
from deepfs.backends._asyncio_client import AsyncioClient, run_named
from deepfs.backends.redis.scripts import Script
from deepfs.errors import BackendError, DeadlineError, DeepFSError
from deepfs.storage.runners import Requests, RetryPolicy
from deepfs.text.arguments import check_installed
from deepfs.threads.loop_bridge import call_on, running_asyncio_loop

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from deepfs.threads.loop_bridge import AsyncioLoop

T = TypeVar("T")

# --- errors ----------------------------------------------------------------------------------------------------------


class _Known(Struct, frozen=True):
    """What the class and the text of an error of redis-py say. The server refused the request if `is_refusal`."""

    pattern: str
    condition: Condition | None
    may_pass: bool = False
    is_refusal: bool = True


_STARTING: Final = Condition("it is starting or shutting down")
_KNOWN: Final = (
    _Known(r"^Auth\w*Error|WRONGPASS|NOAUTH|username-password pair|invalid password", WRONG_CREDENTIALS),
    _Known(r"NoPermission|NOPERM|user executing the script can't", FORBIDDEN),
    _Known(r"^OutOfMemory|\bOOM\b", Condition("its memory is full")),
    _Known(r"^ReadOnlyError|READONLY", Condition("it takes no changes now"), may_pass=True),
    _Known(r"MISCONF", Condition("it cannot save changes, so it takes none")),
    _Known(r"^BusyLoading|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|\bBUSY ", _STARTING, may_pass=True),
    _Known(r"^MaxConnections|max number of clients", Condition("too many connections"), may_pass=True),
    _Known(r"DB index is out of range", Condition("no such database")),
    _Known(r"WRONGTYPE", Condition("another program has replaced a key of this tree")),
    _Known(r"^MovedError|^AskError|MOVED|CROSSSLOT", Condition("it is a part of a cluster")),
    _Known(r"^TimeoutError", Condition("timed out", DeadlineError), may_pass=True, is_refusal=False),
    _Known(r"^ResponseError", None),
    _Known(r"^(?:ConnectionError|InvalidResponse)", None, may_pass=True, is_refusal=False),
)
"""What may be wrong; the first that fits counts. Where a script fails, the error has no class of its own."""
_OTHER: Final = _Known("", None)
_LOST: Final = Condition("connection lost")


def _known(error: Exception) -> _Known:
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return _KNOWN[-1]
    said = f"{type(error).__name__}: {error}"
    return next((known for known in _KNOWN if re.search(known.pattern, said)), _OTHER)


def _is_driver_error(error: Exception) -> bool:
    import redis

    return isinstance(error, redis.RedisError | redis.exceptions.RedisClusterException | OSError | TimeoutError)


def may_pass(error: Exception) -> bool:
    """Whether an error of redis-py is one that may pass."""
    return _is_driver_error(error) and _known(error).may_pass


def failure_of(error: Exception) -> Exception:
    """The error of deepfs for an error of redis-py; other errors are returned as they are."""
    if isinstance(error, DeepFSError) or not _is_driver_error(error):
        return error
    known = _known(error)
    condition = known.condition or condition_of(error) or (None if known.is_refusal else _LOST)
    return failure_by(error, condition, "redis", "The server")


def _may_have_arrived(error: Exception) -> bool:
    """Whether a request that failed may be carried out all the same."""
    if _known(error).is_refusal:
        return False
    # Where no connection could be made, nothing was sent.
    return re.match(r"Error -?\d+ connecting to ", str(error)) is None


# --- connections -----------------------------------------------------------------------------------------------------

_LONGEST_BLOCK: Final = 2.0
"""How long a watch waits for changes at once, in seconds. By default, clients wait five seconds for an answer."""


def check_server(server: object) -> None:
    """Raise ModuleNotFoundError, TypeError or ValueError unless redis-py is there, and `server` a URL or its client."""
    check_installed("redis", "redis", "RedisBackend")
    from redis.asyncio.connection import parse_url

    if isinstance(server, str):
        try:
            parse_url(server)
        except (ValueError, TypeError):  # The text may quote a password.
            schemes = "redis://, rediss:// or unix://"
            raise ValueError(f"a URL of Redis starts with {schemes}, and has a port and options that fit") from None
    elif not hasattr(server, "execute_command") or not hasattr(server, "get_encoder"):
        raise TypeError(f"server must be a URL or a client of redis.asyncio, not a {type(server).__name__}")
    elif server.get_encoder().decode_responses:
        raise ValueError("the client has decode_responses=True, but files need not be texts")


class Client(AsyncioClient):
    """Sends scripts to one server, from tasks of any event loop."""

    def __init__(self, server: "str | Redis", policy: RetryPolicy, max_connections: int) -> None:
        url = server if isinstance(server, str) else None
        super().__init__("RedisBackend", None if url else server, "client")
        self._url = url
        self.requests: Requests = Requests(policy, may_pass)
        self._max_connections = max_connections
        self._loop: AsyncioLoop | None = None if url else running_asyncio_loop()
        self._clients: dict[AsyncioLoop, tuple[Any, AsyncGenerator[None, None]]] = {}

    @property
    def given_loop(self) -> "AsyncioLoop | None":
        return self._loop

    @property
    def given(self) -> Any:
        """The client that the caller gave, which may send a request again by itself; None without one."""
        return self._given

    async def on_loop(self, call: Callable[[], Any]) -> Any:
        async def first() -> Any:
            if self._loop is None:  # A client belongs to the loop on which it is first used.
                self._loop = running_asyncio_loop()
            return await call()

        return await super().on_loop(call if self._given is None else first)

    def _after_fork(self) -> None:
        super()._after_fork()
        self._of_parent.append(self._clients)
        self._clients = {}

    async def _client(self) -> Any:
        """The client of the running loop."""
        if self._given is not None:
            return self._given
        loop = running_asyncio_loop()
        assert loop is not None
        if (found := self._clients.get(loop)) is None:
            for other in [other for other in list(self._clients) if other.is_closed()]:
                self._clients.pop(other, None)
            client = self.open(self._max_connections)
            keeper = _open_until_closed(client)
            found = self._clients[loop] = client, keeper
            await anext(keeper)
        return found[0]

    def open(self, max_connections: int) -> Any:
        """A client of its own, to be closed by the caller, for the running loop."""
        import redis
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        # To name its version to the server, redis-py would look into files for each connection.
        nameless: Any = dict.fromkeys(("driver_info",) if hasattr(redis, "DriverInfo") else ("lib_name", "lib_version"))
        once = Retry(NoBackoff(), 0)  # A request is sent again here, and its time limited.
        pool = BlockingConnectionPool.from_url(
            self._url or "", max_connections=max_connections, timeout=None, retry=once, socket_timeout=None, protocol=2,
            **nameless,
        )  # fmt: skip
        pool.connection_kwargs["decode_responses"] = False
        return Redis.from_pool(pool)

    async def aclose(self) -> None:
        """Close the connections that were opened here."""
        for loop, (_, keeper) in list(self._clients.items()):
            self._clients.pop(loop, None)
            if loop is running_asyncio_loop():
                await keeper.aclose()
            elif loop.is_running():
                await call_on(loop, partial(run_named, keeper.aclose))

    # --- requests ---

    async def ask(self, script: Script, keys: Sequence[bytes], *arguments: Any) -> Any:
        """Run a script that may run twice, again if the connection breaks."""
        try:
            return await self.on_loop(lambda: self.requests.send(partial(self._run, script, keys, arguments)))
        except Exception as error:
            if (failure := failure_of(error)) is error:
                raise
            raise failure from failure.__cause__

    async def change(self, script: Script, keys: Sequence[bytes], *arguments: Any) -> tuple[Any, bool]:
        """Run a script that knows a request that it had before, again if the connection breaks.

        Returns the answer, and whether it was sent once only. Raises BackendError if it is not known whether the script
        ran; after any other error it did not.
        """
        sent, unknown = 0, False

        async def attempt() -> Any:
            nonlocal sent, unknown
            sent += 1
            try:
                with anyio.fail_after(self.requests.policy.timeout):
                    return await self._run(script, keys, arguments)
            except Exception as error:
                unknown = unknown or (_is_driver_error(error) and _may_have_arrived(error))
                raise

        try:
            answer = await self.on_loop(lambda: self.requests.send(attempt))
        except Exception as error:
            failure = failure_of(error)
            if unknown and isinstance(failure, DeepFSError):
                reason = "The answer was lost, so it is not known whether the change was made: {cause}"
                raise BackendError.because(None, reason, cause=failure) from failure
            if failure is error:
                raise
            raise failure from failure.__cause__
        return answer, sent == 1 and self._given is None

    async def _run(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Any]) -> Any:
        from redis.exceptions import NoScriptError

        client = await self._client()
        try:
            return await client.execute_command("EVALSHA", script.sha, len(keys), *keys, *arguments)
        except NoScriptError:  # The server was started anew, or this is its first request.
            return await client.execute_command("EVAL", script.text, len(keys), *keys, *arguments)

    async def wait_for_entry(self, client: Any, stream: bytes, last: bytes) -> None:
        """Wait until the stream has an entry behind the `last` one, or for two seconds."""
        blocks = int(min(_LONGEST_BLOCK, self.requests.policy.timeout / 2) * 1000)
        from redis.exceptions import TimeoutError as NoAnswerError

        with anyio.move_on_after(self.requests.policy.timeout), suppress(NoAnswerError):
            await client.execute_command("XREAD", "COUNT", 1, "BLOCK", blocks, "STREAMS", stream, last)


async def _open_until_closed(client: Any) -> AsyncGenerator[None, None]:
    """Ends the connections of a client when its event loop ends, as loops then close their generators."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await close(client)


_SECONDS_TO_CLOSE: Final = 5.0


async def close(client: Any) -> None:
    """Close a client that was opened here, and its connections."""
    with anyio.move_on_after(_SECONDS_TO_CLOSE):
        await client.connection_pool.disconnect(inuse_connections=True)
