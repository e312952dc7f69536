"""`python -m benchmarks [--quick] [scenario …]`: measure, print, write `results/*.json`, draw `results/*.png`."""

import argparse
import asyncio
import logging
import sys
import time
from importlib import import_module
from pathlib import Path

from rich.console import Console

from benchmarks import plots, report
from benchmarks.bench import Bench
from benchmarks.record import Record
from benchmarks.scenarios import SCENARIOS

RESULTS = Path(__file__).parent / "results"


def run(name: str, *, quick: bool) -> Record:
    """Run one scenario, on an event loop of its own: asyncio's, since that is the only one its peers know."""
    scenario = import_module(f"benchmarks.scenarios.{name}")
    bench = Bench(name, scenario.TITLE, quick=quick)
    start = time.perf_counter()
    asyncio.run(scenario.measure(bench))
    bench.record.seconds = time.perf_counter() - start
    return bench.record


def main() -> None:
    """Run the scenarios that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="all in under a minute: few rounds, and less work in some")
    parser.add_argument(
        "--results", type=Path, metavar="DIRECTORY", help="where to write, by default benchmarks/results"
    )
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=f"of {', '.join(SCENARIOS)}; by default all")
    chosen = parser.parse_args()
    if unknown := set(chosen.scenarios) - set(SCENARIOS):
        parser.error(f"no scenario {', '.join(sorted(unknown))}")
    # What deepagents warns of, searches that it cut short, is told in the tables.
    logging.getLogger("deepagents").setLevel(logging.ERROR)
    directory = chosen.results or (RESULTS / "quick" if chosen.quick else RESULTS)
    console = Console(width=160)
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
        plots.draw(record, directory)
    report.show_verdict(records, console)
    console.print(f"written to {directory}", highlight=False)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
