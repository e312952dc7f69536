"""Objects as values: what identifies a version of one, what is stored with it, and what that tells after a lost answer.

Each object names its last changes in its metadata. If the answer to a put is lost, they tell whether it took effect.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from deepfs.errors import BackendError
from deepfs.text import media, records
from deepfs.text.flat_tree import ChangedError, FileStat
from deepfs.types import FileDataV2

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


class Found(NamedTuple):
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


def found_object(
    path: str, meta: Mapping[str, Any], attributes: Mapping[str, str], content: bytes | None = None
) -> Found:
    """The object of `path` that the driver describes by `meta` and `attributes`, with its content if it was fetched."""
    modified_at = _time(meta["last_modified"])
    created_at = attributes.get(_CREATED)
    # A clock that is ahead of the store's must not make a file older than its creation.
    created_at = modified_at if created_at is None or not _is_time(created_at) else min(created_at, modified_at)
    stat = FileStat(meta["size"], modified_at, created_at, tag_of(path, meta, attributes))
    return Found(stat, content, attributes.get(_VERSION))


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

    Args:
        path: The path of the file; its type follows from its name, unless the object has another one.
        created_at: When it was created.
        change: The random name of this change.
        before: The tag of the object that is replaced.
        version: The version of the content, if known.
        source: The tag of the object that is copied here.
        is_edit: Whether a part of the content is replaced.
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


def outcome_of_put(path: str, found: Found | None, before: Tag | None, change: str, *, is_lost: bool) -> Tag | None:
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


def unknown_outcome(path: str, why: str = "the file changed since") -> BackendError:
    """The error of a change whose answer was lost, if it cannot be found out whether it was made."""
    return BackendError(
        path, f"the answer of the object store was lost, and {why}: read the file to see what was stored"
    )


def index_tag(stat: FileStat) -> str:
    """The tag of an object as a text that listings, too, know of; for a store without ETags, the time of its change."""
    return stat.tag.e_tag or (f"at {stat.modified_at}" if stat.modified_at else "")
