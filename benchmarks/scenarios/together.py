"""Four greps and four globs at once, and the event-loop lag that they cause."""

import asyncio
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from deepagents.backends import FilesystemBackend as PeerBackend

from benchmarks import inputs
from benchmarks.bench import Bench
from benchmarks.harness import Contender
from benchmarks.lag import percentile, ticking
from benchmarks.peers import grep_rows, listed_paths
from benchmarks.record import Line, Point
from benchmarks.ripgrep import with_ripgrep, without_ripgrep
from deepfs.backends import FilesystemBackend

TITLE: Final = "Four greps and four globs of Django at once"

_LITERALS: Final = ("def get_queryset", "import", "self.assertEqual", "no such words in Django")
_GLOBS: Final = ("**/*.py", "**/*.txt", "tests/**/*.py", "*.html")
_PERCENTS: Final = (50.0, 90.0, 99.0, 99.9, 100.0)
_QUICK: Final = "/docs"

Lags = dict[str, list[float]]


async def measure(bench: Bench) -> None:
    """Race both packages, with and without ripgrep, each beside a task that ticks every millisecond."""
    root = inputs.django()
    where = _QUICK if bench.quick else "/"
    lags: Lags = {}
    contenders = [
        _contender("deepfs, with rg", FilesystemBackend(root), where, with_ripgrep, lags),
        _contender("deepagents, with rg", PeerBackend(str(root)), where, with_ripgrep, lags),
        _contender("deepfs, without rg", FilesystemBackend(root, ripgrep=False), where, without_ripgrep, lags),
        _contender("deepagents, without rg", PeerBackend(str(root)), where, without_ripgrep, lags),
    ]
    race = await bench.race(f"4 greps and 4 globs at once below {where}", contenders, noun="rows", rounds=5, seconds=45)
    for engine, least in (("with rg", 40), ("without rg", 20)):
        ours, theirs = f"deepfs, {engine}", f"deepagents, {engine}"
        work = f"four greps and four globs, {engine}"
        bench.complete(f"{work}: complete results", race, ours)
        bench.at_least(f"{work}: at least {least}× deepagents", least, race.ratios(theirs, ours), reduced=bench.quick)
    _lag_bars(bench, lags)
    bench.note(f"The greps look for {', '.join(map(repr, _LITERALS))}; the globs are {', '.join(_GLOBS)}.")
    bench.note("deepagents stops a glob after 5 s, ripgrep after 15 s and a grep after 35 s, and returns what it has.")


def _contender(
    name: str, backend: Any, where: str, around: Callable[[], AbstractContextManager[object]], lags: Lags
) -> Contender:
    return Contender(
        name=name,
        call=f'asyncio.gather(*(fs.agrep(text, "{where}") …), *(fs.aglob(pattern, "{where}") …))',
        run=partial(_all_at_once, backend, where, lags.setdefault(name, [])),
        rows=_rows,
        around=around,
        may_lose=isinstance(backend, PeerBackend),
        own=isinstance(backend, FilesystemBackend),
    )


async def _all_at_once(backend: Any, where: str, lags: list[float]) -> list[Any]:
    async with ticking() as ticks:
        greps = [backend.agrep(text, where) for text in _LITERALS]
        globs = [backend.aglob(pattern, where) for pattern in _GLOBS]
        found = await asyncio.gather(*greps, *globs)
    lags += ticks
    return found


def _rows(found: list[Any]) -> list[Hashable]:
    greps = [(text, row) for text, result in zip(_LITERALS, found[:4], strict=True) for row in grep_rows(result)]
    globs = [
        (pattern, path) for pattern, result in zip(_GLOBS, found[4:], strict=True) for path in listed_paths(result)
    ]
    return [*greps, *globs]


def _lag_bars(bench: Bench, lags: Lags) -> None:
    """Set the bars for lag, and plot it."""
    for engine, percent, limit in (("with rg", 100.0, 8), ("with rg", 99.0, 2), ("without rg", 99.0, 50)):
        lag = percentile(lags[f"deepfs, {engine}"], percent) * 1000
        shown = "throughout" if percent == 100 else f"p{percent:.0f}"
        claim = f"event-loop lag at most {limit} ms, {shown}, {engine}"
        bench.at_most(claim, limit, [lag], " ms", reduced=bench.quick)
    lines = [
        Line(name, "beside it: await anyio.sleep(0.001)", [_lag_point(*place, ticks) for place in enumerate(_PERCENTS)])
        for name, ticks in lags.items()
        if ticks
    ]
    ticks = [f"p{percent:g}" if percent < 100 else "max" for percent in _PERCENTS]
    bench.plot(
        "lag",
        "Event-loop lag during four greps and four globs",
        ("of all ticks, one a millisecond", "ms late"),
        lines,
        log="y",
        ticks=ticks,
    )


def _lag_point(place: int, percent: float, ticks: list[float]) -> Point:
    lag = max(percentile(ticks, percent) * 1000, 0.01)
    return Point(place, lag, lag, lag)
