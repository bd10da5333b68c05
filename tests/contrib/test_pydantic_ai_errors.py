"""Errors of a Pydantic AI agent's activities: the workflow receives the library's own exception classes with their
attributes.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from typing import Any

import pydantic_ai
import pytest
from pydantic_ai import Agent, ModelRetry
from pydantic_ai import exceptions as e
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models._batch_codec import BatchJobError
from pydantic_ai.models.decision import UnfillableRoute, UnsureRoute
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.realtime.model import RealtimeError

from hourglass import Client, RetryPolicy, Worker, workflow
from hourglass.contrib.pydantic_ai import HourglassDurability
from hourglass.contrib.pydantic_ai._errors import _FIELDS
from hourglass.errors import ActivityError, WorkflowFailedError

BODY = {"error": {"code": "context_length_exceeded", "message": "too long"}}
HTTP: dict[str, Any] = {
    "model_name": "m",
    "body": BODY,
    "headers": {"X-Request-Id": "r1"},
    "hint": "Shorten it",
    "provider_error_code": "context_length_exceeded",
    "provider_error_type": "invalid_request_error",
    "in_stream": True,
}


class AppHTTPError(e.ModelHTTPError):
    """An application's class, which the workflow cannot rebuild."""


class AppRateLimitError(e.ModelRateLimitError):
    pass


ERRORS: dict[str, Exception] = {
    **{
        f"http-{category.__name__}": e.ModelHTTPError.for_category(category, status_code=status, **HTTP)
        for category, status in (
            (e.ModelRateLimitError, 429),
            (e.ModelQuotaExceededError, 402),
            (e.ModelUnavailableError, 503),
            (e.ModelOverloadedError, 529),
            (e.ModelServerError, 500),
            (e.ModelContextWindowExceededError, 400),
            (e.ModelRequestRejectedError, 422),
            (e.ModelAuthenticationError, 401),
            (e.ModelNotFoundError, 404),
        )
    },
    **{
        category.__name__: category(
            "m", "went wrong", body=BODY, provider_error_code="c", provider_error_type="t", retry_after=0.01
        )
        for category in (
            e.ModelAPIError,
            e.ModelRateLimitError,
            e.ModelQuotaExceededError,
            e.ModelUnavailableError,
            e.ModelOverloadedError,
            e.ModelServerError,
            e.ModelContextWindowExceededError,
            e.ModelRequestRejectedError,
            e.ModelAuthenticationError,
            e.ModelNotFoundError,
            RealtimeError,
        )
    },
    "http": e.ModelHTTPError(418, "m", BODY, suggested_model_id="n"),
    "http-odd-body": e.ModelHTTPError(400, "m", {"data": b"\xff", "what": {1, 2}, "error": ValueError("x")}),
    "batch": BatchJobError(500, "m", "no"),
    "connection": e.ModelConnectionError("m", "reset", phase="read"),
    "timeout": e.ModelTimeoutError("m", "slow", phase="connect"),
    "request-timeout": e.ModelRequestTimeout("m", 2.5, setting="first_event_timeout"),
    "unexpected": e.UnexpectedModelBehavior("odd", '{"a": 1}'),
    "filtered": e.ContentFilterError("filtered", "no"),
    "incomplete": e.IncompleteToolCall("cut off"),
    "usage": e.UsageLimitExceeded("The next request would exceed the request_limit of 1"),
    "concurrency": e.ConcurrencyLimitExceeded("too many"),
    "expired": e.SuspendedResponseExpired("gone"),
    "user": e.UserError("your mistake"),
    "agent": e.AgentRunError("something"),
    "unsure": UnsureRoute("m", "refund", {"refund": 0.4, "none": 0.3}, 0.5),
    "unfillable": UnfillableRoute("m", "refund", 0.9),
    "approval": e.ApprovalRequired({"cents": 5}),
    "deferred": e.CallDeferred({"to": "a person"}, kind="question"),
}
REBUILT = {*ERRORS}
ERRORS["own-http"] = AppHTTPError(400, "m", BODY)
ERRORS["own-rate"] = AppRateLimitError("m", "slow down", body=BODY)
ERRORS["group"] = e.FallbackExceptionGroup(
    "all models failed",
    [ERRORS["http-ModelContextWindowExceededError"], ERRORS["connection"], ZeroDivisionError("by zero")],
)
ERRORS["other"] = ZeroDivisionError("by zero")


