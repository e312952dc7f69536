"""Writes the figures of the README from the stored runs; the text around them is left as it is."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.ranges import BarRange, Figure, Measured, Ratio, bar_ranges, machines, shown, span
from benchmarks.runs import Run, of_newest_edition

__all__ = ["README", "absent", "figures", "replaced"]

README: Final = Path(__file__).parents[1] / "README.md"
_BEGIN: Final = "<!-- The figures from here on are written by `nox -s bench -- --readme`. -->\n"
_END: Final = "<!-- The end of these figures. -->\n"

# --- rows ------------------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A text with a place, `{}`, for the range of each figure."""

    text: str = ""
    figures: tuple[Figure, ...] = ()

    def render(self, runs: Sequence[Run]) -> str | None:
        """The text with its ranges; None if no run has one of them."""
        spans = [span(figure, runs) for figure in self.figures]
        found = [one for one in spans if one is not None]
        return self.text.format(*map(shown, found)) if len(found) == len(spans) else None


class Row(NamedTuple):
    """A row of the table: the work, deepfs against deepagents, and against a limit."""

    work: str
    peer: Cell = Cell()
    limit: Cell = Cell()

    def render(self, runs: Sequence[Run]) -> str:
        """The row in Markdown; an empty string if no run has its figures."""
        cells = [self.peer.render(runs), self.limit.render(runs)]
        return f"| {self.work} | {cells[0] or ''} | {cells[1] or ''} |\n" if any(cells) else ""


def _times(text: str, scenario: str, *races: str, peer: str = "deepagents", own: str = "deepfs") -> Cell:
    return Cell(text, tuple(Ratio(scenario, race, peer, own) for race in races))


def _against(text: str, scenario: str, race: str, limit: str, own: str = "deepfs") -> Cell:
    return Cell(text, (Ratio(scenario, race, own, limit),))


def _reads(work: str, scenario: str, race: str, peer: str = "deepagents") -> Row:
    text = "{}× the time of a blocking loop"
    return Row(work, _times("{}× as fast", scenario, race, peer=peer), _against(text, scenario, race, "blocking"))


def _grep(work: str, literal: str) -> Row:
    race = f'grep "{literal}", with ripgrep'
    return Row(work, _times("{}× as fast", "greps", race), _against("{}× the time of `rg`", "greps", race, "rg -nF"))


def _sequential(work: str, storage: str, *operations: str) -> Row:
    cell = ", ".join(["{}×"] * len(operations)) + " as fast"
    return Row(work, _times(cell, "sequential", *(f"{storage}: 100 {operation}" for operation in operations)))


