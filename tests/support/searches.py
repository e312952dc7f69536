"""Searches of a disk without a backend and without batching."""

import time
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import Any

from deepfs.disk import FileRun
from deepfs.search.disk import LocalSearch
from deepfs.search.request import SearchRequest
from deepfs.threads.deadline import Deadline

__all__ = ["Collecting", "one_by_one", "run_alone"]


class Collecting:
    """A call of a search that keeps the result."""

    def __init__(self, request: SearchRequest, deadline: Deadline | None = None) -> None:
        self.request = request
        self.deadline = deadline or Deadline(60)
        self.outcome: Callable[[], Any] | None = None
        self.settled_at = 0.0

    def settle(self, outcome: Callable[[], Any]) -> None:
        if self.outcome is None:
            self.settled_at = time.monotonic()
            try:
                result = outcome()
            except BaseException as error:
                self.fail(error)
            else:
                self.outcome = lambda: result

    def fail(self, error: BaseException) -> None:
        def outcome() -> Any:
            raise error

        self.outcome = self.outcome or outcome

    def result(self) -> Any:
        assert self.outcome is not None
        return self.outcome()


def run_alone(
    searches: LocalSearch, request: SearchRequest, deadline: Deadline | None = None, root: str = "/", base: str = "/"
) -> Any:
    """Run one search in this thread, and return its result."""
    call = Collecting(request, deadline)
    searches.run_batch([call], root, base)  # type: ignore[list-item]
    return call.result()


def one_by_one(runs: Iterable[FileRun]) -> Iterator[FileRun]:
    """Yield the files of `runs` singly, so that a test can act between them."""
    for run in runs:
        for name in run.names:
            single = copy(run)
            single.names = [name]
            yield single