def fail(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    raise ERRORS[str(messages[-1].parts[-1].content)]


without_retries = HourglassDurability(options={"retry_policy": RetryPolicy(maximum_attempts=1)})
failing = Agent(FunctionModel(fail), name="failing", capabilities=[without_retries])

caught_errors: dict[str, BaseException] = {}
"""The exception that each run of `failing` raised in its workflow."""


@workflow.defn
async def ask(key: str) -> str:
    try:
        await failing.run(key)
    except Exception as error:
        caught_errors[key] = error
        return type(error).__name__
    return "nothing was raised"


@workflow.defn
async def ask_and_fail(key: str) -> str:
    return (await failing.run(key)).output


@pytest.fixture(scope="module")
def worker(client: Client) -> Iterator[None]:
    with Worker(client, "errors", workflows=[ask, ask_and_fail], activities=[without_retries]):
        yield


@pytest.mark.parametrize("key", sorted(REBUILT))
def test_pydantic_model_error_keeps_class_message_and_attributes(
    key: str, client: Client, worker: None
) -> None:
    original = ERRORS[key]
    client.execute_workflow(ask, key, task_queue="errors")
    error = caught_errors[key]
    assert type(error) is type(original)
    assert str(error) == str(original)
    assert error.args == original.args
    if key != "http-odd-body":
        public = {name: value for name, value in vars(original).items() if not name.startswith("_")}
        assert vars(error).items() >= public.items()
    assert isinstance(error.__cause__, ActivityError)


def test_pydantic_http_error_is_caught_as_its_category_or_as_http_error(client: Client, worker: None) -> None:
    client.execute_workflow(ask, "http-ModelContextWindowExceededError", task_queue="errors")
    error: Any = caught_errors["http-ModelContextWindowExceededError"]
    assert isinstance(error, e.ModelContextWindowExceededError)
    assert isinstance(error, e.ModelHTTPError)
    assert (error.status_code, error.body, error.provider_error_code) == (
        400,
        BODY,
        "context_length_exceeded",
    )
    assert error.headers == {"x-request-id": "r1"}


def test_application_subclass_of_pydantic_error_is_rebuilt_as_its_base_class(
    client: Client, worker: None
) -> None:
    """Any other exception remains an `ActivityError`."""
    for key, expected in (("own-http", e.ModelHTTPError), ("own-rate", e.ModelRateLimitError)):
        client.execute_workflow(ask, key, task_queue="errors")
        error: Any = caught_errors[key]
        assert type(error) is expected
        assert error.body == BODY
    client.execute_workflow(ask, "other", task_queue="errors")
    assert type(caught_errors["other"]) is ActivityError


def test_pydantic_fallback_group_keeps_the_classes_of_its_members(client: Client, worker: None) -> None:
    client.execute_workflow(ask, "group", task_queue="errors")
    group: Any = caught_errors["group"]
    assert type(group) is e.FallbackExceptionGroup
    assert group.message == "all models failed"
    assert isinstance(group.exceptions[0], e.ModelContextWindowExceededError)
    assert isinstance(group.exceptions[1], e.ModelConnectionError)
    assert group.exceptions[1].phase == "read"
    assert "by zero" in str(group.exceptions[2])


def test_uncaught_pydantic_model_error_fails_the_workflow_with_its_class_name(
    client: Client, worker: None
) -> None:
    with pytest.raises(WorkflowFailedError, match="ModelContextWindowExceededError"):
        client.execute_workflow(ask_and_fail, "http-ModelContextWindowExceededError", task_queue="errors")


# --- errors of tools ------------------------------------------------------------------------------


def call_tool(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool named in the question, again after each `ModelRetry`. Then answer with its outcome."""
    for part in messages[-1].parts:
        if isinstance(part, ToolReturnPart) and part.outcome != "retried":
            return ModelResponse(parts=[TextPart(f"{part.outcome}: {part.content}")])
    number = sum(isinstance(each, ModelResponse) for each in messages)
    name = str(messages[0].parts[-1].content)
    return ModelResponse(parts=[ToolCallPart(name, {"number": number})])


tools_without_retries = HourglassDurability(options={"retry_policy": RetryPolicy(maximum_attempts=1)})
calling = Agent(FunctionModel(call_tool), name="calling", retries=2, capabilities=[tools_without_retries])
retry_messages: list[str] = []


@calling.tool_plain
def retry(number: int) -> str:
    if number < 2:
        retry_messages.append(f"number {number} is too small")
        raise ModelRetry(retry_messages[-1])
    return f"{number} will do"


@calling.tool_plain
def give_up(number: int) -> str:
    raise e.ToolFailed("there is no such thing")


@calling.tool_plain
def limited(number: int) -> str:
    raise e.UsageLimitExceeded("an agent inside reached its limit")


@calling.tool_plain
def overflow(number: int) -> str:
    raise ERRORS["http-ModelContextWindowExceededError"]


@workflow.defn
async def call(name: str) -> list[str]:
    try:
        result = await calling.run(name)
    except e.UsageLimitExceeded as error:
        return [f"limit: {error.message}"]
    except e.ModelContextWindowExceededError as error:
        return [f"overflow: {error.provider_error_code}"]
    return [
        str(result.output),
        *(str(getattr(p, "content", "")) for m in result.all_messages() for p in m.parts),
    ]


def test_pydantic_tool_errors_reach_the_model_or_the_workflow(client: Client) -> None:
    """The model receives `ModelRetry` and `ToolFailed`; the workflow receives errors of an agent inside a tool."""
    with Worker(client, "tools", workflows=[call], activities=[tools_without_retries]):
        retried = client.execute_workflow(call, "retry", task_queue="tools")
        assert retried[0] == "success: 2 will do"
        assert any(retry_messages[0] in each for each in retried)
        failed = client.execute_workflow(call, "give_up", task_queue="tools")
        assert failed[0] == "failed: there is no such thing"
        limit = client.execute_workflow(call, "limited", task_queue="tools")
        assert limit[0].startswith("limit: an agent inside reached its limit")
        assert client.execute_workflow(call, "overflow", task_queue="tools") == [
            "overflow: context_length_exceeded"
        ]


# --- which classes there are ----------------------------------------------------------------------

INTERNAL = {
    "SkipModelRequest": "an answer of a hook, which runs in the workflow",
    "SkipToolExecution": "an answer of a hook, which runs in the workflow",
    "SkipToolValidation": "an answer of a hook, which runs in the workflow",
    "ToolRetryError": "made from ModelRetry in the workflow",
    "ToolFailedError": "made from ToolFailed in the workflow",
}
"""Public exceptions of the library that no activity raises, with the reason."""


def test_every_public_pydantic_exception_is_rebuilt_or_listed_as_internal() -> None:
    public = {
        cls.__name__
        for cls in vars(e).values()
        if isinstance(cls, type)
        and issubclass(cls, Exception)
        and not issubclass(cls, Warning)
        and not cls.__name__.startswith("_")
        and cls.__module__ == e.__name__
        and vars(e).get(cls.__name__) is cls
    }
    assert public - set(_FIELDS[e.__name__]) == set(INTERNAL)
    other_modules: set[str] = set()
    for module in pkgutil.walk_packages(pydantic_ai.__path__, "pydantic_ai.", onerror=lambda name: None):
        if "durable_exec" in module.name or "__main__" in module.name:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loaded = importlib.import_module(module.name)
        except Exception:  # what needs an extra that is not installed
            continue
        other_modules |= {
            cls.__name__
            for cls in vars(loaded).values()
            if isinstance(cls, type)
            and issubclass(cls, (e.AgentRunError, e.UserError))
            and cls.__module__ == loaded.__name__ != e.__name__
            and not cls.__name__.startswith("_")
        }
    assert other_modules <= {name for classes in _FIELDS.values() for name in classes}
