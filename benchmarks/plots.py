"""The pictures of a record; `python -m benchmarks.plots results/*.json` draws them anew."""

import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.record import Line, Plot, Record

__all__ = ["draw"]

_STYLE: Final = {
    "figure.figsize": (8, 4.8),
    "figure.dpi": 130,
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "grid.color": "#e4e4e4",
    "svg.hashsalt": "deepfs",
}
# Told apart by those who do not see colours alike (Okabe and Ito), and each by its marker.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MARKERS: Final = "os^vDPX"


def draw(record: Record, directory: Path) -> list[Path]:
    """Draw the plots of a record as PNG; returns where."""
    return [_draw(plot, _source(record), directory / f"{plot.name}.png") for plot in record.plots]


def _source(record: Record) -> str:
    cores, versions = record.machine["cores"], record.versions
    return f"{cores} cores, Python {versions['Python']}, deepagents {versions['deepagents']}"


def _draw(plot: Plot, source: str, path: Path) -> Path:
    with rc_context(_STYLE):
        figure = Figure(layout="constrained")
        axes = figure.subplots()
        for number, line in enumerate(plot.lines):
            _draw_line(axes, line, number)
        _scale(axes, plot)
        axes.set_title(plot.title)
        axes.set_xlabel(plot.x_label)
        axes.set_ylabel(plot.y_label)
        figure.legend(loc="outside right upper", frameon=False)
        figure.text(0.995, 0.005, source, ha="right", va="bottom", fontsize=8, color="#777777")
        figure.savefig(path)
    return path


def _draw_line(axes: Any, line: Line, number: int) -> None:
    """A line through the medians, and a band from the lower to the upper quartile."""
    colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
    x = [point.x for point in line.points]
    ours = "deepfs" in line.name
    options = {"color": colour, "marker": marker, "linewidth": 2.4 if ours else 1.4, "zorder": 4 if ours else 3}
    axes.plot(x, [point.y for point in line.points], label=line.name, markersize=5, **options)
    low, high = [point.low for point in line.points], [point.high for point in line.points]
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _scale(axes: Any, plot: Plot) -> None:
    for axis, is_log, set_scale in (
        (axes.xaxis, plot.log_x, axes.set_xscale),
        (axes.yaxis, plot.log_y, axes.set_yscale),
    ):
        if is_log:
            set_scale("log")
        axis.set_major_formatter(FuncFormatter(_number))
        axis.set_minor_formatter(NullFormatter())
    places = sorted({point.x for line in plot.lines for point in line.points})
    axes.set_xticks(places, plot.ticks or [_number(place) for place in places])
    if not plot.log_y:
        axes.set_ylim(bottom=0)


def _number(value: float, _: int = 0) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def main() -> None:
    """Draw the plots of the records that the command line names, beside them."""
    for name in map(Path, sys.argv[1:]):
        for path in draw(msgspec.json.decode(name.read_bytes(), type=Record), name.parent):
            print(path)


if __name__ == "__main__":
    main()
