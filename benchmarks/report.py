"""Tables of a run, of a comparison, and of the ranges over stored runs, which documents show too; and plots."""

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.compare import Comparison
from benchmarks.record import Bar, Plot, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROOT: Final = Path(__file__).parents[1]
_BEGIN: Final = "<!-- The figures from here on are written by `nox -s bench -- --write`. -->\n"
_END: Final = "<!-- The end of these figures. -->\n"


def _table(title: str, columns: Sequence[str], texts: int, rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first `texts` columns hold texts, and the others figures."""
    table = Table(title=title, title_justify="left", title_style="bold", expand=True)
    for number, column in enumerate(columns):
        is_text = number < texts
        table.add_column(column, overflow="fold", justify="left" if is_text else "right", no_wrap=not is_text)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _duration(seconds: float) -> str:
    """A time with three digits and a unit."""
    unit, size = next((each for each in (("s", 1.0), ("ms", 1e-3)) if seconds >= each[1]), ("µs", 1e-6))
    return f"{seconds / size:.3g} {unit}"


def show(record: Record, console: Console) -> None:
    console.rule(f"[bold]{escape(record.title)}[/bold] · {record.seconds:.0f} s")
    for race in record.races:
        columns = ("", "call", "answer", "median", "fastest–slowest", "× first", "rounds")
        first, rows = median(race.entries[0].seconds), []
        for entry in race.entries:
            taken = entry.seconds
            times = [_duration(median(taken)), f"{_duration(min(taken))}–{_duration(max(taken))}"]
            share = f"{median(taken) / first:.2f}"
            rows.append([entry.name, entry.call, entry.answer, *times, share, str(len(taken))])
        console.print(_table(race.work, columns, 3, rows))
    for note in record.notes:
        console.print(f"• {note}", highlight=False, markup=False)
    show_bars([record], "bars, of less work than they say" if record.quick else "bars", console)


def show_bars(records: Sequence[Record], title: str, console: Console) -> None:
    """Print every bar over these runs, and whether all of them meet it."""
    rows = [
        [scenario, claim, bars[0].limit_shown, _measured(bars), str(len(bars)), "met" if _met(bars) else "MISSED"]
        for (scenario, claim), bars in bar_ranges(records).items()
    ]
    if rows:
        met = sum(row[-1] == "met" for row in rows)
        columns = ("scenario", "claim", "bar", "measured", "runs", "")
        console.print(_table(f"{title}: {met} of {len(rows)} met", columns, 2, rows))


def show_comparison(comparison: Comparison, console: Console) -> None:
    title, rows = f"{comparison.before} against {comparison.after}", []
    found = list(comparison.measurements.values())
    for each in found:
        cells = [""] * 5
        if not each.answers_differ:
            low, high = each.interval
            blocks = each.all_blocks
            before, after = (median(turn for pair in side for turn in pair) for side in zip(*blocks, strict=True))
            ratio = median(block.ratio for block in blocks)
            cells = [_duration(before), _duration(after), f"{ratio:.3f}", f"{low:.3f}–{high:.3f}", str(len(blocks))]
        rows.append([each.scenario, each.work, each.contender, *cells, each.verdict])
    columns = ("scenario", "work", "", "before", "after", "after / before", "95 % interval", "blocks", "verdict")
    console.print(_table(title, columns, 3, rows))
    for where, failure in comparison.failures.items():
        console.print(f"{where} failed:\n{failure}", highlight=False, markup=False)
    verdicts = [each.verdict for each in found]
    counts = (f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    console.print(f"{len(verdicts)} measurements: {', '.join(counts)}", highlight=False)


Figure: TypeAlias = Callable[[Record], float | None]
"""The figure of one run; None if it has no such race or bar."""


def ratio(scenario: str, work: str, slower: str = "deepagents", faster: str = "deepfs") -> Figure:
    """How many times as long one contender of a race took as another; by the median of the rounds of a run."""

    def of(record: Record) -> float | None:
        for race in record.races if record.scenario == scenario else ():
            if race.work == work and {slower, faster} <= {entry.name for entry in race.entries}:
                return median(race.ratios(slower, faster))
        return None

    return of


def measured(scenario: str, *words: str, scale: float = 1) -> Figure:
    """The median value of the bar whose claim holds all these words; limits are no part of them, since they change."""

    def of(record: Record) -> float | None:
        bars = (bar for bar in record.bars if record.scenario == scenario and all(word in bar.claim for word in words))
        found = next(bars, None)
        return None if found is None else found.typical * scale

    return of


def span(figure: Figure, runs: Iterable[Record]) -> str | None:
    """The lowest and the highest value of a figure over the runs, or the one that both are; None if no run has it."""
    values = [value for value in map(figure, runs) if value is not None]
    return _span(values) if values else None


def _span(values: Sequence[float]) -> str:
    low, high = (_number(end(values)) for end in (min, max))
    return low if low == high else f"{low}–{high}"


def _number(value: float) -> str:
    """A figure with as many digits as it deserves: 0.86, 1.12, 3.8, 12.5, 133."""
    return f"{value:,.{2 if abs(value) < 2 else 1 if abs(value) < 100 else 0}f}"


def bar_ranges(runs: Iterable[Record]) -> dict[tuple[str, str], list[Bar]]:
    """Every bar of these runs, by scenario and claim: the same one in each run."""
    found: dict[tuple[str, str], list[Bar]] = {}
    for record in runs:
        for bar in record.bars:
            found.setdefault((record.scenario, bar.claim), []).append(bar)
    return found


def _met(bars: Sequence[Bar]) -> bool:
    return all(bar.met for bar in bars)


def _measured(bars: Sequence[Bar]) -> str:
    return f"{_span([bar.typical for bar in bars])}{bars[0].unit}"


def machines(runs: Iterable[Record]) -> list[str]:
    """A line for each machine: what it is, how many runs it made at most, on which days, and of which scenarios."""
    found: dict[str, list[Record]] = {}
    for record in runs:
        found.setdefault(", ".join(record.box), []).append(record)
    lines = []
    for machine, records in found.items():
        names = [record.scenario for record in records]
        most = max(map(names.count, names))
        days = sorted({record.started_at[:10] for record in records})
        made = f"{most} run{'s' * (most > 1)}, {' to '.join([days[0], *days[1:][-1:]])}"
        lines.append(f"{machine} ({made}: {', '.join(dict.fromkeys(names))})")
    return lines


class Row(NamedTuple):
    """A row of the table: the work, and texts with a place, `{}`, for the range of each figure."""

    work: str
    against_peer: str
    peer_figures: Sequence[Figure]
    against_limit: str = ""
    limit_figures: Sequence[Figure] = ()

    def render(self, runs: Sequence[Record]) -> str:
        """The row in Markdown; an empty string if no run has its figures."""
        cells = []
        for text, asked in ((self.against_peer, self.peer_figures), (self.against_limit, self.limit_figures)):
            spans = [span(figure, runs) for figure in asked]
            cells.append("" if None in spans else text.format(*spans))
        return f"| {self.work} | {cells[0]} | {cells[1]} |\n" if any(cells) else ""


def _race(work: str, scenario: str, race: str, limit: str, of: str) -> Row:
    """A race against deepagents, and against the contender `limit`."""
    figures = [ratio(scenario, race)], f"{{}}× the time of {of}", [ratio(scenario, race, "deepfs", limit)]
    return Row(work, "{}× as fast", *figures)


def _reads(work: str, scenario: str, race: str) -> Row:
    return _race(work, scenario, race, "blocking", "a blocking loop")


def _grep(work: str, literal: str) -> Row:
    return _race(f"grep {work}, ripgrep installed", "greps", f'grep "{literal}", with ripgrep', "rg -nF", "`rg`")


def _sequential(work: str, storage: str, *operations: str) -> Row:
    cell = ", ".join(["{}×"] * len(operations)) + " as fast"
    return Row(work, cell, [ratio("sequential", f"{storage}: 100 {operation}") for operation in operations])


def _limit(work: str, text: str, *figures: Figure) -> Row:
    return Row(work, "", (), text, figures)


_LITERALS: Final = ("def get_queryset", "import", "no such words in Django")
_EDITS: Final = "edits, there and back"
_STORED: Final = ("writes", _EDITS, "reads", "deletes", "greps")
_AT_WORK: Final = "{} agents on {}, whose model takes 0 ms"
_ROWS: Final = (
    Row(
        "50 agents at work on disk",
        "{}× as fast",
        [ratio("agents_at_work", _AT_WORK.format(50, "disk"))],
        "the event loop waits {} ms at most, {} after `gc.freeze()`",
        [measured("agents_at_work", "the event loop"), measured("agents_at_work", "gc.freeze")],
    ),
    Row("1,000 agents at work on disk", "{}× as fast", [ratio("agents_at_work", _AT_WORK.format("1,000", "disk"))]),
    Row(
        "10 agents at work in state; in SQLite; in Postgres; on disk and in state",
        "{}×; {}×; {}×; {}× as fast",
        [
            ratio("agents_at_work", _AT_WORK.format(10, storage))
            for storage in ("state", "SQLite", "Postgres", "a composite of disk and state")
        ],
    ),
    _limit("a turn", "{}× the CPU of a bare agent of LangChain", measured("agents_at_work", "a bare agent")),
    _limit("an idle agent", "{} kB of memory", measured("agents_at_work", "an idle agent")),
    _reads("2,816 concurrent reads", "reads", "2,816 concurrent reads"),
    _reads("2,816 reads, one after another", "reads", "2,816 sequential reads"),
    _reads("2,816 reads by the sync method, in a script", "reads", "2,816 sync reads from a script"),
    _reads("concurrent reads on tmpfs", "filesystems", "tmpfs: concurrent reads"),
    _reads("reads one after another on tmpfs", "filesystems", "tmpfs: sequential reads"),
    _reads("concurrent reads on overlayfs", "filesystems", "overlayfs: concurrent reads"),
    _reads("reads one after another on overlayfs", "filesystems", "overlayfs: sequential reads"),
    _reads("reads one after another, no page of the files in memory", "cold", "cold: sequential reads"),
    _limit("event loop while 256 tasks read", "{} ms late, p99", measured("reads", "lag")),
    _limit(
        "10,000 concurrent reads of files of 1 MB",
        "{} MB of memory above the results",
        measured("memory", "whole files"),
    ),
    _race("glob `**/*.py`", "globs", "glob **/*.py", "rg --files", "`rg --files`"),
    _grep("`import` (14,504 lines)", "import"),
    _grep("`def get_queryset` (82 lines)", "def get_queryset"),
    _grep("for what is not there", "no such words in Django"),
    Row(
        "grep for these three without ripgrep",
        "{}×, {}×, {}× as fast",
        [ratio("greps", f'grep "{each}", without ripgrep') for each in _LITERALS],
    ),
    Row(
        "four greps and four globs at once, ripgrep installed",
        "{}× as fast, and complete",
        [ratio("together", "4 greps and 4 globs at once below /", "deepagents, with rg", "deepfs, with rg")],
        "the event loop waits {} ms at most",
        [measured("together", "lag", "throughout")],
    ),
    _sequential("on disk, one after another: writes, edits, `ls`, uploads", "disk", "writes", _EDITS, "ls", "uploads"),
    _sequential("in an `InMemoryStore`: writes, edits, reads", "InMemoryStore", *_STORED[:3]),
    _sequential("in a SQLite store: writes, edits, reads, deletes, greps", "AsyncSqliteStore", *_STORED),
    _sequential("in a Postgres store: the same", "AsyncPostgresStore", *_STORED),
    _limit(
        "beside a tenant with 60 held locks, 6 long greps and 32 long commands: read, grep of 100 files, `echo`",
        "{} ms, {} ms, {} ms, p99",
        *(measured("neighbour", f"{what}, beside all") for what in ("read", "grep of 100 files", "echo")),
    ),
    _limit(
        "grep over 8 mounts of 20 ms; over 100",
        "{}×; {}× the slowest mount",
        *(ratio("mounts", f"grep over {count} mounts of 20 ms", "deepfs", "slowest mount") for count in (8, 100)),
    ),
    Row(
        "1,000 reads and writes in graph state",
        "{}× as fast",
        [ratio("state", "1,000 writes and reads in one node, with 1,000 files in state")],
    ),
    _limit("100 lines from the middle of 1 GB", "{} MB of memory", measured("window", "1 GB")),
    Row("import of `FilesystemBackend`", "{}× as fast", [measured("imports", "FilesystemBackend")]),
    Row("tokens of an agent's prompts and tools", "{}% of them", [measured("agents", "tokens", scale=100)]),
    Row("building the agent", "{}× as fast", [measured("agents", "built")]),
)

_HEADLINES: Final = (
    "50 agents at work on disk",
    "2,816 concurrent reads",
    "four greps and four globs at once, ripgrep installed",
    "in a SQLite store: writes, edits, reads, deletes, greps",
    "1,000 reads and writes in graph state",
)
_HEADLINE_PLOTS: Final = ("agents-at-work",)


def _shown(runs: Sequence[Record], rows: Iterable[Row]) -> str:
    peers = sorted({record.versions["deepagents"] for record in runs})
    head = f"| | against deepagents {', '.join(peers)} | against a limit |\n| --- | --- | --- |\n"
    return head + "".join(row.render(runs) for row in rows)


def headlines(runs: Sequence[Record]) -> str:
    """A table of the few figures that say most, and a plot, in Markdown."""
    plots = {name: line for name, line in _plots(runs, "").items() if name in _HEADLINE_PLOTS}
    return "\n".join(["", _shown(runs, (row for row in _ROWS if row.work in _HEADLINES)), *plots.values(), ""])


def _plots(runs: Sequence[Record], top: str) -> dict[str, str]:
    """The newest plot of each name, for a document below `top`."""
    return {
        plot.name: f"![{plot.title}]({top}benchmarks/results/{record.directory}/{plot.name}.png)\n"
        for record in sorted(runs, key=lambda record: record.started_at)
        for plot in record.plots
    }


def figures(runs: Sequence[Record]) -> str:
    """The machines, the table, the bars that a run missed, and the newest plot of each name, in Markdown."""
    measured = "".join(f"- {machine}\n" for machine in machines(runs))
    bars = bar_ranges(runs)
    missed = [
        f"- {claim.replace('*', chr(92) + '*')}; measured {_measured(each)}"
        for (_, claim), each in bars.items()
        if not _met(each)
    ]
    told = f"Every run met {len(bars) - len(missed)} of the {len(bars)} bars that we set ourselves."
    if missed:
        told = "\n".join([f"{told} At least one run missed these:", "", *missed])
    plots = _plots(runs, "../")
    drawn = "".join(plots[name] for name in sorted(plots))
    return f"\nMeasured on:\n\n{measured}\n{_shown(runs, _ROWS)}\n{told}\n\n{drawn}\n"


DOCUMENTS: Final[dict[Path, Callable[[Sequence[Record]], str]]] = {
    _ROOT / "README.md": headlines,
    _ROOT / "docs/performance.md": figures,
}


def replaced(document: Path, runs: Sequence[Record]) -> str:
    """The text of one of `DOCUMENTS` with the figures of these runs."""
    before, _, rest = document.read_text("utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{DOCUMENTS[document](runs)}{_END}{after}"


# --- plots ------------------------------------------------------------------------------------------------------------

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


def _figure(plot: Plot) -> "Figure":
    from matplotlib.figure import Figure  # Here, since the tests run without it.
    from matplotlib.ticker import FuncFormatter, NullLocator

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
