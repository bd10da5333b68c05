"""Conversion of exceptions to failures and back, compatible with Temporal's Python SDK.

Invariants: no function here raises an exception, whatever it converts. Chains are processed in loops, so that their length
does not matter. A received failure is sent back unchanged, including fields that our exceptions do not have.

Must not know: the encoding of values. The functions for it are passed as arguments.
"""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any

import msgspec

from hourglass import errors
from hourglass.converter._data import (
    ActivityFailure,
    ApplicationFailure,
    CanceledFailure,
    ChildWorkflowFailure,
    Decode,
    Encode,
    Failure,
    FailureInfo,
    Payload,
    ServerFailure,
    TerminatedFailure,
    TimeoutFailure,
    causes,
    joined,
    opened,
)
from hourglass.converter._stacks import without_ours

SOURCE = "HourglassSDK"
"""The source of our failures. Servers and SDKs only display it, except for the server's own name."""

MOST_CAUSES = 50
"""Longer chains are cut in the middle, because Core rejects messages nested 100 levels deep."""
_LAST_CAUSES = 10

_ORIGIN = "_hourglass_failure"


def to_failure(exc: BaseException, encode: Encode) -> Failure:
    """Convert an exception and its causes to a failure."""
    if _ORIGIN not in exc.__dict__ and _cause(exc) is None:
        return _own_failure(exc, None, encode)
    failure: Failure | None = None
    for link in reversed(_chain(exc)):
        origin = _origin(link)
        if origin is None:
            failure = _own_failure(link, failure, encode)
        elif _cause_is_original(link):
            failure = origin
        else:
            failure = msgspec.structs.replace(origin, cause=failure)
    assert failure is not None
    return _shortened(failure)


def _chain(exc: BaseException) -> list[BaseException]:
    """Return the exception and its causes, each once. Stop after the first exception with an original failure that already
    contains its causes."""
    links: list[BaseException] = []
    seen: set[int] = set()
    link: BaseException | None = exc
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        links.append(link)
        if _origin(link) is not None and _cause_is_original(link):
            break
        link = _cause(link)
    return links


def _cause(exc: BaseException) -> BaseException | None:
    if exc.__cause__ is not None:
        return exc.__cause__
    return None if exc.__suppress_context__ else exc.__context__


def _origin(exc: BaseException) -> Failure | None:
    origin = exc.__dict__.get(_ORIGIN)
    return origin[0] if origin is not None else None


def _cause_is_original(exc: BaseException) -> bool:
    """Whether an exception still has its original cause. A copy without a cause represents the same failure."""
    return exc.__cause__ is None or exc.__cause__ is exc.__dict__[_ORIGIN][1]


def _own_failure(exc: BaseException, cause: Failure | None, encode: Encode) -> Failure:
    return Failure(
        message=_message(exc),
        info=_info(exc, encode),
        cause=cause,
        stack_trace=_stack(exc),
        source=SOURCE,
    )


def _message(exc: BaseException) -> str:
    if isinstance(exc, errors.FailureError) and isinstance(getattr(exc, "message", None), str):
        return _clean(exc.message)
    try:
        text = _clean(str(exc))
    except Exception as error:
        return f"(the message of this {type(exc).__name__} raised {type(error).__name__})"
    return "Cancelled" if not text and isinstance(exc, errors.Cancelled) else text


def _stack(exc: BaseException) -> str:
    if exc.__traceback__ is None:
        return ""
    try:
        return _clean("\n".join(traceback.format_list(_places(exc.__traceback__))))
    except Exception:
        return ""


