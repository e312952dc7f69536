"""`python -m benchmarks [--quick] [scenario …]`: measure, print, write `results/*.json`, draw `results/*.png`.

`python -m benchmarks --compare COMMIT [scenario …]` measures what changed since a commit instead.
"""

import argparse
import asyncio
import logging
import sys
import time
from importlib import import_module
from pathlib import Path

from rich.console import Console

from benchmarks import compare, comparison_report, report
from benchmarks.bench import Bench
from benchmarks.checkouts import CheckoutError
from benchmarks.record import Record
from benchmarks.scenarios import SCENARIOS
from benchmarks.sides import Plan

RESULTS = Path(__file__).parent / "results"


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
    else:
        _measure(chosen, console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, and less work where it is long")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIRECTORY",
        help="where to write, by default benchmarks/results; nowhere with --compare",
    )
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


def _measure(chosen: argparse.Namespace, console: Console) -> None:
    # deepagents warns of searches that it cut short; the tables show these.
    logging.getLogger("deepagents").setLevel(logging.ERROR)
    directory = chosen.results or (RESULTS / "quick" if chosen.quick else RESULTS)
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
        report.write(record, directory)
        _draw(record, directory)
    report.show_verdict(records, console)
    console.print(f"written to {directory}", highlight=False)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _draw(record: Record, directory: Path) -> None:
    if record.plots:
        from benchmarks import plots  # Imported late, since the tests run without matplotlib.

        plots.draw(record, directory)


if __name__ == "__main__":
    main()
