"""Durations and sizes for people."""

__all__ = ["format_age", "format_bytes"]

_MINUTE = 60.0
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR


def format_age(seconds: float) -> str:
    """Format a duration, such as "12 ms", "3.2 s", "5 min" or "2 d"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size, name in ((_MINUTE, 1.0, "s"), (_HOUR, _MINUTE, "min"), (_DAY, _HOUR, "h")):
        if seconds < unit:
            return f"{seconds / size:.1f} {name}" if name == "s" else f"{seconds / size:.0f} {name}"
    return f"{seconds / _DAY:.0f} d"


def format_bytes(size: int) -> str:
    """Format a number of bytes, such as "12.5 MiB"."""
    if size < 1 << 20:
        return f"{size / (1 << 10):.1f} KiB"
    return f"{size / (1 << 20):.1f} MiB" if size < 1 << 30 else f"{size / (1 << 30):.1f} GiB"
