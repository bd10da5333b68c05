"""What the owner of a file and its clients say to each other, as data and as MessagePack.

Must not know: sockets, how anything is answered. A client says `Hello`, the owner `Welcome` or `RefusedMessage`; then
the client asks, many things at once, each under a number of its own. The tags are those of protocol 1, whatever the
classes are called. Requests, answers and errors are found in fixed tables by
their names: what comes over the wire can name nothing else, and imports nothing.

A process with workers also opens handles, each under a number of its own (`OpenHandle`). The owner then sends `HandleWork` for
them, unasked, as far as a handle has slots, which is all the credit that there is; the process sends `WorkAnswers`. Both
hold all that one turn of a loop brought.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from hourglass import errors
from hourglass._contract import deployments as dp
from hourglass._contract import schedules
from hourglass._contract import service as s
from hourglass._contract.handle import (
    ActivityCancel,
    ActivityDeferred,
    ActivityOk,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
    HandleConfig,
)
from hourglass._embedded.api.requests import HANDLERS
from hourglass._embedded.schedules.transitions import storable_backfill, storable_spec
from hourglass._evaluator.commands import AnyCommand, Succeeded, TaskFailed
from hourglass._evaluator.events import Activation
from hourglass._evaluator.specs import Payloads, VersioningBehavior

PROTOCOL = 4
"""Raised when a process that speaks the former number would misunderstand us. `Hello` keeps its form for ever."""

NO_HANDLE = 0
"""The handle number of results that a process has kept since an earlier owner; handles are numbered from 1."""

SIGN_OF_LIFE, SIGN_WHEN_IDLE = 0.1, 1.0
"""How often, in seconds, a process that works for the owner says that it runs, and while it has nothing to do."""

OWNER_SIGN = 1.0
"""How often, in seconds, the owner reports that it runs, and its peers look whether it does."""

SILENT_LOOKS = 10
"""How many looks, one a second, a peer may be silent; after that it does not run."""

A = TypeVar("A")


class Garbage(errors.HourglassError):
    """The peer said something that makes no sense: it is not listened to any longer."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error as it travels."""

    kind: str
    message: str = ""
    status: str = ""
    workflow_id: str = ""
    workflow_type: str = ""
    run_id: str = ""
    activity_id: str = ""
    activity_type: str = ""


# --- to the owner -------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A client begins."""

    protocol: int
    namespace: str = ""
    pid: int = 0
    pid_namespace: int = 0


class RequestMessage(msgspec.Struct, frozen=True, tag="Ask", omit_defaults=True):
    """A request. `key` is its name for ever: the same request, sent again, has the same key."""

    number: int
    key: str
    kind: str
    body: msgspec.Raw


class GiveUpMessage(msgspec.Struct, frozen=True, tag="GiveUp"):
    """The client does not wait for this answer any more."""

    number: int


class OpenHandle(msgspec.Struct, frozen=True, tag=True):
    """A worker of this process wants to work: what waits in its queue is sent under the handle's number."""

    number: int
    handle: int
    config: HandleConfig


class SucceededMessage(msgspec.Struct, frozen=True):
    """`hourglass._evaluator.commands.Succeeded`, as it is read: of which kind each command is."""

    run_id: str
    commands: tuple[AnyCommand, ...] = ()
    used_flags: tuple[int, ...] = ()
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED

    def completion(self) -> Succeeded:
        """What was sent."""
        return Succeeded(self.run_id, self.commands, self.used_flags, self.versioning_behavior)


class WorkAnswers(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, kw_only=True):
    """What a handle's worker has to say. Whatever order it came in: heartbeats count before ends, and a run has one
    completion in it at most.
    """

    handle: int
    heartbeats: tuple[tuple[bytes, Payloads], ...] = ()
    returned: tuple[ActivityOk, ...] = ()
    failed: tuple[AttemptFailed, ...] = ()
    cancelled: tuple[AttemptCancelled, ...] = ()
    deferred: tuple[ActivityDeferred, ...] = ()
    succeeded: tuple[SucceededMessage, ...] = ()
    failed_tasks: tuple[TaskFailed, ...] = ()
    evictions: tuple[str, ...] = ()


class ShutDownHandle(msgspec.Struct, frozen=True, tag=True):
    """The worker takes no new work; what it has in hand it finishes."""

    handle: int


class CloseHandle(msgspec.Struct, frozen=True, tag=True):
    """The worker has ended: what it still had is given to others."""

    number: int
    handle: int


class Holding(msgspec.Struct, frozen=True, tag=True):
    """The attempts that a process was given by the owner before and still has: said to the next one, before anything else."""

    tokens: tuple[bytes, ...]


