"""What the pages are about: a client, the code that was loaded, what may be shown and done.

Must not know: HTTP, HTML. All calls block; handlers make them on threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from hourglass._story.values import Peek, hidden, peek
from hourglass._ui.pulse import Pulse
from hourglass.client import Client
from hourglass.replay import History, Moment, Replayer, ReplayResult

_MOST_KEPT = 8


@dataclass
class Site:
    """One target, seen through one client.

    `modules` is code, where some was loaded: forms know its types, and a run can be walked back in time. `read_only` refuses
    what would change anything. `workers` gives the workers of this process. With a codec payloads are shown only to a reader
    who asks for them.
    """

    client: Client
    target: str = ""
    modules: Sequence[ModuleType] = ()
    read_only: bool = False
    decode: Callable[[Any], Any] | None = None
    workers: Callable[[], Sequence[Any]] = tuple
    pulse: Pulse = field(init=False)
    _walks: Walks | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.pulse = Pulse(self.client)

    @property
    def hides_payloads(self) -> bool:
        """Whether payloads are shown only on request."""
        return self.client.codec is not None

    def peek(self, asked: bool, longest: int = 20_000) -> Peek:
        """How payloads are shown to a reader who has asked for them, or not."""
        if self.hides_payloads and not asked:
            return hidden
        return peek(self.decode, longest)

    @property
    def walks(self) -> Walks | None:
        """The walks through runs, None where no code was loaded."""
        if self._walks is None and self.modules:
            self._walks = Walks(self.modules, self.client)
        return self._walks

    def close(self) -> None:
        """Free what the pages used."""
        self.pulse.close()
        if self._walks is not None:
            self._walks.close()


class Walks:
    """Histories as moments. Lists of moments are kept for a while, without what fibers held; one moment is replayed when it is
    looked at.
    """

    def __init__(self, modules: Sequence[ModuleType], client: Client) -> None:
        self._replayer = Replayer(modules=modules, converter=client.converter, codec=client.codec)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], tuple[History, tuple[Moment, ...], ReplayResult]] = (
            OrderedDict()
        )

    def outline(self, history: History) -> tuple[tuple[Moment, ...], ReplayResult]:
        """All moments of a history, without what fibers held."""
        key = history.run_id, len(history)
        with self._lock:
            known = self._kept.get(key)
            if known is None:
                known = history, *self._replayer.moments(history, range(0))
                self._kept[key] = known
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return known[1], known[2]

    def moment(self, history: History, number: int) -> tuple[Moment | None, Moment | None]:
        """One moment and the one before it, in full."""
        with self._lock:
            found, _ = self._replayer.moments(history, range(max(0, number - 1), number + 1))
        if number >= len(found):
            return None, None
        return found[number], found[number - 1] if number else None

    def close(self) -> None:
        """Free the replayer."""
        self._replayer.close()
