"""A comparison of two commits as a table and as a file."""

from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.pairs import Comparison, Measurement, Verdict
from benchmarks.report import duration

__all__ = ["show", "write"]

_STYLES: Final[dict[Verdict, str]] = {
    "slower": "bold red",
    "answers differ": "bold red",
    "faster": "green",
    "same": "dim",
    "unclear": "yellow",
}


def show(comparison: Comparison, console: Console) -> None:
    """Print the measurements, and the verdict."""
    console.rule(f"[bold]{escape(comparison.before)} against {escape(comparison.after)}[/bold]")
    console.print(_table(comparison.measurements))
    if comparison.figures:
        console.print(_figures(comparison.figures))
    for where, failure in comparison.failures.items():
        console.print(f"{where} failed:\n{failure}", highlight=False, markup=False, style="red")
    console.rule(f"[bold]{_verdict(comparison)}[/bold]")


def _table(measurements: list[Measurement]) -> Table:
    table = Table(expand=True)
    for column in ("scenario", "work", ""):
        table.add_column(column, overflow="fold")
    for column in ("before", "after", "ratio", "95 % interval", "CPU", "blocks", "verdict"):
        table.add_column(column, justify="right", no_wrap=True)
    for measurement in measurements:
        table.add_row(
            measurement.scenario, escape(measurement.work), escape(measurement.contender), *_cells(measurement)
        )
    return table


def _cells(measurement: Measurement) -> list[str]:
    verdict = f"[{_STYLES[measurement.verdict]}]{measurement.verdict}[/]"
    if measurement.answers_differ:
        return [*[""] * 6, verdict]
    low, high = measurement.interval
    return [
        duration(measurement.before),
        duration(measurement.after),
        f"{measurement.ratio:.3f}",
        f"{low:.3f}–{high:.3f}",
        f"{measurement.processor_ratio:.2f}",
        str(len(measurement.all_blocks)),
        verdict,
    ]


def _figures(figures: dict[str, list[float]]) -> Table:
    table = Table(
        title="what else the bars say, of one run each", title_justify="left", title_style="bold", expand=True
    )
    table.add_column("claim", overflow="fold")
    for column in ("before", "after"):
        table.add_column(column, justify="right", no_wrap=True)
    for claim, values in figures.items():
        table.add_row(escape(claim), *(f"{value:.3g}" for value in values))
    return table


def _verdict(comparison: Comparison) -> str:
    verdicts = [measurement.verdict for measurement in comparison.measurements]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in _STYLES)
    return f"{len(verdicts)} measurements: {counts}"


def write(comparison: Comparison, directory: Path) -> Path:
    """Write the comparison as JSON, and return the path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "comparison.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n")
    return path
