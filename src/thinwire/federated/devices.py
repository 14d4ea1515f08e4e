"""Devices that were measured: how fast each computes and sends, and when it is there. Read from a file of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataError
from .sessions import Recorded, Session

FIELDS = "computation, communication and, all three or none, active, inactive, finish_time"


class Device(NamedTuple):
    """One device."""

    milliseconds: float  # of inference an example
    kbit: float  # a second, both ways
    sessions: tuple[Session, ...] | None  # None: they are not known
    length: float  # seconds, after which sessions begin anew


def read_devices(path: str | Path) -> list[Device]:
    """The devices of a file, see :meth:`thinwire.Network.read`. Raises :class:`DataError` naming the first bad one."""
    try:
        devices = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable JSON file ({error})") from error
    if not isinstance(devices, list) or not devices:
        raise DataError(f"{path}: a list of devices is expected, with one or more")
    return [_device(fields, f"{path}: device {number}") for number, fields in enumerate(devices)]


def replay(devices: Sequence[Device]) -> Recorded | None:
    """The sessions of devices, one a client; None where they are known of none. Others are always there."""
    if all(device.sessions is None for device in devices):
        return None
    always = ((0.0, 1.0),)
    sessions = tuple(always if device.sessions is None else device.sessions for device in devices)
    return Recorded(sessions, tuple(device.length for device in devices))


def _device(fields: Any, name: str) -> Device:
    try:
        speed, rate = float(fields["computation"]), float(fields["communication"])
        known = [key in fields for key in ("active", "inactive", "finish_time")]
        sessions, length = None, 1.0
        if all(known):
            begins, ends, length = fields["active"], fields["inactive"], float(fields["finish_time"])
            sessions = tuple((float(begin), float(end)) for begin, end in zip(begins, ends, strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{name} has not {FIELDS} as numbers ({error!r})") from error
    times = [time for session in sessions or () for time in session]
    fits = all(a < b for a, b in zip([-math.inf, *times], [*times, math.inf], strict=True))
    if not fits or (times and not 0 <= times[0] <= times[-1] <= length) or any(known) != all(known):
        raise DataError(f"{name} has not {FIELDS}, with times that rise from 0 to finish_time")
    if not (0 <= speed < math.inf and 0 < rate < math.inf and 0 < length < math.inf):
        raise DataError(f"{name}: computation={speed}, communication={rate}, finish_time={length}: not measured")
    return Device(speed, rate, sessions, length)
