"""Deadlines that a test controls."""

from collections.abc import Callable

from deepfs.threads.deadline import Deadline

__all__ = ["ScriptedDeadline"]


class ScriptedDeadline(Deadline):
    """A deadline that is cancelled once `cancelled` returns true; each check calls that function."""

    def __init__(self, timeout: float | None = None, cancelled: Callable[[], bool] = lambda: False) -> None:
        super().__init__(timeout)
        self._asked = cancelled

    def check_cancelled(self, path: str = "/") -> None:
        if self._asked():
            self.cancel()
        super().check_cancelled(path)
