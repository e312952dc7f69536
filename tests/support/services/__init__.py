"""Local implementations of the services behind the SDKs of sandboxes; the real SDKs talk to them over sockets."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from deepfs.backends import DaytonaSandbox, DenoSandbox, ModalSandbox
from deepfs.sandboxes.remote import RemoteSandbox
from support.machines import Machine
from support.services import daytona, deno, modal

__all__ = ["SERVICES", "Maker", "open_service"]

Maker = partial[RemoteSandbox[Any]]
"""Makes a backend over the single sandbox of a service; takes the arguments that all backends have."""


class _Service(NamedTuple):
    open: Callable[[Machine], AbstractAsyncContextManager[Any]]
    backend: type[RemoteSandbox[Any]]
    id: str
    """The id of its sandbox."""


SERVICES: Final = {
    "modal": _Service(modal.open_modal, ModalSandbox, modal.ID),
    "daytona": _Service(daytona.open_daytona, DaytonaSandbox, daytona.ID),
    "deno": _Service(deno.open_deno, DenoSandbox, deno.ID),
}


@asynccontextmanager
async def open_service(name: str, machine: Machine) -> AsyncIterator[Maker]:
    """A service whose sandbox is `machine`; yields a function that makes backends over it."""
    service = SERVICES[name]
    await machine.check()
    async with service.open(machine) as sandbox:
        try:
            yield partial(service.backend, sandbox)
        finally:
            machine.stop()
