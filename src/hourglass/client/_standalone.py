"""Operations on standalone activities, and their descriptions. Both clients run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import msgspec

from hourglass._contract import activities as ac
from hourglass._contract.activities import ActivityExecutionStatus
from hourglass._contract.ids import new_id
from hourglass._contract.workflows import IdConflictPolicy, Started
from hourglass._evaluator.options import (
    CallSettings,
    Duration,
    RetryPolicy,
    check_text,
    choice,
    optional_seconds,
    policy_from,
)
from hourglass._evaluator.specs import ActivitySpec, IdReusePolicy
from hourglass.activity import ActivityOptions
from hourglass.activity._definition import activity_definition, activity_of
from hourglass.activity._options import FOREIGN_DEFAULTS, KeptOptions, settings_with
from hourglass.client._calls import (
    ActivityExecutionInput,
    CancelActivityInput,
    CountActivitiesInput,
    DescribeActivityInput,
    ListActivitiesInput,
    PauseActivityInput,
    StartActivityExecutionInput,
    TerminateActivityInput,
    UnpauseActivityInput,
    UpdateActivityOptionsInput,
)
from hourglass.client._options import RpcOptions, callbacks_of, check_changes, rpc_fields, without_rpc
from hourglass.client._session import ClientOperation, ClientSession, asking, listing, nothing, through
from hourglass.client._values import (
    WorkflowExecutionCount,
    attributes_from,
    count_from,
    decoded,
    note,
    values_of,
)
from hourglass.client._wait_notices import ActivityWaitNotice
from hourglass.client._waiting import CONTINUES, call_through_outage, first, in_time
from hourglass.converter import (
    ActivitySerializationContext,
    Converter,
    SearchAttributes,
    encode_search_attributes,
)
from hourglass.errors import (
    ActivityFailedError,
    UsageError,
    summary,
)
from hourglass.nexus import NexusCallback
from hourglass.workflow._references import ResolvedReference


@dataclass(frozen=True, kw_only=True)
class ActivityExecution:
    """A standalone activity in the results of a list."""

    id: str
    run_id: str
    activity_type: str
    status: ActivityExecutionStatus
    task_queue: str
    schedule_time: datetime | None
    close_time: datetime | None
    search_attributes: Mapping[str, Any]
    raw_info: ac.ActivitySummary = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class ActivityExecutionOptions:
    """The options of an activity, with the engine's defaults filled in. Durations are in seconds; 0 means unset."""

    task_queue: str
    schedule_to_close_timeout: float
    schedule_to_start_timeout: float
    start_to_close_timeout: float
    heartbeat_timeout: float
    retry_policy: RetryPolicy | None
    priority_key: int
    fairness_key: str
    fairness_weight: float


@dataclass(frozen=True, kw_only=True)
class ActivityExecutionDescription(ActivityExecution):
    """Details of a standalone activity. `state` is the state of an open activity: `SCHEDULED`, `STARTED`,
    `CANCEL_REQUESTED`, `PAUSED` …
    """

    options: ActivityExecutionOptions
    state: str
    attempt: int
    heartbeat_details: Sequence[Any]
    last_heartbeat_time: datetime | None
    last_started_time: datetime | None
    last_worker_identity: str
    last_failure: BaseException | None
    next_attempt_time: datetime | None
    canceled_reason: str
    static_summary: str | None
    static_details: str | None
    raw_description: ac.ActivityDescription = field(repr=False, compare=False)


@dataclass(frozen=True)
class ActivityExecutionPage:
    """A page of a list of activities. `next_page_token` is the token for the next page."""

    items: tuple[ActivityExecution, ...]
    next_page_token: bytes


def _common(seen: ac.ActivitySummary) -> dict[str, Any]:
    attributes = attributes_from(seen.search_attributes)
    return values_of(
        ActivityExecution, seen, id=seen.activity_id, search_attributes=attributes, raw_info=seen
    )


def _shown(spec: ActivitySpec) -> ActivityExecutionOptions:
    policy = policy_from(spec.retry_policy)
    return ActivityExecutionOptions(**values_of(ActivityExecutionOptions, spec, retry_policy=policy))


