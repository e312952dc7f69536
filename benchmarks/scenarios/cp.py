"""`deepfs cp -r` of Django's source distribution, beside deepagents' uploads and downloads."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from deepagents.backends import FilesystemBackend as PeerDisk
from deepagents.backends import StoreBackend as PeerStore
from langgraph.store.base import BaseStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore

from benchmarks import inputs, servers
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.record import Race
from deepfs.cli.copying import CopyOptions, copy
from deepfs.cli.session import Session

TITLE: Final = "Copying Django between storages"

_NAMESPACE: Final = ("files",)
_QUICK_FILES: Final = 300
_S3_FILES: Final = 500
"""The server of the tests is slow."""
_PATIENCE: Final = 20
"""Seconds after which a contender runs only once."""

_READ: Final = """
import anyio, hashlib, json, sys
from deepfs.config.trees import open_backend
async def main():
    async with open_backend(sys.argv[1]) as backend:
        entries = (await backend.alist_tree(sys.argv[2])).entries
        files = [entry.path for entry in entries if entry.kind == "file"]
        for got in await backend.adownload_files(files):
            print(json.dumps([got.path[len(sys.argv[2]):].lstrip("/"), hashlib.blake2b(got.content).hexdigest()]))
anyio.run(main)
"""

Digests = Mapping[str, str]


class _Copy(NamedTuple):
    """One copy that was made."""

    seconds: float
    found: Digests
    """The digest of each file at the target."""

    def rows(self) -> list[tuple[str, str]]:
        return list(self.found.items())


def _seconds(copy: _Copy) -> float:
    return copy.seconds


async def measure(bench: Bench) -> None:
    """Copy the tree from disk to each storage, and from there to disk; what arrives is compared before times count."""
    with inputs.scratch() as directory:
        source, left_out = _source(directory / "django", _QUICK_FILES if bench.quick else None)
        with SqliteStore.from_conn_string(str(directory / "peer.db")) as store:
            store.setup()
            names = count()

            @contextmanager
            def place(scheme: str) -> Iterator[str]:
                yield f"{scheme}:///{directory}/{next(names)}.db"

            ours = {"SqliteBackend": partial(place, "sqlite"), "LangGraph store": partial(place, "store+sqlite")}
            await _race(bench, "SQLite", source, directory, store, ours)
        with servers.postgres() as places, places() as peer, PostgresStore.from_conn_string(peer) as store:
            store.setup()
            await _race(bench, "PostgreSQL", source, directory, store, _postgres(places))
        await _object_store(bench, directory)
    bench.note(
        f"{left_out} files with NUL bytes are left out: deepagents takes them for text, which PostgreSQL refuses. "
        "deepagents: FilesystemBackend.download_files of all paths, then StoreBackend.upload_files, and the reverse; "
        "only the calls are timed. deepfs: the command in this process, which reads back what it stored. "
        "Stores and databases are as they are by default; PostgreSQL runs without fsync."
    )


def _source(target: Path, most: int | None) -> tuple[Path, int]:
    """A copy of the distribution, without the files that deepagents cannot store everywhere; how many these are."""
    files = [path for path in sorted(inputs.django().rglob("*")) if path.is_file()]
    kept = [path for path in files if b"\0" not in path.read_bytes()]
    for path in kept[:most]:
        copy = target / path.relative_to(inputs.django())
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return target, len(files) - len(kept)


Place = Callable[[], AbstractContextManager[str]]


def _postgres(places: servers.Places) -> dict[str, Place]:
    @contextmanager
    def store() -> Iterator[str]:
        with places() as dsn:
            with PostgresStore.from_conn_string(dsn) as made:
                made.setup()
            yield f"store+{dsn}"

    return {"PostgresBackend": places, "LangGraph store": store}


async def _race(
    bench: Bench, kind: str, source: Path, directory: Path, store: BaseStore, places: Mapping[str, Place]
) -> None:
    expected = _on_disk(source)
    contenders = [
        Contender(
            name=f"deepfs, {name}",
            call="deepfs cp -rT django URL",
            run=partial(_ours, source, place),
            rows=_Copy.rows,
            own_seconds=_seconds,
            own=True,
        )
        for name, place in places.items()
    ]
    contenders.append(
        Contender(
            name="deepagents",
            call="disk.download_files(…), store.upload_files(…)",
            run=partial(_theirs, source, store, list(expected)),
            rows=_Copy.rows,
            own_seconds=_seconds,
        )
    )
    race = await bench.race(f"disk to {kind}", contenders, noun="files", rounds=3, seconds=60, patience=_PATIENCE)
    _claim(bench, f"to {kind}", race, places)
    await _race_back(bench, kind, source, directory, store, places)


async def _race_back(
    bench: Bench, kind: str, source: Path, directory: Path, store: BaseStore, places: Mapping[str, Place]
) -> None:
    with ExitStack() as stack:
        urls = {name: stack.enter_context(place()) for name, place in places.items()}
        for url in urls.values():
            await _deepfs(str(source), f"{url}#/")
        contenders = _contenders_back(source, directory / f"{kind}-back", store, urls)
        race = await bench.race(f"{kind} to disk", contenders, noun="files", rounds=3, seconds=60, patience=_PATIENCE)
    _claim(bench, f"from {kind}", race, places)


def _claim(bench: Bench, way: str, race: Race, places: Iterable[str]) -> None:
    for name in places:
        claim = f"deepfs cp -r of Django {way} ({name}): at least 5× deepagents"
        bench.at_least(claim, 5, race.ratios("deepagents", f"deepfs, {name}"), reduced=bench.quick)


def _contenders_back(source: Path, directory: Path, store: BaseStore, urls: Mapping[str, str]) -> list[Contender]:
    names = count()
    contenders = []
    directory.mkdir()
    for name, url in urls.items():
        contenders.append(
            Contender(
                name=f"deepfs, {name}",
                call="deepfs cp -rT URL back",
                run=lambda url=url: _back(directory / f"{next(names)}", url),
                rows=_Copy.rows,
                own_seconds=_seconds,
                own=True,
            )
        )
    contenders.append(
        Contender(
            name="deepagents",
            call="store.download_files(…), disk.upload_files(…)",
            run=lambda: _theirs_back(directory / f"{next(names)}", store, list(_on_disk(source))),
            rows=_Copy.rows,
            own_seconds=_seconds,
        )
    )
    return contenders


# --- deepfs ----------------------------------------------------------------------------------------------------------


async def _deepfs(source: str, target: str) -> float:
    """Run `deepfs cp -rT` in this process; return its seconds."""
    session = Session(name="cp")
    start = time.perf_counter()
    await copy(session, CopyOptions(sources=[source], target=target, exact=True, recursive=True))
    await session.close()
    assert session.status == 0
    return time.perf_counter() - start


async def _ours(source: Path, place: Place) -> _Copy:
    with place() as url:
        return _Copy(await _deepfs(str(source), f"{url}#/"), _in_backend(url, "/"))


async def _back(target: Path, url: str) -> _Copy:
    return _Copy(await _deepfs(f"{url}#/", str(target)), _on_disk(target))


def _in_backend(url: str, path: str) -> Digests:
    command = [sys.executable, "-c", _READ, url, path]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(map(json.loads, done.stdout.splitlines()))


def _on_disk(root: Path) -> Digests:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): blake2b(path.read_bytes()).hexdigest() for path in files}


# --- deepagents ------------------------------------------------------------------------------------------------------


def _peer(store: BaseStore) -> Any:
    return PeerStore(store=store, namespace=lambda _: _NAMESPACE)


def _theirs(source: Path, store: BaseStore, names: list[str]) -> _Copy:
    disk, files, wanted = PeerDisk(source, virtual_mode=True), _peer(store), [f"/{name}" for name in names]
    start = time.perf_counter()
    done = files.upload_files([(each.path, each.content) for each in disk.download_files(wanted)])
    took = time.perf_counter() - start
    assert all(each.error is None for each in done)
    stored = files.download_files(wanted)
    return _Copy(took, {each.path[1:]: blake2b(each.content).hexdigest() for each in stored})


def _theirs_back(target: Path, store: BaseStore, names: list[str]) -> _Copy:
    disk, files, wanted = PeerDisk(target, virtual_mode=True), _peer(store), [f"/{name}" for name in names]
    start = time.perf_counter()
    done = disk.upload_files([(each.path, each.content) for each in files.download_files(wanted)])
    took = time.perf_counter() - start
    assert all(each.error is None for each in done)
    return _Copy(took, _on_disk(target))


# --- S3 --------------------------------------------------------------------------------------------------------------


async def _object_store(bench: Bench, directory: Path) -> None:
    """To an S3 server and back. deepagents has no backend for it."""
    source, _ = _source(directory / "for-s3", _S3_FILES)
    expected = _on_disk(source)
    with servers.s3() as places, places() as given:
        options = json.loads(given)
        bucket, prefix, endpoint = (options.pop(name) for name in ("bucket", "prefix", "endpoint_url"))
        url = f"s3://{bucket}/{prefix}?{urlencode({**options, 'endpoint': endpoint, 'allow_http': 'true'})}"
        took = [await _deepfs(str(source), url) for _ in range(2)]
        took.append(await _deepfs(url, str(directory / "from-s3")))
    assert _on_disk(directory / "from-s3") == expected
    first, again, back = (f"{seconds:.1f} s" for seconds in took)
    bench.note(
        f"To an S3 server of the tests, which answers one request at a time: {first} for {len(expected):,} files; "
        f"{again} for a second run, which stores nothing; {back} for the way back, byte-identical."
    )
