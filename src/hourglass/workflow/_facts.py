"""Deterministic facts that are the same on every execution of a run: time, randomness, patches, results of earlier runs. See
`_info` for the run's properties.

The module also contains the run's descriptions (memo, search attributes, current details), and its metrics, which are not
recorded during replay.
"""

from __future__ import annotations

import logging
import random as _random
import uuid as _uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, overload

from hourglass._evaluator.commands import SetPatchMarker, UpsertMemo, UpsertSearchAttributes
from hourglass._evaluator.context import LiveRun, current_run, merge, require_run
from hourglass._evaluator.event_groups import EventGroup, check_groups
from hourglass._evaluator.fibers import require_fiber
from hourglass._evaluator.messages import is_failure
from hourglass._evaluator.options import named_values
from hourglass._logs import Speaker, SpeakerLogger
from hourglass.converter import Converter, SearchAttributes, decode_search_attribute, encode_search_attributes
from hourglass.errors import ReadOnlyError, UsageError
from hourglass.metrics import MetricMeter, default_registry
from hourglass.workflow._info import Info, _info_of

T = TypeVar("T")
D = TypeVar("D")

_MISSING: Any = object()


def memo() -> dict[str, Any]:
    """Return the current memo, decoded without types."""
    live = require_run("workflow.memo")
    return {name: live.converter.decode(payload) for name, payload in live.notes.memo.items()}


@overload
def memo_value(key: str) -> Any: ...
@overload
def memo_value(key: str, *, type: type[T]) -> T: ...
@overload
def memo_value(key: str, default: D, *, type: type[T]) -> T | D: ...
@overload
def memo_value(key: str, default: object) -> Any: ...
def memo_value(key: str, default: Any = _MISSING, *, type: Any = Any) -> Any:
    """Return one entry of the memo, decoded as this type. Raise `KeyError` if the entry is missing and no default was
    passed.
    """
    live = require_run("workflow.memo_value")
    payload = live.notes.memo.get(key)
    if payload is not None:
        return live.converter.decode(payload, type)
    if default is _MISSING:
        raise KeyError(f"the memo has no entry {key!r}")
    return default


def upsert_memo(changes: Mapping[str, Any], *, event_groups: Sequence[EventGroup] | None = None) -> None:
    """Change entries of the memo; None removes an entry."""
    fiber = require_fiber("workflow.upsert_memo")
    live = fiber.run
    if not changes:
        raise UsageError("upsert_memo needs at least one change")
    encoded = {name: live.converter.encode(value) for name, value in named_values(changes, "a memo").items()}
    live.issue(UpsertMemo(encoded, event_groups=check_groups(event_groups)), fiber)
    merge(live.notes.memo, encoded)


def search_attributes() -> dict[str, Any]:
    """Return the current search attributes."""
    live = require_run("workflow.search_attributes")
    return {name: decode_search_attribute(payload) for name, payload in live.notes.search_attributes.items()}


def upsert_search_attributes(
    changes: SearchAttributes, *, event_groups: Sequence[EventGroup] | None = None
) -> None:
    """Change search attributes: `upsert_search_attributes([REGION.value_set("eu"), DUE.value_unset()])`, or
    by name.

    Search attributes are never encrypted, and the service must know their names and types.
    """
    fiber = require_fiber("workflow.upsert_search_attributes")
    encoded = encode_search_attributes(changes)
    if not encoded:
        raise UsageError("upsert_search_attributes needs at least one change")
    command = UpsertSearchAttributes(encoded, event_groups=check_groups(event_groups))
    fiber.run.issue(command, fiber)
    merge(fiber.run.notes.search_attributes, encoded)


def set_current_details(details: str) -> None:
    """Describe in a few lines what the workflow is doing. Temporal's web UI displays the text as Markdown."""
    fiber = require_fiber("workflow.set_current_details")
    if not isinstance(details, str):
        raise UsageError(f"current details must be a str, not {type(details).__name__}")
    fiber.run.notes.details = details


def get_current_details() -> str:
    """Return the text of the last call of `set_current_details`."""
    return require_run("workflow.get_current_details").notes.details


def metric_meter() -> MetricMeter:
    """Return a meter for this run. Its metrics have the labels namespace, task queue and workflow type. Nothing is recorded
    during replay.
    """
    live = require_run("workflow.metric_meter")
    settings = live.settings
    return MetricMeter(
        default_registry if settings.metrics is None else settings.metrics,
        {
            "namespace": settings.namespace,
            "task_queue": settings.task_queue,
            "workflow_type": live.state.workflow_type,
        },
        # Read from this execution of the run, because a concurrent re-execution has its own meters.
        silent=lambda: live.facts.is_replaying or live.quiet or live.dead,
    )


