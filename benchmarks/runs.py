"""The stored runs: `results/<machine>/<scenario>.json` holds the runs of a scenario on that machine, oldest first."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.record import Record

__all__ = ["RESULTS", "Run", "described", "load", "machine_name", "of_newest_edition", "stored", "write"]

RESULTS: Final = Path(__file__).parent / "results"


class Run(msgspec.Struct, frozen=True):
    """One stored run of a scenario, and the directory that it was found in."""

    directory: Path
    record: Record


# --- machines --------------------------------------------------------------------------------------------------------


def machine_name(record: Record) -> str:
    """The name of the directory for the machine of a record, as in `2-cores-amd-epyc-python-3.12-ext4`."""
    words = re.sub(r"\((R|TM)\)|@.*|\b(CPU|Processor)\b", " ", record.machine["processor"], flags=re.IGNORECASE)
    parts = [f"{record.machine['cores']} cores", words, f"Python {_python(record)}", *_file_system(record)]
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(parts).lower()).strip("-")


def described(record: Record) -> str:
    """The machine of a record in words, as in `AMD EPYC, 2 cores, Python 3.12, ext4`."""
    parts = [record.machine["processor"], f"{record.machine['cores']} cores", f"Python {_python(record)}"]
    return ", ".join([*parts, *_file_system(record)])


def _python(record: Record) -> str:
    return ".".join(record.versions["Python"].split(".")[:2])


def _file_system(record: Record) -> list[str]:
    """The file system of the inputs; runs from before it was recorded have none."""
    return [kind] if (kind := record.machine.get("file system")) else []


# --- files -----------------------------------------------------------------------------------------------------------


def write(record: Record, directory: Path, *, beside: bool = False) -> Path:
    """Store a run, and return the path of the file.

    Args:
        record: The run.
        directory: The directory of the machine.
        beside: Whether earlier runs of the same edition stay. By default, the run replaces all.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{record.scenario}.json"
    earlier = [one for one in load(path) if one.edition == record.edition] if beside and path.exists() else []
    path.write_bytes(msgspec.json.format(msgspec.json.encode([*earlier, record]), indent=1) + b"\n")
    return path


def load(path: Path) -> list[Record]:
    """The runs in a file, oldest first."""
    return msgspec.json.decode(path.read_bytes(), type=list[Record])


def stored(results: Path = RESULTS) -> list[Run]:
    """The runs in the directories of all machines, by machine, scenario and time; quick runs are left out."""
    files = sorted(path for path in results.glob("*/*.json") if path.parent.name != "quick")
    return [Run(path.parent, record) for path in files for record in load(path) if not record.quick]


def of_newest_edition(runs: Iterable[Run]) -> Iterator[Run]:
    """The runs that tell how fast the package is: of each scenario, those of its newest edition."""
    runs = list(runs)
    newest: dict[str, int] = {}
    for run in runs:
        newest[run.record.scenario] = max(run.record.edition, newest.get(run.record.scenario, 0))
    return (run for run in runs if run.record.edition == newest[run.record.scenario])
