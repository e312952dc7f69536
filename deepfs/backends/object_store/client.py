"""Requests to an object store by obstore: sent again by a policy, and resolved by looking if an answer is lost."""

import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime, timedelta
from io import BytesIO
from typing import Any, Final, NamedTuple, TypeVar

import anyio

from deepfs._drivers import (
    FAILURES,
    FORBIDDEN,
    NO_CREDENTIALS,
    NOT_ALLOWED_HTTP,
    WRONG_CREDENTIALS,
    Condition,
    condition_of,
    failure_by,
)
from deepfs.backends.object_store.keys import BucketPlace, Keys
from deepfs.errors import BackendError, DeepFSError, NotSupportedError, quote
from deepfs.storage.runners import Requests, RetryPolicy
from deepfs.text import media, records
from deepfs.text.flat_tree import Change, ChangedError, FileStat
from deepfs.text.lines import version as content_version
from deepfs.types import FileDataV2

T = TypeVar("T")

BLOCK_BYTES: Final = 8 * 1024 * 1024
"""How much of a large object one request fetches or stores. S3 takes 10,000 parts, so the largest file has 78 GiB."""
_MOST_PARTS: Final = 4
"""How many parts of a file are sent at once; so many are held in memory."""
_PAGE: Final = 1000
"""How many objects a listing returns at once."""
_ID_BYTES: Final = 9
"""How many random bytes name a change."""
_IGNORES: Final = "ignores the conditions of puts, so changes could overwrite one another"


class Aborted(Exception):  # noqa: N818
    """Raised by the chunks of an upload, so that the driver removes the parts that are stored."""


# --- failures --------------------------------------------------------------------------------------------------------

_find_key: Final = re.compile(r'Path "(.*?)"(?: contained|: Encountered)', re.DOTALL).search
_find_status: Final = re.compile(r"status code: (\d{3})\b").search
_TRANSIENT: Final = frozenset({408, 429, 500, 502, 503, 504})
_INVALID: Final = 400
_UNKNOWN: Final = 401
_FORBIDDEN: Final = 403
_BEYOND: Final = 416
_REFUSED: Final = frozenset({"AlreadyExistsError", "PreconditionError"})
_LASTING: Final = frozenset(
    {
        "FileNotFoundError", "InvalidPathError", "NotImplementedError", "NotModifiedError", "NotSupportedError",
        "PermissionDeniedError", "UnauthenticatedError", "UnknownConfigurationKeyError", "ValueError",
    }
)  # fmt: skip
_find_code: Final = re.compile(r"<Code>(\w+)</Code>").search
_looks_for_credentials: Final = re.compile(r"://(?:169\.254\.1|metadata\.google)").search
"""Matches errors of requests to the machine's provider, which the driver makes where it was given no credentials."""


def _status(error: Exception) -> int | None:
    found = _find_status(str(error))
    return int(found.group(1)) if found else None


def _kind(error: Exception) -> str:
    return "FileNotFoundError" if isinstance(error, FileNotFoundError) else type(error).__name__


def is_driver_error(error: Exception) -> bool:
    """Whether the driver raised `error`."""
    return isinstance(error, FileNotFoundError | ValueError | TimeoutError) or type(error).__module__.startswith(
        ("obstore", "pyo3_")
    )


def is_transient(error: Exception) -> bool:
    """Whether `error` of the driver may pass, such as a lost connection or an overloaded server."""
    if not is_driver_error(error) or _kind(error) in _REFUSED | _LASTING:
        return False
    status = _status(error)
    return status in _TRANSIENT if status is not None else _condition_of(error) is not NOT_ALLOWED_HTTP


