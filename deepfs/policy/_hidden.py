"""What rules keep from being read, as a search asks."""

from collections.abc import Iterable

from deepfs.core.search import Hidden
from deepfs.policy.rules import FilesystemPermission, Mode

__all__ = ["either", "hidden_by"]


def hidden_by(rules: Iterable[FilesystemPermission], refused: frozenset[Mode]) -> Hidden:
    """What may not be read where rules of the modes `refused` deny; links are not followed."""
    about_reading = [rule for rule in rules if "read" in rule.operations]

    def is_hidden(path: str, *, is_dir: bool) -> bool:
        for rule in about_reading:
            if is_dir and rule.covers("read", path):
                return rule.mode in refused
            if is_dir and rule.mode not in refused and rule.may_match_beneath("read", path):
                return False
            if not is_dir and rule.matches("read", path):
                return rule.mode in refused
        return False

    return is_hidden


def either(first: Hidden, second: Hidden | None) -> Hidden:
    """What one of both hides."""
    if second is None:
        return first
    return lambda path, *, is_dir: first(path, is_dir=is_dir) or second(path, is_dir=is_dir)
