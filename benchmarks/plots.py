"""Draws the plots of a record."""

from itertools import cycle
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.record import Plot, Record

# Colours that colour-blind people can distinguish (Okabe and Ito); deepfs and deepagents have the same in every plot.
_OWN: Final = {"deepfs": "#0072b2", "deepagents": "#d55e00"}
_OTHERS: Final = ("#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def draw(record: Record, directory: Path) -> None:
    """Draw the plots as PNG files: for each line, the medians, and a band from the lower to the upper quartile."""
    python, peer = record.versions["Python"], record.versions["deepagents"]
    for plot in record.plots:
        figure = _figure(plot)
        source = f"{record.machine['cores']} cores, Python {python}, deepagents {peer}"
        figure.supxlabel(source, x=0.99, ha="right", fontsize=8)
        figure.savefig(directory / f"{plot.name}.png")


def _figure(plot: Plot) -> Figure:
    figure = Figure(figsize=(8, 4.5), dpi=130, layout="constrained")
    axes = figure.subplots()
    others, drawn = cycle(_OTHERS), set[str]()
    for line, marker in zip(plot.lines, cycle("os^vDPX"), strict=False):
        contender = line.name.partition(",")[0]
        colour = _OWN.get(contender) or next(others)
        style = "--" if contender in drawn else "-"
        drawn.add(contender)
        x, y = [point.x for point in line.points], [point.y for point in line.points]
        axes.plot(x, y, label=line.name, color=colour, marker=marker, linestyle=style)
        low, high = [point.low for point in line.points], [point.high for point in line.points]
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
    axes.set_xscale("log" if plot.log_x else "linear")
    axes.set_yscale("log" if plot.log_y else "linear")
    places = sorted({point.x for line in plot.lines for point in line.points})
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(places, plot.ticks or [f"{place:,.0f}" for place in places])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axes.grid(visible=True, color="#e4e4e4")
    figure.legend(loc="outside right upper", frameon=False)
    return figure
