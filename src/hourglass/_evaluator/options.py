"""Validation of the options that authors pass in calls: durations, retry policies, options of a start."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, ClassVar, TypeAlias, TypeVar

import msgspec

from hourglass._evaluator.commands import EventGroupMarker
from hourglass._evaluator.specs import ActivitySpec, RetryRule, StartSpec
from hourglass.converter import Converter, Payload, encode_search_attributes
from hourglass.errors import UsageError

Duration: TypeAlias = timedelta | float
"""A `timedelta`, or a number of seconds."""

E = TypeVar("E", bound=IntEnum)

INT32 = 2**31 - 1
INT64 = 2**63 - 1
"""The largest number that can be sent to a server, e.g. as a count or an event id."""

LONGEST_TASK_TIMEOUT = 120.0
"""The maximum timeout of a workflow task in seconds."""

# Temporal's servers store durations in 64-bit nanoseconds: 292 years.
_LONGEST = 292 * 365 * 86400.0


def seconds(duration: Duration, what: str = "a duration") -> float:
    """Return a duration in seconds. Raise `UsageError` if it is negative, not finite, too long or not a
    duration.
    """
    if type(duration) is float and 0.0 <= duration <= _LONGEST:  # the usual case, for every sleep
        return duration
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        value = number(duration, what)
    else:
        raise UsageError(f"{what} must be a timedelta or a number of seconds, not {type(duration).__name__}")
    if not math.isfinite(value) or value < 0 or value > _LONGEST:
        raise UsageError(f"{what} must be between 0 and 292 years, not {value:g} s")
    return value


def optional_seconds(duration: Duration | None, what: str) -> float | None:
    """Return a duration in seconds; None stays None."""
    return None if duration is None else seconds(duration, what)


def number(value: object, what: str) -> float:
    """Return a number as a float, or infinity if it is too large for a float. Raise `UsageError` for other
    types.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise UsageError(f"{what} must be a number, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def whole_number(value: object, what: str, minimum: int, maximum: int) -> int:
    """Return an integer. Raise `UsageError` for another type, or outside of the limits."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{what} must be an int, not {type(value).__name__}")
    if not minimum <= value <= maximum:
        digits = value if value.bit_length() < 200 else "a larger one"
        raise UsageError(f"{what} must be a number from {minimum} to {maximum}, not {digits}")
    return int(value)


def priority(value: object, what: str = "priority_key") -> int:
    """Return a valid priority of a workflow or an activity: 1 is the most urgent, and 0 means unset."""
    return whole_number(value, what, 0, INT32)


LONGEST_FAIRNESS_KEY = 64
LIGHTEST, HEAVIEST = 0.001, 1000.0


def fairness_key(value: object, what: str = "fairness_key") -> str:
    """Return a valid fairness key of a workflow or an activity. All tasks without a key share the empty key."""
    key = check_text(value, what)
    if len(key.encode()) > LONGEST_FAIRNESS_KEY:
        raise UsageError(f"{what} must be at most {LONGEST_FAIRNESS_KEY} bytes long, not {len(key.encode())}")
    return key


def fairness_weight(value: object, what: str = "fairness_weight") -> float:
    """Return a valid weight of a fairness key: 1 is the normal weight, and 0 means the default."""
    weight = number(value, what)
    if weight and not LIGHTEST <= weight <= HEAVIEST:
        raise UsageError(
            f"{what} must be between {LIGHTEST:g} and {HEAVIEST:g}, or 0 for the default, not {weight:g}"
        )
    return weight


def check_text(value: object, what: str) -> str:
    """Return a string that UTF-8 can encode. Raise `UsageError` for other types, and for strings with a lone
    surrogate.
    """
    if not isinstance(value, str):
        raise UsageError(f"{what} must be a str, not {type(value).__name__}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{what} must be a str that UTF-8 can encode, not {value!r}") from None
    return value


def choice(kind: type[E], value: object, what: str) -> E:
    """Return the enum member for a value, which is a member or its number. Raise `UsageError` for any other."""
    try:
        if isinstance(value, (kind, int)) and not isinstance(value, bool):
            return kind(value)
    except ValueError:
        pass
    names = ", ".join(member.name for member in kind)
    raise UsageError(f"{what} must be one of {kind.__name__}: {names}; not {value!r:.100}")


def retry_rule(policy: object, what: str = "retry_policy") -> RetryRule | None:
    """Return a retry policy as checked data; None stays None."""
    if policy is None:
        return None
    if not isinstance(policy, RetryPolicy):
        raise UsageError(f"{what} must be a RetryPolicy, not {_type_name(policy)}")
    return policy.rule()


def named_values(value: object, what: str) -> Mapping[str, Any]:
    """Return a valid mapping of values by name, such as a memo."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{what} must be a dict of names to values, not {_type_name(value)}")
    for name in value:
        check_text(name, f"a name in {what}")
    return value


