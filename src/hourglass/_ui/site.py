"""What the pages are about: a client, and whether it can be reached; the code that was loaded; what may be shown and done.

Must not know: HTTP, HTML. All calls block; handlers make them on threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from types import ModuleType
from typing import Any

from hourglass._story.values import Peek, hidden, peek
from hourglass.client import Client
from hourglass.errors import HourglassError, ServiceError, ServiceTimeoutError, StorageError
from hourglass.replay import History, Moment, Replayer, ReplayResult

# --- whether it can be reached ---------------------------------------------------------------------------------
#
# Asked with little patience, every second while readers look.
#
# A client is patient: it tries for ten seconds to reach a server that is away. A reader hears of it sooner, and from
# then on at once. Must not know: HTTP. Invariants: at most one thread asks; it ends when no reader has looked for a
# while.


PATIENCE = 2.0
_PAUSE = 1.0
_WATCHED = 30.0
_LONGEST_PAYLOAD = 20_000
_AWAY = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})


@dataclass(frozen=True)
class Health:
    """`away` says that nothing can be asked, `notice` that what is told may be old; both are empty where all is well."""

    away: str = ""
    notice: str = ""

    @property
    def trouble(self) -> str:
        """What a reader should know."""
        return self.away or self.notice


def look(client: Client) -> Health:
    """Ask for the shortest answer that there is."""
    try:
        return Health(notice=client.list_page(page_size=1, rpc_timeout=PATIENCE).notice)
    except StorageError as error:
        return Health(notice=str(error))
    except ServiceTimeoutError:
        return Health(away=f"{client.target} does not answer: it is away, or too busy")
    except ServiceError as error:
        # A server that refuses this question is there.
        return Health(away=str(error)) if error.status in _AWAY else Health()
    except HourglassError as error:
        return Health(notice=str(error))


class Pulse:
    """What was found last."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._looked_at = 0.0
        self._health = Health()

    def health(self) -> Health:
        """What was found last; from now on it is looked after for a while."""
        with self._lock:
            self._looked_at = monotonic()
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="hourglass-ui-pulse", daemon=True)
                self._thread.start()
            return self._health

    def _run(self) -> None:
        while True:
            found = look(self._client)
            with self._lock:
                self._health = found
                if self._closed.is_set() or monotonic() - self._looked_at > _WATCHED:
                    self._thread, self._health = None, Health()
                    return
            self._closed.wait(_PAUSE)

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(PATIENCE + _PAUSE)


# --- the site --------------------------------------------------------------------------------------------------


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

    def peek(self, asked: bool) -> Peek:
        """How payloads are shown to a reader who has asked for them, or not."""
        if self.hides_payloads and not asked:
            return hidden
        return peek(self.decode, _LONGEST_PAYLOAD)

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
