"""`python -m benchmarks [--quick] [scenario …]`: measure, print, store the run, draw its plots.

The run is stored in `results/<machine>/`, and replaces earlier ones there; with `--again`, those of its edition stay.
`--report` prints the ranges over all stored runs, and `--write` also writes them into the README and
docs/performance.md; nothing is measured.
`--compare COMMIT [scenario …]` measures what changed since a commit instead.
"""

import argparse
import logging
import sys
from pathlib import Path

from rich.console import Console

from benchmarks import report
from benchmarks.bench import Bench
from benchmarks.compare import QUICK, Plan, commits, compare
from benchmarks.record import RESULTS, stored, write
from benchmarks.scenarios import SCENARIOS, run, scenario


def main() -> None:
    """Run the scenarios that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, and less work where it is long")
    parser.add_argument("--results", type=Path, help="the directory to write to, not benchmarks/results/<this machine>")
    parser.add_argument("--again", action="store_true", help="keep the stored runs beside this one")
    parser.add_argument("--report", action="store_true", help="measure nothing; print the ranges of all stored runs")
    parser.add_argument("--write", action="store_true", help="the same, and write the ranges into the documents")
    parser.add_argument(
        "--compare",
        metavar="COMMIT",
        help="compare this commit with this working tree, or COMMIT..COMMIT with each other; a directory may stand for "
        "a commit. Ends with 1 if anything got over 5 %% slower",
    )
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs of processes of a comparison, by default 3")
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=f"of {', '.join(SCENARIOS)}; by default all")
    chosen = parser.parse_args()
    if unknown := set(chosen.scenarios) - set(SCENARIOS):
        parser.error(f"no scenario {', '.join(sorted(unknown))}")
    names, console = chosen.scenarios or list(SCENARIOS), Console(width=160)
    if chosen.compare:
        plan = QUICK if chosen.quick else Plan()
        comparison = compare(commits(chosen.compare), names, plan._replace(pairs=chosen.pairs or plan.pairs))
        report.show_comparison(comparison, console)
        sys.exit(0 if comparison.is_passed else 1)
    elif chosen.report or chosen.write:
        runs = stored()
        shown = [record for record in runs if record.scenario in names]
        console.print(*(f"• {machine}" for machine in report.machines(shown)), sep="\n", highlight=False, markup=False)
        report.show_bars(shown, "bars, by every run", console)
        for document in report.DOCUMENTS if chosen.write else ():
            document.write_text(report.replaced(document, runs), "utf-8")
    else:
        _measure(chosen, names, console)


def _measure(chosen: argparse.Namespace, names: list[str], console: Console) -> None:
    # deepagents warns of searches that it cut short; the tables show these.
    logging.getLogger("deepagents").setLevel(logging.ERROR)
    records, failed = [], []
    for name in names:
        title = scenario(name).__doc__.partition("\n")[0].rstrip(".")
        bench = Bench(name, title, quick=chosen.quick)
        try:
            run(bench)
        except Exception:
            console.print_exception()
            failed.append(name)
            continue
        records.append(bench.record)
        report.show(bench.record, console)
        path = write(bench.record, chosen.results or RESULTS / bench.record.directory, beside=chosen.again)
        report.draw(bench.record, path.parent)
        console.print(f"written to {path}", highlight=False)
    if len(names) > 1:
        report.show_bars(records, "bars of all these scenarios", console)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