class Alive(msgspec.Struct, frozen=True, tag=True):
    """A process with workers says that it runs, and how much time it has used of its processors so far, and of that on its
    control loop: one that is stopped keeps its connection, and does nothing.
    """

    processor_time: float
    control_time: float = 0.0


# --- to the client ------------------------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The owner presents itself."""

    protocol: int
    pid: int = 0
    since_ns: int = 0


class RefusedMessage(msgspec.Struct, frozen=True, tag="Refused"):
    """The owner does not speak with this client."""

    problem: Problem
    protocol: int = PROTOCOL


class AnswerMessage(msgspec.Struct, frozen=True, tag="Answer", omit_defaults=True):
    """The answer to the request of this number."""

    number: int
    kind: str
    body: msgspec.Raw


class Failed(msgspec.Struct, frozen=True, tag=True):
    """What was asked under this number failed."""

    number: int
    problem: Problem


class HandleWork(msgspec.Struct, frozen=True, tag="Work", omit_defaults=True, kw_only=True):
    """Work for a handle: activations, attempts of activities, and attempts that are to stop."""

    handle: int
    activations: tuple[Activation, ...] = ()
    tasks: tuple[ActivityTask, ...] = ()
    cancels: tuple[ActivityCancel, ...] = ()


class PollEnded(msgspec.Struct, frozen=True, tag=True):
    """There is no more of one kind of work for a handle: it was shut down, or, with a reason, broke."""

    handle: int
    activities: bool
    broken: str = ""


class ResultsStored(msgspec.Struct, frozen=True, tag=True):
    """The results of these attempts are durable, or count no more: the process that sent them need not keep them."""

    tokens: tuple[bytes, ...]


class OwnerAlive(msgspec.Struct, frozen=True, tag=True):
    """The owner reports, about once a second, that it runs: a stopped process keeps its connections and its lock."""


class Processes(msgspec.Struct, frozen=True, tag=True):
    """Which processes work on the file now: told to all of them, about once a second while that changes."""

    processes: tuple[dp.WorkerProcess, ...]


class FileLostMessage(msgspec.Struct, frozen=True, tag="FileLost"):
    """Why the owner stops, and why no process that works for it may open the file again: it was replaced or overwritten."""

    message: str


ToOwner: TypeAlias = (
    Hello
    | RequestMessage
    | GiveUpMessage
    | OpenHandle
    | WorkAnswers
    | ShutDownHandle
    | CloseHandle
    | Holding
    | Alive
)
ToClient: TypeAlias = (
    Welcome
    | RefusedMessage
    | AnswerMessage
    | Failed
    | HandleWork
    | PollEnded
    | Processes
    | ResultsStored
    | OwnerAlive
    | FileLostMessage
)

_encoder = msgspec.msgpack.Encoder()
_to_owner: msgspec.msgpack.Decoder[ToOwner] = msgspec.msgpack.Decoder(ToOwner)
_to_client: msgspec.msgpack.Decoder[ToClient] = msgspec.msgpack.Decoder(ToClient)
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)

encode = _encoder.encode


def decode_to_owner(data: bytes) -> ToOwner:
    """A message from a client. Raises `Garbage`."""
    try:
        return _to_owner.decode(data)
    except _UNREADABLE as error:
        raise Garbage(f"not a message to an owner ({type(error).__name__})") from None


def decode_to_client(data: bytes) -> ToClient:
    """A message from an owner. Raises `Garbage`."""
    try:
        return _to_client.decode(data)
    except _UNREADABLE as error:
        raise Garbage(f"not a message to a client ({type(error).__name__})") from None


# --- requests and answers -----------------------------------------------------------------------------------


REQUESTS: tuple[type[s.Request[Any]], ...] = tuple(HANDLERS)
"""What can be asked of another process: what an engine answers."""


def _answers_of(request: type[s.Request[Any]]) -> tuple[type[msgspec.Struct], ...]:
    (answer,) = get_args(request.__orig_bases__[0])  # type: ignore[attr-defined]
    return get_args(answer) or (answer,)


_REQUESTS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    each.__name__: msgspec.msgpack.Decoder(each) for each in REQUESTS
}
_ANSWERS: dict[type[s.Request[Any]], dict[str, msgspec.msgpack.Decoder[Any]]] = {
    each: {answer.__name__: msgspec.msgpack.Decoder(answer) for answer in _answers_of(each)}
    for each in REQUESTS
}


def ask(number: int, key: str, request: s.Request[Any]) -> bytes:
    """Return a request as a message."""
    kind = type(request).__name__
    if kind not in _REQUESTS:
        raise errors.ServiceError(f"{kind} cannot be asked of another process", status="UNIMPLEMENTED")
    try:
        body = encode(_storable(request))
    except OverflowError:
        raise errors.ServiceError(
            f"a number of this {kind} is larger than 64 bits", status="INVALID_ARGUMENT"
        ) from None
    return encode(RequestMessage(number, key, kind, msgspec.Raw(body)))