def instance() -> Any:
    """Return the object of the workflow's class; None for a workflow that is a function."""
    return require_run("workflow.instance").handlers.obj


def cancellation_reason() -> str | None:
    """Return the reason of the cancellation request; None if cancellation was not requested."""
    return require_run("workflow.cancellation_reason").cancel_reason


def payload_converter() -> Converter:
    """Return the converter of this run."""
    return require_run("workflow.payload_converter").converter


def is_failure_exception(error: BaseException) -> bool:
    """Return whether an exception would fail the workflow that raises it. Any other exception parks the run until the code
    is fixed.
    """
    return is_failure(require_run("workflow.is_failure_exception"), error)


@overload
def last_completion_result() -> Any: ...
@overload
def last_completion_result(type: type[T]) -> T | None: ...
def last_completion_result(type: Any = Any) -> Any:
    """Return the result of the latest completed run of this run's cron schedule or schedule; None if there is none."""
    live = require_run("workflow.last_completion_result")
    payloads = live.started.last_completion_result if live.started is not None else ()
    return live.converter.decode(payloads[0], type) if payloads else None


def has_last_completion_result() -> bool:
    """Return whether an earlier run of this run's cron schedule or schedule has completed."""
    live = require_run("workflow.has_last_completion_result")
    return live.started is not None and bool(live.started.last_completion_result)


def last_failure() -> BaseException | None:
    """Return the failure of the previous run, if this run follows it by retry, cron or schedule; None if that run did not
    fail.
    """
    live = require_run("workflow.last_failure")
    failure = live.started.last_failure if live.started is not None else None
    return None if failure is None else live.converter.from_failure(failure)


def now() -> datetime:
    """Return the time of the current workflow task in UTC. Use it instead of `datetime.now`."""
    # Converted through a float, as in Temporal's Python SDK, so that both produce the same microsecond in
    # histories.
    return datetime.fromtimestamp(time(), tz=UTC)


def time() -> float:
    """Return the time of the current workflow task in seconds since the epoch. Use it instead of `time.time`."""
    return require_run("workflow.time").facts.timestamp_ns / 1e9


def time_ns() -> int:
    """Return the time of the current workflow task in nanoseconds since the epoch."""
    return require_run("workflow.time_ns").facts.timestamp_ns


def random() -> _random.Random:
    """Return the run's random number generator. It returns the same numbers on every execution."""
    live = _live_run()
    live.has_drawn = True
    return live.random


def uuid4() -> _uuid.UUID:
    """Return a new UUID, the same on every execution. Use it instead of `uuid.uuid4`."""
    return _uuid.UUID(int=random().getrandbits(128), version=4)


def uuid7() -> _uuid.UUID:
    """Return a new UUID that begins with the current workflow task's time, so that later UUIDs sort after earlier ones.

    UUIDs of the same task share their time and are in no particular order.
    """
    # The standard library has `uuid7` from Python 3.14 on. The bits are generated as in temporalio, so that runs begun there
    # can continue here.
    generator = random()
    high, low = generator.getrandbits(12), generator.getrandbits(62)
    milliseconds = time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF
    return _uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low)


def random_seed() -> int:
    """Return the seed of the run's random numbers, for a generator of your own. A reset changes it."""
    live = _live_run()
    live.has_drawn = True
    return live.seed


def new_random(name: str | None = None) -> _random.Random:
    """Return a new random number generator that returns the same numbers on every execution. A reset reseeds it like
    `random()`.

    With a name, the numbers differ from the numbers of `random()` and of generators with other names. Without a name, they
    are the same as from `random()`.
    """
    if name is not None and not isinstance(name, str):
        raise UsageError(f"the name of a random source must be a str, not {type(name).__name__}")

    def mixed(seed: int) -> int | str:
        return seed if name is None else f"{seed}:{name}"

    source = _random.Random(mixed(random_seed()))
    register_random_seed_callback(lambda seed: source.seed(mixed(seed)))
    return source


def register_random_seed_callback(callback: Callable[[int], object]) -> None:
    """Register a function that is called with each new seed, to reseed a generator of your own. The function must not
    wait."""
    if not callable(callback):
        raise UsageError(f"the callback of the random seed must be a function, not {type(callback).__name__}")
    live = _live_run()
    if live.seed_callbacks is None:
        live.seed_callbacks = []
    live.seed_callbacks.append(callback)


def default_id() -> str:
    """Return a generated id, the same on every execution, without affecting the author's random numbers."""
    return str(_uuid.UUID(int=_live_run().random.getrandbits(128), version=4))


