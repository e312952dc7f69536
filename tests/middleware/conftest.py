"""Agents have a sync form and an async one, which share their code; each test runs in one of them."""

from zlib import crc32

import pytest

from support.agents import Invoke, backend, in_async, in_sync

__all__ = ["backend"]


@pytest.fixture
def invoke(request: pytest.FixtureRequest) -> Invoke:
    """Runs a graph in one form, which the name of the test draws."""
    return (in_sync, in_async)[crc32(request.node.name.encode()) % 2]
