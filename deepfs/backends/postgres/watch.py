"""Changes of files as PostgreSQL announces them: a trigger notifies the channel of a namespace that is watched."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import anyio

from deepfs._drivers import log_failure
from deepfs.backends.postgres.client import Client, failure_of, is_transient
from deepfs.backends.postgres.files import small_contents
from deepfs.backends.watching import ChangeBuffer
from deepfs.errors import DeepFSError
from deepfs.sync import run_shielded
from deepfs.text.lines import version
from deepfs.types import ChangeEvent, ChangeKind

_MOST_AT_ONCE: Final = 64
"""The most events that are taken at once; the contents of their files are fetched together."""
_SECONDS_OF_SILENCE: Final = 30.0
"""After so long without a notification the connection is tested."""
_PROCESSES: Final = "SELECT pid FROM pg_stat_activity WHERE pid IS NOT NULL"
"""The connections to the server. One that has ended left its entry behind."""


async def watch_namespace(client: Client, namespace: str, path: str) -> AsyncGenerator[ChangeEvent, None]:
    """The changes at and beneath a path, after an event `resync` that says that the watch is active.

    Raises BackendError if the storage failed, other than by a connection that was lost.
    """
    listener = _Listener(client, namespace, path)
    try:
        while True:
            for event in await client.on_loop(listener.next_events):
                yield event
    finally:
        await run_shielded(lambda: client.on_loop(listener.close))


class _Listener:
    """A connection that listens, and the changes that were announced on it. Used on the loop of the connection."""

    def __init__(self, client: Client, namespace: str, path: str) -> None:
        self._client = client
        self._namespace = namespace
        self._path = path
        self._channel = client.names.channel(namespace)
        self._connection: Any = None
        self._stack = AsyncExitStack()
        self._buffer = ChangeBuffer(path)
        self._has_begun = False

    async def next_events(self) -> list[ChangeEvent]:
        """Wait for changes, and return those that came since the last call."""
        while True:
            if self._connection is None or self._connection.is_closed():
                await self._reconnect()
                return [ChangeEvent(self._path, "resync")]
            with anyio.move_on_after(_SECONDS_OF_SILENCE) as silence:
                events = [await self._buffer.read()]
            if silence.cancelled_caught:
                await self._test()
            elif self._connection is not None:
                while len(events) < _MOST_AT_ONCE and (event := self._buffer.pop()) is not None:
                    events.append(event)
                return await self._with_versions(events)

    async def _with_versions(self, events: list[ChangeEvent]) -> list[ChangeEvent]:
        """The events with the versions of the contents. A file may have changed again; that is another event."""
        changed = [event.path for event in events if event.kind in ("created", "modified")]
        found = {}
        if changed:
            with suppress(DeepFSError):
                found = await small_contents(self._client, self._namespace, changed)
        versions = {path: version(content) for path, content in found.items()}
        return [ChangeEvent(event.path, event.kind, versions.get(event.path)) for event in events]

    async def _reconnect(self) -> None:
        """Connect; try again for ever if it was connected before."""
        failed = 0
        while True:
            await self.close()
            try:
                with anyio.fail_after(self._client.requests.policy.timeout):
                    await self._connect()
            except Exception as error:
                failed += 1
                is_last = not self._has_begun and failed >= self._client.requests.policy.attempts
                if is_last or not (is_transient(error) or isinstance(error, TimeoutError)):
                    if isinstance(failure := failure_of(error), DeepFSError):
                        log_failure(failure)
                    raise failure from failure.__cause__
                await anyio.sleep(self._client.requests.policy.delay(failed))
            else:
                self._has_begun = True
                return

    async def _connect(self) -> None:
        await self._client.learn_abilities(self._namespace)
        connection = await self._stack.enter_async_context(self._client.listener())
        connection.add_termination_listener(self._resync)
        self._buffer = ChangeBuffer(self._path)
        await connection.add_listener(self._channel, self._add_event)
        async with self._client.act_for(self._namespace, connection, changes=True):
            await self._register(connection)
        self._connection = connection

    async def _register(self, connection: Any) -> None:
        """Have changes announced from now on: wait for those that did not see this watcher."""
        names, namespace = self._client.names, self._namespace
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", self._channel)
        left_behind = f"DELETE FROM {names.watchers} WHERE namespace = $1 AND pid NOT IN ({_PROCESSES})"
        await connection.execute(left_behind, namespace)
        add = f"INSERT INTO {names.watchers} VALUES ($1, pg_backend_pid()) ON CONFLICT DO NOTHING"
        await connection.execute(add, namespace)

    async def _unregister(self, connection: Any) -> None:
        remove = f"DELETE FROM {self._client.names.watchers} WHERE namespace = $1 AND pid = pg_backend_pid()"
        async with self._client.act_for(self._namespace, connection, changes=False):
            await connection.execute(remove, self._namespace)
        await connection.remove_listener(self._channel, self._add_event)

    async def _test(self) -> None:
        try:
            with anyio.fail_after(_SECONDS_OF_SILENCE):
                await self._connection.execute("SELECT 1")
        except Exception:
            self._connection = None

    def _resync(self, _: Any) -> None:
        self._connection = None
        self._buffer.resync()  # It wakes the reader, who connects anew.

    def _add_event(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        event = _event(payload)
        if event is not None and self._buffer.covers(event.path):
            self._buffer.add(event)

    async def close(self) -> None:
        """Give back the connection."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.remove_termination_listener(self._resync)
            with anyio.move_on_after(1), suppress(Exception):
                await self._unregister(connection)
        await self._stack.aclose()


_KINDS: Final[dict[str, ChangeKind]] = {"created": "created", "modified": "modified", "deleted": "deleted"}


def _event(payload: str) -> ChangeEvent | None:
    """The change that a notification tells of; None for one of another program."""
    kind, _, rest = payload.partition(" ")
    _, _, path = rest.partition(" ")
    return ChangeEvent(path, _KINDS[kind]) if kind in _KINDS and path.startswith("/") else None
