"""The messages between the owner of a file and its clients, as data and as MessagePack.

Must not know: sockets, how a request is answered. A client sends `Hello`, the owner `Welcome` or `RejectedMessage`; then
the client sends requests, concurrently, each with its own number. The tags are those of protocol 1, independent of
later class names. Requests, answers and errors are looked up by name in fixed tables: a message can name no other
class, and causes no import.

A process with workers also opens handles, each with its own number (`OpenHandle`). The owner then sends `HandleWork`
for them without further requests, within the limit of the handle's slots; the process sends `WorkAnswers`. Each message
contains all items that one iteration of the sender's event loop produced.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar, get_args

import msgspec

from hourglass import errors
from hourglass._contract import service as s
from hourglass._contract.engine_status import WorkerProcess
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
from hourglass._evaluator.commands import AnyCommand, Succeeded, TaskFailed
from hourglass._evaluator.events import Activation
from hourglass._evaluator.specs import Payloads, VersioningBehavior

PROTOCOL = 4
"""The protocol version; increased when a process with the previous version would misinterpret a message. `Hello` never
changes."""

NO_HANDLE = 0
"""The handle number of results that a process has kept since an earlier owner; handles are numbered from 1."""

REPORT_INTERVAL, IDLE_REPORT_INTERVAL = 0.1, 1.0
"""Seconds between the reports of a process that works for the owner: while the process has work to do, and while it is
idle.
"""

OWNER_REPORT_INTERVAL = 1.0
"""Seconds between the owner's reports that it is running, and between the checks of the processes that receive the
reports.
"""

SILENT_CHECKS = 10
"""The number of checks, one per second, after which a silent peer counts as not running."""

A = TypeVar("A")


class InvalidMessage(errors.HourglassError):
    """Raised for an invalid message of the peer. The connection then ends."""


class ErrorMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An error in the form of a message."""

    kind: str
    message: str = ""
    status: str = ""
    workflow_id: str = ""
    workflow_type: str = ""
    run_id: str = ""
    activity_id: str = ""
    activity_type: str = ""
    schedule_id: str = ""


