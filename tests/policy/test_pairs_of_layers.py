"""Every layer over every other, over every storage: they do what it does alone."""

from collections.abc import Callable
from itertools import permutations
from typing import Final

from deepfs.backends.composite import CompositeBackend
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.policy import (
    AuditedBackend,
    FilesystemPermission,
    HistoryBackend,
    HookedBackend,
    PermissionedBackend,
    QuotaBackend,
    RateLimit,
    TracedBackend,
)
from support.every_backend import Storage, storage

__all__ = ["storage"]

LAYERS: Final[dict[str, Callable[[BackendProtocol], BackendProtocol]]] = {
    "audit": lambda inner: AuditedBackend(inner, lambda record: None),
    "history": HistoryBackend,
    "hooks": lambda inner: HookedBackend(inner, [RateLimit(10_000, seconds=60)]),
    "mount": lambda inner: CompositeBackend(inner, {"/elsewhere": MemoryBackend()}),
    "quota": lambda inner: QuotaBackend(inner, max_bytes=10_000),
    "rules": lambda inner: PermissionedBackend(inner, [FilesystemPermission(["read", "write"], ["/**/.env"], "deny")]),
    "traces": TracedBackend,
}


def answers(files: BackendProtocol) -> list[object]:
    """What a short program gets."""
    told: list[object] = [files.write("/work/a.md", "1" * 300).code]
    told += [files.write("/work/a.md", f"{number}" * 300, overwrite=True).code for number in range(5)]
    told += [outcome.error for outcome in files.upload_files([("/work/b.bin", b"\0" * 200), ("/work/../x/..", b"")])]
    told.append(files.edit("/work/a.md", "4" * 300, "new\n").code)
    told.append(files.copy("/work/a.md", "/c.md").code)
    told.append(files.move("/work/b.bin", "/work/b/b.bin").code)
    told += [files.read("/work/a.md").unwrap().content, sorted(match.path for match in files.grep("new").unwrap())]
    told.append(sorted(info.path for info in files.glob("/**/*").unwrap()))
    told += [files.delete(path).code for path in ("/work/b", "/work/a.md", "/c.md", "/none")]
    told += [files.write("/all.md", "x" * 900).code, files.delete("/all.md").code]
    return told


def test_every_pair_of_layers(storage: Storage) -> None:
    alone = answers(storage.backend)
    for outer, inner in permutations(LAYERS, 2):
        assert answers(LAYERS[outer](LAYERS[inner](storage.backend))) == alone, f"{outer} over {inner}"
        assert storage.backend.delete("/.history").code in (None, "file_not_found")


def test_a_rule_speaks_through_every_layer(storage: Storage) -> None:
    denied = LAYERS["rules"](storage.backend)
    for name, layer in LAYERS.items():
        result = layer(denied).write("/.env", "x")
        assert (result.code, "permission denied for" in str(result.error)) == ("permission_denied", True), name
