"""Twins of `programs.cancelling`."""

from __future__ import annotations

from hourglass import workflow
from hourglass.workflow import ActivityCancellationType

from ._corpus import act, start, twin


@twin("CancelDuringActivity")
def cancel_during_activity() -> None:
    try:
        act("gated", "x")
    except workflow.Cancelled:
        act("echo", "clean up")
        raise


@twin("CancelDuringTimer")
def cancel_during_timer() -> None:
    try:
        workflow.sleep(100)
    finally:
        act("echo", "clean up")
        workflow.sleep(0.01)


@twin("CancelDuringCondition")
def cancel_during_condition() -> None:
    def limited() -> None:
        try:
            workflow.wait_condition(lambda: False, timeout=100)
        finally:
            act("echo", "limited")

    try:
        limited()
    except workflow.Cancelled:
        act("echo", "caught")
        raise


@twin("CancelDuringGather")
def cancel_during_gather() -> None:
    def work(name: str) -> None:
        try:
            act("gated", name)
        except workflow.Cancelled:
            act("echo", "stopped " + name)
            raise

    def nap() -> None:
        try:
            workflow.sleep(100)
        finally:
            start("echo", "woken")

    try:
        workflow.gather(workflow.spawn(work, "a"), workflow.spawn(nap), workflow.spawn(work, "b"))
    finally:
        act("echo", "clean up")
        workflow.sleep(0.5)


def _one_gated() -> str:
    try:
        result = str(act("gated", "x"))
    except workflow.Cancelled:
        act("echo", "cancelled")
        return "cancelled"
    act("echo", "got " + result)
    return result


@twin("CancelThenResult")
def cancel_then_result() -> str:
    return _one_gated()


@twin("ResultThenCancel")
def result_then_cancel() -> str:
    return _one_gated()


def _one_nap() -> str:
    try:
        workflow.sleep(1)
    except workflow.Cancelled:
        act("echo", "cancelled")
        return "cancelled"
    act("echo", "slept")
    return "slept"


@twin("CancelThenTimer")
def cancel_then_timer() -> str:
    return _one_nap()


@twin("TimerThenCancel")
def timer_then_cancel() -> str:
    return _one_nap()


@twin("CleanUpSteps")
def clean_up_steps() -> None:
    try:
        try:
            workflow.sleep(100)
        finally:
            workflow.gather(workflow.spawn(act, "echo", "undo a"), workflow.spawn(act, "echo", "undo b"))
            workflow.sleep(0.01)
    finally:
        act("echo", "undo c")


@twin("CancelSwallowed")
def cancel_swallowed() -> str:
    try:
        workflow.sleep(100)
    except workflow.Cancelled:
        act("echo", "never mind")
    workflow.sleep(0.01)
    act("echo", "going on")
    return "completed"


@twin("CancelSparesSpawned")
def cancel_spares_spawned() -> None:
    workflow.spawn(workflow.sleep, 1000)
    start("gated", "unanswered")
    try:
        workflow.sleep(500)
    except workflow.Cancelled:
        act("echo", "clean up")
        raise


@twin("CancelHeartbeating")
def cancel_heartbeating() -> None:
    try:
        act(
            "beats",
            heartbeat_timeout=5,
            cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
    except workflow.Cancelled:
        act("echo", "clean up")
        raise


@twin("SignalAndCancel")
class SignalAndCancel:
    def __init__(self) -> None:
        self.poked = 0

    @workflow.run
    def run(self) -> None:
        try:
            workflow.wait_condition(lambda: self.poked > 1, timeout=100)
        except workflow.Cancelled:
            act("echo", f"cancelled after {self.poked}")
            raise

    @workflow.signal
    def poke(self) -> None:
        self.poked += 1
        act("echo", "poked")
