"""Errors of an agent's activities: encoded in the activity's failure, and rebuilt as their own class in the workflow.

The workflow's `except ModelContextWindowExceededError` must catch an error that a model raised in another process. Therefore
the failure's details contain the names of the error's classes and the values of its attributes.

Only the classes in the tables below are rebuilt, and no module is imported for this purpose. A received name only selects a
row of a table. A subclass defined by the application is rebuilt as its base class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_ai.durable_exec._utils import mark_streamed_before_failing, streamed_before_failing
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    FallbackExceptionGroup,
    ModelAPIError,
    ModelAuthenticationError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelRetry,
    ModelServerError,
    ModelUnavailableError,
    RetryModelRequest,
    RunCancelled,
    SuspendedResponseExpired,
    ToolFailed,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
    UserError,
)
from pydantic_ai.messages import ModelResponse
from pydantic_ai.workspaces import (
    WorkspaceOutputLimitError,
    WorkspaceReadOnlyError,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_core import PydanticSerializationError, to_jsonable_python

from hourglass.contrib import _agents
from hourglass.errors import ActivityError, ApplicationError

_FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "pydantic_ai.exceptions": {
        "AgentRunError": ("message",),
        "ConcurrencyLimitExceeded": (),
        "ContentFilterError": (),
        "FallbackExceptionGroup": (),
        "IncompleteToolCall": (),
        "ModelAPIError": (
            "model_name",
            "body",
            "provider_error_code",
            "provider_error_type",
            "retry_after",
            "in_stream",
        ),
        "ModelAuthenticationError": (),
        "ModelConnectionError": ("phase",),
        "ModelContextWindowExceededError": (),
        "ModelHTTPError": ("status_code", "headers", "suggested_model_id", "hint"),
        "ModelNotFoundError": (),
        "ModelOverloadedError": (),
        "ModelQuotaExceededError": (),
        "ModelRateLimitError": (),
        "ModelRequestRejectedError": (),
        "ModelRequestTimeout": ("timeout", "setting"),
        "ModelServerError": (),
        "ModelTimeoutError": (),
        "ModelUnavailableError": (),
        "OutputTokenLimitExceeded": (),
        "RunCancelled": (),
        "RunTimedOut": (),
        "SuspendedResponseExpired": (),
        "UndrainedPendingMessagesError": (),
        "UnexpectedModelBehavior": ("body",),
        "UsageLimitExceeded": (),
        "UserError": ("message",),
        # Exceptions used for control flow, in tools and in hooks around a model request.
        "ApprovalRequired": ("metadata",),
        "CallDeferred": ("metadata", "kind"),
        "ModelRetry": ("message",),
        "RetryModelRequest": ("model",),
        "ToolFailed": ("message",),
    },
    "pydantic_ai._fallback": {"ResponseRejected": ()},
    "pydantic_ai._json_schema": {"InlinedSchemaTooLargeError": ("subject", "remedy")},
    "pydantic_ai.capabilities.hooks": {"HookTimeoutError": ("hook_name", "func_name", "timeout")},
    "pydantic_ai.conversation_store": {"ConversationConflict": ("conversation_id",)},
    "pydantic_ai.mcp": {"MCPError": ("message", "code", "data")},
    "pydantic_ai.models._batch_codec": {"BatchJobError": ()},
    "pydantic_ai.models.decision": {
        "DecisionHandOff": ("route", "probability"),
        "UnfillableRoute": (),
        "UnsureRoute": ("probabilities", "threshold"),
    },
    "pydantic_ai.providers._oauth_provider": {
        "CredentialsPersistenceError": (),
        "CredentialsRefreshError": (),
    },
    "pydantic_ai.realtime.model": {"RealtimeError": ()},
    "pydantic_ai.workspaces.protocol": {
        "WorkspaceError": (),
        "WorkspaceOutputLimitError": ("limit", "stdout", "stderr"),
        "WorkspaceReadOnlyError": (),
        "WorkspaceTimeoutError": ("stdout", "stderr"),
        "WorkspaceUnavailableError": (),
    },
}
"""The classes that can be rebuilt, by module, each with the attributes that it adds to its bases.

A class whose module is not loaded in the workflow's process is rebuilt as its nearest base, because no `except` in that
process can refer to the class.
"""

_MODULES = {name: module for module, classes in _FIELDS.items() for name in classes}

_HTTP_CLASSES: dict[str, type[ModelHTTPError]] = {
    category.__name__: type(ModelHTTPError.for_category(category, status_code=500, model_name=""))
    for category in (
        ModelAuthenticationError,
        ModelContextWindowExceededError,
        ModelNotFoundError,
        ModelOverloadedError,
        ModelQuotaExceededError,
        ModelRateLimitError,
        ModelRequestRejectedError,
        ModelServerError,
        ModelUnavailableError,
    )
}
"""Classes derived from both `ModelHTTPError` and a category, by the category's name."""

_DETAIL = "pydantic_ai"
_RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)

