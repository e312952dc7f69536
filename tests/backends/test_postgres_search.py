"""Searches of a PostgresBackend give the answers of MemoryBackend, whichever way the database takes."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from deepfs.backends.memory import MemoryBackend
from deepfs.backends.postgres import PostgresBackend
from deepfs.backends.postgres import search as search
from deepfs.types import GrepResult
from support.postgres import PostgresServer
from support.postgres_files import fresh_namespace, sql

pytestmark = pytest.mark.anyio

FILES = 10_000
WORDS = [
    "import", "value", "Kind", "self", "Straße", "naïve", "100%", "a_b", "x\\y", "ab", "-", "été", "kk", "ss",
    "iI",
]  # fmt: skip


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def files() -> list[tuple[str, bytes]]:
    """Texts of common and rare words, and some that are binary, large, or hold letters that fold to ASCII."""
    chosen = random.Random(7)
    rare = [f"rare{n}word" for n in range(300)]
    found = []
    for number in range(FILES):
        words = chosen.choices(WORDS, k=12)
        if number % 40 == 0:
            words.append(chosen.choice(rare))
        text = "\n".join(" ".join(words[at : at + 4]) for at in range(0, len(words), 4))
        found.append((path_of(number, chosen), text.encode()))
    found += [
        ("/bin/a.dat", b"\0 rare1word import"),
        ("/bin/b.dat", "é rare2word".encode("latin-1")),
        ("/bin/c.png", b"rare1word"),
        ("/bin/d.dat", b"\xff\\x\\y RARE3WORD"),
        ("/big/a.txt", b"filler line\n" * 30_000 + b"rare1word at the end\n"),
        ("/big/b.txt", b"filler line\n" * 30_000),
        ("/big/c.txt", b"x" * (11 * 1024 * 1024)),
        ("/odd/kelvin.txt", "\u212aind of rare1word".encode()),
        ("/odd/long.txt", "\u017felf".encode()),
        ("/odd/binary.dat", "\0 \u017felf".encode()),
        ("/odd/bom.txt", "\ufeffimport first".encode()),
        ("/odd/crlf.txt", b"import\r\nrare9word\r\n"),
        ("/.hidden/a.txt", b"rare1word"),
        ("/a", b"beside"),
    ]
    return found


def path_of(number: int, chosen: random.Random) -> str:
    suffix = chosen.choice(["py", "md", "txt", "c"])
    name = chosen.choice(["main", "été", "a_b", "100%", "x"])
    return f"/d{number % 7}/sub{number % 83}/{name}{number}.{suffix}"


Place = tuple[str, tuple[str, ...]]
"""A DSN and a namespace."""


@pytest.fixture(scope="module")
def model() -> MemoryBackend:
    memory = MemoryBackend()
    memory.upload_files(files())
    return memory


@pytest.fixture(scope="module")
def indexed(postgres_files_dsn: str) -> Place:
    place = postgres_files_dsn, fresh_namespace()
    fill(*place)
    return place


@pytest.fixture(scope="module")
def plain(postgres_server: PostgresServer) -> Iterator[Place]:
    """A database in which the role cannot make the extension."""
    with postgres_server.database() as name:
        dsn = postgres_server.dsn(name)
        sql(dsn, "DROP ROLE IF EXISTS no_extension")
        sql(dsn, "CREATE ROLE no_extension LOGIN")
        sql(dsn, "CREATE SCHEMA deepfs AUTHORIZATION no_extension")
        place = dsn.replace("postgres@", "no_extension@"), ("t",)
        fill(*place)
        yield place
        sql(dsn, "DROP OWNED BY no_extension")
        sql(dsn, "DROP ROLE no_extension")


def fill(dsn: str, space: tuple[str, ...]) -> None:
    with PostgresBackend(dsn, space) as backend:
        outcomes = backend.upload_files(files())
    assert {outcome.error for outcome in outcomes} == {None}


def greps() -> list[dict[str, Any]]:
    """Searches that the index answers, that it cannot, and that need a walk in part."""
    chosen = random.Random(11)
    literals = [
        *WORDS, *(f"rare{n}word" for n in range(0, 300, 37)), "absent text", "word", "e", "%", "_", "\\", "lue i",
    ]  # fmt: skip
    calls: list[dict[str, Any]] = [{"pattern": literal} for literal in literals]
    calls += [{"pattern": literal, "ignore_case": True} for literal in (*literals, "KIND", "SELF", "RARE1WORD", "II")]
    calls += [
        {"pattern": pattern, "regex": True}
        for pattern in (
            r"rare\d+word",
            r"rare(1|2)word",
            r"(?i)RARE1\w+",
            r"(?i)kind|self",
            r"^import",
            r"imp.*rt",
            r"[Ii]mport .* rare",
            r"x\\y|a_b 100%",
            r"été$",
            r"Stra(ß|ss)e",
            r".",
            r"zzz+",
            r"(?i)(?-i:rare)3WORD",
        )
    ]
    for call in calls:
        call["path"] = chosen.choice([None, None, None, "/", "/d1", "/big", "/bin", "/odd", "/a", "/odd/crlf.txt"])
        call["glob"] = chosen.choice([None, None, None, "*.txt", "**/*.py", "/d[0-3]/**", "*{é,1}*", "a_b*"])
        call["max_count"] = chosen.choice([None, None, 1, 50, 1000])
        call["context_lines"] = chosen.choice([0, 0, 1])
    return calls


GLOBS = (
    "**", "*.py", "**/main1*", "/d1/**", "/d1/sub8/*", "*é*", "100%*", "a_b7*", "**/x9999.*", "*", "[xm]*5.c",
    "absent",
)  # fmt: skip


class Answers(NamedTuple):
    """What the model answers, which takes longer than the database does."""

    greps: list[tuple[dict[str, Any], GrepResult]]
    globs: list[tuple[str, str, list[tuple[str, int | None]]]]


@pytest.fixture(scope="module")
def answers(model: MemoryBackend) -> Answers:
    globs = [
        (pattern, path, [(match.path, match.size) for match in model.glob(pattern, path).matches or ()])
        for pattern in GLOBS
        for path in ("/", "/d1")
    ]
    return Answers([(call, model.grep(**call)) for call in greps()], globs)


@pytest.mark.parametrize("way", ["indexed", "plain", "always by index", "never by index"])
async def test_searches_give_the_answers_of_the_model(
    indexed: Place, plain: Place, monkeypatch: pytest.MonkeyPatch, answers: Answers, way: str
) -> None:
    if way == "always by index":
        monkeypatch.setattr(search, "_FEW", 2.0)
        monkeypatch.setattr(search, "_FIRST_STEP", 1)
        monkeypatch.setattr(search, "_PAGE", 400)
    if way == "never by index":
        monkeypatch.setattr(search, "_TOO_MANY", 0)
    async with PostgresBackend(*(plain if way == "plain" else indexed)) as backend:
        abilities = await backend._client.learn_abilities(backend._namespace())
        assert abilities.has_trigrams == (way != "plain")
        for call, expected in answers.greps:
            found = await backend.agrep(**call)
            assert (found.error, found.truncated) == (expected.error, expected.truncated), call
            assert found.matches == expected.matches, call
            assert expected.truncated or found.skipped == expected.skipped, call
        for pattern, path, wanted in answers.globs:
            listed = await backend.aglob(pattern, path)
            assert [(match.path, match.size) for match in listed.matches or ()] == wanted, pattern


async def test_a_search_without_trigrams_is_bounded_and_says_so(indexed: Place) -> None:
    async with PostgresBackend(*indexed, max_scanned=1000) as backend:
        for result in (await backend.agrep("qq"), await backend.aglob("**/q?")):
            assert result.truncated
        assert not (await backend.agrep("qqqq")).truncated
        assert not (await backend.agrep("-", max_count=None, path="/d0/sub0")).truncated
