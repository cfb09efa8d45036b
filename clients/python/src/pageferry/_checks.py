"""Checks of arguments; all raise InvalidArgument with "field", "value" and "allowed"."""

from __future__ import annotations

import enum
import re

from pageferry.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LOWER_NAME = re.compile(r"[a-z0-9_]+")
MAX_ROOM_ID = (1 << 63) - 1


def invalid(message: str, field: str, value: object, allowed: object) -> InvalidArgument:
    """The exception, to be raised by the caller."""
    metadata = {"field": field, "value": str(value)[:256], "allowed": str(allowed)}
    return InvalidArgument(message, reason="INVALID_FIELD", metadata=metadata)


def check_range(field: str, value: int, least: int, most: int) -> None:
    """Checks a whole number with both bounds included."""
    try:
        inside = least <= value <= most and value == int(value)
    except (TypeError, ValueError):
        inside = False
    if not inside:
        raise invalid(
            f"{field} is {value}, allowed is {least} to {most}", field, value, f"{least}..{most}"
        )


def check_enum(field: str, value: int, kind: type[enum.IntEnum]) -> None:
    """Checks that `value` is one of `kind`, and not its zero."""
    if value == 0 or value not in set(kind):
        names = ", ".join(member.name for member in kind if member)
        raise invalid(f"{field} is {value!r}, allowed is one of {names}", field, value, names)


def check_name(field: str, value: str, most: int, *, lower: bool = False) -> None:
    """Checks the characters and the length of a name."""
    pattern, letters = (_LOWER_NAME, "[a-z0-9_]") if lower else (_NAME, "[A-Za-z0-9._-]")
    if not isinstance(value, str) or len(value) > most or not pattern.fullmatch(value):
        allowed = f"1 to {most} characters of {letters}"
        raise invalid(f"{field} is {value!r}, allowed is {allowed}", field, value, allowed)


def check_text(field: str, value: str, most: int) -> None:
    """Checks the length of a free text."""
    if not isinstance(value, str) or len(value) > most:
        raise invalid(f"{field} is longer than {most} characters", field, len(value), most)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise invalid(f"{field} is no text: {error}", field, ascii(value), "Unicode") from error


def check_timeout(field: str, seconds: float | None, least: float, most: float) -> None:
    """Checks a duration in seconds; None is allowed."""
    if seconds is not None and not least <= seconds <= most:
        raise invalid(
            f"{field} is {seconds} s, allowed is {least} to {most} s",
            field,
            seconds,
            f"{least}..{most}",
        )


def check_room(room_id: int, attempt: int, least_attempt: int) -> None:
    """Checks what names a room."""
    check_range("room_id", room_id, 0, MAX_ROOM_ID)
    check_range("attempt", attempt, least_attempt, (1 << 31) - 1)
