"""The stored runs of the benchmarks, the ranges over them, and the figures of the README, which are those ranges."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from benchmarks import machine, readme
from benchmarks.ranges import Measured, Ratio, bar_ranges, machines, shown, span
from benchmarks.record import EDITION, Bar, Entry, Race, Record, Timing
from benchmarks.runs import RESULTS, Run, machine_name, of_newest_edition, stored, write
from benchmarks.scenarios import SCENARIOS

BOX: Final = {"processor": "Some(R) Xeon(R) Processor @ 2.80GHz", "cores": "2", "file system": "ext4", "load": "0.1"}


def record(ratio: float = 2.0, **changed: Any) -> Record:
    """A run of one race, in which deepagents takes `ratio` times as long, with a bar of at least 2."""
    race = Race(
        "a race",
        [
            Entry("deepfs", "fs.aread()", Timing([1.0] * 3, [1.0] * 3), "1 file", complete=True),
            Entry("deepagents", "fs.aread()", Timing([ratio] * 3, [ratio] * 3), "1 file", complete=True),
        ],
        sweep=False,
    )
    bars = [Bar("a race: at least 2× deepagents", "at least", 2, "×", [ratio] * 3, reduced=False)]
    versions = {"Python": "3.12.1", "deepagents": "0.7.32"}
    made = Record("races", "Races", False, "2026-01-01T00:00:00+00:00", 1.0, BOX, versions, [race], bars)
    return msgspec.structs.replace(made, **{"edition": EDITION, **changed})


def run(ratio: float = 2.0, **changed: Any) -> Run:
    made = record(ratio, **changed)
    return Run(Path(machine_name(made)), made)


RATIO: Final = Ratio("races", "a race", "deepagents", "deepfs")

# --- what is stored --------------------------------------------------------------------------------------------------


def test_the_figures_of_the_readme_are_those_of_the_stored_runs() -> None:
    text = readme.README.read_text(encoding="utf-8")
    assert text == readme.replaced(text, stored()), "nox -s bench -- --readme writes them anew"


def test_each_stored_run_lies_in_the_directory_of_its_machine() -> None:
    runs = stored()
    assert runs
    assert {run.directory for run in runs} == {RESULTS / machine_name(run.record) for run in runs}
    assert all((run.directory / f"{run.record.scenario}.json").is_file() for run in runs)


def test_stored_runs_name_no_place_of_the_machine() -> None:
    for path in RESULTS.glob("*/*.json"):
        assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text(encoding="utf-8")), path


# --- ranges ----------------------------------------------------------------------------------------------------------


def test_a_range_spans_the_runs_of_all_machines_the_lower_end_first() -> None:
    other = run(3.1, machine={**BOX, "processor": "Another"})
    assert span(RATIO, [run(2.5), other, run(1.5)]) == (1.5, 3.1)
    assert shown((1.5, 3.1)) == "1.50–3.1"
    assert shown((3.12, 3.14)) == "3.1"
    assert span(Measured("races", ("a race", "deepagents"), 100), [run(2.5)]) == (250, 250)
    assert span(RATIO._replace(work="another"), [run()]) is None


def test_a_bar_holds_if_the_worst_run_meets_it() -> None:
    [met], [missed] = bar_ranges([run(2.0), run(3.0)]), bar_ranges([run(3.0), run(1.9)])
    assert met.is_met
    assert not missed.is_met
    assert missed.measured == "1.90–3.0×"


def test_ranges_leave_out_earlier_editions_of_a_scenario() -> None:
    old, new = run(9.0, edition=1), run(2.0, edition=2)
    other = run(5.0, edition=1, scenario="other")
    assert list(of_newest_edition([old, new, other])) == [new, other]
    assert span(RATIO, [old, new]) == (2.0, 2.0)
    assert [bar.measured for bar in bar_ranges([old, new, other])] == ["2.0×", "5.0×"]


def test_machines_are_told_with_their_runs() -> None:
    later = run(started_at="2026-01-03T00:00:00+00:00")
    assert machines([run(), later, run(scenario="other"), run(machine={**BOX, "cores": "8"})]) == [
        "Some(R) Xeon(R) Processor @ 2.80GHz, 2 cores, Python 3.12, ext4 "
        "(2 runs, 2026-01-01 to 2026-01-03: races, other)",
        "Some(R) Xeon(R) Processor @ 2.80GHz, 8 cores, Python 3.12, ext4 (1 run, 2026-01-01: races)",
    ]


def test_the_readme_tells_the_range_the_machine_and_the_missed_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (readme.Row("a race", readme.Cell("{}× as fast", (RATIO,))), readme.Row("no run has this"))
    monkeypatch.setattr(readme, "_ROWS", rows)
    text = readme.figures([run(1.5), run(2.5)])
    assert "| a race | 1.50–2.5× as fast |  |\n" in text
    assert "no run has this" not in text
    assert "2 cores, Python 3.12, ext4 (2 runs, 2026-01-01: races)" in text
    assert "- a race: at least 2× deepagents; measured 1.50–2.5×\n" in text
    assert "Every run met 1 of the 1 bars" in readme.figures([run(2.5)])


def test_rows_without_a_figure_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = readme.Cell("{}×", (RATIO._replace(slower="blocking"),))
    monkeypatch.setattr(readme, "_ROWS", (readme.Row("a race", readme.Cell("{}×", (RATIO,)), limit),))
    assert "| a race | 2.0× |  |\n" in readme.figures([run()])
    assert readme.absent([run()]) == ["a race"]


def test_the_rows_of_the_readme_ask_for_scenarios_that_exist() -> None:
    asked = {figure.scenario for row in readme._ROWS for figure in (*row.peer.figures, *row.limit.figures)}
    assert asked - {"neighbour"} <= set(SCENARIOS)


def test_a_report_measures_nothing_and_tells_the_range_of_every_bar() -> None:
    command = [sys.executable, "-m", "benchmarks", "--report", "reads"]
    done = subprocess.run(command, cwd=readme.README.parent, capture_output=True, encoding="utf-8", check=True)
    assert "Runs in these ranges" in done.stdout
    assert "2,816 concurrent reads" in done.stdout
    assert "glob" not in done.stdout


def test_figures_are_written_between_their_marks_only() -> None:
    text = f"before\n{readme._BEGIN}old figures\n{readme._END}after\n"
    written = readme.replaced(text, [run(2.5)])
    assert written.startswith(f"before\n{readme._BEGIN}")
    assert written.endswith(f"{readme._END}after\n")
    assert "old figures" not in written
    with pytest.raises(ValueError, match="no place for figures"):
        readme.replaced("nothing", [run(2.5)])


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_run_replaces_the_stored_ones_or_joins_those_of_its_edition(tmp_path: Path) -> None:
    def ratios() -> list[float | None]:
        return [RATIO.of(found.record) for found in stored(tmp_path)]

    box = tmp_path / "box"
    write(record(1.0, edition=1), box)
    write(record(2.0), box, beside=True)
    assert ratios() == [2.0]
    write(record(3.0), box, beside=True)
    assert ratios() == [2.0, 3.0]
    write(record(4.0), box)
    assert ratios() == [4.0]
    write(record(5.0, quick=True), tmp_path / "other")
    write(record(5.0), tmp_path / "quick")
    assert ratios() == [4.0]


def test_machines_are_named_by_what_they_are() -> None:
    assert machine_name(record()) == "2-cores-some-xeon-python-3.12-ext4"
    assert machine_name(record(machine={"processor": "AMD EPYC", "cores": "4"})) == "4-cores-amd-epyc-python-3.12"


def test_the_file_system_of_a_path_is_that_of_its_nearest_mount() -> None:
    assert machine.file_system(Path("/proc/self")) == "proc"
