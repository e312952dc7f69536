"""`python -m benchmarks [--quick] [scenario …]`: measure, print, store the run, draw its plots.

The run is stored in `results/<machine>/`, and replaces earlier ones there; with `--again`, those of its edition stay.
`--report` prints the ranges over all stored runs, and `--readme` also writes them into the README; nothing is measured.
`--compare COMMIT [scenario …]` measures what changed since a commit instead.
"""

import argparse
import asyncio
import logging
import sys
import time
from importlib import import_module
from pathlib import Path

from rich.console import Console

from benchmarks import compare, comparison_report, ranges, readme, report, runs
from benchmarks.bench import Bench
from benchmarks.checkouts import CheckoutError
from benchmarks.record import Record
from benchmarks.scenarios import SCENARIOS
from benchmarks.sides import Plan


def run(name: str, *, quick: bool) -> Record:
    """Run one scenario on an asyncio event loop of its own; the other libraries run only on asyncio."""
    scenario = import_module(f"benchmarks.scenarios.{name}")
    bench = Bench(name, scenario.TITLE, quick=quick)
    start = time.perf_counter()
    asyncio.run(scenario.measure(bench))
    bench.record.seconds = time.perf_counter() - start
    return bench.record


def main() -> None:
    """Run the scenarios that the command line names, or all."""
    parser = _parser()
    chosen = parser.parse_args()
    if unknown := set(chosen.scenarios) - set(SCENARIOS):
        parser.error(f"no scenario {', '.join(sorted(unknown))}")
    console = Console(width=160)
    if chosen.compare:
        _compare(parser, chosen, console)
    elif chosen.report or chosen.readme:
        _report(chosen, console)
    else:
        _measure(chosen, console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, and less work where it is long")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIRECTORY",
        help="where to write, by default benchmarks/results/<this machine>; nowhere with --compare",
    )
    parser.add_argument("--again", action="store_true", help="keep the stored runs beside this one")
    parser.add_argument("--report", action="store_true", help="measure nothing; print the ranges of all stored runs")
    parser.add_argument("--readme", action="store_true", help="the same, and write the ranges into the README")
    parser.add_argument(
        "--compare",
        action="append",
        metavar="COMMIT",
        help="compare this commit with this working tree, COMMIT..COMMIT with each other, or, given twice, the first "
        "with the second; a directory may stand for a commit. Ends with 1 if anything got over 5 %% slower",
    )
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs of processes of a comparison, by default 3")
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=f"of {', '.join(SCENARIOS)}; by default all")
    return parser


def _compare(parser: argparse.ArgumentParser, chosen: argparse.Namespace, console: Console) -> None:
    plan = compare.QUICK if chosen.quick else Plan()
    plan = plan._replace(pairs=chosen.pairs or plan.pairs)

    def tell(line: str) -> None:
        console.print(line, style="dim", highlight=False)

    try:
        comparison = compare.compare(chosen.compare, chosen.scenarios or SCENARIOS, plan, tell)
    except CheckoutError as error:
        parser.error(str(error))
    comparison_report.show(comparison, console)
    if chosen.results:
        console.print(f"written to {comparison_report.write(comparison, chosen.results)}", highlight=False)
    sys.exit(0 if comparison.is_passed else 1)


def _report(chosen: argparse.Namespace, console: Console) -> None:
    found = runs.stored()
    shown = [run for run in found if run.record.scenario in (chosen.scenarios or SCENARIOS)]
    ranges.show(shown, console)
    if chosen.readme:
        text = readme.README.read_text(encoding="utf-8")
        readme.README.write_text(readme.replaced(text, found), encoding="utf-8")
        console.print(f"written to {readme.README}", highlight=False)
        for work in readme.absent(found):
            console.print(f"• no stored run has the figures of: {work}", highlight=False, markup=False)


def _measure(chosen: argparse.Namespace, console: Console) -> None:
    # deepagents warns of searches that it cut short; the tables show these.
    logging.getLogger("deepagents").setLevel(logging.ERROR)
    records, failed = [], []
    for name in chosen.scenarios or SCENARIOS:
        try:
            record = run(name, quick=chosen.quick)
        except Exception:
            console.print_exception()
            failed.append(name)
            continue
        records.append(record)
        report.show(record, console)
        path = runs.write(record, chosen.results or _directory(record), beside=chosen.again)
        _draw(record, path.parent)
        console.print(f"written to {path}", highlight=False)
    report.show_verdict(records, console)
    if not (chosen.results or chosen.quick):
        console.print("the figures of the README are out of date: --readme writes them anew", highlight=False)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _directory(record: Record) -> Path:
    return runs.RESULTS / ("quick" if record.quick else runs.machine_name(record))


def _draw(record: Record, directory: Path) -> None:
    if record.plots:
        from benchmarks import plots  # Imported late, since the tests run without matplotlib.

        plots.draw(record, directory)


if __name__ == "__main__":
    main()
