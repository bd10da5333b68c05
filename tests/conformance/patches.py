"""Patches across releases of the code, in loops, after a wait and after a replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hourglass import workflow
from hourglass.worker import PatchActivationInput

from .scenario import scenario
from .world import World, event_counts


class Code:
    """The deployed release of the workflows below. Histories of all releases replay with the release `patched`."""

    release = "patched"


@contextmanager
def deployed(release: str, world: World) -> Iterator[None]:
    """Run a worker with this release."""
    Code.release = release
    try:
        world.start_worker()
        yield
        world.stop_worker()
    finally:
        Code.release = "patched"


@workflow.defn
class ChangingWorkflow:
    """Takes the old or the new branch, depending on the deployed release."""

    def __init__(self) -> None:
        self.taken = ""

    @workflow.run
    def run(self) -> None:
        """Take the branch of the deployed release."""
        match Code.release:
            case "old":
                self.taken = "old"
            case "patched":
                self.taken = "new" if workflow.patched("the way") else "old"
            case "deprecated":
                workflow.deprecate_patch("the way")
                self.taken = "new"
            case _:
                self.taken = "new"

    @workflow.query
    def branch(self) -> str:
        return self.taken


def completed_run(world: World) -> Any:
    """Start a run and wait for its end."""
    handle = world.start(ChangingWorkflow.run)
    handle.result(timeout=60)
    return handle


@scenario("loose", max_cached_workflows=0)
def patched_runs_keep_their_branch_from_introduction_to_removal(world: World) -> None:
    with deployed("old", world):
        old = completed_run(world)
        assert old.query(ChangingWorkflow.branch) == "old"
    with deployed("patched", world):
        new = completed_run(world)
        assert [handle.query(ChangingWorkflow.branch) for handle in (old, new)] == ["old", "new"]
    with deployed("deprecated", world):
        late = completed_run(world)
        assert [handle.query(ChangingWorkflow.branch) for handle in (new, late)] == ["new", "new"]
    with deployed("gone", world):
        last = completed_run(world)
        assert [handle.query(ChangingWorkflow.branch) for handle in (late, last)] == ["new", "new"]
    world.start_worker()


@workflow.defn
def checks_patch_before_and_after_wait() -> list[str]:
    word = workflow.Channel("word", str)
    log = []
    if Code.release == "patched" and workflow.patched("memory"):
        log.append("new before")
    log.append(word.receive())
    if Code.release == "patched" and workflow.patched("memory"):
        log.append("new after")
    return log


@scenario("loose", max_cached_workflows=0)
def run_started_before_patch_keeps_old_branch_after_deploy(world: World) -> None:
    with deployed("old", world):
        before = world.start_waiting(checks_patch_before_and_after_wait)
    world.start_worker()
    after = world.start(checks_patch_before_and_after_wait)
    for handle in (before, after):
        handle.signal("word", "a word")
    assert before.result(timeout=60) == ["a word"]
    assert after.result(timeout=60) == ["new before", "a word", "new after"]


@workflow.defn
def checks_patch_in_loop() -> list[bool]:
    """Checks a patch in each turn, and another one once, in a fiber."""
    seen = []
    for turn in range(3):
        seen.append(workflow.patched("each turn"))
        workflow.sleep(0.01)
        if turn == 1:
            seen.append(workflow.spawn(workflow.patched, "in the middle").result())
    return seen


@scenario()
def patch_in_loop_records_one_marker(world: World) -> None:
    handle = world.start(checks_patch_in_loop)
    assert handle.result(timeout=60) == [True] * 4
    assert event_counts(handle.history())["MARKER_RECORDED"] == 2


@scenario(max_cached_workflows=0)
def patch_in_loop_replays_without_cache(world: World) -> None:
    assert world.run(checks_patch_in_loop) == [True] * 4


# --- a worker that decides --------------------------------------------------------------------------------------------

PATCH_DECISIONS: list[tuple[str, str]] = []


def _activates_every_second_patch(activation: PatchActivationInput) -> bool:
    """Alternate between False and True; a run must keep the first decision for each patch."""
    PATCH_DECISIONS.append((activation.workflow_info.workflow_type, activation.patch_id))
    return len(PATCH_DECISIONS) % 2 == 0


@workflow.defn
def checks_two_patches_twice() -> list[bool]:
    before = [workflow.patched("first"), workflow.patched("second")]
    workflow.sleep(0.01)
    workflow.deprecate_patch("third")
    return [*before, workflow.patched("first"), workflow.patched("second")]


@scenario(patch_activation_callback=_activates_every_second_patch, max_cached_workflows=0)
def patch_activation_callback_decides_once_per_run_and_patch(world: World) -> None:
    PATCH_DECISIONS.clear()
    assert world.run(checks_two_patches_twice) == [False, True, False, True]
    assert PATCH_DECISIONS == [("checks_two_patches_twice", "first"), ("checks_two_patches_twice", "second")]
