"""Identities of users as namespaces: whatever a provider calls its users, each has files of their own."""

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from langgraph.store.memory import InMemoryStore

from deepfs import SqliteBackend, StoreBackend

IDENTITIES = (
    *("auth0|5f7c", "auth0%7C5f7c", "google-oauth2|105", "https://issuer.example/u1", "ada@example.org", "org/team"),
    *("user 1", "user%201", "*", "..", ".", "a.b", "a!b", "A", "a", "Ádám", "A\u0301dám", "日本", "😀", "a'b", 'a"b'),
)


@pytest.mark.parametrize("kind", ["sqlite", "store"])
def test_each_identity_has_files_of_its_own(kind: str, tmp_path: Path) -> None:
    store = InMemoryStore()
    opened: dict[str, Any] = {
        "sqlite": lambda namespace: SqliteBackend(tmp_path / "files.db", namespace=namespace),
        "store": lambda namespace: StoreBackend(store, namespace=namespace),
    }
    now = [""]
    by_factory = opened[kind](lambda runtime: (now[0], "files"))
    for identity in IDENTITIES:
        assert opened[kind]((identity, "files")).write("/who.txt", identity).ok, identity
    for identity in IDENTITIES:
        now[0] = identity
        assert by_factory.read("/who.txt").unwrap().content == identity
    if kind == "store":
        assert {unquote(name.replace("!", ".")) for name, _ in store.list_namespaces()} == {*IDENTITIES}