def _condition_of(error: Exception) -> Condition | None:
    """What an error of the driver stands for. It has texts only, with the answer of the store in them."""
    text, status = str(error), _status(error)
    if _looks_for_credentials(text):
        return NO_CREDENTIALS
    if status is None:
        return condition_of(error)
    # The store's own word for it counts more than the status, and what else it says is not looked at.
    code = _find_code(text)
    said = None if code is None else condition_of(Exception(code[1]))
    by_status = WRONG_CREDENTIALS if "token request" in text or status == _UNKNOWN else None
    return said or by_status or (FORBIDDEN if status == _FORBIDDEN else None)


def failure_of(error: Exception, path: str) -> DeepFSError:
    """The error to raise for one of the driver.

    It has a path if it is about the object of `path` only, not about the store.
    """
    if isinstance(error, DeepFSError):
        return error
    kind = _kind(error)
    if kind == "NotImplementedError":
        return NotSupportedError(None, "The object store does not support the request")
    if kind == "InvalidPathError":
        found = _find_key(str(error))
        key = quote(found.group(1)) if found else "one with an empty name"
        return BackendError(None, f"The object store has a key that its driver cannot list: {key}. Rename that object.")
    status, condition = _status(error), _condition_of(error)
    # A key that encrypts this object alone may be gone, for example.
    is_about_object = condition is FORBIDDEN or (condition is None and status == _INVALID)
    about = path if is_about_object else None
    return failure_by(error, condition, "object_store", "The object store", about, detail=str(status or kind))


def _failure_of_change(path: str, error: Exception) -> DeepFSError:
    """As `failure_of`, for an error of a change; a ChangedError if its condition does not hold.

    Raises `error` if it is not one of the driver.
    """
    if _kind(error) in _REFUSED:
        return ChangedError(path)
    if not isinstance(error, DeepFSError) and not is_driver_error(error):
        raise error
    return failure_of(error, path)


# --- versions of objects ---------------------------------------------------------------------------------------------
# Each object names its last changes in its metadata. If the answer to a put is lost, they tell whether it took effect.

_CREATED: Final = "deepfscreated"
_CHANGES: Final = "deepfschanges"
_VERSION: Final = "deepfsversion"
# The names of metadata are letters only: Azure takes no hyphen in them, and some proxies drop headers with underscores.
_MOST_CHANGES: Final = 16
"""How many of its last changes an object names."""
_TYPE: Final = "Content-Type"
_ENCODING: Final = "Content-Encoding"
_NO_TYPES: Final = frozenset({"application/octet-stream", "binary/octet-stream"})
"""The types that stores give objects without one."""


class Tag(NamedTuple):
    """Identifies a version of an object."""

    e_tag: str | None
    version: str | None = None
    changes: tuple[str, ...] = ()
    """The random names of the last changes of the object, the latest last; listings do not have them."""
    attributes: tuple[tuple[str, str], ...] = ()
    """What others stored with the object: its metadata, and headers that say more than its name."""

    def is_same(self, other: "Tag") -> bool:
        """Whether the other tag identifies the same version of the content."""
        return (self.e_tag, self.version) == (other.e_tag, other.version)


_STALE: Final = Tag('"00000000000000000000000000000000"', "1")
"""A tag that no object has."""


class FoundObject(NamedTuple):
    """An object: what is known about it, and its content if it was fetched."""

    stat: FileStat
    content: bytes | None = None
    content_version: str | None = None
    """The version of the whole content, if its writer stored it."""

    @property
    def tag(self) -> Tag:
        tag: Tag = self.stat.tag
        return tag

    def file(self) -> FileDataV2:
        """The object as a file."""
        stat = self.stat
        return records.new_file(self.content or b"", created_at=stat.created_at, now=stat.modified_at)

    def version_of_unread(self) -> str:
        """A version for an object that is not read whole, made of its tag."""
        return f"e-{self.tag.e_tag}-{self.tag.version or ''}"


def _time(time: datetime) -> str:
    """The time as files have it. Listings and single objects agree on seconds only."""
    return records.time_text(time.replace(microsecond=0))


