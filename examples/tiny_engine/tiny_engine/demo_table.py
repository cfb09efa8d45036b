"""Figures of the rooms as a table."""

from __future__ import annotations

from collections.abc import Sequence

from tiny_engine.demo_rooms import Room

_ORDER_NAMES = {
    "grant_first": "grant first",
    "send_first": "send first",
    "grant_between": "in between",
}
_HEAD = (
    ("", "#"),
    ("", "room"),
    ("prompt", "tokens"),
    ("cached", "pages"),
    ("moved", "pages"),
    ("", "bytes"),
    ("grant to", "done ms"),
    ("", "GB/s"),
    ("order of", "arrival"),
    ("", "transport"),
)
_LEFT = {1, 8, 9}


def table(rooms: Sequence[Room]) -> list[str]:
    """Lines of the table: every room whose pages arrived."""
    rows = [row(room) for room in rooms if room.received]
    widths = [
        max(len(cell) for cell in column)
        for column in zip(
            *([head[0] for head in _HEAD], [head[1] for head in _HEAD], *rows), strict=True
        )
    ]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if index in _LEFT else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return ("  " + "  ".join(padded)).rstrip()

    return [line([head[0] for head in _HEAD]), line([head[1] for head in _HEAD]), *map(line, rows)]


def row(room: Room) -> tuple[str, ...]:
    """One room's cells."""
    ready = room.seen_order == "send_first" and room.seconds > 0
    return (
        str(room.number),
        str(room.id),
        str(len(room.tokens)),
        str(room.cached_pages),
        str(room.pages),
        f"{room.bytes:,}",
        f"{room.seconds * 1e3:.2f}",
        f"{room.bytes / room.seconds / 1e9:.2f}" if ready else "-",
        _ORDER_NAMES.get(room.seen_order, "unknown"),
        room.transport,
    )


def notes(rooms: Sequence[Room]) -> list[str]:
    """What one has to know to read the table."""
    lines = [
        "Time runs from the decode agent's grant to the last byte in place. Where the pages were",
        "sent first, that is their way alone. Where the grant came first, prefill computed the",
        "prompt in that time, and a rate would say nothing of the way.",
    ]
    ready = [r for r in rooms if r.received and r.seen_order == "send_first" and r.seconds > 0]
    if ready:
        size, seconds = sum(r.bytes for r in ready), sum(r.seconds for r in ready)
        lines += [
            f"Pages that were ready: {size / 1e6:.1f} MB in {seconds * 1e3:.1f} ms, "
            f"{size / seconds / 1e9:.2f} GB/s."
        ]
    return lines
