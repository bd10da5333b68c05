"""Workflows and activities of Hourglass."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from hourglass import RetryPolicy, activity, workflow

from .shared import Colour, Parcel


@activity.defn(name="our_echo")
def our_echo(parcel: Parcel) -> Parcel:
    assert isinstance(parcel.id, UUID)
    return parcel


@activity.defn(name="act")
def act(name: str) -> str:
    return f"{name}!"


@activity.defn(name="our_failure")
def our_failure() -> None:
    raise LookupError("nothing here")


@workflow.defn(name="Conversation")
def conversation(parcel: Parcel, colour: Colour, when: datetime, id: UUID) -> Parcel:
    assert isinstance(parcel, Parcel)
    assert isinstance(parcel.id, UUID)
    assert colour is Colour.RED
    assert when == parcel.at
    words: list[str] = []

    @workflow.signal
    def say(word: str, colour: Colour) -> None:
        assert isinstance(colour, Colour)
        words.append(f"{word} {colour.name}")

    @workflow.query
    def said(prefix: str) -> list[str]:
        return [prefix, *words]

    @workflow.query
    def parcel_now() -> Parcel:
        return parcel

    workflow.wait_condition(lambda: len(words) == 2)
    parcel.note = ", ".join(words)
    return parcel


@workflow.defn(name="CallsTheirs")
def calls_theirs(queue: str, parcel: Parcel) -> Parcel:
    echoed: Parcel = workflow.execute_activity(
        "their_echo", parcel, result_type=Parcel, task_queue=queue, start_to_close_timeout=20
    )
    return echoed


@workflow.defn(name="CatchesTheirs")
def catches_theirs(queue: str) -> None:
    workflow.execute_activity(
        "their_failure",
        task_queue=queue,
        start_to_close_timeout=20,
        retry_policy=RetryPolicy(maximum_attempts=1),
    )


ONE_MINUTE = {"start_to_close_timeout": 60, "heartbeat_timeout": None}


@workflow.defn(name="Relay")
def relay() -> list[str]:
    """Equivalent to temporalio's `Relay` in `theirs.py`."""
    batons = workflow.Channel("baton", str)
    log = [act.options(**ONE_MINUTE)("first")]  # type: ignore[arg-type]
    log.append(batons.receive())
    log += workflow.gather(*[act.options(**ONE_MINUTE).start(name) for name in ("left", "right")])  # type: ignore[arg-type]
    log.append(batons.receive())
    workflow.sleep(0.01)
    log.append(act.options(**ONE_MINUTE)("last"))  # type: ignore[arg-type]
    return log
