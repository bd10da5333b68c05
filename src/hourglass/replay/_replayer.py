"""`Replayer`: histories against today's code."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec

from hourglass._engine.commands import Command
from hourglass._engine.context import RunSettings, Site, is_library
from hourglass._runtime.resolver import Resolver
from hourglass.converter import Codec, Converter, default_converter, map_payloads
from hourglass.errors import HourglassError, NondeterminismError, WorkflowParked
from hourglass.replay._comparison import asks_for_more, changed_arguments, first_difference
from hourglass.replay._history import History
from hourglass.replay._session import Execution, Session

_BENIGN = {"CACHE_FULL", "LANG_REQUESTED", "WORKFLOW_EXECUTION_ENDING"}


@dataclass(frozen=True)
class ReplayResult:
    """How the replay of one history went: `error` is None where today's code fits it."""

    history: History
    activations: int
    error: HourglassError | TimeoutError | None = None

    @property
    def ok(self) -> bool:
        """Whether the code fits the history."""
        return self.error is None


class Replayer:
    """Replays histories on the given workflows. Use it as a context manager when there are many, or call `close`.

    `compare_arguments` also compares the arguments, durations and results that the code produces with those on record;
    Temporal itself allows them to change. `timeout` is how many seconds one history may take.
    """

    def __init__(
        self,
        *,
        workflows: Sequence[Any] = (),
        modules: Sequence[Any] = (),
        converter: Converter = default_converter,
        codec: Codec | None = None,
        compare_arguments: bool = True,
        failure_exceptions: Sequence[type[BaseException]] = (),
        namespace: str = "default",
        timeout: float = 60.0,
    ) -> None:
        self._resolver = Resolver(workflows=workflows, modules=modules)
        self._settings = RunSettings(
            namespace=namespace,
            converter=converter,
            failure_exceptions=tuple(failure_exceptions),
            trace=True,
        )
        self._codec = codec
        self._compare = compare_arguments
        self._timeout = timeout
        self._session: Session | None = None
        self._lock = threading.Lock()

    def replay(self, history: History) -> ReplayResult:
        """Replay one history; raise `NondeterminismError`, `WorkflowParked`, `HistoryError` … where the code does not fit."""
        result = self.try_replay(history)
        if result.error is not None:
            raise result.error
        return result

    def replay_all(self, histories: Iterable[History]) -> Iterator[ReplayResult]:
        """Replay many histories, one after another; errors are in the results, not raised."""
        for history in histories:
            yield self.try_replay(history)

    def try_replay(self, history: History) -> ReplayResult:
        """Replay one history; an error is in the result, not raised."""
        with self._lock:
            execution: Execution | None = None
            error: HourglassError | TimeoutError | None
            try:
                facts = history._facts
                settings = msgspec.structs.replace(self._settings, task_queue=facts.task_queue)
                execution = self._execution(settings)
                if self._session is None:
                    self._session = Session()
                waiting_at = self._session.execute(
                    history.workflow_id, history.replayable, execution, self._timeout
                )
                error = self._judge(
                    execution, self._recorded(facts.expected), waiting_at, is_settled=facts.is_settled
                )
            except (HourglassError, TimeoutError) as raised:
                error = raised
            if error is not None:
                self._leave_session()
            return ReplayResult(history, execution.activations if execution else 0, error)

    def _execution(self, settings: RunSettings) -> Execution:
        execution = Execution(self._resolver.workflow, settings)
        if self._codec is not None:
            plain, codec = execution.activate, self._codec
            # Here the codec may run on the session's own thread: nothing else waits for it.
            execution.activate = lambda activation: plain(map_payloads(activation, codec.decode))  # type: ignore[method-assign]
        return execution

    def _recorded(self, expected: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._codec is None:
            return expected
        codec = self._codec
        return tuple(map_payloads(item, codec.decode) for item in expected)

    def _judge(
        self, execution: Execution, expected: tuple[Any, ...], waiting_at: Site, *, is_settled: bool
    ) -> HourglassError | None:
        commands: list[tuple[Command, Site]] = execution.commands
        eviction = execution.eviction
        assert eviction is not None
        error = execution.error
        if isinstance(error, NondeterminismError):
            return first_difference(expected, commands, waiting_at, str(error))
        if error is not None:
            return error if isinstance(error, HourglassError) and execution.run is None else _parked(error)
        if eviction.reason not in _BENIGN:
            return first_difference(expected, commands, waiting_at, f"Core says: {_reason(eviction.message)}")
        if is_settled and asks_for_more(expected, commands):
            # Core compares a task's commands with the events that follow it: of the last task it has none to compare.
            return first_difference(expected, commands, waiting_at, "the run was not waiting for this")
        return changed_arguments(expected, commands) if self._compare else None

    def _leave_session(self) -> None:
        # After a failure Core may still have something to say about that run: the next history gets a new worker.
        session, self._session = self._session, None
        if session is not None:
            session.close(limit=1.0)

    def close(self) -> None:
        """Free what the replays used. The replayer can be used again."""
        with self._lock:
            self._leave_session()

    def __enter__(self) -> Replayer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _parked(error: BaseException) -> WorkflowParked:
    frame = error.__traceback__
    place = ""
    while frame is not None:
        if not is_library(frame.tb_frame.f_code.co_filename):
            place = f" at {frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"
        frame = frame.tb_next
    parked = WorkflowParked(f"replaying, the workflow raised {type(error).__name__}{place}: {error}")
    parked.__cause__ = error
    return parked


def _reason(message: str) -> str:
    """Core's own words, out of the debug text that it wraps around them."""
    found = re.search(r"\[TMPRL\d+\][^\n\"]*", message)
    text = found.group() if found is not None else next(iter(message.strip().splitlines()), "")
    return text.replace("\\", "")[:300]