def stat_of_listed(meta: Mapping[str, Any]) -> FileStat:
    """The stat of an object in a listing."""
    return FileStat(meta["size"], _time(meta["last_modified"]), None, Tag(meta["e_tag"], meta["version"]))


def parse_object(
    path: str, meta: Mapping[str, Any], attributes: Mapping[str, str], content: bytes | None = None
) -> FoundObject:
    """The object of `path` that the driver describes by `meta` and `attributes`, with its content if it was fetched."""
    modified_at = _time(meta["last_modified"])
    created_at = attributes.get(_CREATED)
    # A clock that is ahead of the store's must not make a file older than its creation.
    created_at = modified_at if created_at is None or not _is_time(created_at) else min(created_at, modified_at)
    stat = FileStat(meta["size"], modified_at, created_at, tag_of(path, meta, attributes))
    return FoundObject(stat, content, attributes.get(_VERSION))


def tag_of(path: str, answer: Mapping[str, Any], attributes: Mapping[str, str]) -> Tag:
    """The tag of the object of `path` with these attributes, which the driver describes by `answer`."""
    changes = attributes.get(_CHANGES)
    implied = {(_TYPE, each) for each in (_type_of(path), *_NO_TYPES)}
    others = [each for each in attributes.items() if each[0] not in (_CREATED, _CHANGES, _VERSION)]
    kept = tuple(each for each in others if each not in implied)
    return Tag(answer["e_tag"], answer["version"], tuple(changes.split(".")) if changes else (), kept)


def _type_of(path: str) -> str:
    return media.mime_type(path) or "text/plain"


_is_time = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00").fullmatch


def metadata(
    path: str,
    created_at: str | None,
    change: str,
    before: Tag | None,
    version: str | None,
    *,
    source: Tag | None = None,
    is_edit: bool = False,
) -> dict[str, str]:
    """The attributes to store with a file: those of the object that it is made of, and those of this change.

    `before` is the tag of the object that is replaced, `source` that of the one that is copied here. The type follows
    from the name of the file, unless the object has another one.
    """
    changes = (*(before.changes if before else ()), change)[-_MOST_CHANGES:]
    origin = source or before
    kept = dict(origin.attributes) if origin else {}
    if source is None and not is_edit:
        kept.pop(_ENCODING, None)  # It was that of another content.
    given = {
        _TYPE: _type_of(path),
        **kept,
        _CREATED: created_at,
        _CHANGES: ".".join(changes),
        _VERSION: version,
    }
    return {name: value for name, value in given.items() if value is not None}


# --- outcomes of changes ---------------------------------------------------------------------------------------------


def outcome_of_put(
    path: str, found: FoundObject | None, before: Tag | None, change: str, *, is_lost: bool
) -> Tag | None:
    """The tag of what a put stored, by what is `found` now; None if it stored nothing and may be sent again.

    Raises ChangedError if another change came first, and BackendError if it cannot be found out.
    """
    if found is not None and change in found.tag.changes:
        return found.tag
    if found is None and before is None:
        return None
    if found is None or before is None:
        raise ChangedError(path)
    if found.tag.is_same(before) and found.tag.changes == before.changes:
        return None
    # An object names its last changes. If it names the one before ours and not ours, ours was never made.
    if is_lost and not (before.changes and before.changes[-1] in found.tag.changes):
        raise unknown_outcome(path)
    raise ChangedError(path)


def unknown_outcome(path: str, why: str = "the file changed since", cause: DeepFSError | None = None) -> BackendError:
    """The error of a change whose answer was lost, if it cannot be found out whether it was made."""
    reason = f"the answer of the object store was lost, and {why}: read the file to see what was stored"
    return BackendError.because(path, reason, cause=cause)


def index_tag(stat: FileStat) -> str:
    """The tag of an object as a text that listings, too, know of; for a store without ETags, the time of its change."""
    return stat.tag.e_tag or (f"at {stat.modified_at}" if stat.modified_at else "")


