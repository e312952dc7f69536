"""Registers the adapters of this room with `deepfs.backends`, which must not import them."""

from deepfs.backends.older_protocols import Adapters, register
from deepfs.compat.class_bodies import adapt_body
from deepfs.compat.factories import backend_from, current_context

__all__: list[str] = []

register(Adapters(backend=backend_from, body=adapt_body, context=current_context))