def _description(seen: ac.ActivityDescription, converter: Converter) -> ActivityExecutionDescription:
    values = values_of(
        ActivityExecutionDescription,
        seen,
        **_common(seen.summary),
        options=_shown(seen.spec),
        heartbeat_details=[decoded(payload, Any, converter) for payload in seen.heartbeat_details],
        last_failure=None if seen.last_failure is None else converter.from_failure(seen.last_failure),
        static_summary=note(seen.static_summary, converter),
        static_details=note(seen.static_details, converter),
        raw_description=seen,
    )
    return ActivityExecutionDescription(**values)


class StartActivityOptions(ActivityOptions, RpcOptions, total=False):
    """Options for starting a standalone activity, in addition to the options of any activity."""

    id: str
    """The activity's id; a new UUID by default."""
    id_reuse_policy: IdReusePolicy
    """Whether the id of a closed activity may be used again."""
    id_conflict_policy: IdConflictPolicy
    """The action to take if an activity with this id is running: fail, or with USE_EXISTING return its handle."""
    start_delay: Duration | None
    """The delay before the start."""
    search_attributes: SearchAttributes
    """Attributes by which the activity can be found; never encrypted."""
    static_summary: str
    """A one-line summary for Temporal's UI."""
    static_details: str
    """Further details for Temporal's UI."""
    request_id: str
    """An id that deduplicates starts: starts with the same request id are a single start. A new id by default."""
    callbacks: Sequence[NexusCallback]
    """Nexus callbacks that are notified when the activity closes. `nexus.start_activity` sets them for an activity that is a
    Nexus operation.
    """


class ActivityOptionsUpdate(KeptOptions, RpcOptions, total=False):
    """The options of a started activity that can be changed. None removes a timeout or the retry policy."""


_OF_START = frozenset(StartActivityOptions.__annotations__) - frozenset(ActivityOptions.__annotations__)
_UNSUPPORTED = {
    "activity_id": "use id",
    "summary": "use static_summary",
    "cancellation_type": "only a workflow waits for an activity's cancellation",
    "local_retry_threshold": "it applies only to local activities",
    "event_groups": "event groups belong to the history of a workflow",
    "disable_eager_execution": "only an activity of a workflow can be executed eagerly",
}


@dataclass(frozen=True)
class ActivityReference:
    """The activity of a handle: its task token, or its id and run id, and the workflow's id if it belongs to a workflow."""

    activity_id: str = ""
    run_id: str = ""
    return_type: Any = Any
    workflow_id: str = ""
    token: bytes = field(default=b"", repr=False)

    def address(self) -> dict[str, Any]:
        """Return the fields that every request about a standalone activity contains."""
        return {"activity_id": self.activity_id, "run_id": self.run_id}

    def addressed(self) -> dict[str, Any]:
        """Return the ids of a standalone activity for the input of a call."""
        return {"id": self.activity_id, "run_id": self.run_id or None}

    def addressed_by_ids(self, change: str) -> dict[str, Any]:
        """Return the ids of any activity for the input of a call. Raise `UsageError` if only the token is known."""
        if self.token:
            raise UsageError(f"an activity cannot be {change} by its token: pass workflow_id and activity_id")
        return {**self.addressed(), "workflow_id": self.workflow_id}


def resolve_activity(activity: object) -> tuple[ResolvedReference, CallSettings]:
    """Return the activity for a decorated function or a name, with its options."""
    if isinstance(activity, str):
        if not activity:
            raise UsageError("the activity's name must not be empty")
        return ResolvedReference(
            f"activity {activity}", check_text(activity, "the activity's name")
        ), FOREIGN_DEFAULTS
    definition = activity_definition(activity_of(activity))
    if definition is None:
        raise UsageError(
            f"{activity!r:.100} is not an activity: decorate it with @activity.defn, or pass a name"
        )
    if definition.dynamic:
        raise UsageError(
            f"activity {definition.name} is dynamic and accepts any type: pass the type's name as a str"
        )
    signature = definition.signature
    reference = ResolvedReference(
        f"activity {definition.name}", definition.name, signature, signature.return_type
    )
    return reference, definition.settings


