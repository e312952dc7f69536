"""The programs in examples/, run as a person runs them, with scripted models; what they did to the files counts."""

import hmac
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Final, TypeAlias

import httpx
import psycopg
import pytest
from msgspec import json

import deepfs
from support.postgres import PostgresServer

EXAMPLES: Final = Path(__file__).parents[1] / "examples"
ENVIRONMENT: Final = {
    **os.environ,
    "PYTHONPATH": str(Path(next(iter(deepfs.__path__))).parent),
    "PYTHONUTF8": "1",
}


def run(directory: Path, name: str, *options: object) -> str:
    """The output of a program that is run in `directory`."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, options)]
    done = subprocess.run(
        command, cwd=directory, env=ENVIRONMENT, capture_output=True, encoding="utf-8", check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def test_the_readme_lists_every_program() -> None:
    listed = re.findall(r"\[(\w+\.py)\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert sorted(name for name, _ in listed) == sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert all(name == target for name, target in listed)


# --- agents ----------------------------------------------------------------------------------------------------------


def test_the_second_research_remembers_what_the_first_learned(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "rules.md").write_text("# Rules\n\n- `write` creates files, and no more.\n")
    first, second = [run(tmp_path, "research_agent", "--sources", sources, "--memories", "m.db") for _ in range(2)]
    assert "write_file(" in first
    assert "I remember:" not in first
    # The fact with the path, which only the first run has looked up.
    assert "I remember: Writing creates a file, and refuses one that exists. Source: /sources/rules.md" in second
    assert "→" not in second  # It calls no tool.
    assert [path.name for path in sources.iterdir()] == ["rules.md"]
    with closing(sqlite3.connect(tmp_path / "m.db")) as database:
        assert "ok" in database.execute("PRAGMA integrity_check").fetchone()


def test_no_edit_of_the_parallel_subagents_is_lost(tmp_path: Path) -> None:
    printed = run(tmp_path, "parallel_subagents", "--tree", "book")
    names = [path.stem for path in (tmp_path / "book" / "chapters").iterdir()]
    board, index = [(tmp_path / "book" / name).read_text().splitlines() for name in ("board.md", "index.md")]
    assert len(names) == 8
    assert sorted(board) == [f"- [x] {name}" for name in sorted(names)]
    assert index[0] == "# Index"
    assert sorted(index[1:]) == [f"- [{name}](/chapters/{name}.md)" for name in sorted(names)]
    assert "16 edits of two files, none lost." in printed


@pytest.mark.needs("BubblewrapSandbox")
def test_the_coding_agent_sees_the_test_fail_and_pass(tmp_path: Path) -> None:
    printed = run(tmp_path, "coding_agent", "--workspace", "project")
    before, after = printed.split("I repair the code.")
    assert "FAILED (failures=2)" in before
    assert "[Exit code 1]" in before
    assert after.count("Ran 2 tests") == after.count("] OK") == 2  # The agent runs them, then the program.
    code = (tmp_path / "project" / "slug.py").read_text()
    checked = subprocess.run([sys.executable, "-c", f"{code}\nprint(slug(' A  B '))"], capture_output=True, check=True)
    assert checked.stdout == b"a-b\n"


@pytest.mark.needs("BubblewrapSandbox")
def test_the_script_of_the_skill_counts_the_words(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Pear, plum and pear. A plum, a pear, a fig: pears.\n")
    before = sorted(path.name for path in (EXAMPLES / "skills").rglob("*"))
    printed = run(tmp_path, "skill_library", "text.txt")
    assert printed.endswith("The most frequent words, by the script:\n3 pear\n2 plum\n1 pears\n[Exit code 0]\n")
    assert "name: word-frequency" in printed
    assert sorted(path.name for path in (EXAMPLES / "skills").rglob("*")) == before


# --- a script --------------------------------------------------------------------------------------------------------


def test_the_maintenance_job_gives_todos_an_owner(tmp_path: Path) -> None:
    files = {
        ".gitignore": "build/\n",
        "build/a.py": "# TODO: generated\n",
        "a.py": "x = 1  # TODO: a\ny = 2  # TODO(bob): b\n",
        "sub/b.py": "# TODO: c\r\n",
        "c.py": "pass\n",
    }
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content.encode())
    assert "- `/sub/b.py:1` # TODO: c" in run(tmp_path, "todo_report", ".", "--owner", "ada", "--dry-run")
    assert {path: (tmp_path / path).read_bytes().decode() for path in files} == files
    assert not (tmp_path / "TODO.md").exists()

    assert "3 TODOs, 2 given to ada" in run(tmp_path, "todo_report", ".", "--owner", "ada")
    changed = {"a.py": "x = 1  # TODO(ada): a\ny = 2  # TODO(bob): b\n", "sub/b.py": "# TODO(ada): c\r\n"}
    assert {path: (tmp_path / path).read_bytes().decode() for path in files} == {**files, **changed}
    assert (tmp_path / "TODO.md").read_text() == (
        "# TODO\n\n## ada\n\n- `/a.py:1` x = 1  # TODO(ada): a\n- `/sub/b.py:1` # TODO(ada): c\n"
        "\n## bob\n\n- `/a.py:2` y = 2  # TODO(bob): b\n"
    )


# --- the server ------------------------------------------------------------------------------------------------------

Clients: TypeAlias = Callable[[str], httpx.Client]
"""Makes a client with the token of a tenant."""

KEY: Final = "key-of-the-tests"
QUOTA: Final = 3_000_000
POOL_SIZE: Final = 10


@pytest.fixture(scope="module")
def server_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.database() as name:
        yield postgres_server.dsn(name)


@pytest.fixture(scope="module")
def clients(server_dsn: str) -> Iterator[Clients]:
    command = [sys.executable, str(EXAMPLES / "tenant_server.py"), "--port", "0", "--max-bytes", str(QUOTA)]
    with served(command, {**ENVIRONMENT, "DATABASE_URL": server_dsn, "TOKEN_KEY": KEY}) as url, ExitStack() as opened:

        def client(tenant: str) -> httpx.Client:
            headers = {"Authorization": f"Bearer {token(tenant)}"}
            return opened.enter_context(httpx.Client(base_url=url, timeout=30, headers=headers))

        yield client


def token(tenant: str, key: str = KEY) -> str:
    return f"{tenant}.{hmac.new(key.encode(), tenant.encode(), sha256).hexdigest()}"


@contextmanager
def served(command: list[str], environment: dict[str, str]) -> Iterator[str]:
    """The URL of a server, which is ended in good order."""
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stderr is not None
        started = ""
        while not (found := re.search(r"running on (http://\S+:\d+)", started)):
            line = process.stderr.readline()
            assert line, started
            started += line
        try:
            yield found[1]
        finally:
            process.send_signal(signal.SIGINT)
            _, logged = process.communicate(timeout=30)
        assert "Application shutdown complete" in logged
        assert "Traceback" not in logged


def events(response: httpx.Response) -> list[tuple[str, str]]:
    """The server-sent events: pairs of a kind and its text."""
    found = re.findall(r"event: (\w+)\ndata: (.+)\n\n", response.raise_for_status().text)
    return [(kind, json.decode(data)) for kind, data in found]


def test_a_tenant_never_sees_the_files_of_another(clients: Clients, server_dsn: str) -> None:
    """Each path that a request can take is tried, by 24 tenants at once, over one pool of connections."""
    tenants = [f"tenant-{number:02}" for number in range(24)]

    def use(tenant: str) -> str:
        client = clients(tenant)
        assert client.put("/files/same.md", content=f"secret of {tenant}").status_code == 204
        assert client.put(f"/raw/own/{tenant}.md", content=f"secret of {tenant}").status_code == 204
        seen = [client.get(f"/{kind}/same.md").text for kind in ("files", "raw")]
        seen += [client.get("/files/own/").text, client.get("/search?q=secret").text]
        assert client.get("/usage").json() == {"bytes": 2 * len(f"secret of {tenant}"), "files": 2}
        answered = events(client.post("/agent", json={"message": "What is there?"}))
        assert [kind for kind, _ in answered if kind != "text"] == ["tool", "end"]
        assert len(answered) > 5  # The text comes in pieces.
        return "".join([*seen, *(text for _, text in answered)])

    with ThreadPoolExecutor(len(tenants)) as threads:
        seen = [*threads.map(use, tenants)]
    for tenant, shown in zip(tenants, seen, strict=True):
        assert {*re.findall(r"tenant-\d\d", shown)} == {tenant}
        assert shown.count(f"secret of {tenant}") == 4  # read, downloaded, and found in two files
        assert f"/own/{tenant}.md" in shown.rpartition("There is:")[2]
    with psycopg.connect(server_dsn) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        [connections] = connection.execute(query).fetchone() or [0]
    assert 1 < connections <= POOL_SIZE

    first, *_ = tenants
    other = clients("other")
    tried = ("same.md", "..%2Ftenant-00%2Fsame.md", "%2F%2Ftenants%2Ftenant-00%2Fsame.md", "tenants/tenant-00/same.md")
    for path, kind in product(tried, ("files", "raw")):
        assert other.get(f"/{kind}/{path}").status_code in (400, 404)
        assert first not in other.get(f"/{kind}/{path}").json()["error"] or "tenant-00" in path
    assert other.delete("/files/same.md").status_code == 404
    assert clients(first).get("/files/same.md").text == f"secret of {first}"


def test_the_token_is_verified(clients: Clients) -> None:
    client = clients("ada")
    forged = [".", "ada", "ada.", token("ada", "another key"), token("bob").replace("bob", "ada"), "ada.é"]
    for each in forged:
        response = client.get("/files/", headers={"Authorization": f"Bearer {each}".encode()})
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert client.get("/files/").status_code == 200
