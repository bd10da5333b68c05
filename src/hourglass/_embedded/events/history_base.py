"""What every kind of history event has in common. The kinds are in `history` and `history_others`."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from hourglass.converter import Payload

Fields: TypeAlias = dict[str, Payload]


class Attributes(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag=True, omit_defaults=True):
    """What one kind of history event says."""