_LITERALS: Final = ("def get_queryset", "import", "no such words in Django")
_AT_ONCE: Final = "4 greps and 4 globs at once below /"
_STORED: Final = ("writes", "edits, there and back", "reads")
_ROWS: Final = (
    _reads("2,816 concurrent reads", "reads", "2,816 concurrent reads"),
    _reads("2,816 reads, one after another", "reads", "2,816 sequential reads"),
    _reads("2,816 reads by the sync method, in a script", "reads", "2,816 sync reads from a script"),
    _reads("concurrent reads on tmpfs", "filesystems", "tmpfs: concurrent reads"),
    _reads("reads one after another on tmpfs", "filesystems", "tmpfs: sequential reads"),
    _reads("concurrent reads on overlayfs", "filesystems", "overlayfs: concurrent reads"),
    _reads("reads one after another on overlayfs", "filesystems", "overlayfs: sequential reads"),
    _reads("reads one after another, no page of the files in memory", "cold", "cold: sequential reads"),
    Row("event loop while 256 tasks read", limit=Cell("{} ms late, p99", (Measured("reads", ("lag",)),))),
    Row(
        "10,000 concurrent reads of files of 1 MB",
        limit=Cell("{} MB of memory above the results", (Measured("memory", ("whole files",)),)),
    ),
    Row(
        "glob `**/*.py`",
        _times("{}× as fast", "globs", "glob **/*.py"),
        _against("{}× the time of `rg --files`", "globs", "glob **/*.py", "rg --files"),
    ),
    _grep("grep `import` (14,504 lines), ripgrep installed", "import"),
    _grep("grep `def get_queryset` (82 lines), ripgrep installed", "def get_queryset"),
    _grep("grep for what is not there, ripgrep installed", "no such words in Django"),
    Row(
        "grep for these three without ripgrep",
        _times("{}×, {}×, {}× as fast", "greps", *(f'grep "{each}", without ripgrep' for each in _LITERALS)),
    ),
    Row(
        "four greps and four globs at once, ripgrep installed",
        _times("{}× as fast, and complete", "together", _AT_ONCE, peer="deepagents, with rg", own="deepfs, with rg"),
        Cell("the event loop waits {} ms at most", (Measured("together", ("lag", "throughout")),)),
    ),
    _sequential(
        "on disk, one after another: writes, edits, `ls`, uploads",
        "disk",
        "writes",
        "edits, there and back",
        "ls",
        "uploads",
    ),
    _sequential("in an `InMemoryStore`: writes, edits, reads", "InMemoryStore", *_STORED),
    _sequential(
        "in a SQLite store: writes, edits, reads, deletes, greps", "AsyncSqliteStore", *_STORED, "deletes", "greps"
    ),
    _sequential("in a Postgres store: the same", "AsyncPostgresStore", *_STORED, "deletes", "greps"),
    Row(
        "beside a tenant with 60 held locks, 6 long greps and 32 long commands: read, grep of 100 files, `echo`",
        limit=Cell(
            "{} ms, {} ms, {} ms, p99",
            tuple(Measured("neighbour", (f"{what}, beside all",)) for what in ("read", "grep of 100 files", "echo")),
        ),
    ),
    Row(
        "grep over 8 mounts of 20 ms; over 100",
        limit=Cell(
            "{}×; {}× the slowest mount",
            tuple(
                Ratio("mounts", f"grep over {count} mounts of 20 ms", "deepfs", "slowest mount") for count in (8, 100)
            ),
        ),
    ),
    Row(
        "1,000 reads and writes in graph state",
        _times("{}× as fast", "state", "1,000 writes and reads in one node, with 1,000 files in state"),
    ),
    Row("100 lines from the middle of 1 GB", limit=Cell("{} MB of memory", (Measured("window", ("1 GB",)),))),
    Row("import of `FilesystemBackend`", Cell("{}× as fast", (Measured("imports", ("FilesystemBackend",)),))),
    Row("tokens of an agent's prompts and tools", Cell("{}% of them", (Measured("agents", ("tokens",), 100),))),
    Row("building the agent", Cell("{}× as fast", (Measured("agents", ("built",)),))),
)

# --- the figures -----------------------------------------------------------------------------------------------------


def figures(runs: Sequence[Run]) -> str:
    """The machines, the table, the bars that a run missed, and the plots, in Markdown."""
    current = list(of_newest_edition(runs))
    measured = "".join(f"- {machine}\n" for machine in machines(current))
    table = "".join(row.render(runs) for row in _ROWS)
    peers = sorted({run.record.versions["deepagents"] for run in current})
    head = f"| | against deepagents {', '.join(peers)} | against a limit |\n| --- | --- | --- |\n"
    return f"\nMeasured on:\n\n{measured}\n{head}{table}{_missed(bar_ranges(current))}{_plots(current)}\n"


def absent(runs: Sequence[Run]) -> list[str]:
    """The work of each row that the table lacks, in whole or in part, since no run has its figures."""
    return [row.work for row in _ROWS if None in (row.peer.render(runs), row.limit.render(runs))]


def _missed(bars: Sequence[BarRange]) -> str:
    lines = [f"- {_plain(bar.claim)}; measured {bar.measured}\n" for bar in bars if not bar.is_met]
    met = f"Every run met {len(bars) - len(lines)} of the {len(bars)} bars that we set ourselves."
    return f"\n{met} At least one run missed these:\n\n{''.join(lines)}" if lines else f"\n{met}\n"


def _plain(text: str) -> str:
    return text.replace("*", "\\*")


def _plots(runs: Sequence[Run]) -> str:
    """The newest plot of each name."""
    found: dict[str, str] = {}
    for run in sorted(runs, key=lambda run: run.record.started_at):
        for plot in run.record.plots:
            path = Path("benchmarks", "results", run.directory.name, f"{plot.name}.png")
            found[plot.name] = f"![{plot.title}]({path.as_posix()})\n"
    return "\n" + "".join(found[name] for name in sorted(found)) if found else ""


def replaced(text: str, runs: Sequence[Run]) -> str:
    """The text of the README with the figures of these runs."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return "".join(_parts(before, figures(runs), after))


def _parts(before: str, written: str, after: str) -> Iterator[str]:
    if not after:
        raise ValueError("the README has no place for figures")
    yield from (before, _BEGIN, written, _END, after)
