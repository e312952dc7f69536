"""Agents have an async form and a sync one, which share their code.

A test that takes `invoke` runs its agent in the async form. With `--every-loop`, as in the nightly run, or marked
`both_forms`, it runs once in each form.
"""

import pytest

from support.agents import backend, in_async, in_sync

__all__ = ["backend"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_forms: runs agents in their sync form as well as in the async one")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "invoke" in metafunc.fixturenames:
        is_marked = metafunc.definition.get_closest_marker("both_forms") is not None
        forms = [in_async, in_sync] if is_marked or metafunc.config.getoption("--every-loop") else [in_async]
        metafunc.parametrize("invoke", forms)