def start(
    session: ClientSession,
    activity: object,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    result_type: Any,
) -> ClientOperation[ActivityReference]:
    """Start a standalone activity and return a reference to it."""
    reference, settings = resolve_activity(activity)
    return_type = reference.return_type if result_type is None else result_type
    sent_as = check_text(options.get("request_id") or new_id(), "request_id")

    def parse_for(call: StartActivityExecutionInput) -> Callable[[Started], ActivityReference]:
        return lambda answer: ActivityReference(call.id, answer.run_id, call.result_type)

    def build(call: StartActivityExecutionInput) -> ClientOperation[ActivityReference]:
        named = reference if call.activity == reference.name else replace(reference, name=call.activity)
        return asking(_request(session, named, settings, call, sent_as), parse_for(call))

    call = StartActivityExecutionInput(
        id=options.get("id") or new_id(),
        activity=reference.name,
        args=list(arguments),
        options={name: value for name, value in without_rpc(options).items() if name != "id"},
        result_type=return_type,
        **rpc_fields(options),
        _proceed=build,
    )
    return through(session, call)


def _request(
    session: ClientSession,
    definition: ResolvedReference,
    settings: CallSettings,
    call: StartActivityExecutionInput,
    request_id: str,
) -> ac.StartActivity:
    """Return the start request for a call, after interceptors."""
    where, options, converter = definition.what, call.options, session.converter
    for name, reason in _UNSUPPORTED.items():
        if name in options:
            raise UsageError(f"option {name} is not supported when a client starts {where}: {reason}")
    changes = {name: value for name, value in options.items() if name not in _OF_START}
    spec = settings_with(settings, changes, where).spec
    context = ActivitySerializationContext(
        session.link.namespace, call.id, definition.name, spec.task_queue or "default"
    )
    converter = session.in_context(context).converter
    notes: dict[str, Any] = {
        name: None if options.get(name) is None else converter.encode(check_text(options[name], name))
        for name in ("static_summary", "static_details")
    }
    return ac.StartActivity(
        activity_id=check_text(call.id, "id"),
        activity_type=definition.name,
        request_id=request_id,
        spec=msgspec.structs.replace(spec, task_queue=spec.task_queue or "default"),
        arguments=definition.encode(converter, call.args),
        headers=call.headers,
        identity=session.identity,
        start_delay=optional_seconds(options.get("start_delay"), "start_delay") or 0.0,
        id_reuse_policy=_policy(IdReusePolicy, options, "id_reuse_policy", IdReusePolicy.ALLOW_DUPLICATE),
        id_conflict_policy=_policy(IdConflictPolicy, options, "id_conflict_policy", IdConflictPolicy.FAIL),
        search_attributes=encode_search_attributes(options.get("search_attributes", {})),
        callbacks=callbacks_of(options.get("callbacks", ())),
        **rpc_fields(call._rpc()),
        **notes,
    )


def _policy(kind: Any, options: Mapping[str, Any], name: str, usual: Any) -> Any:
    policy = choice(kind, options.get(name, usual), name)
    if policy.name.startswith("TERMINATE"):
        raise UsageError(f"{name} of an activity cannot be {policy.name}: terminate the other one first")
    return policy or usual


def refer(activity_id: str, run_id: str | None, activity: object, result_type: Any) -> ActivityReference:
    """Return a reference to an existing activity for a handle, without sending a request."""
    if not isinstance(activity_id, str) or not activity_id:
        raise UsageError("an activity's id must be a non-empty str")
    check_text(activity_id, "an activity's id")
    if activity is not None and result_type is not None:
        raise UsageError("pass activity or result_type, not both")
    return_type = Any if result_type is None else result_type
    if activity is not None:
        return_type = resolve_activity(activity)[0].return_type
    return ActivityReference(activity_id, run_id or "", return_type)


def result(
    session: ClientSession, reference: ActivityReference, timeout: Duration | None
) -> ClientOperation[Any]:
    """Wait for an activity's result."""
    limit = optional_seconds(timeout, "timeout")
    request = ac.WaitForActivity(**reference.address())

    async def ask(session: ClientSession) -> ac.ActivityOutcome:
        late = f"activity {reference.activity_id!r} has not ended within"
        with ActivityWaitNotice(session, reference.activity_id, reference.run_id):
            async with in_time(session, limit, late, CONTINUES):
                while not (outcome := await call_through_outage(session, request)).closed:
                    pass
                return outcome

    def parse(outcome: ac.ActivityOutcome) -> Any:
        if outcome.failure is not None:
            cause = session.converter.from_failure(outcome.failure)
            raise ActivityFailedError(
                f"activity {reference.activity_id!r} failed: {summary(cause)}"
            ) from cause
        return first(outcome.result, reference.return_type, session.converter)

    return ClientOperation(ask, parse)


