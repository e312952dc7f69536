"""The services behind the SDKs of sandboxes, on this machine: the SDKs are whole, and talk to them over sockets."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from deepfs.backends import DaytonaSandbox, DenoSandbox, ModalSandbox
from deepfs.backends._remote import RemoteSandbox
from support.machines import Machine
from support.services.daytona import open_daytona
from support.services.deno import open_deno
from support.services.modal import open_modal

__all__ = ["SERVICES", "Maker", "open_service"]

Maker = partial[RemoteSandbox]
"""Makes a backend over the one sandbox of a service; takes the arguments that all have."""

SERVICES: Mapping[str, object] = {"modal": open_modal, "daytona": open_daytona, "deno": open_deno}


@asynccontextmanager
async def open_service(name: str, machine: Machine) -> AsyncIterator[Maker]:
    """A service whose sandboxes are `machine`, and what makes backends over it."""
    if name == "modal":
        async with open_modal(machine) as modal:
            yield partial(ModalSandbox, modal)
    elif name == "daytona":
        async with open_daytona(machine) as daytona:
            yield partial(DaytonaSandbox, daytona)
    else:
        async with open_deno(machine) as deno:
            yield partial(DenoSandbox, deno)
