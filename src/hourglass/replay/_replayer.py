"""`Replayer`: replays histories against the current code."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hourglass._built_in import BUILT_IN
from hourglass._evaluator.call_sites import Site, is_library
from hourglass._evaluator.commands import Completion, Succeeded
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.events import Activation
from hourglass._evaluator.words import CommandSummary, summarize
from hourglass._history.dialect import Dialect
from hourglass._history.events import WorkflowExecutionUpdateAccepted
from hourglass._worker.handles.codec_edge import ContextBook
from hourglass._worker.resolver import Resolver
from hourglass.client._interception import Interceptor, checked, workflow_interceptors
from hourglass.client._plugins import Plugin, ReplayerConfig, all_plugins, configured
from hourglass.converter import (
    ActivitySerializationContext,
    Codec,
    Converter,
    HeaderCodecBehavior,
    NexusSerializationContext,
    SerializationContext,
    WorkflowSerializationContext,
    decode_failure,
    decoded,
    default_converter,
    in_context,
    map_failures,
    map_payloads,
    wants_context,
    with_headers,
    without_codec,
)
from hourglass.errors import HistoryError, HourglassError, NondeterminismError, WorkflowParked
from hourglass.metrics import Registry
from hourglass.replay._comparison import mismatch
from hourglass.replay._foreign_walk import ShortSleeps, TurnSearch, has_millisecond_timers
from hourglass.replay._history import History
from hourglass.replay._moments import Moment, MomentRecorder
from hourglass.replay._session import HistoryExecution, ReplaySession
from hourglass.workflow._definitions import WorkflowSource

if TYPE_CHECKING:
    from hourglass.replay._foreign_walk import Order, Walk

_DIFFERENCES = (NondeterminismError, WorkflowParked)
_BOTH_ENGINES = ("embedded", "temporal")
_BENIGN = {"CACHE_FULL", "LANG_REQUESTED", "WORKFLOW_EXECUTION_ENDING"}


@dataclass(frozen=True)
class ReplayResult:
    """The result of replaying a history, as answers to two questions.

    `error`: would a worker of the engine that holds the run continue the run with the current code? If not, `error` is the
    reason. Differences that no engine checks count, too: changed targets of signals, and changed arguments unless
    `compare_arguments=False`. `difference`: does the code issue the recorded commands, in any order within a task if another
    SDK recorded them? If not, `difference` describes the deviation.

    The engines treat open runs differently. A worker of a Temporal server accepts commands that are new or early, provided
    that the recorded commands follow in order, and sends the new commands with its next task. A worker of the embedded
    engine compares task by task. If an open run of a server has new or early commands, `error` is None, `difference`
    describes the change, and `refused_by` names the engine that would reject the run. The history of a closed run, or of an
    unknown engine, must be valid for both.
    """

    history: History
    activations: int
    error: HourglassError | TimeoutError | None = None
    difference: HourglassError | TimeoutError | None = None
    refused_by: tuple[str, ...] = ()
    """The engines that would not let a worker continue this open run: "embedded", "temporal"."""

    @property
    def engine(self) -> str:
        """The engine that holds the run, according to its history: "embedded", "temporal", or "" if unknown."""
        try:
            return self.history._facts.engine
        except HistoryError:
            return ""

    @property
    def ok(self) -> bool:
        """Whether a worker of the engine that holds this run would continue it."""
        return self.error is None

    @property
    def does_the_same(self) -> bool:
        """Whether the code issues the recorded commands. Also True if a worker would reject only their order."""
        return self.difference is None


class _Verdict(NamedTuple):
    """The difference from the history, and the engines that would not let a worker continue an open run because of it."""

    difference: HourglassError | None
    refused_by: tuple[str, ...] = ()


class Replayer:
    """Replays histories against these workflows. Use the replayer as a context manager, or call `close` after the last
    replay.

    `compare_arguments` also compares the arguments, durations and results that the code produces with the recorded values;
    Temporal itself permits changes. `interceptors` must be the worker's interceptors, because they may change a workflow's
    commands. `timeout` is the maximum duration of a replay in seconds.
    """

    def __init__(
        self,
        *,
        workflows: Sequence[WorkflowSource | type] = (),
        modules: Sequence[Any] = (),
        converter: Converter = default_converter,
        codec: Codec | None = None,
        header_codec_behavior: HeaderCodecBehavior = HeaderCodecBehavior.NO_CODEC,
        compare_arguments: bool = True,
        failure_exceptions: Sequence[type[BaseException]] = (),
        interceptors: Sequence[Interceptor] = (),
        namespace: str = "default",
        timeout: float = 60.0,
        plugins: Sequence[Plugin] = (),
    ) -> None:
        every_plugin = all_plugins((), plugins)
        config = self._config = configured(ReplayerConfig, "configure_replayer", every_plugin, locals())
        self._resolver = Resolver(workflows=config["workflows"], modules=config["modules"], built_in=BUILT_IN)
        self._settings = RunSettings(
            namespace=config["namespace"],
            converter=config["converter"],
            failure_exceptions=tuple(config["failure_exceptions"]),
            trace=True,
            interceptors=workflow_interceptors(checked(config["interceptors"])),
            metrics=Registry(),  # the metrics of the original execution must not be counted twice
        )
        self._codec = with_headers(config["codec"], config["header_codec_behavior"])
        self._compare = config["compare_arguments"]
        self._timeout = config["timeout"]
        self._session: ReplaySession | None = None
        self._lock = threading.Lock()
        self._records_moments = False
        self._wanted: range | None = None

    def config(self) -> ReplayerConfig:
        """Return the constructor arguments after the plugins have changed them:
        `Replayer(**replayer.config())` creates an equal replayer.
        """
        return {**self._config, "plugins": ()}

    def replay(self, history: History) -> ReplayResult:
        """Replay one history. Raise `NondeterminismError`, `WorkflowParked`, `HistoryError` … if the code does not match the
        history.
        """
        result = self.try_replay(history)
        if result.error is not None:
            raise result.error
        return result

    def replay_all(self, histories: Iterable[History]) -> Iterator[ReplayResult]:
        """Replay many histories, one after another. Errors are returned in the results and not raised."""
        for history in histories:
            yield self.try_replay(history)

    def try_replay(self, history: History) -> ReplayResult:
        """Replay one history. An error is returned in the result and not raised."""
        with self._lock:
            return self._try_replay(history)[0]

    def moments(
        self, history: History, wanted: range | None = None
    ) -> tuple[tuple[Moment, ...], ReplayResult]:
        """Replay a history step by step. Return the result and all moments up to the end of the history, or up to the first
        difference.

        Fibers, with their frames and local variables, are stored only for the moment numbers in `wanted`. By default they
        are stored for all moments, which needs more memory.
        """
        with self._lock:
            self._wanted, self._records_moments = wanted, True
            try:
                result, execution = self._try_replay(history)
            finally:
                self._wanted, self._records_moments = None, False
            recorder = None if execution is None else execution.recorder
            return () if recorder is None else tuple(recorder.moments), result

    def _try_replay(self, history: History) -> tuple[ReplayResult, HistoryExecution | None]:
        execution: HistoryExecution | None = None
        error: HourglassError | TimeoutError | None
        difference: HourglassError | TimeoutError | None
        refused_by: tuple[str, ...] = ()
        try:
            facts = history._facts
            settings = msgspec.structs.replace(self._settings, task_queue=facts.task_queue)
            if facts.dialect is Dialect.OTHER:
                execution, error = self._replay_in_each_order(history, settings)
                difference = error
            else:
                execution, verdict = self._replay_with_core(history, settings)
                error = difference = verdict.difference
                if facts.is_open:
                    refused_by = verdict.refused_by
                    if facts.engine == "temporal" and refused_by == ("embedded",):
                        error = None
                if facts.dialect is Dialect.CORE and isinstance(error, _DIFFERENCES):
                    # The history's SDK may have issued the same commands in another order, and Core rejects that order.
                    difference = self._replay_ignoring_order(history, settings)
        except (HourglassError, TimeoutError) as raised:
            error = difference = raised
        if difference is not None:
            self._drop_session()
        activations = execution.activations if execution else 0
        return ReplayResult(history, activations, error, difference, refused_by), execution

    def _replay_ignoring_order(
        self, history: History, settings: RunSettings
    ) -> HourglassError | TimeoutError | None:
        """Return the difference from a history of another SDK on Core, ignoring the order within tasks."""
        sleep_interceptors = (ShortSleeps,) if has_millisecond_timers(history._facts.expected) else ()
        lenient = msgspec.structs.replace(
            settings, interceptors=(*settings.interceptors, *sleep_interceptors)
        )
        self._drop_session()
        try:
            return self._replay_in_each_order(history, lenient)[1]
        except (HourglassError, TimeoutError) as raised:
            return raised

    def _replay_with_core(self, history: History, settings: RunSettings) -> tuple[HistoryExecution, _Verdict]:
        """Replay a history through Core, in the order of each Python version that may have written it. Return the successful
        replay, or else the first replay.
        """
        execution = self._execution(settings)
        verdict = self._replay_once(history, execution)
        is_of_unknown_python = execution.run is not None and execution.run.behaviour.python_is_unknown
        if not (
            is_of_unknown_python
            and history._facts.may_be_python
            and isinstance(verdict.difference, _DIFFERENCES)
        ):
            return execution, verdict
        self._drop_session()
        second_execution = self._execution(msgspec.structs.replace(settings, newer_turns=True))
        try:
            second = self._replay_once(history, second_execution)
        except (HourglassError, TimeoutError):
            return execution, verdict
        return (second_execution, second) if second.difference is None else (execution, verdict)

    def _replay_once(self, history: History, execution: HistoryExecution) -> _Verdict:
        """Replay a history through Core once."""
        waiting_at = self._open_session().execute(
            history.workflow_id, history.replayable, execution, self._timeout
        )
        if execution.eviction is None:
            self._drop_session()
        return self._judge(history, execution, waiting_at)

    def _replay_in_each_order(
        self, history: History, settings: RunSettings
    ) -> tuple[HistoryExecution, HourglassError | None]:
        """Replay a history in each order that its SDK may have used. If all fail, return the error that occurs latest in the
        history, because its order is the closest.
        """
        execution = self._execution(settings)
        has_updates = any(
            isinstance(event.attributes, WorkflowExecutionUpdateAccepted)
            for event in history._recorded.events
        )
        # The SDKs of TypeScript and .NET run a spawned function immediately.
        eager = history._facts.dialect is Dialect.CORE
        search = TurnSearch(len(history), has_updates=has_updates, eager=eager)
        error: HourglassError | None = None
        furthest = -1
        for order in search.orders():
            execution = self._execution(settings)
            walk = self._new_walk(history, execution, order)
            result = self._walk(walk, history, execution)
            if not isinstance(result, _DIFFERENCES):
                return execution, result
            if walk.at > furthest:
                error, furthest = result, walk.at
            search.reject(walk.at, walk.choices)
        return execution, error

    def _new_walk(self, history: History, execution: HistoryExecution, order: Order) -> Walk:
        from hourglass.replay._foreign_walk import Walk

        facts = history._facts
        recorded = {item.event_id: item for item in self._recorded(history)}
        decode = None if self._codec is None else partial(decoded, self._codec_of_steps(history))
        return Walk(facts.run_id, execution, recorded, compare=self._compare, order=order, decode=decode)

    def _walk(self, walk: Walk, history: History, execution: HistoryExecution) -> HourglassError | None:
        """Replay a history without Core."""
        try:
            self._open_session().walk(
                history.workflow_id, lambda: walk.run(history._recorded.events), execution, self._timeout
            )
        except (HistoryError, NondeterminismError) as error:
            return error
        raised = execution.error
        if raised is None or isinstance(raised, NondeterminismError):
            return raised
        return raised if isinstance(raised, HourglassError) and execution.run is None else _parked(raised)

    def _open_session(self) -> ReplaySession:
        if self._session is None:
            self._session = ReplaySession()
        return self._session

    def _execution(self, settings: RunSettings) -> HistoryExecution:
        recorder = MomentRecorder(self._wanted) if self._records_moments else None
        execution = HistoryExecution(self._resolver.workflow, settings, recorder)
        if self._codec is not None:
            evaluate, codec = execution.activate, self._codec
            # The codec may run on the session's own thread, because no other caller waits for that thread.
            book = ContextBook(self._settings.namespace) if wants_context(codec) else None

            def activate(activation: Activation) -> Completion:
                completion = evaluate(_decode_activation(activation, codec, book))
                if book is not None and isinstance(completion, Succeeded):
                    for command in completion.commands:
                        book.of_command(completion.run_id, command)
                return completion

            execution.activate = activate  # type: ignore[method-assign]
        return execution

    def _recorded(self, history: History) -> tuple[Any, ...]:
        codec, converter, expected = self._codec, self._settings.converter, history._facts.expected
        if codec is not None:
            skip = without_codec(codec, in_workflow=True)
            codec_of = partial(_codec_of, codec, history, self._settings.namespace)
            expected = tuple(
                map_payloads(summary, partial(decoded, codec_of(summary)), skip=skip) for summary in expected
            )
        return tuple(
            summary
            if summary.failure is None
            else map_failures(summary, lambda failure: decode_failure(failure, converter))
            for summary in expected
        )

    def _codec_of_steps(self, history: History) -> Codec:
        """Return the codec for local activity markers."""
        assert self._codec is not None
        context = ActivitySerializationContext(
            self._settings.namespace,
            workflow_id=history.workflow_id,
            workflow_type=history.workflow_type,
            is_local=True,
        )
        return in_context(self._codec, context)

    def _judge(self, history: History, execution: HistoryExecution, waiting_at: Site) -> _Verdict:
        """Return Core's verdict, extended by checks that Core does not make."""
        eviction, error = execution.eviction, execution.error
        if error is not None and not isinstance(error, NondeterminismError):
            if isinstance(error, HourglassError) and execution.run is None:
                return _Verdict(error, _BOTH_ENGINES)
            return _Verdict(_parked(error), _BOTH_ENGINES)
        reason = "" if error is None else str(error)
        if error is None and eviction is not None and eviction.reason not in _BENIGN:
            reason = f"Core reports: {_reason(eviction.message)}"
        difference = self._first_difference(history, execution, waiting_at, reason)
        if reason:
            return _Verdict(
                difference or self._core_difference(history, execution, waiting_at, reason), _BOTH_ENGINES
            )
        return _Verdict(
            difference, () if difference is None or execution.difference_is_allowed else ("embedded",)
        )

    def _core_difference(
        self, history: History, execution: HistoryExecution, waiting_at: Site, reason: str
    ) -> NondeterminismError:
        """Return the error for a replay that Core rejected although we found no difference. The error names the event that
        Core names, and the last command.
        """
        id_match = re.search(r"HistoryEvent\(id: (\d+)", reason)
        recorded = next(
            (
                summary
                for summary in self._recorded(history)
                if id_match and summary.event_id == int(id_match[1])
            ),
            None,
        )
        command, site = next(
            (issued for issued in reversed(execution.commands) if issued[1][0]), (None, waiting_at)
        )
        return mismatch(recorded, summarize(command, site) if command is not None else None, site, reason)

    def _first_difference(
        self, history: History, execution: HistoryExecution, waiting_at: Site, reason: str
    ) -> NondeterminismError | None:
        """Return the first difference between the commands and the history."""
        from hourglass.replay._foreign_markers import marked_tasks
        from hourglass.replay._trace import Trace

        facts = history._facts
        trace = Trace(
            facts.run_id,
            {summary.event_id: summary for summary in self._recorded(history)},
            foreign=facts.dialect is not Dialect.PYTHON,
            compare=self._compare,
            accepted=not reason,
            reason=reason,
            waiting_at=waiting_at,
        )
        tasks = (
            history._tasks
            if self._codec is None
            else marked_tasks(history._recorded.events, partial(decoded, self._codec_of_steps(history)))
        )
        difference = trace.difference(tasks, execution.steps)
        execution.difference_is_allowed = trace.is_allowed
        return difference

    def _drop_session(self) -> None:
        # Core may still report on the failed run, so the next history needs a new worker.
        session, self._session = self._session, None
        if session is not None:
            session.close(limit=1.0)

    def close(self) -> None:
        """Release the replayer's resources. The replayer can be used again."""
        with self._lock:
            self._drop_session()

    def __enter__(self) -> Replayer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _parked(error: BaseException) -> WorkflowParked:
    traceback = error.__traceback__
    place = ""
    while traceback is not None:
        if not is_library(traceback.tb_frame.f_code.co_filename):
            place = f" at {traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    parked = WorkflowParked(f"the workflow raised {type(error).__name__} during replay{place}: {error}")
    parked.__cause__ = error
    return parked