def _live_run() -> LiveRun:
    live = require_run("workflow.random")
    if live.dead:
        live.raise_unavailable(require_fiber("randomness"), "randomness")
    if live.latched:
        raise ReadOnlyError(
            f"randomness is not allowed in {live.read_only}: it would change the random numbers that follow"
        )
    return live


def is_replaying() -> bool:
    """Return whether the code is being replayed now. Rarely needed."""
    return require_run("workflow.is_replaying").facts.is_replaying


def is_catching_up() -> bool:
    """Return whether this execution repeats an earlier one: replay, recovery on another worker, or
    verification.

    Perform your own side effects (counts, messages, files of an interceptor) in the first execution only. `workflow.logger`
    and `workflow.metric_meter` do this automatically.
    """
    live = require_run("workflow.is_catching_up")
    return live.facts.is_replaying or live.quiet or live.dead


def in_workflow() -> bool:
    """Return whether the caller is workflow code."""
    return current_run() is not None


def all_handlers_finished() -> bool:
    """Return True if no signal or update handler is running. Wait for this before the workflow returns or
    continues as new.
    """
    return require_run("workflow.all_handlers_finished").handlers.all_finished


@contextmanager
def unsafe() -> Iterator[None]:
    """Permit calls that the call watcher would report: `with workflow.unsafe(): …`. You guarantee that these calls do not
    affect the run.
    """
    live = require_run("workflow.unsafe")
    live.unsafe += 1
    try:
        yield
    finally:
        live.unsafe -= 1


def patched(patch_id: str, *, event_groups: Sequence[EventGroup] | None = None) -> bool:
    """Return whether to take the new code path: True in new runs, False in runs whose history followed the old path."""
    return _patch(patch_id, event_groups, deprecated=False)


def deprecate_patch(patch_id: str, *, event_groups: Sequence[EventGroup] | None = None) -> None:
    """Declare that the old code path of a patch has been removed. Do this only after all runs that followed it are
    closed."""
    _patch(patch_id, event_groups, deprecated=True)


def _patch(patch_id: str, groups: Sequence[EventGroup] | None, *, deprecated: bool) -> bool:
    fiber = require_fiber("workflow.patched")
    live = fiber.run
    if live.patch_memo is None:
        live.patch_memo = {}
    remembered = live.patch_memo.get(patch_id)
    if remembered is not None:
        return remembered
    is_active = not live.facts.is_replaying or patch_id in live.patches
    decide = live.settings.patch_activation
    if decide is not None and is_active and not deprecated and patch_id not in live.patches:
        is_active = _ask_callback(live, patch_id, decide)
    live.patch_memo[patch_id] = is_active
    if is_active:
        live.issue(SetPatchMarker(patch_id, deprecated, event_groups=check_groups(groups)), fiber)
    return is_active


@dataclass(frozen=True)
class PatchActivationInput:
    """The input of a worker's callback that decides whether a run takes the new code path when it first reaches a patch."""

    workflow_info: Info
    patch_id: str


def _ask_callback(live: LiveRun, patch_id: str, decide: Callable[[PatchActivationInput], bool]) -> bool:
    answers = live.state.patch_answers
    if answers is None:
        answers = live.state.patch_answers = {}
    if patch_id not in answers:
        with live.read_only_block("a patch activation callback"):
            answer: object = decide(PatchActivationInput(_info_of(live), patch_id))
        if not isinstance(answer, bool):
            raise UsageError(
                f"patch_activation_callback must return True or False for {patch_id!r}, not {type(answer).__name__}"
            )
        answers[patch_id] = answer
    return answers[patch_id]


class WorkflowLogger(SpeakerLogger):
    """A logger that adds the workflow's ids, and discards messages during replay."""

    def isEnabledFor(self, level: int) -> bool:
        """Return whether the logger is enabled for this level; always False during replay."""
        live = current_run()
        if live is not None and (live.facts.is_replaying or live.quiet):
            return False
        return super().isEnabledFor(level)

    def speaker(self) -> Speaker | None:
        """Return the workflow, with its properties in the record attribute `hourglass_workflow`."""
        live = current_run()
        if live is None or live.started is None:
            return None
        started = live.started
        facts = {
            "attempt": started.attempt,
            "namespace": live.settings.namespace,
            "run_id": live.state.run_id,
            "task_queue": live.settings.task_queue,
            "workflow_id": started.workflow_id,
            "workflow_type": started.workflow_type,
        }
        place = f"{started.workflow_type} {started.workflow_id}"
        return Speaker(place, facts={"hourglass_workflow": facts})


logger = WorkflowLogger(logging.getLogger("hourglass.workflow"), {})