def _places(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """Return the frames of a traceback without column markers, because these would make Python parse each line."""
    frames = list(traceback.walk_tb(trace))
    for name in {frame.f_code.co_filename for frame, _ in frames}:
        linecache.checkcache(name)
    return [
        traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames
    ]


def _clean(text: str) -> str:
    """Return the text in a form that UTF-8 can encode. Protobuf rejects lone surrogates, as in some file names."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _info(exc: BaseException, encode: Encode) -> FailureInfo:
    """Return the kind of a failure. User-defined subclasses may lack attributes that our constructors
    set.
    """
    if not isinstance(exc, (errors.FailureError, errors.Cancelled)):
        return ApplicationFailure(type=_clean(type(exc).__name__))
    match exc:
        case errors.Cancelled():
            return CanceledFailure()
        case errors.TimedOutError():
            details = _details(exc, "last_heartbeat_details", encode)
            return TimeoutFailure(_number(exc, "type", errors.TimeoutType), details)
        case errors.CancelledError():
            return CanceledFailure(_details(exc, "details", encode))
        case errors.TerminatedError():
            return TerminatedFailure()
        case errors.ServerError():
            return ServerFailure(bool(getattr(exc, "non_retryable", False)))
        case errors.ActivityError():
            return ActivityFailure(**_attributes(exc, ActivityFailure))
        case errors.ChildWorkflowError():
            return ChildWorkflowFailure(**_attributes(exc, ChildWorkflowFailure))
        case errors.ApplicationError():
            return _application(exc, encode)
        case _:
            return ApplicationFailure(type=_clean(type(exc).__name__))


def _application(exc: errors.ApplicationError, encode: Encode) -> ApplicationFailure:
    return ApplicationFailure(
        type=_clean(str(getattr(exc, "type", type(exc).__name__))),
        non_retryable=bool(getattr(exc, "non_retryable", False)),
        details=_details(exc, "details", encode),
        next_retry_delay=_delay(getattr(exc, "next_retry_delay", None)),
        category=int(_number(exc, "category", errors.ApplicationErrorCategory)),
    )


def _delay(value: Any) -> float | None:
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < 1e10 else None


def _number(exc: BaseException, name: str, kind: Any) -> Any:
    try:
        return kind(getattr(exc, name, 0))
    except ValueError:
        return kind(0)


def _attributes(
    exc: BaseException, info: type[ActivityFailure] | type[ChildWorkflowFailure]
) -> dict[str, Any]:
    """Return the attributes of an exception that its failure has under the same names, if they have the right type."""
    fields: dict[str, Any] = {"retry_state": _number(exc, "retry_state", errors.RetryState)}
    for name in info.__struct_fields__:
        value = getattr(exc, name, None)
        if name != "retry_state" and isinstance(value, int if name.endswith("_event_id") else str):
            fields[name] = value
    return fields


def _details(exc: BaseException, name: str, encode: Encode) -> tuple[Payload, ...]:
    values = getattr(exc, name, ())
    if not isinstance(values, (tuple, list)):
        values = () if values is None else (values,)
    return tuple([_detail(value, encode) for value in values])


def _detail(value: Any, encode: Encode) -> Payload:
    try:
        return encode(value)
    except Exception as error:
        text = f"(a {type(value).__name__} that could not be encoded: {type(error).__name__})"
        try:
            return encode(text)
        except Exception:  # a converter that fails must not prevent the failure report
            return Payload(msgspec.json.encode(text))


def _shortened(failure: Failure) -> Failure:
    links = list(causes(failure))
    if len(links) <= MOST_CAUSES:
        return failure
    left_out = len(links) - (MOST_CAUSES - 1)
    gap = Failure(f"({left_out} more causes omitted)", ApplicationFailure("CausesLeftOut"), source=SOURCE)
    return joined([*links[: MOST_CAUSES - 1 - _LAST_CAUSES], gap, *links[-_LAST_CAUSES:]])


def from_failure(failure: Failure, decode: Decode) -> BaseException:
    """Convert a failure and its causes to an exception."""
    exc: errors.FailureError | None = None
    for link in reversed(list(causes(failure))):
        readable = opened(link, decode)
        made = _exception(readable.message, readable.info, decode)
        if readable.stack_trace:
            made.remote_traceback = readable.stack_trace
            made.__notes__ = [_note(made, readable.stack_trace)]
        made.__cause__ = exc
        made.__dict__[_ORIGIN] = (link, exc)
        exc = made
    assert exc is not None
    return exc


_CATEGORIES = {category.value: category for category in errors.ApplicationErrorCategory}


def _note(exc: errors.FailureError, trace: str) -> str:
    """Return the note that a traceback shows below the exception: the stack where it was raised, without our frames."""
    return f"Raised at (most recent call last):\n{without_ours(trace)}\n{errors.summary(exc)}"


def _exception(message: str, info: FailureInfo | None, decode: Decode) -> errors.FailureError:
    """Return the exception for a failure. The texts for an empty message are copied from Temporal's Python SDK."""
    match info:
        case ApplicationFailure():
            return errors.ApplicationError(
                message or "Application error",
                *_values(info.details, decode),
                type=info.type,
                non_retryable=info.non_retryable,
                next_retry_delay=_as_timedelta(info.next_retry_delay),
                category=_CATEGORIES.get(info.category, errors.ApplicationErrorCategory.UNSPECIFIED),
            )
        case TimeoutFailure():
            beats = _values(info.last_heartbeat_details, decode)
            return errors.TimedOutError(message or "Timeout", type=info.type, last_heartbeat_details=beats)
        case CanceledFailure():
            return errors.CancelledError(message or "Cancelled", *_values(info.details, decode))
        case TerminatedFailure():
            return errors.TerminatedError(message or "Terminated")
        case ServerFailure():
            return errors.ServerError(message or "Server error", non_retryable=info.non_retryable)
        case ActivityFailure():
            return errors.ActivityError(message or "Activity error", **msgspec.structs.asdict(info))
        case ChildWorkflowFailure():
            return errors.ChildWorkflowError(
                message or "Child workflow error", **msgspec.structs.asdict(info)
            )
        case _:
            return errors.FailureError(message or "Failure error")


def _values(payloads: Iterable[Payload], decode: Decode) -> tuple[Any, ...]:
    return tuple([_value(payload, decode) for payload in payloads])


def _value(payload: Payload, decode: Decode) -> Any:
    """Decode a detail. If that fails, return the payload itself so that the failure is not lost."""
    try:
        return decode(payload)
    except Exception:
        return payload


def _as_timedelta(seconds: float | None) -> timedelta | None:
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None