def several(value: object, what: str) -> Sequence[Any]:
    """Return a list or another sequence. Raise `UsageError` for a string and other types."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
        raise UsageError(f"{what} must be a list, not {_type_name(value)}")
    return value


def _type_name(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


@dataclass(frozen=True)
class RetryPolicy:
    """The retry policy of an activity or workflow. The defaults are Temporal's: unlimited retries, the first
    after 1 s, with a delay that doubles each time.
    """

    initial_interval: Duration = 1.0
    backoff_coefficient: float = 2.0
    maximum_interval: Duration | None = None
    maximum_attempts: int = 0
    non_retryable_error_types: Sequence[str] | None = ()

    def __post_init__(self) -> None:
        self.rule()

    def rule(self) -> RetryRule:
        """Return the policy as checked data."""
        first = seconds(self.initial_interval, "initial_interval")
        longest = 0.0 if self.maximum_interval is None else seconds(self.maximum_interval, "maximum_interval")
        if first <= 0:
            raise UsageError("initial_interval must be more than 0")
        if self.maximum_interval is not None and longest < first:
            raise UsageError(
                f"maximum_interval ({longest:g} s) is shorter than initial_interval ({first:g} s)"
            )
        coefficient = number(self.backoff_coefficient, "backoff_coefficient")
        if not 1 <= coefficient < math.inf:
            raise UsageError(
                f"backoff_coefficient must be a finite number of at least 1, not {coefficient:g}"
            )
        if isinstance(self.maximum_attempts, int) and self.maximum_attempts < 0:
            raise UsageError("maximum_attempts must not be negative")
        attempts = whole_number(self.maximum_attempts, "maximum_attempts", 0, INT32)
        if isinstance(self.non_retryable_error_types, str):
            raise UsageError("non_retryable_error_types must be a list of type names, not a single str")
        names = () if self.non_retryable_error_types is None else self.non_retryable_error_types
        if not isinstance(names, Iterable):
            raise UsageError(
                f"non_retryable_error_types must be a list of type names, not {_type_name(names)}"
            )
        return RetryRule(
            initial_interval=first,
            backoff_coefficient=coefficient,
            maximum_interval=longest,
            maximum_attempts=attempts,
            non_retryable_error_types=tuple(
                check_text(error_type, "a non_retryable_error_type") for error_type in names
            ),
        )


def policy_from(rule: RetryRule | None) -> RetryPolicy | None:
    """Return a rule as the public `RetryPolicy`. Fields that an engine left unset get Temporal's defaults."""
    if rule is None:
        return None
    return RetryPolicy(
        initial_interval=rule.initial_interval or 1.0,
        backoff_coefficient=rule.backoff_coefficient or 2.0,
        maximum_interval=rule.maximum_interval or None,
        maximum_attempts=rule.maximum_attempts,
        non_retryable_error_types=rule.non_retryable_error_types,
    )


@dataclass(frozen=True)
class Priority:
    """The priority of a workflow or an activity (1 is the most urgent), and its fairness key and weight. None
    means that the caller's value is inherited.
    """

    default: ClassVar[Priority]

    priority_key: int | None = None
    fairness_key: str | None = None
    fairness_weight: float | None = None

    def options(self) -> dict[str, Any]:
        """Return the fields as options of a call. None becomes the engine's default."""
        return {
            "priority_key": self.priority_key or 0,
            "fairness_key": self.fairness_key or "",
            "fairness_weight": self.fairness_weight or 0.0,
        }


Priority.default = Priority()


class CallSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a single activity call: the activity's spec, and the options that only this call has."""

    spec: ActivitySpec = ActivitySpec()
    activity_id: str = ""
    summary: str = ""
    event_groups: tuple[EventGroupMarker, ...] = ()


class ActivitySettings(ActivitySpec, frozen=True, kw_only=True):
    """The settings of an activity call as interceptors see them, with the names of the options as fields.
    Durations are in seconds, and 0 means unset.
    """

    activity_id: str = ""
    summary: str = ""
    event_groups: tuple[EventGroupMarker, ...] = ()

    @staticmethod
    def of(call: CallSettings) -> ActivitySettings:
        """Return the settings of a call in the form for interceptors."""
        spec = msgspec.structs.asdict(call.spec)
        return ActivitySettings(
            **spec, activity_id=call.activity_id, summary=call.summary, event_groups=call.event_groups
        )

    def call(self) -> CallSettings:
        """Return the settings of the call as the interceptors left them. An option that is None counts as
        unset.
        """
        fields = {name: getattr(self, name) for name in ActivitySpec.__struct_fields__}
        spec = ActivitySpec(**{name: value for name, value in fields.items() if value is not None})
        return CallSettings(
            spec=spec, activity_id=self.activity_id, summary=self.summary, event_groups=self.event_groups
        )


def _timeout(value: Duration | None, name: str, converter: Converter) -> float:
    return optional_seconds(value, name) or 0.0


def _note(value: str | None, name: str, converter: Converter) -> Payload | None:
    return None if value is None else converter.encode(check_text(value, name))


def _memo(value: object, name: str, converter: Converter) -> dict[str, Payload]:
    return {key: converter.encode(entry) for key, entry in named_values(value, name).items()}


START_CHECKS: dict[str, Callable[[Any, str, Converter], Any]] = {
    "task_queue": lambda value, name, converter: check_text(value, name),
    "execution_timeout": _timeout,
    "run_timeout": _timeout,
    "task_timeout": _timeout,
    "retry_policy": lambda value, name, converter: retry_rule(value, name),
    "cron_schedule": lambda value, name, converter: check_text(value, name),
    "memo": _memo,
    "search_attributes": lambda value, name, converter: encode_search_attributes(value),
    "priority_key": lambda value, name, converter: priority(value, name),
    "fairness_key": lambda value, name, converter: fairness_key(value, name),
    "fairness_weight": lambda value, name, converter: fairness_weight(value, name),
    "static_summary": _note,
    "static_details": _note,
}
"""The function that converts each option of a start to the field of `StartSpec`. Used by clients and parents."""


def start_spec(options: Mapping[str, Any], converter: Converter) -> StartSpec:
    """Return the spec of a start from options. Options that are not part of the spec are ignored."""
    return StartSpec(
        **{
            name: check(options[name], name, converter)
            for name, check in START_CHECKS.items()
            if name in options
        }
    )
