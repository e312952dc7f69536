"""The keys of an object store that stand for paths, and the stores that URLs name.

The file `/a/b` has the key `prefix/a/b`. The driver refuses ASCII control characters in keys, so each is stored as a
character of a private area of Unicode; those characters themselves are stored with an escape before them.
"""

import os
import re
from collections.abc import Hashable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from deepfs.errors import InvalidPathError
from deepfs.text import paths
from deepfs.text.arguments import check_installed

_MAX_KEY_BYTES: Final = 1024
"""The longest key that S3, Google Cloud Storage and Azure take, in UTF-8."""

_AREA: Final = 0xF000
_ESCAPE: Final = chr(_AREA)
_CONTROLS: Final = (*range(1, 0x20), 0x7F)
_STORED: Final = {code: chr(_AREA + code) for code in _CONTROLS}
_PRIVATE: Final = f"{_ESCAPE}{''.join(_STORED.values())}"
_ESCAPED: Final = re.compile(f"[{_PRIVATE}]")
_RESTORED: Final = re.compile(f"{_ESCAPE}?[{_PRIVATE}]|{_ESCAPE}")


def _restore(found: re.Match[str]) -> str:
    text = found.group()
    return text[1] if len(text) > 1 else chr(ord(text) - _AREA)


class Keys:
    """Translates between paths and keys; `root` is a path in a store whose root is the path `above` in the bucket."""

    def __init__(self, root: str, above: str = "/") -> None:
        self._root = f"{above}{root}".rstrip("/") if above != "/" else root.rstrip("/")
        self.prefix: str = "" if root == "/" else f"{self._escape(root[1:])}/"

    def whole(self, path: str) -> str:
        """Return the path in the whole bucket."""
        return self._root + path if path != "/" else self._root or "/"

    def key(self, path: str) -> str:
        """Return the key of a normalised path; that of a directory path with `/` at its end ends in `/`, too."""
        return self.prefix + self._escape(path[1:])

    def path(self, key: str) -> str:
        """Return what the key would be as a path; it is not normal if the key does not stand for a file."""
        return "/" + self._unescape(key[len(self.prefix) :])

    def _escape(self, text: str) -> str:
        return _ESCAPED.sub(lambda found: _ESCAPE + found.group(), text).translate(_STORED)

    def _unescape(self, text: str) -> str:
        if _ESCAPED.search(text) is None:
            return text
        plain = _RESTORED.sub(_restore, text)
        # A key that is not in escaped form would have the path of another key; `//` makes it no path.
        return plain if self._escape(plain) == text else f"//{text}"

    def fits(self, path: str) -> bool:
        """Whether the key of `path` is short enough for an object store."""
        return len(self.key(path).encode()) <= _MAX_KEY_BYTES


def check_key(keys: Keys, path: str) -> None:
    """Raise InvalidPathError if the key of `path` is too long for an object store."""
    if not keys.fits(path):
        size = len(keys.key(path).encode())
        raise InvalidPathError(
            path, f"its key would have {size:,} bytes, and object stores take at most {_MAX_KEY_BYTES:,}"
        )


class BucketPlace(NamedTuple):
    """A store of the driver, and what is known about it."""

    store: Any
    resending: Any
    """The same store, but with a client that sends requests again by itself, for uploads in parts."""
    root: str
    """The path in the store below which backends begin."""
    above: str
    """The path in the bucket at which the store begins."""
    scope: Hashable
    """Identifies the bucket."""
    is_given: bool
    """Whether the user made the store, so that its client may send requests again by itself."""


_SCHEMES: Final = {"s3": "S3Store", "s3a": "S3Store", "gs": "GCSStore", "az": "AzureStore", "azure": "AzureStore"}
_NAMES: Final = ("bucket", "container_name", "account_name", "endpoint", "aws_endpoint_url_s3", "use_emulator")
"""The options that say which bucket is meant. The others are not looked at: some of them are secret."""
_CLIENT_OPTIONS: Final = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "default_headers",
        "http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle",
        "http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes",
        "proxy_url", "randomize_addresses", "root_certificate", "timeout", "user_agent",
    }
)  # fmt: skip
"""What users take for options of the store, as the driver does until one asks it which it has."""


def _driver() -> Any:
    check_installed("obstore", "objectstore", "ObjectStoreBackend")
    import obstore.store

    return obstore.store


def _root(path: str) -> str:
    return paths.normalize("/" + path)