def describe(
    session: ClientSession, reference: ActivityReference
) -> ClientOperation[ActivityExecutionDescription]:
    """Return the description of an activity."""

    def build(call: DescribeActivityInput) -> ClientOperation[ActivityExecutionDescription]:
        request = ac.DescribeActivity(activity_id=call.id, run_id=call.run_id or "")
        return asking(request, lambda answer: _description(answer, session.converter))

    return through(session, DescribeActivityInput(**reference.addressed(), _proceed=build))


_ACTS: dict[type[ActivityExecutionInput], Callable[..., Any]] = {
    CancelActivityInput: ac.CancelActivity,
    TerminateActivityInput: ac.TerminateActivity,
    PauseActivityInput: ac.PauseActivity,
    UnpauseActivityInput: ac.UnpauseActivity,
}


def act(
    session: ClientSession, kind: Callable[..., Any], reference: ActivityReference, reason: str
) -> ClientOperation[None]:
    """Cancel, terminate, pause or resume an activity, according to the class of the call."""
    sent_as = new_id()

    def build(call: Any) -> ClientOperation[None]:
        theirs: dict[str, Any] = {"workflow_id": call.workflow_id} if call.workflow_id else {}
        request = _ACTS[type(call)](
            activity_id=call.id,
            run_id=call.run_id or "",
            **theirs,
            request_id=sent_as,
            reason=check_text(call.reason, "reason"),
            identity=session.identity,
        )
        return asking(request, nothing)

    ids = reference.addressed_by_ids("paused and unpaused")
    return through(session, kind(**ids, reason=reason, _proceed=build))


def delete(reference: ActivityReference) -> ClientOperation[None]:
    """Delete an activity."""
    request = ac.DeleteActivity(**reference.address())
    return asking(request, nothing)


def update_options(
    session: ClientSession, reference: ActivityReference, changes: Mapping[str, Any] | None
) -> ClientOperation[ActivityExecutionOptions]:
    """Change the options of an activity; None restores its original options."""
    sent_as = new_id()

    def build(call: UpdateActivityOptionsInput) -> ClientOperation[ActivityExecutionOptions]:
        request = ac.UpdateActivityOptions(
            activity_id=call.id,
            run_id=call.run_id or "",
            workflow_id=call.workflow_id,
            request_id=sent_as,
            spec=ActivitySpec() if call.restore_original else _changed(call.id, call.changes),
            fields=() if call.restore_original else tuple(call.changes),
            restore_original=call.restore_original,
            identity=session.identity,
        )
        return asking(request, lambda answer: _shown(answer.spec))

    call = UpdateActivityOptionsInput(
        **reference.addressed_by_ids("changed"),
        changes=dict(changes or {}),
        restore_original=changes is None,
        _proceed=build,
    )
    return through(session, call)


def _changed(activity_id: str, changes: Mapping[str, Any]) -> ActivitySpec:
    """Return a validated spec with the changed fields. The spec does not record which fields were changed."""
    check_changes("an activity", ActivityOptionsUpdate, changes)
    # Checked as if both timeouts were set, because one of them may be removed and only the engine knows which timeouts
    # remain.
    base = CallSettings(spec=ActivitySpec(start_to_close_timeout=1.0, schedule_to_close_timeout=1.0))
    spec = settings_with(base, changes, f"activity {activity_id}").spec
    return ActivitySpec(**{name: getattr(spec, name) for name in changes})


def list_page(
    session: ClientSession, query: str, page_size: int, token: bytes
) -> ClientOperation[ActivityExecutionPage]:
    """Return one page of the matching activities."""

    def parse(page: ac.ActivityPage) -> ActivityExecutionPage:
        items = tuple(ActivityExecution(**_common(activity)) for activity in page.activities)
        return ActivityExecutionPage(items, page.next_page_token)

    return listing(session, ListActivitiesInput, ac.ListActivities, parse, query, page_size, token)


def count(session: ClientSession, query: str) -> ClientOperation[WorkflowExecutionCount]:
    """Return the number of matching activities."""

    def build(call: CountActivitiesInput) -> ClientOperation[WorkflowExecutionCount]:
        return asking(ac.CountActivities(query=call.query), count_from)

    return through(session, CountActivitiesInput(query=query, _proceed=build))