_FINAL = (
    UserError,
    PydanticUserError,
    PydanticSerializationError,
    ValidationError,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
    SuspendedResponseExpired,
    RunCancelled,
    FallbackExceptionGroup,
    ModelRequestRejectedError,
    ModelQuotaExceededError,
    ModelRequestTimeout,
    WorkspaceOutputLimitError,
    WorkspaceReadOnlyError,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    RetryModelRequest,
    ToolFailed,
)
"""Errors that another attempt of the same request would raise again."""


def as_failure(error: Exception) -> Exception:
    """Return the error to raise in the activity. It contains whether the error is retryable, the delay before the next
    attempt, and the data to rebuild the error in the workflow.

    An error whose class is not in the tables is returned unchanged, so that the activity's retry policy applies, unless the
    error is final.
    """
    encoded, final = _encode(error), _is_final(error)
    if encoded is None and not final:
        return error
    return ApplicationError(
        str(error),
        *([{_DETAIL: encoded}] if encoded is not None else []),
        type=type(error).__name__,
        non_retryable=final,
        next_retry_delay=error.retry_after if isinstance(error, ModelAPIError) else None,
    )


def from_failure(error: ActivityError) -> Exception | None:
    """Rebuild the error that failed an activity. Return None if its class is not in the tables."""
    cause = error.__cause__
    detail = cause.details[0] if isinstance(cause, ApplicationError) and cause.details else None
    encoded = detail.get(_DETAIL) if isinstance(detail, dict) else None
    return _decode(encoded) if isinstance(encoded, dict) else None


def _is_final(error: Exception) -> bool:
    if isinstance(error, ModelHTTPError) and not _agents.is_retryable_status(error.status_code):
        return True
    hand_off = _loaded("DecisionHandOff")  # a decision model would make the same decision again
    return isinstance(error, _FINAL) or (hand_off is not None and isinstance(error, hand_off))


def _loaded(name: str) -> type[Exception] | None:
    """Return a class from the tables if its module is loaded, otherwise None."""
    module = _MODULES.get(name)
    return getattr(sys.modules.get(module), name, None) if module is not None else None


def _known_bases(cls: type[BaseException]) -> Iterator[str]:
    """Yield the names of the class and its bases that are in the tables, nearest first."""
    return (base.__name__ for base in cls.__mro__ if _loaded(base.__name__) is base)


def _encode(error: BaseException) -> dict[str, Any] | None:
    names = list(_known_bases(type(error)))
    if not names:
        return None
    if isinstance(error, RetryModelRequest) and not (error.model is None or isinstance(error.model, str)):
        return _encode(
            UserError(
                "RetryModelRequest was raised in an activity with a model object, which cannot be serialized: register "
                "the model with HourglassDurability(models={…}) and pass its name"
            )
        )
    fields = [field for name in names for field in _FIELDS[_MODULES[name]][name]]
    encoded: dict[str, Any] = {
        "classes": names,
        "args": [str(arg) for arg in error.args[:1]],
        "attributes": {field: _as_json(getattr(error, field, None)) for field in fields},
    }
    if isinstance(error, BaseExceptionGroup):
        encoded["args"] = [error.message]
        encoded["exceptions"] = [
            _encode(nested) or {"message": str(nested), "type": type(nested).__name__}
            for nested in error.exceptions
        ]
    if (streamed := streamed_before_failing(error)) is not None:
        encoded["streamed"] = _RESPONSE.dump_python(streamed, mode="json")
    return encoded


def _as_json(value: Any) -> Any:
    """Return a value as JSON. The body of a response may be any object, and a conversion failure must not replace the
    original error.
    """
    try:
        return to_jsonable_python(value, fallback=str, bytes_mode="base64")
    except Exception:
        return repr(value)


def _decode(encoded: dict[str, Any]) -> Exception | None:
    names = [name for name in encoded.get("classes") or () if isinstance(name, str)]
    cls = next(filter(None, map(_loaded, names)), None)
    if cls is None:
        return None
    if cls is ModelHTTPError:
        cls = next((_HTTP_CLASSES[name] for name in names if name in _HTTP_CLASSES), cls)
    error = _make(cls, encoded)
    allowed = {field for name in _known_bases(cls) for field in _FIELDS[_MODULES[name]][name]}
    for field, value in (encoded.get("attributes") or {}).items():
        if field in allowed:
            setattr(error, field, value)
    if (streamed := encoded.get("streamed")) is not None:
        mark_streamed_before_failing(error, _RESPONSE.validate_python(streamed))
    return error


def _make(cls: type[Exception], encoded: dict[str, Any]) -> Exception:
    """Return an error without calling its `__init__`, which creates messages and takes arguments that are not attributes."""
    args = encoded.get("args") or []
    if issubclass(cls, FallbackExceptionGroup):
        return cls(
            args[0], [_decode(nested) or _unknown(nested) for nested in encoded.get("exceptions") or ()]
        )
    if issubclass(cls, RunCancelled):
        return cls(*args)  # the messages of the original error are not transferred
    error = cls.__new__(cls, *args)
    error.args = tuple(args)
    return error


def _unknown(encoded: dict[str, Any]) -> ApplicationError:
    return ApplicationError(str(encoded.get("message")), type=str(encoded.get("type")))
