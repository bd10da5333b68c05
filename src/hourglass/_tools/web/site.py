"""The data source of the pages: a client and its health, loaded code, and permissions.

Must not know: HTTP, HTML. All calls block, so handlers make them on threads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from types import ModuleType
from typing import Any

from hourglass._tools.diagnosis.problems import problems_of
from hourglass._tools.timeline.run_state import Problem
from hourglass._tools.timeline.values import Peek, hidden, peek
from hourglass._tools.web.replays import TimeTravel
from hourglass.client import Client, WorkflowExecution
from hourglass.errors import HourglassError, ServiceError, ServiceTimeoutError, StorageError

# Health of the engine: checked every second, with a short timeout, while readers have pages open.
#
# If a server is unreachable, a client retries for ten seconds. With this check a page reports a failure sooner,
# and later pages report it without delay. Must not know: HTTP. Invariants: at most one thread checks; it ends
# when no page has been requested for a while.


RPC_TIMEOUT = 2.0
_PAUSE = 1.0
_IDLE_TIMEOUT = 30.0
_LONGEST_PAYLOAD = 20_000
_AWAY = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})


@dataclass(frozen=True)
class Health:
    """The health of the engine: `unreachable` if no request can succeed, `notice` if data may be outdated."""

    unreachable: str = ""
    notice: str = ""

    @property
    def trouble(self) -> str:
        """The message to display, if any."""
        return self.unreachable or self.notice


def check_health(client: Client) -> Health:
    """Send the cheapest request to the engine, and return the engine's health."""
    try:
        return Health(notice=client.list_page(page_size=1, rpc_timeout=RPC_TIMEOUT).notice)
    except StorageError as error:
        return Health(notice=str(error))
    except ServiceTimeoutError:
        return Health(unreachable=f"{client.target} does not respond: it is down or overloaded")
    except ServiceError as error:
        # A server that rejects this request is reachable.
        return Health(unreachable=str(error)) if error.status in _AWAY else Health()
    except HourglassError as error:
        return Health(notice=str(error))


class HealthMonitor:
    """A monitor that checks the engine's health on a thread, on demand."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_read = 0.0
        self._health = Health()

    def health(self) -> Health:
        """Return the latest health, and continue the checks for a while."""
        with self._lock:
            self._last_read = monotonic()
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="hourglass-ui-pulse", daemon=True)
                self._thread.start()
            return self._health

    def _run(self) -> None:
        while True:
            health = check_health(self._client)
            with self._lock:
                self._health = health
                if self._closed.is_set() or monotonic() - self._last_read > _IDLE_TIMEOUT:
                    self._thread, self._health = None, Health()
                    return
            self._closed.wait(_PAUSE)

    def close(self) -> None:
        """Stop checking."""
        self._closed.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(RPC_TIMEOUT + _PAUSE)


_MAX_AGE = 3.0
_MAX_ENTRIES = 2000


class ProblemCache:
    """A cache of the problems that block runs, for a few seconds: a server must be queried for each run."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[float, Problem | None]] = OrderedDict()

    def lookup(self, runs: Iterable[WorkflowExecution]) -> Mapping[str, Problem]:
        """Return the problems that block these runs, by run id. Use cached results where possible."""
        now = monotonic()
        open_runs = [run for run in runs if run.close_time is None]
        with self._lock:
            cached = {
                run.run_id: self._entries[run.run_id][1]
                for run in open_runs
                # A problem that the engine itself reports is newer than a cached entry.
                if run.run_id in self._entries
                and not run.reported_problems
                and now - self._entries[run.run_id][0] < _MAX_AGE
            }
        missing = [run for run in open_runs if run.run_id not in cached]
        found_problems = problems_of(self._client, missing)
        with self._lock:
            for run in missing:
                self._entries[run.run_id] = now, found_problems.get(run.run_id)
                self._entries.move_to_end(run.run_id)
            while len(self._entries) > _MAX_ENTRIES:
                self._entries.popitem(last=False)
        return found_problems | {run_id: problem for run_id, problem in cached.items() if problem is not None}


@dataclass
class Site:
    """One target with its client.

    `modules` is the loaded code, for the types in forms and for time travel. If `read_only` is True, all changes are
    rejected. `workers` returns the workers of this process. With a codec, payloads are displayed only on request.
    """

    client: Client
    target: str = ""
    modules: Sequence[ModuleType] = ()
    read_only: bool = False
    decode: Callable[[Any], Any] | None = None
    workers: Callable[[], Sequence[Any]] = tuple
    health_monitor: HealthMonitor = field(init=False)
    _problems: ProblemCache = field(init=False)
    _time_travel: TimeTravel = field(init=False)

    def __post_init__(self) -> None:
        self.health_monitor = HealthMonitor(self.client)
        self._problems = ProblemCache(self.client)
        self._time_travel = TimeTravel(self.modules, self.client)

    def problems(self, runs: Iterable[WorkflowExecution]) -> Mapping[str, Problem]:
        """Return the problems that block these runs, by run id. The result is at most a few seconds old."""
        return self._problems.lookup(runs)

    @property
    def hides_payloads(self) -> bool:
        """Whether payloads are displayed only on request."""
        return self.client.codec is not None

    def peek(self, requested: bool) -> Peek:
        """Return the function that displays payloads. With a codec, it hides them unless the reader has requested them."""
        if self.hides_payloads and not requested:
            return hidden
        return peek(self.decode, _LONGEST_PAYLOAD)

    @property
    def time_travel(self) -> TimeTravel | None:
        """The replays of runs, or None if no code was loaded."""
        return self._time_travel if self.modules else None

    def close(self) -> None:
        """Release all resources."""
        self.health_monitor.close()
        self._time_travel.close()
