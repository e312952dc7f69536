"""Batching: calls that arrive at about the same time are carried out together on one worker thread."""

import os
from collections.abc import Callable, Hashable
from typing import Generic, TypeAlias, TypeVar

from deepfs.threads import pool
from deepfs.threads.deadline import Deadline
from deepfs.threads.loop_bridge import Claim, ThreadEvent, loop_callbacks

__all__ = ["BatchedCall", "Batcher"]

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")
KeyT = TypeVar("KeyT", bound=Hashable)


class BatchedCall(Generic[RequestT, ResultT]):
    """A request that a task awaits. Its `deadline` is cancelled when the task stops waiting."""

    __slots__ = ("_claim", "_error", "_event", "_result", "deadline", "is_settled", "request")
    _result: ResultT

    def __init__(self, request: RequestT, event: ThreadEvent, timeout: float | None = None) -> None:
        self.request: RequestT = request
        self.deadline: Deadline = Deadline(timeout)
        self.is_settled: bool = False
        self._event = event
        self._claim = Claim(True)
        self._error: BaseException | None = None

    def take(self) -> bool:
        """Claim the request, to carry it out or to withdraw it; False if it was claimed before."""
        return self._claim.take() is not None

    def settle(self, outcome: Callable[[], ResultT]) -> None:
        """Give the task what `outcome` returns or raises. Calls after the first are ignored."""
        if not self.is_settled:
            self.keep(outcome)
            self.tell()

    def keep(self, outcome: Callable[[], ResultT]) -> None:
        """Keep what `outcome` returns or raises, until `tell`, or `fail` in its place."""
        try:
            self._result = outcome()
        except BaseException as error:
            self._error = error

    def tell(self) -> None:
        """Give the task what was kept."""
        self.is_settled = True
        self._event.set()

    def fail(self, error: BaseException) -> None:
        """Raise `error` in the task, unless it was given an outcome."""
        if not self.is_settled:
            self._error = error
            self.tell()

    def result(self) -> ResultT:
        """Return the result of the call, or raise its error."""
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            del self  # The traceback holds this frame: no cycle through the call.


Run: TypeAlias = Callable[[KeyT, list[BatchedCall[RequestT, ResultT]]], None]


class Batcher(Generic[KeyT, RequestT, ResultT]):
    """Carries out all requests of one key that arrived before their thread began; later ones form a new batch.

    What carries them out, `run`, runs on a worker thread for calls that wait for `storage`. It settles every call, and
    checks the deadline of each about every millisecond; the `timeout`, in seconds, counts from its start. If it raises,
    the calls that are not settled are run again one by one; an error of such a run is the outcome of its call. With
    `one_by_one`, batches are short, and for one storage they run one after another; `run` takes each call before it
    carries it out, and raises nothing.
    """

    def __init__(self, storage: Hashable = None, *, timeout: float | None = None, one_by_one: bool = False) -> None:
        self._storage = storage
        self._timeout = timeout
        self._one_by_one = one_by_one
        self._waiting: dict[tuple[int, KeyT], list[BatchedCall[RequestT, ResultT]]] = {}

    async def ask(self, run: Run[KeyT, RequestT, ResultT], key: KeyT, request: RequestT) -> ResultT:
        """Return the result of `request`. A cancelled caller waits until no thread works on the request any more.

        What carries it out is the same for all requests of a key. It is given here because it may belong to the object
        that keeps this batcher, and would then keep that object from being freed at once.
        """
        await pool.stop_if_cancelled()
        event = loop_callbacks().end_of_work()
        call = self._put(run, key, request, event)
        try:
            await event.wait()
        except BaseException as reason:
            call.deadline.cancel()
            if call.take():
                event.drop()
            else:
                await pool.wait_for_end(event, reason)
            raise
        return call.result()

    def _put(
        self, run: Run[KeyT, RequestT, ResultT], key: KeyT, request: RequestT, event: ThreadEvent
    ) -> BatchedCall[RequestT, ResultT]:
        place = os.getpid(), key  # A forked process has no thread for the batches of its parent.
        while True:
            call: BatchedCall[RequestT, ResultT] = BatchedCall(request, event, self._timeout)
            mine = [call]
            waiting = self._waiting.setdefault(place, mine)
            if waiting is mine:
                break
            waiting.append(call)
            # If the thread began meanwhile, the call may have been added too late for it.
            if self._waiting.get(place) is waiting or not call.take():
                return call
        try:
            start = pool.start_single if self._one_by_one else pool.start_long
            start(self._storage, self._run_waiting, run, place)
        except BaseException as error:
            for other in self._waiting.pop(place, ()):
                if other.take():
                    other.fail(error)
            raise
        return call

    def take(self, key: KeyT) -> list[BatchedCall[RequestT, ResultT]]:
        """The requests of a key that wait, for `run` to carry out as well."""
        return list(self._waiting.pop((os.getpid(), key), ()))

    def _run_waiting(self, run: Run[KeyT, RequestT, ResultT], place: tuple[int, KeyT]) -> None:
        calls = [call for call in self.take(place[1]) if self._one_by_one or call.take()]
        batches = [calls] if calls else []
        for batch in batches:
            for call in batch:
                call.deadline.restart()
            try:
                run(place[1], batch)
            except BaseException as error:
                left = [call for call in batch if not call.is_settled]
                if len(batch) > 1:
                    batches += [[call] for call in left]
                elif left:
                    left[0].fail(error)