# --- requests --------------------------------------------------------------------------------------------------------


class ObjectClient:
    """Sends requests about files to an object store, on an asyncio loop, by a policy.

    With `is_conditional`, puts are conditional on what is there.
    """

    def __init__(self, place: BucketPlace, keys: Keys, policy: RetryPolicy, *, is_conditional: bool) -> None:
        import obstore

        self._driver = obstore
        self._store = place.store
        self._resending = place.resending
        self.keys: Keys = keys
        self._requests = Requests(policy, is_transient)
        self._policy = policy
        self._is_conditional = is_conditional
        self._driver_resends = place.is_given
        self.in_memory: bool = type(place.store).__name__ == "MemoryStore"
        self.has_bare_tags: bool = False
        """Whether the store compares the tag of a condition without the quotes that belong to it."""

    def with_keys(self, keys: Keys) -> "ObjectClient":
        """The same client for the files under other keys."""
        client = copy(self)
        client.keys = keys
        return client

    async def _send(self, path: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Send a request about a path by the policy. Raises errors of `deepfs.errors` without those of the driver."""
        failure: DeepFSError
        try:
            return await self._requests.send(attempt)
        except Exception as error:
            if not isinstance(error, DeepFSError) and not is_driver_error(error):
                raise
            failure = failure_of(error, path)
        raise failure

    # --- looking ---

    async def stat(self, path: str) -> FoundObject | None:
        """Look at the object of a path; None if there is none."""
        return await self._get(path, {"head": True}, whole=False)

    async def fetch(self, path: str, *, limit: int | None = None) -> FoundObject | None:
        """Fetch the object of a path, without its content if it is over `limit` bytes; None if there is none."""
        return await self._get(path, None, whole=True, limit=limit)

    async def fetch_range(self, path: str, start: int, end: int, tag: Tag | None = None) -> FoundObject | None:
        """Fetch a part of an object; None if there is no object, or no longer the version `tag`."""
        options: dict[str, Any] = {"range": (start, end)}
        if tag is not None and tag.e_tag is not None:
            options["if_match"] = tag.e_tag
        return await self._get(path, options, whole=True)

    async def _get(
        self, path: str, options: dict[str, Any] | None, *, whole: bool, limit: int | None = None
    ) -> FoundObject | None:
        key = self.keys.key(path)

        async def attempt() -> FoundObject | None:
            try:
                result = await self._driver.get_async(self._store, key, options=options)
            except Exception as error:
                if _kind(error) in ("FileNotFoundError", "PreconditionError"):
                    return None
                if options and "range" in options and (_status(error) == _BEYOND or self.in_memory):
                    return await self._get(path, {"head": True}, whole=False)
                raise
            meta, attributes = result.meta, result.attributes
            if not whole or (limit is not None and meta["size"] > limit):
                return parse_object(path, meta, attributes)
            return parse_object(path, meta, attributes, bytes(await result.bytes_async()))

        return await self._send(path, attempt)

    async def pages(self, prefix: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """List the objects whose keys begin with `prefix`, a page at a time."""
        stream: Any = None
        after: str | None = None
        directory = self.keys.path(prefix).rstrip("/") or "/"

        async def next_page() -> Sequence[Mapping[str, Any]] | None:
            nonlocal stream
            if stream is None:
                stream = self._driver.list(self._store, prefix or None, offset=after, chunk_size=_PAGE)
            try:
                page: Sequence[Mapping[str, Any]] = await anext(stream)
            except StopAsyncIteration:
                return None
            except BaseException as error:
                if not isinstance(error, Exception):
                    _let_end(stream)
                stream = None  # The next attempt goes on behind the last page.
                raise
            return page

        while (page := await self._send(directory, next_page)) is not None:
            if page:
                after = page[-1]["path"]
                yield page

    async def children(self, prefix: str) -> Mapping[str, Any]:
        """List what is directly under `prefix`: `objects`, and `common_prefixes` of those deeper down."""
        directory = self.keys.path(prefix).rstrip("/") or "/"
        listed: Mapping[str, Any] = await self._send(
            directory, lambda: self._driver.list_with_delimiter_async(self._store, prefix or None)
        )
        return listed

    # --- changing ---

    async def put(self, wanted: Change) -> Tag:
        """Store a file if the object is still the version that the change replaces, or if there is none.

        Raises ChangedError if it is not, and BackendError if the store failed. If an answer is lost, the object that is
        there then tells whether the put took effect.
        """
        assert wanted.after is not None
        path, data, before = wanted.path, wanted.after, wanted.origin
        content = records.content_bytes(data, path)
        change = secrets.token_urlsafe(_ID_BYTES)
        attributes = metadata(
            path, data.created_at, change, before, content_version(content),
            source=wanted.source, is_edit=wanted.replacement is not None,
        )  # fmt: skip
        mode = self._mode(before, creates=wanted.condition == "create")
        is_lost = False
        for number in range(1, self._policy.attempts + 1):
            try:
                answer = await self._put_once(path, content, attributes, mode)
                if isinstance(answer, Tag):
                    return answer
                failure, is_refused = answer, isinstance(answer, ChangedError)
                # A refusal may be due to this very put, if it was sent before.
                if is_refused and not (is_lost or self._driver_resends):
                    raise failure
                is_lost |= not is_refused
                found = await self.stat(path)
            except FAILURES as error:
                if is_lost:
                    raise unknown_outcome(path, "it does not answer now", error) from None
                raise
            tag = outcome_of_put(path, found, before, change, is_lost=is_lost)
            if tag is not None:
                return tag
            if number < self._policy.attempts:
                await anyio.sleep(self._policy.delay(number))
        raise failure

    async def _put_once(self, path: str, content: bytes, attributes: dict[str, str], mode: Any) -> Tag | DeepFSError:
        """Send a put once.

        Returns the tag of the object, or why there is none: a ChangedError, or the error of an answer that was lost.
        Raises other errors.
        """
        key = self.keys.key(path)

        async def attempt() -> Mapping[str, Any]:
            answer: Mapping[str, Any] = await self._driver.put_async(
                self._store, key, self._body(content), attributes=attributes, mode=mode, use_multipart=False
            )
            return answer

        try:
            answer = await self._requests.send(attempt, attempts=1)
        except Exception as error:
            failure = _failure_of_change(path, error)
            is_final = not (isinstance(failure, ChangedError) or is_transient(error))
        else:
            return tag_of(path, answer, attributes)
        if is_final:
            raise failure
        return failure

    def _body(self, content: bytes) -> bytes | BytesIO:
        """What to send. A store in memory gets a file, which it copies.

        Before 0.12, obstore's MemoryStore needs the GIL to free bytes of Python, and does so under its own lock, which
        whoever lists it waits for with the GIL held.
        """
        return BytesIO(content) if self.in_memory else content

    def _mode(self, before: Tag | None, *, creates: bool) -> Any:
        if not self._is_conditional or (before is None and not creates):
            return "overwrite"
        if before is None:
            return "create"
        return _update_of(before, is_bare=self.has_bare_tags)

    async def delete(self, path: str, before: Tag | None) -> None:
        """Delete the object of a path, which was last seen as the version `before`.

        The request itself has no condition. Raises ChangedError if the object is another one after an answer was lost.
        """
        key = self.keys.key(path)
        for number in range(1, self._policy.attempts + 1):
            try:
                await self._requests.send(lambda: self._driver.delete_async(self._store, key), attempts=1)
            except Exception as error:
                if isinstance(error, FileNotFoundError):
                    return
                failure, is_final = _failure_of_change(path, error), not is_transient(error)
            else:
                return
            if is_final:
                raise failure
            found = await self.stat(path)
            if found is None:
                return
            if before is not None and not found.tag.is_same(before):
                if before.changes and before.changes[-1] in found.tag.changes:
                    raise ChangedError(path)
                raise unknown_outcome(path)
            if number < self._policy.attempts:
                await anyio.sleep(self._policy.delay(number))
        raise failure

    async def put_parts(self, path: str, before: FileStat | None, chunks: AsyncIterator[bytes]) -> None:
        """Store a file in parts, whatever is there. If this fails, nothing is kept. `chunks` may raise Aborted."""
        change = secrets.token_urlsafe(_ID_BYTES)
        tag, created_at = (before.tag, before.created_at) if before else (None, None)
        attributes = metadata(path, created_at or records.timestamp(), change, tag, None)
        options: dict[str, Any] = {"chunk_size": BLOCK_BYTES, "max_concurrency": _MOST_PARTS}
        key = self.keys.key(path)
        failure: DeepFSError
        try:
            data = BytesIO(b"".join([chunk async for chunk in chunks])) if self.in_memory else chunks
            await self._driver.put_async(self._resending, key, data, attributes=attributes, **options)
        except Exception as error:
            if isinstance(error, Aborted):
                return
            failure = _failure_of_change(path, error)
        else:
            return
        # The answer to the last request may be lost.
        found = await self.stat(path)
        if found is None or change not in found.tag.changes:
            raise failure

    async def presign(self, path: str, method: str, seconds: float) -> str:
        """A URL for a request that needs no credentials for some time."""
        key = self.keys.key(path)
        url: str = await self._send(
            path, lambda: self._driver.sign_async(self._store, method, key, timedelta(seconds=seconds))
        )
        return url

    async def probe_conditions(self, key: str) -> str | None:
        """What the store does with the conditions of puts, if it does not keep them. Leaves nothing behind.

        Finds out whether it compares tags as it gives them, or without their quotes, as Ceph before 17 does.
        """
        try:
            await self._try_put(key, "create")
            if await self._try_put(key, "create"):
                return _IGNORES
            for is_bare in (False, True):
                if await self._try_put(key, _update_of(_STALE, is_bare=is_bare)):
                    return _IGNORES
                before = await self._tag(key)
                # A tag that is new shows that an earlier attempt of this put was made.
                if await self._try_put(key, _update_of(before, is_bare=is_bare)) or await self._tag(key) != before:
                    self.has_bare_tags = is_bare
                    return None
        finally:
            with anyio.CancelScope(shield=True):
                await self._send("/", lambda: self._driver.delete_async(self._store, key))
        return "refuses puts whose conditions hold, so files could not be changed"

    async def _try_put(self, key: str, mode: Any) -> bool:
        """Whether the store takes a put under a condition."""

        async def attempt() -> bool:
            try:
                await self._driver.put_async(self._store, key, self._body(b""), mode=mode, use_multipart=False)
            except Exception as error:
                if _kind(error) in _REFUSED:
                    return False
                raise
            return True

        return await self._send("/", attempt)

    async def _tag(self, key: str) -> Tag:
        return tag_of(key, await self._send("/", lambda: self._driver.head_async(self._store, key)), {})


def _update_of(before: Tag, *, is_bare: bool) -> dict[str, str]:
    """The mode of a put that replaces a version of an object."""
    e_tag = before.e_tag.strip('"') if before.e_tag and is_bare else before.e_tag
    given = {"e_tag": e_tag, "version": before.version}
    return {name: value for name, value in given.items() if value is not None}


def _let_end(stream: Any) -> None:
    """Have the driver keep a listing until the request that was given up has ended.

    Freed while a request is under way, it would break the client for good: it is then outside of the driver's runtime.
    """
    with suppress(Exception):
        anext(stream).add_done_callback(_ignore)


def _ignore(ended: Any) -> None:
    if not ended.cancelled():
        ended.exception()
