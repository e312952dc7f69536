"""The progress of a copy on a terminal, its totals at the end, and its interruption by a signal."""

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from anyio.abc import TaskStatus

from deepfs.cli.copy_plans import Totals
from deepfs.cli.session import Session

__all__ = ["interruptible", "shown_progress", "size_text", "totals_text"]

_REFRESH_SECONDS: Final = 0.1
_SIGNALS: Final = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


async def interruptible(work: Callable[[], Awaitable[None]]) -> int | None:
    """Run something that SIGINT, SIGTERM and SIGHUP cancel. What is being stored is stored as a whole, or not at all.

    Args:
        work: What to run.

    Returns:
        The number of the signal that ended it; None if none did.
    """
    received: list[int] = []
    errors: list[Exception] = []

    async def watch(*, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(*_SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                received.append(number)
                break
        # From here on, another SIGINT ends the process at once.
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        await tasks.start(watch)
        try:
            await work()
        except Exception as error:
            errors.append(error)
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return received[0] if received else None


# --- totals ----------------------------------------------------------------------------------------------------------


def size_text(size: float) -> str:
    """A size in decimal units.

    Args:
        size: Bytes.
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def totals_text(totals: Totals) -> str:
    """The totals as a line.

    Args:
        totals: The totals.
    """
    files = f"{totals.files:,} file{'' if totals.files == 1 else 's'}"
    failed = f", {totals.failed:,} failed" if totals.failed else ""
    return f"{files}, {size_text(totals.bytes)} in {totals.seconds:.1f} s ({totals.skipped:,} skipped{failed})"


# --- the bar ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def shown_progress(session: Session, totals: Totals) -> AsyncIterator[None]:
    """Show a bar while a copy runs, if standard error is a terminal.

    Args:
        session: The session.
        totals: What the copy counts.
    """
    if session.as_json or not sys.stderr.isatty():
        yield
        return
    with _bar() as bar:
        task = bar.add_task("", files=0, planned=0, total=None)

        def refresh() -> None:
            done = totals.files + totals.skipped
            planned = totals.planned_bytes or None
            bar.update(
                task,
                completed=totals.passed_bytes,
                total=planned,
                files=done,
                planned=totals.planned_files,
                refresh=True,
            )

        errors: list[Exception] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_repeat, refresh)
            try:
                yield
            except Exception as error:  # The group would wrap it.
                errors.append(error)
            finally:
                tasks.cancel_scope.cancel()
        if errors:
            raise errors[0]


async def _repeat(refresh: Callable[[], None]) -> None:
    while True:
        await anyio.sleep(_REFRESH_SECONDS)
        refresh()


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    files = TextColumn("{task.fields[files]:,}/{task.fields[planned]:,} files")
    columns = (BarColumn(), files, DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
