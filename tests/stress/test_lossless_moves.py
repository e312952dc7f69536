"""Random programs in trees of mounts: no move or copy loses a byte that was stored, as seen without the backends."""

import secrets
from itertools import count
from pathlib import Path
from random import Random

import anyio.to_thread
import pytest

from support.counts import few_or_many
from support.worlds import Act, World, acts

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

ACTS = 25
"""The number of acts in one world."""
SEED: int | None = None
"""Set it to the seed of a failure, to repeat that run."""


async def played(root: Path, program: list[Act], *, is_ruled: bool) -> tuple[int, str] | None:
    """The number of the first act that loses something, and a description of the loss."""
    world = await anyio.to_thread.run_sync(lambda: World(root, is_ruled=is_ruled))
    await world.fill()
    for number, act in enumerate(program):
        lost = await world.do(act)
        if lost is not None:
            return number, lost
    return None


async def shortened(root: Path, program: list[Act], lost: str, *, is_ruled: bool) -> tuple[list[Act], str]:
    """The program without the acts that are not needed for the loss."""
    numbers = count()
    for index in reversed(range(len(program) - 1)):
        rest = [*program[:index], *program[index + 1 :]]
        failed = await played(root / str(next(numbers)), rest, is_ruled=is_ruled)
        if failed is not None:
            program, lost = rest[: failed[0] + 1], failed[1]
    return program, lost


@pytest.mark.parametrize("steps", few_or_many(300, 5_000))
async def test_moves_and_copies_lose_nothing(tmp_path: Path, steps: int) -> None:
    seed = secrets.randbits(64) if SEED is None else SEED
    random = Random(seed)
    for number in range(-(-steps // ACTS)):
        program, is_ruled = acts(random, ACTS), random.random() < 0.3
        failed = await played(tmp_path / str(number), program, is_ruled=is_ruled)
        if failed is not None:
            short, lost = await shortened(tmp_path / "again", program[: failed[0] + 1], failed[1], is_ruled=is_ruled)
            text = "\n".join(map(repr, short))
            pytest.fail(f"{lost}\nin a {'ruled ' * is_ruled}world after\n{text}\nTo repeat this run, set SEED = {seed}")