def _storable(request: s.Request[Any]) -> s.Request[Any]:
    """A request whose times have 64 bits: beyond those nothing is ever due."""
    match request:
        case schedules.CreateSchedule() | schedules.UpdateSchedule():
            spec = storable_spec(request.schedule.spec)
            request = replace(request, schedule=replace(request.schedule, spec=spec))
        case _:
            pass
    match request:
        case schedules.CreateSchedule(backfill=backfills) | schedules.PatchSchedule(backfill=backfills):
            return replace(request, backfill=tuple(map(storable_backfill, backfills)))
        case _:
            return request


def request_of(message: RequestMessage) -> s.Request[Any]:
    """The request in a message. Raises `Garbage`."""
    decoder = _REQUESTS.get(message.kind)
    if decoder is None:
        raise Garbage("there is no such request")
    try:
        request: s.Request[Any] = decoder.decode(message.body)
    except _UNREADABLE as error:
        raise Garbage(f"a request that cannot be read ({type(error).__name__})") from None
    return request


def answer(number: int, value: msgspec.Struct) -> bytes:
    """Return an answer as a message."""
    return encode(AnswerMessage(number, type(value).__name__, msgspec.Raw(encode(value))))


def answer_of(request: s.Request[A], message: AnswerMessage) -> A:
    """Return the answer in a message. Raise `Garbage` if it does not fit the request."""
    kind = type(request)
    decoder = _ANSWERS[kind].get(message.kind)
    if decoder is None:
        raise Garbage(f"an answer that {kind.__name__} does not have")
    try:
        value: A = decoder.decode(message.body)
        return value
    except _UNREADABLE as error:
        raise Garbage(f"an answer that cannot be read ({type(error).__name__})") from None


# --- errors -------------------------------------------------------------------------------------------------

_SERVICE_ERRORS: dict[str, type[errors.ServiceError]] = {
    each.__name__: each
    for each in (
        errors.ServiceError,
        errors.ConnectionFailedError,
        errors.NamespaceNotFoundError,
        errors.WorkflowNotFoundError,
        errors.ActivityNotFoundError,
        errors.StorageError,
        errors.ServiceTimeoutError,
    )
}
_PLAIN_ERRORS: dict[str, type[errors.HourglassError]] = {
    each.__name__: each
    for each in (
        errors.QueryFailedError,
        errors.UpdateFailedError,
        errors.UsageError,
        errors.ArgumentError,
        errors.PayloadError,
        errors.DecodeError,
        errors.HistoryError,
        errors.InternalError,
    )
}
_TAKEN = errors.WorkflowAlreadyStartedError


def problem_of(error: BaseException) -> Problem:
    """An error as it travels: one of ours by the nearest name in the tables, any other by its name alone."""
    if isinstance(error, _TAKEN):
        return Problem(
            kind=_TAKEN.__name__,
            message=str(error),
            workflow_id=error.workflow_id,
            workflow_type=error.workflow_type,
            run_id=error.run_id,
        )
    if isinstance(error, errors.ActivityAlreadyStartedError):
        return Problem(
            kind="ActivityAlreadyStartedError",
            message=str(error),
            activity_id=error.activity_id,
            activity_type=error.activity_type,
            run_id=error.run_id,
        )
    for each in type(error).__mro__:
        if each.__name__ in _SERVICE_ERRORS and isinstance(error, errors.ServiceError):
            return Problem(kind=each.__name__, message=str(error), status=error.status)
        if each.__name__ in _PLAIN_ERRORS and isinstance(error, errors.HourglassError):
            return Problem(kind=each.__name__, message=str(error))
    # A text that is not ours may hold anything.
    return Problem(kind="InternalError", message=f"the engine failed with {type(error).__name__}")


def error_of(problem: Problem) -> errors.HourglassError:
    """The error that travelled."""
    if problem.kind == _TAKEN.__name__:
        return _TAKEN(
            problem.message,
            workflow_id=problem.workflow_id,
            workflow_type=problem.workflow_type,
            run_id=problem.run_id,
        )
    if problem.kind == "ActivityAlreadyStartedError":
        return errors.ActivityAlreadyStartedError(
            problem.message,
            activity_id=problem.activity_id,
            activity_type=problem.activity_type,
            run_id=problem.run_id,
        )
    if problem.kind in _SERVICE_ERRORS:
        return _SERVICE_ERRORS[problem.kind](problem.message, status=problem.status)
    return _PLAIN_ERRORS.get(problem.kind, errors.InternalError)(problem.message)
