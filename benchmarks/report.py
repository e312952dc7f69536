"""The record of a scenario as tables."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.record import Bar, Entry, Plot, Race, Record

__all__ = ["duration", "show", "show_verdict"]


def show(record: Record, console: Console) -> None:
    """Print the races, the notes and the bars."""
    console.rule(f"[bold]{record.title}[/bold] · {record.seconds:.0f} s")
    for race in record.races:
        if not race.sweep:
            console.print(_race_table(race))
    for plot in record.plots:
        console.print(_plot_table(plot))
    for note in record.notes:
        console.print(f"• {note}", highlight=False, markup=False)
    if record.bars:
        console.print(_bar_table(record.bars))


def _race_table(race: Race) -> Table:
    table = Table(title=race.work, title_justify="left", title_style="bold", expand=True)
    for column in ("", "call"):
        table.add_column(column, overflow="fold", style="" if column else "cyan")
    for column in ("median", "fastest–slowest", "CPU", "× first", "rounds"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("answer", overflow="fold")
    for entry in race.entries:
        table.add_row(*_race_row(entry, race.entries[0]))
    return table


def _race_row(entry: Entry, first: Entry) -> list[str]:
    timing = entry.timing
    answer = escape(entry.answer)
    return [
        entry.name,
        escape(entry.call),
        duration(timing.median),
        f"{duration(timing.low)}–{duration(timing.high)}",
        duration(timing.processor_median),
        f"{timing.median / first.timing.median:.2f}",
        str(len(timing.seconds)),
        answer if entry.complete else f"[red]{answer}[/red]",
    ]


def duration(seconds: float) -> str:
    """A time with three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def _plot_table(plot: Plot) -> Table:
    title = f"{plot.title}: {plot.y_label}, by {plot.x_label}"
    table = Table(title=title, title_justify="left", title_style="bold", expand=True)
    table.add_column("")
    table.add_column("call", overflow="fold", style="cyan")
    places = sorted({point.x for line in plot.lines for point in line.points})
    for number, place in enumerate(places):
        table.add_column(plot.ticks[number] if plot.ticks else f"{place:,.0f}", justify="right", no_wrap=True)
    for line in plot.lines:
        found = {point.x: f"{point.y:,.3g}" if point.y < 1000 else f"{point.y:,.0f}" for point in line.points}
        table.add_row(line.name, escape(line.call), *(found.get(place, "") for place in places))
    return table


def _bar_table(bars: list[Bar]) -> Table:
    table = Table(title="bars", title_justify="left", title_style="bold", expand=True)
    table.add_column("claim", overflow="fold")
    for column in ("bar", "measured", "lowest–highest", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for bar in bars:
        table.add_row(*_bar_row(bar))
    return table


def _bar_row(bar: Bar) -> list[str]:
    return [
        bar.claim,
        bar.limit_shown,
        f"{bar.typical:.3g}{bar.unit}",
        f"{min(bar.values):.3g}–{max(bar.values):.3g}",
        _verdict(bar),
    ]


def _verdict(bar: Bar) -> str:
    verdict = "[green]met[/green]" if bar.met else "[bold red]MISSED[/bold red]"
    return f"{verdict} [dim](less work)[/dim]" if bar.reduced else verdict


def show_verdict(records: list[Record], console: Console) -> None:
    """Print the bars that were missed, and how many were met."""
    bars = [(record, bar) for record in records for bar in record.bars]
    missed = [(record, bar) for record, bar in bars if not bar.met]
    console.rule(f"[bold]{len(bars) - len(missed)} of {len(bars)} bars met[/bold]")
    table = Table(show_header=False, box=None, expand=True)
    for record, bar in missed:
        claim, limit, median, spread, verdict = _bar_row(bar)
        table.add_row(verdict, record.scenario, claim, limit, median, spread)
    console.print(table)
