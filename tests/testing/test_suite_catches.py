"""The suite can fail: each backend with one fault fails the test for that fault."""

import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

import deepfs.testing
from deepfs.backends.memory import MemoryBackend
from deepfs.backends.protocol import Capabilities
from deepfs.testing import BackendConformance, BackendStateMachine
from deepfs.testing.conformance import at_once
from support.mutants import MUTANTS, Overwrites
from support.raw import RawMemory

Mutant = type[MemoryBackend]


class Suite(RawMemory, BackendConformance, BackendStateMachine):
    """The suite as an object whose tests can be called."""

    steps = 2000

    def __init__(self, memory: MemoryBackend) -> None:
        self.memory = memory

    async def run(self, name: str) -> None:
        """Run one of its tests."""
        test = getattr(self, name)
        fixtures = {"backend": self.memory, "second_backend": self.memory, "both": (self.memory, self.memory)}
        await test(**{name: fixtures[name] for name in inspect.signature(test).parameters})


@pytest.fixture
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_once, "_PATIENCE", 0.2)


@pytest.mark.anyio
@pytest.mark.usefixtures("_hurry")
@pytest.mark.parametrize(("mutant", "test"), [(mutant, test) for mutant, (test, _) in MUTANTS.items()])
async def test_the_suite_catches(mutant: Mutant, test: str) -> None:
    await Suite(MemoryBackend()).run(test)
    with pytest.raises((AssertionError, TimeoutError, ExceptionGroup)):
        await Suite(mutant()).run(test)


@pytest.mark.anyio
@pytest.mark.timeout(300)  # The number of programs that it takes to find a fault is random.
class TestStateMachine:
    """The faults that the state machine finds, and how it reports them."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.mark.parametrize("mutant", [mutant for mutant, (_, found) in MUTANTS.items() if found])
    async def test_the_state_machine_catches(self, mutant: Mutant) -> None:
        suite = Suite(mutant())
        suite.steps = 20_000
        with pytest.raises(AssertionError) as caught:
            await suite.test_random_programs_give_the_same_results_as_the_model(suite.memory)
        _, program, repeat = caught.value.__notes__
        assert program.count("await backend.a") < 20, "the program is short"
        assert re.search(r"seed = \d+", repeat)

    async def test_a_seed_repeats_a_run(self) -> None:
        told = []
        for _ in range(2):
            suite = Suite(Overwrites())
            suite.seed, suite.steps = 8, 20_000
            with pytest.raises(AssertionError) as caught:
                await suite.test_random_programs_give_the_same_results_as_the_model(suite.memory)
            told.append([str(caught.value), *caught.value.__notes__])
        assert told[0] == told[1]


def test_no_part_of_the_suite_overrides_another() -> None:
    parts = [part for part in inspect.getmro(Suite) if part.__module__.startswith("deepfs.testing.")]
    names = Counter(name for part in parts for name in vars(part) if not name.startswith("__"))
    assert {name for name, count in names.items() if count > 1} <= {"pytestmark"}


def test_the_suite_uses_only_declared_capabilities_and_skips_nothing() -> None:
    declared = ("keeps_empty_directories", "keeps_created_at", "durable", "executes", "deletes", "watches")
    assert Capabilities.__struct_fields__ == (*declared, "has_links", "atomic_between_processes")
    source = "".join(path.read_text() for path in Path(deepfs.testing.__file__).parent.rglob("*.py"))
    used = set(re.findall(r"capabilities\.([a-z]\w*)", source))
    assert used <= set(Capabilities.__struct_fields__)
    assert not re.search(r"pytest\.(skip|xfail|mark\.skip|mark\.xfail|importorskip)", source)
