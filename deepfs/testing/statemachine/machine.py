"""Runs random programs on a backend and on a model: after each change, both must have the same tree."""

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Final

import anyio.from_thread
import anyio.to_thread
import hypothesis
import pytest

from deepfs.backends.protocol import BackendProtocol
from deepfs.testing.expect import succeeded
from deepfs.testing.statemachine.model import Model
from deepfs.testing.statemachine.programs import MIN_STEPS, Step, files_of, programs, steps_of, without
from deepfs.testing.statemachine.steps import agree, concrete, of_backend, of_model, told
from deepfs.testing.suite import BackendSuite
from deepfs.testing.tasks import gather

__all__ = ["BackendStateMachine"]

_CHANGING: Final = frozenset({"write", "edit", "delete", "move", "copy", "upload_files"})


class BackendStateMachine(BackendSuite):
    """Random programs on the backend and on a model of it, with a new seed in each run.

    Inherit from it beside or instead of `BackendConformance`; the fixtures and hooks are the same.
    """

    mounts: ClassVar[Sequence[str]] = ()
    """Where other backends are mounted in the tree under test; they always exist and cannot be moved or deleted."""
    steps: ClassVar[int] = 2000
    """The least number of operations to try."""
    seed: ClassVar[int | None] = None
    """The seed of a run; set it to the seed in the note of a failure, to repeat that run."""

    async def emptied(self, backend: BackendProtocol) -> BackendProtocol:
        """Return the backend without its files, for the next program; override it if a new backend costs less."""
        await self._empty(backend, "/")
        return backend

    async def _empty(self, backend: BackendProtocol, directory: str) -> None:
        for entry in succeeded(await backend.als(directory)).entries or ():
            path = entry.path.rstrip("/")
            if any(f"{mount}/".startswith(f"{path}/") for mount in self.mounts):
                await self._empty(backend, path)
            else:
                await backend.adelete(path)

    # Hypothesis would warn of a driver that uses `random` on the event loop while another thread draws a program.
    @pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
    async def test_random_programs_give_the_same_results_as_the_model(self, backend: BackendProtocol) -> None:
        seed = secrets.randbits(64) if self.seed is None else self.seed
        played, found = 0, list[AssertionError]()

        def play(program: list[Step]) -> None:
            nonlocal played
            played += len(program)
            # Hypothesis runs a failed program again. If a race made it fail, it may pass then, and Hypothesis would
            # only report that; so the first difference is kept, and the program does not run again.
            found.extend([] if found else anyio.from_thread.run(self._differences, backend, program))
            assert not found

        given = hypothesis.given(programs(self.mounts))
        check: Callable[[], None] = hypothesis.seed(seed)(self._settings()(given(play)))
        try:
            await anyio.to_thread.run_sync(check)
        except AssertionError as error:
            difference = found[0] if found else error
            difference.add_note(f"To repeat this run, set `seed = {seed}` in {type(self).__name__}.")
            raise difference from difference.__cause__
        assert played >= self.steps

    def _settings(self) -> hypothesis.settings:
        return hypothesis.settings(
            max_examples=-(-self.steps // MIN_STEPS),
            phases=[hypothesis.Phase.generate],
            derandomize=False,
            database=None,
            print_blob=False,
            verbosity=hypothesis.Verbosity.quiet,
            deadline=None,
            suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
        )

    async def _differences(self, backend: BackendProtocol, program: Sequence[Step]) -> list[AssertionError]:
        """Return the first difference between the backend and the model, if any, with a short program that shows it."""
        played: list[Step] = []
        difference = await self._play(backend, program, played)
        if difference is not None:
            played, difference = await self._shortened(backend, played, difference)
            difference.add_note("A program that shows it, on an empty backend:")
            difference.add_note("\n".join(f"    await backend.a{step!r}" for step in played))
        return [difference] if difference else []

    async def _shortened(
        self, backend: BackendProtocol, program: list[Step], difference: AssertionError
    ) -> tuple[list[Step], AssertionError]:
        """Return the program without the steps that the difference does not need, and its difference."""
        # Shrinking by Hypothesis would take hundreds of runs, which may be slow.
        for cuts in (steps_of, files_of, steps_of):
            for index, file in cuts(program):
                if index >= len(program):
                    continue  # An earlier cut made the program fail earlier, so it is shorter.
                played: list[Step] = []
                still = await self._play(backend, without(program, index, file), played)
                if still is not None:
                    program, difference = played, still
        return program, difference

    async def _play(
        self, backend: BackendProtocol, program: Sequence[Step], played: list[Step]
    ) -> AssertionError | None:
        """Run the program on the backend and on a model; return their first difference, if any.

        The steps are added to `played`, with the paths that were picked for them.
        """
        backend = await self.emptied(backend)
        model = Model(self.mounts)
        try:
            await self._check_tree(backend, model)
        except AssertionError as error:
            return _because(error, "after all its files were deleted")
        for step in program:
            step = concrete(model, step)
            played.append(step)
            try:
                expected = of_model(model, step)
                actual = await of_backend(backend, step)
                if not agree(actual, expected):
                    return AssertionError(f"{step!r}: the model says {told(expected)}, the backend {told(actual)}")
                if step.operation in _CHANGING or len(played) == len(program):
                    await self._check_tree(backend, model)
            except Exception as error:
                return _because(error, repr(step))
        return None

    async def _check_tree(self, backend: BackendProtocol, model: Model) -> None:
        """Compare every listing, and the content of every file, with the model."""
        sizes: dict[str, int | None] = {}
        seen, level = {"/"}, ["/"]
        while level:
            listings = await gather(partial(backend.als, directory) for directory in level)
            entries = [entry for listing in listings for entry in succeeded(listing).entries or ()]
            level = [entry.path.rstrip("/") for entry in entries if entry.is_dir]
            assert not seen.intersection(level), "a directory is listed again"
            seen.update(level)
            sizes |= {entry.path: entry.size for entry in entries if not entry.is_dir}
        if backend.capabilities.keeps_empty_directories:
            model.empty = frozenset(seen - model.implied())
        assert seen == model.directories(), "the directories of the backend, and of the model"
        expected = {path: len(data) for path, data in model.files.items()}
        assert sizes == expected, "the files of the backend, and of the model"
        stored = await gather(partial(self.raw_peek, path) for path in model.files)
        assert dict(zip(model.files, stored, strict=True)) == model.files, "what is stored, and what the model holds"


def _because(error: Exception, where: str) -> AssertionError:
    difference = AssertionError(f"{where}: {error!r}")
    difference.__cause__ = error
    return difference