def _reason(message: str) -> str:
    """Return Core's message without the debug text around it."""
    match = re.search(r"\[TMPRL\d+\][^\n\"]*", message)
    text = match.group() if match is not None else next(iter(message.strip().splitlines()), "")
    return text.replace("\\", "")[:300]


def _decode_activation(activation: Activation, codec: Codec, book: ContextBook | None) -> Activation:
    """Return an activation with decoded payloads, as the run's worker would have received it."""
    skip = without_codec(codec, in_workflow=True)
    if book is None:
        return map_payloads(activation, partial(decoded, codec), skip=skip)
    events = tuple(
        map_payloads(
            event, partial(decoded, in_context(codec, book.of_event(activation.run_id, event))), skip=skip
        )
        for event in activation.events
    )
    return msgspec.structs.replace(activation, events=events)


def _codec_of(codec: Codec, history: History, namespace: str, summary: CommandSummary) -> Codec:
    """Return the codec for the payloads of a recorded command."""
    if not wants_context(codec):
        return codec
    match summary.kind:
        case "activity":
            context: SerializationContext = ActivitySerializationContext(
                namespace,
                None if summary.key.isdigit() else summary.key,
                summary.name,
                workflow_id=history.workflow_id,
                workflow_type=history.workflow_type,
            )
        case "child workflow" | "signal to another workflow":
            context = WorkflowSerializationContext(namespace, summary.key)
        case "Nexus operation":
            service, _, operation = summary.name.rpartition(".")
            context = NexusSerializationContext(summary.key, service, operation)
        case _:
            context = WorkflowSerializationContext(namespace, history.workflow_id)
    return in_context(codec, context)