def store_of_url(url: str, options: Mapping[str, Any], attempts: int) -> BucketPlace:
    """Open the store that a URL names. Raises ValueError for a URL or an option that cannot be used.

    Unless `options` say otherwise, requests are sent once, and those for parts of a file `attempts` times.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        raise ValueError("ObjectStoreBackend does not store files on disk: use FilesystemBackend for file:// URLs")
    driver = _driver()
    if parts.scheme == "memory":
        if options:
            raise ValueError(f"memory:// has no options: {_names(options)}")
        store = driver.MemoryStore()
        return BucketPlace(store, store, _root(unquote(parts.path)), "/", _scope(store), is_given=False)
    if parts.scheme not in _SCHEMES or not parts.netloc:
        # The URL is not shown: it may hold a password.
        raise ValueError("the URL of an object store is s3://bucket/prefix, gs://…, az://container/prefix or memory://")
    kind = getattr(driver, _SCHEMES[parts.scheme])
    client = {name: value for name, value in options.items() if name in _CLIENT_OPTIONS}
    if client:
        options = {name: value for name, value in options.items() if name not in client}
        options["client_options"] = client | (options.get("client_options") or {})
    try:
        store = _store_of(kind, parts.netloc, {"retry_config": _retries(0), **options})
        resending = _store_of(kind, parts.netloc, {"retry_config": _retries(attempts - 1), **options})
    except Exception as error:
        reason = type(error).__name__
        failure = ValueError(f"the options of the object store cannot be used ({reason}): {_names(options)}")
    else:
        root = _root(unquote(parts.path))
        return BucketPlace(store, resending, root, "/", _scope(store), is_given="retry_config" in options)
    raise failure


_stores: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()


def _store_of(kind: type, bucket: str, options: Mapping[str, Any]) -> Any:
    """The store of all backends of a bucket with the same options: each has connections and certificates of its own."""
    try:
        # What the options leave out comes from the environment.
        key = os.getpid(), kind, bucket, _hashable(options), frozenset(os.environ.items())
        found = _stores.get(key)
    except TypeError:  # An option has no hash, so nobody knows whether another one is the same.
        return kind(bucket, **options)
    return _stores.setdefault(key, kind(bucket, **options)) if found is None else found


def _hashable(value: Any) -> Any:
    return frozenset((name, _hashable(each)) for name, each in value.items()) if isinstance(value, Mapping) else value


def _retries(number: int) -> dict[str, Any]:
    return {"max_retries": number, "retry_timeout": timedelta(minutes=3)}


def _names(options: Mapping[str, Any]) -> str:
    """The names of the options. Their values are not shown: some are secret."""
    return ", ".join(sorted(options)) or "none were given"


def as_store(store: Any) -> BucketPlace:
    """Return the place of a store object of obstore. Raises TypeError or ValueError if it is no object store."""
    driver = _driver()
    if isinstance(store, driver.LocalStore):
        raise ValueError("obstore's LocalStore has no conditional update: use FilesystemBackend for files on disk")
    if not isinstance(store, driver.S3Store | driver.GCSStore | driver.AzureStore | driver.MemoryStore):
        raise TypeError(f"an object store is given by its URL or as a store of obstore, not as {type(store).__name__}")
    above = "/" + str(getattr(store, "prefix", None) or "").strip("/")
    is_given = not isinstance(store, driver.MemoryStore)
    return BucketPlace(store, store, "/", above, _scope(store), is_given=is_given)


def _scope(store: Any) -> Hashable:
    config = getattr(store, "config", None)
    if config is None:
        return ("objects", id(store))
    named = tuple((name, str(config[name])) for name in _NAMES if name in config)
    return ("objects", type(store).__name__, named)


def identity(scope: Hashable, root: str) -> str:
    """A text for a path in a bucket that is the same in all processes and at all addresses of the server."""
    _, kind, *named = scope if isinstance(scope, tuple) else ("", "")
    bucket = [value for name, value in named[0] if name in _BUCKET_NAMES] if named else []
    return "\n".join([kind if named else "memory", *bucket, root])


def display_url(scope: Hashable, root: str) -> str:
    """The URL of a path in a bucket, for people: with the scheme and the bucket, and without the server."""
    kind, *bucket, path = identity(scope, root).split("\n")
    name = bucket[0] if bucket else ""  # An account of Azure may follow.
    return f"{_SHOWN_SCHEMES.get(kind, 'memory')}://{name}{path}"


_SHOWN_SCHEMES: Final = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}
_BUCKET_NAMES: Final = ("bucket", "container_name", "account_name")
