"""`deepfs cp -r` of Django's source distribution, beside deepagents' uploads and downloads."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend as PeerDisk
from deepagents.backends import StoreBackend as PeerStore
from langgraph.store.base import BaseStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore

from benchmarks import inputs, stores
from benchmarks.bench import Bench, Contender, Timed
from deepfs.cli.copying import CopyOptions, copy
from deepfs.cli.session import Session
from deepfs.config.trees import open_backend

Place = Callable[[], AbstractContextManager[str]]
"""Makes an empty place for files, and tells its URL."""
Digests = dict[str, str]


async def cp(bench: Bench) -> None:
    """Copying Django between storages: from disk to each and back; what arrives is compared before times count."""
    with inputs.scratch() as directory:
        source, left_out = _source(directory / "django", 300 if bench.quick else None)
        names = count()

        @contextmanager
        def file(scheme: str) -> Iterator[str]:
            yield f"{scheme}:///{directory}/{next(names)}.db"

        with SqliteStore.from_conn_string(str(directory / "peer.db")) as store:
            store.setup()
            places: dict[str, Place] = {
                "SqliteBackend": partial(file, "sqlite"),
                "LangGraph store": partial(file, "store+sqlite"),
            }
            await _race(bench, "SQLite", source, store, places)
        with stores.postgres() as databases, databases() as peer, PostgresStore.from_conn_string(peer) as store:
            store.setup()

            @contextmanager
            def table() -> Iterator[str]:
                with databases() as dsn, PostgresStore.from_conn_string(dsn) as made:
                    made.setup()
                    yield f"store+{dsn}"

            await _race(bench, "PostgreSQL", source, store, {"PostgresBackend": databases, "LangGraph store": table})
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
        made = target / path.relative_to(inputs.django())
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(path.read_bytes())
    return target, len(files) - len(kept)


async def _race(bench: Bench, kind: str, source: Path, store: BaseStore, places: Mapping[str, Place]) -> None:
    paths = [f"/{name}" for name in _on_disk(source)]
    peer = PeerStore(store=store, namespace=lambda _: ("files",))
    with ExitStack() as stack:
        urls = {name: stack.enter_context(place()) for name, place in places.items()}
        for url in urls.values():
            await _deepfs(str(source), f"{url}#/")
        there: list[Any] = [partial(_there, source, place) for place in places.values()]
        back: list[Any] = [partial(_back, url) for url in urls.values()]
        for work, shown, call, ours, theirs, their_call in (
            (f"disk to {kind}", f"to {kind}", "deepfs cp -rT django URL", there,
             partial(_peer_there, source, peer, paths), "disk.download_files(…), store.upload_files(…)"),
            (f"{kind} to disk", f"from {kind}", "deepfs cp -rT URL back", back,
             partial(_peer_back, peer, paths), "store.download_files(…), disk.upload_files(…)"),
        ):  # fmt: skip
            rows: Any = dict.items
            contenders = [Contender(f"deepfs, {name}", call, run, rows) for name, run in zip(places, ours, strict=True)]
            contenders.append(Contender("deepagents", their_call, theirs, rows))
            # A contender that takes longer than 20 s runs only once.
            race = await bench.race(work, contenders, "files", rounds=3, seconds=60, patience=20)
            for name in places:
                bench.beats_peer(f"deepfs cp -r of Django {shown} ({name})", 5, race, f"deepfs, {name}")


def _on_disk(root: Path) -> Digests:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): blake2b(path.read_bytes()).hexdigest() for path in files}


def _digests(downloads: Iterable[Any]) -> Digests:
    return {each.path[1:]: blake2b(each.content).hexdigest() for each in downloads}


async def _deepfs(source: str, target: str) -> float:
    """Run `deepfs cp -rT` in this process; return its seconds."""
    session = Session(name="cp")
    start = time.perf_counter()
    await copy(session, CopyOptions(sources=[source], target=target, exact=True, recursive=True))
    await session.close()
    assert session.status == 0
    return time.perf_counter() - start


async def _there(source: Path, place: Place) -> Timed:
    with place() as url:
        took = await _deepfs(str(source), f"{url}#/")
        async with open_backend(url) as backend:
            files = [entry.path for entry in (await backend.alist_tree("/")).entries if entry.kind == "file"]
            return Timed(took, _digests(await backend.adownload_files(files)))


async def _back(url: str) -> Timed:
    with inputs.scratch() as target:
        return Timed(await _deepfs(f"{url}#/", str(target)), _on_disk(target))


def _peer_there(source: Path, files: PeerStore, paths: list[str]) -> Timed:
    took = _peer_copies(PeerDisk(source, virtual_mode=True), files, paths)
    return Timed(took, _digests(files.download_files(paths)))


def _peer_back(files: PeerStore, paths: list[str]) -> Timed:
    with inputs.scratch() as target:
        took = _peer_copies(files, PeerDisk(target, virtual_mode=True), paths)
        return Timed(took, _on_disk(target))


def _peer_copies(source: Any, target: Any, paths: list[str]) -> float:
    start = time.perf_counter()
    done = target.upload_files([(each.path, each.content) for each in source.download_files(paths)])
    took = time.perf_counter() - start
    assert all(each.error is None for each in done)
    return took