class Hello(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A client's greeting."""

    protocol: int
    namespace: str = ""
    pid: int = 0
    pid_namespace: int = 0


class RequestMessage(msgspec.Struct, frozen=True, tag="Ask", omit_defaults=True):
    """A request. `key` identifies the request: it stays the same when the request is sent again."""

    number: int
    key: str
    kind: str
    body: msgspec.Raw


class AbandonMessage(msgspec.Struct, frozen=True, tag="GiveUp"):
    """A notice that the client no longer waits for the answer with this number."""

    number: int


class OpenHandle(msgspec.Struct, frozen=True, tag=True):
    """A request to open a handle for a worker. The owner sends the tasks of the handle's queue with the handle's
    number.
    """

    number: int
    handle: int
    config: HandleConfig


class SucceededMessage(msgspec.Struct, frozen=True):
    """The form of `hourglass._evaluator.commands.Succeeded` for decoding, in which every command has a tag."""

    run_id: str
    commands: tuple[AnyCommand, ...] = ()
    used_flags: tuple[int, ...] = ()
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED

    def completion(self) -> Succeeded:
        return Succeeded(self.run_id, self.commands, self.used_flags, self.versioning_behavior)


class WorkAnswers(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, kw_only=True):
    """The heartbeats, results and completions of a handle's worker. Heartbeats are applied before results, in whatever
    order the worker created them.

    A message contains at most one completion per run.
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
    """A request to send no new work to a handle. The worker completes its work in progress."""

    handle: int


class CloseHandle(msgspec.Struct, frozen=True, tag=True):
    """A request to close a handle, because its worker has ended. The work in progress goes to other workers."""

    number: int
    handle: int


class Holding(msgspec.Struct, frozen=True, tag=True):
    """The attempts that a process still has from the previous owner. This is its first message to the next owner."""

    tokens: tuple[bytes, ...]


class Alive(msgspec.Struct, frozen=True, tag=True):
    """A report that a process with workers is running. A stopped process keeps its connection, but does not work.

    Contains the CPU time that the process has used so far, and the part of it used by the control loop.
    """

    processor_time: float
    control_time: float = 0.0


class Welcome(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The owner's greeting."""

    protocol: int
    pid: int = 0
    since_ns: int = 0


class RejectedMessage(msgspec.Struct, frozen=True, tag="Refused"):
    """The owner's rejection of a client."""

    problem: ErrorMessage
    protocol: int = PROTOCOL


class AnswerMessage(msgspec.Struct, frozen=True, tag="Answer", omit_defaults=True):
    """The answer to the request with this number."""

    number: int
    kind: str
    body: msgspec.Raw


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The error of the request with this number."""

    number: int
    problem: ErrorMessage


class HandleWork(msgspec.Struct, frozen=True, tag="Work", omit_defaults=True, kw_only=True):
    """Work for a handle: activations, activity attempts to execute, and activity attempts to cancel."""

    handle: int
    activations: tuple[Activation, ...] = ()
    tasks: tuple[ActivityTask, ...] = ()
    cancels: tuple[ActivityCancel, ...] = ()


class PollEnded(msgspec.Struct, frozen=True, tag=True):
    """A notice that a handle gets no more work of one kind. It was shut down, or broke for the reason in `broken`."""

    handle: int
    activities: bool
    broken: str = ""


class ResultsStored(msgspec.Struct, frozen=True, tag=True):
    """A confirmation that the results of these attempts are durable, or irrelevant. The sender need not keep them."""

    tokens: tuple[bytes, ...]


class OwnerAlive(msgspec.Struct, frozen=True, tag=True):
    """The owner's report, about once a second, that the owner is running. A stopped process keeps its connections and
    its lock.
    """


class Processes(msgspec.Struct, frozen=True, tag=True):
    """The processes that work on the file, sent to all of them when the list changes."""

    processes: tuple[WorkerProcess, ...]


class FileLostMessage(msgspec.Struct, frozen=True, tag="FileLost"):
    """The owner's last message if the file was replaced or overwritten, so that no process may open it again."""

    message: str


ToOwner: TypeAlias = (
    Hello
    | RequestMessage
    | AbandonMessage
    | OpenHandle
    | WorkAnswers
    | ShutDownHandle
    | CloseHandle
    | Holding
    | Alive
)
ToClient: TypeAlias = (
    Welcome
    | RejectedMessage
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
    """Decode a message from a client. Raises `InvalidMessage`."""
    return _decode(_to_owner, data, "message to the owner")


def decode_to_client(data: bytes) -> ToClient:
    """Decode a message from an owner. Raises `InvalidMessage`."""
    return _decode(_to_client, data, "message to the client")


def _decode(decoder: msgspec.msgpack.Decoder[A], data: bytes | msgspec.Raw, what: str) -> A:
    try:
        return decoder.decode(data)
    except _UNREADABLE as error:
        raise InvalidMessage(f"the {what} cannot be decoded ({type(error).__name__})") from None


REQUESTS: tuple[type[s.Request[Any]], ...] = tuple(HANDLERS)
"""The requests that can be sent to another process: all requests that an engine answers."""


def _answers_of(request: type[s.Request[Any]]) -> tuple[type[msgspec.Struct], ...]:
    (answer,) = get_args(request.__orig_bases__[0])  # type: ignore[attr-defined]
    return get_args(answer) or (answer,)


_REQUESTS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    request.__name__: msgspec.msgpack.Decoder(request) for request in REQUESTS
}
_ANSWERS: dict[type[s.Request[Any]], dict[str, msgspec.msgpack.Decoder[Any]]] = {
    request: {answer.__name__: msgspec.msgpack.Decoder(answer) for answer in _answers_of(request)}
    for request in REQUESTS
}


def encode_request(number: int, key: str, request: s.Request[Any]) -> bytes:
    """Encode a request as a message with this number and key."""
    kind = type(request).__name__
    if kind not in _REQUESTS:
        raise errors.ServiceError(f"{kind} cannot be sent to another process", status="UNIMPLEMENTED")
    try:
        body = encode(request)
    except OverflowError:
        raise errors.ServiceError(
            f"a number in this {kind} does not fit into 64 bits", status="INVALID_ARGUMENT"
        ) from None
    return encode(RequestMessage(number, key, kind, msgspec.Raw(body)))


def decode_request(message: RequestMessage) -> s.Request[Any]:
    decoder = _REQUESTS.get(message.kind)
    if decoder is None:
        raise InvalidMessage("unknown kind of request")
    request: s.Request[Any] = _decode(decoder, message.body, "request")
    return request


def encode_answer(number: int, value: msgspec.Struct) -> bytes:
    return encode(AnswerMessage(number, type(value).__name__, msgspec.Raw(encode(value))))


def decode_answer(request: s.Request[A], message: AnswerMessage) -> A:
    """Decode the answer in a message. Raises `InvalidMessage` if the answer is unreadable or does not fit the request."""
    kind = type(request)
    decoder = _ANSWERS[kind].get(message.kind)
    if decoder is None:
        raise InvalidMessage(f"invalid answer to {kind.__name__}: unknown kind")
    answer: A = _decode(decoder, message.body, "answer")
    return answer


_ERRORS: dict[str, tuple[type[errors.HourglassError], tuple[str, ...]]] = {
    kind.__name__: (kind, fields)
    for fields, kinds in {
        ("status",): (
            errors.ServiceError,
            errors.ConnectionFailedError,
            errors.NamespaceNotFoundError,
            errors.WorkflowNotFoundError,
            errors.ActivityNotFoundError,
            errors.ScheduleNotFoundError,
            errors.StorageError,
            errors.ServiceTimeoutError,
        ),
        (): (
            errors.QueryFailedError,
            errors.UpdateFailedError,
            errors.UsageError,
            errors.ArgumentError,
            errors.PayloadError,
            errors.DecodeError,
            errors.HistoryError,
            errors.InternalError,
        ),
        ("workflow_id", "workflow_type", "run_id"): (errors.WorkflowAlreadyStartedError,),
        ("activity_id", "activity_type", "run_id"): (errors.ActivityAlreadyStartedError,),
        ("schedule_id",): (errors.ScheduleAlreadyExistsError,),
    }.items()
    for kind in kinds
}
"""The errors that can be sent, by class name, each with the fields that are sent with its message."""


def problem_of(error: BaseException) -> ErrorMessage:
    """Encode an error. An error of ours is encoded with the nearest class name in the table, any other error as
    InternalError with its class name.
    """
    for parent in type(error).__mro__:
        kind, fields = _ERRORS.get(parent.__name__, (None, ()))
        if kind is not None and isinstance(error, kind):
            values = {field: getattr(error, field) for field in fields}
            return ErrorMessage(kind=kind.__name__, message=str(error), **values)
    # The messages of other exceptions may contain arbitrary data.
    return ErrorMessage(kind="InternalError", message=f"the engine failed with {type(error).__name__}")


def error_of(problem: ErrorMessage) -> errors.HourglassError:
    kind, fields = _ERRORS.get(problem.kind, (errors.InternalError, ()))
    return kind(problem.message, **{field: getattr(problem, field) for field in fields})
