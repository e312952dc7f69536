"""The former path of `deepfs.sandboxes.base`, for type checkers; see `deepfs._moved`."""

from deepfs.sandboxes.base import BaseSandbox as BaseSandbox
