"""All faults by name, in the order in which they are run."""

from __future__ import annotations

from . import kills
from .outcome import Fault

FAULTS: dict[str, Fault] = {
    "kills-in-memory": kills.in_memory,
    "kills-on-server": kills.on_server,
}
