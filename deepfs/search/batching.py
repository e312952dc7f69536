"""Calls that come at about the same time, answered together on one thread."""

import os
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, NoReturn, TypeVar

from deepfs.threads import pool
from deepfs.threads.deadline import Cancellation
from deepfs.threads.loop_bridge import Claim, ThreadEvent, loop_callbacks

__all__ = ["Ask", "Together"]

QuestionT = TypeVar("QuestionT")
AnswerT = TypeVar("AnswerT")
KeyT = TypeVar("KeyT", bound=Hashable)


class Ask(Generic[QuestionT, AnswerT]):
    """A question that a task waits with; `cancellation` is set once it does no longer."""

    __slots__ = ("_claim", "_error", "_event", "_value", "cancellation", "is_settled", "question")
    _value: AnswerT

    def __init__(self, question: QuestionT, event: ThreadEvent) -> None:
        self.question: QuestionT = question
        self.cancellation: Cancellation = Cancellation()
        self.is_settled: bool = False
        self._event = event
        self._claim = Claim(True)
        self._error: BaseException | None = None

    def take(self) -> bool:
        """Claim the question, to put it or to withdraw it; False where that was done before."""
        return self._claim.take() is not None

    def settle(self, answer: Callable[[], AnswerT]) -> None:
        """Give the task what `answer` returns or raises; only the first time counts."""
        if self.is_settled:
            return
        self.is_settled = True
        try:
            self._value = answer()
        except BaseException as error:
            self._error = error
        self._event.set()

    def result(self) -> AnswerT:
        """What it was settled with."""
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            del self  # The traceback holds this frame: no cycle through the ask.


class Together(Generic[KeyT, QuestionT, AnswerT]):
    """Has `respond` settle what was asked about one key until its thread began; later questions are put together anew.

    `respond` runs on a thread for calls that wait for `storage`, and looks at each cancellation every millisecond or
    so. What it leaves unsettled by an error is put to it again, one by one; then the error is the answer.
    """

    def __init__(
        self, respond: Callable[[KeyT, list[Ask[QuestionT, AnswerT]]], None], storage: Hashable = None
    ) -> None:
        self._respond = respond
        self._storage = storage
        self._waiting: dict[tuple[int, KeyT], list[Ask[QuestionT, AnswerT]]] = {}

    async def ask(self, key: KeyT, question: QuestionT) -> AnswerT:
        """The answer to `question`. A caller that is cancelled goes on when nothing works for it any more."""
        await pool.stop_if_cancelled()
        event = loop_callbacks().event()
        ask = self._put(key, question, event)
        try:
            await event.wait()
        except BaseException as reason:
            ask.cancellation.cancel()
            if not ask.take():
                await pool.wait_for_end(event, reason)
            raise
        return ask.result()

    def _put(self, key: KeyT, question: QuestionT, event: ThreadEvent) -> Ask[QuestionT, AnswerT]:
        place = os.getpid(), key  # In a forked process nobody comes for those who wait in its parent.
        while True:
            ask: Ask[QuestionT, AnswerT] = Ask(question, event)
            mine = [ask]
            waiting = self._waiting.setdefault(place, mine)
            if waiting is mine:
                self._start(place)
                return ask
            waiting.append(ask)
            # Where the thread began meanwhile, this may have come too late for it.
            if self._waiting.get(place) is waiting or not ask.take():
                return ask

    def _start(self, place: tuple[int, KeyT]) -> None:
        try:
            pool.start_long(self._storage, self._begin, place)
        except BaseException as error:
            for ask in self._waiting.pop(place):
                if ask.take():
                    ask.settle(partial(_raise, error))
            raise

    def _begin(self, place: tuple[int, KeyT]) -> None:
        asks = [ask for ask in self._waiting.pop(place) if ask.take()]
        if asks:
            self._answer(place[1], asks)

    def _answer(self, key: KeyT, asks: list[Ask[QuestionT, AnswerT]]) -> None:
        try:
            self._respond(key, asks)
        except BaseException as error:
            left = [ask for ask in asks if not ask.is_settled]
            for ask in left:
                if len(asks) == 1:
                    ask.settle(partial(_raise, error))
                else:
                    self._answer(key, [ask])


def _raise(error: BaseException) -> NoReturn:
    raise error
