"""Draws the plots of a record; `python -m benchmarks.plots results/*/*.json` draws them again."""

import sys
from collections.abc import Iterator
from itertools import cycle
from math import log10
from pathlib import Path
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.record import Line, Plot, Record
from benchmarks.runs import load

__all__ = ["draw"]

_STYLE: Final = {
    "figure.figsize": (8, 4.5),
    "figure.dpi": 130,
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 12,
    "grid.color": "#e4e4e4",
}
# Colours that colour-blind people can distinguish (Okabe and Ito); each line also has its own marker. deepfs and
# deepagents have the same colour in every plot.
_OWN: Final = {"deepfs": "#0072b2", "deepagents": "#d55e00"}
_OTHERS: Final = ("#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MARKERS: Final = "os^vDPX"


def draw(record: Record, directory: Path) -> list[Path]:
    """Draw the plots of a record as PNG files; return their paths."""
    return [_draw(plot, _source(record), directory / f"{plot.name}.png") for plot in record.plots]


def _source(record: Record) -> str:
    cores, versions = record.machine["cores"], record.versions
    return f"{cores} cores, Python {versions['Python']}, deepagents {versions['deepagents']}"


def _draw(plot: Plot, source: str, path: Path) -> Path:
    with rc_context(_STYLE):
        figure = Figure(layout="constrained")
        axes = figure.subplots()
        for line, style in zip(plot.lines, _styles(plot.lines), strict=True):
            _draw_line(axes, line, style)
        _scale(axes, plot)
        axes.set_title(plot.title)
        axes.set_xlabel(plot.x_label)
        axes.set_ylabel(plot.y_label)
        _legend(figure, axes, plot)
        figure.supxlabel(source, x=0.99, ha="right", fontsize=8, color="#777777")
        figure.savefig(path)
    return path


def _styles(lines: list[Line]) -> Iterator[dict[str, Any]]:
    """A colour and a marker for each line; the second line of one contender is dashed."""
    others, seen = iter(_OTHERS), set[str]()
    for line, marker in zip(lines, cycle(_MARKERS), strict=False):
        contender = line.name.partition(",")[0]
        colour = _OWN[contender] if contender in _OWN else next(others)
        width = 2.4 if contender == "deepfs" else 1.4
        yield {"color": colour, "marker": marker, "linewidth": width, "linestyle": "--" if contender in seen else "-"}
        seen.add(contender)


def _draw_line(axes: Any, line: Line, style: dict[str, Any]) -> None:
    """A line through the medians, and a band from the lower to the upper quartile."""
    x = [point.x for point in line.points]
    axes.plot(x, [point.y for point in line.points], label=line.name, markersize=5, zorder=3, **style)
    low, high = [point.low for point in line.points], [point.high for point in line.points]
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _legend(figure: Figure, axes: Any, plot: Plot) -> None:
    """Draw the legend beside the axes, in the order of the right ends of the lines."""
    ends = {line.name: line.points[-1].y for line in plot.lines}
    handles, names = axes.get_legend_handles_labels()
    ordered = sorted(zip(handles, names, strict=True), key=lambda entry: -ends[entry[1]])
    figure.legend(*zip(*ordered, strict=True), loc="outside right upper", frameon=False)


def _scale(axes: Any, plot: Plot) -> None:
    if plot.log_x:
        axes.set_xscale("log")
    if plot.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if _decades(plot) < 3 else (1,)))
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(_number))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    places = sorted({point.x for line in plot.lines for point in line.points})
    axes.set_xticks(places, plot.ticks or [_number(place) for place in places])


def _decades(plot: Plot) -> float:
    values = [value for line in plot.lines for point in line.points for value in (point.low, point.high)]
    return log10(max(values) / min(values))


def _number(value: float, _: int = 0) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def main() -> None:
    """Draw the plots of the records that the command line names, into the directories of these files."""
    for name in map(Path, sys.argv[1:]):
        for path in draw(load(name)[-1], name.parent):
            print(path)


if __name__ == "__main__":
    main()
