"""Patches across changes of the code: what runs of each age see, in loops, after a wait, and after a replay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hourglass import workflow
from hourglass.worker import PatchActivationInput

from .scenario import scenario
from .world import World, counts


class Code:
    """Which release of the workflows below is deployed. Histories of all of them fit the release `patched`."""

    release = "patched"


@contextmanager
def deployed(release: str, world: World) -> Iterator[None]:
    """Meanwhile a worker runs this release."""
    Code.release = release
    try:
        world.start_worker()
        yield
        world.stop_worker()
    finally:
        Code.release = "patched"


@workflow.defn
class Changing:
    """Goes the old way or the new way; says which when it is asked."""

    def __init__(self) -> None:
        self.way = ""

    @workflow.run
    def run(self) -> None:
        """Each release has its own."""
        match Code.release:
            case "old":
                self.way = "old"
            case "patched":
                self.way = "new" if workflow.patched("the way") else "old"
            case "deprecated":
                workflow.deprecate_patch("the way")
                self.way = "new"
            case _:
                self.way = "new"

    @workflow.query
    def which(self) -> str:
        """The way it went."""
        return self.way


def went(world: World) -> Any:
    """A run from its start to its end."""
    handle = world.start(Changing.run)
    handle.result(timeout=60)
    return handle


@scenario("loose", max_cached_workflows=0)
def a_patch_from_its_first_day_to_its_last(world: World) -> None:
    """Old runs keep the old way under the patch; new runs go the new way, under it and when it is deprecated and gone."""
    with deployed("old", world):
        old = went(world)
        assert old.query(Changing.which) == "old"
    with deployed("patched", world):
        new = went(world)
        assert [each.query(Changing.which) for each in (old, new)] == ["old", "new"]
    with deployed("deprecated", world):
        late = went(world)
        assert [each.query(Changing.which) for each in (new, late)] == ["new", "new"]
    with deployed("gone", world):
        last = went(world)
        assert [each.query(Changing.which) for each in (late, last)] == ["new", "new"]
    world.start_worker()


@workflow.defn
def remembers() -> list[str]:
    """Asks for the patch before and after it waits."""
    word = workflow.Channel("word", str)
    log = []
    if Code.release == "patched" and workflow.patched("memory"):
        log.append("new before")
    log.append(word.receive())
    if Code.release == "patched" and workflow.patched("memory"):
        log.append("new after")
    return log


@scenario("loose", max_cached_workflows=0)
def a_patch_is_remembered(world: World) -> None:
    """A run that began before the patch goes the old way to its end, though the question comes up after the deploy."""
    with deployed("old", world):
        before = world.start(remembers)
        world.until(before, "WORKFLOW_TASK_COMPLETED")
    world.start_worker()
    after = world.start(remembers)
    for handle in (before, after):
        handle.signal("word", "a word")
    assert before.result(timeout=60) == ["a word"]
    assert after.result(timeout=60) == ["new before", "a word", "new after"]


@workflow.defn
def loops() -> list[bool]:
    """The same patch in each turn, in a fiber too, and one that comes up in the middle."""
    seen = []
    for turn in range(3):
        seen.append(workflow.patched("each turn"))
        workflow.sleep(0.01)
        if turn == 1:
            seen.append(workflow.spawn(workflow.patched, "in the middle").result())
    return seen


@scenario()
def a_patch_in_a_loop(world: World) -> None:
    """A patch is marked once, however often it is asked for, by whichever fiber."""
    handle = world.start(loops)
    assert handle.result(timeout=60) == [True] * 4
    assert counts(handle.history())["MARKER_RECORDED"] == 2


@scenario(max_cached_workflows=0)
def a_patch_in_a_loop_without_a_cache(world: World) -> None:
    """The same where each turn is replayed."""
    assert world.run(loops) == [True] * 4


# --- a worker that decides --------------------------------------------------------------------------------------------

ASKED: list[tuple[str, str]] = []


def _every_other(asked: PatchActivationInput) -> bool:
    """Another answer each time that it is asked: a run must hold to the first."""
    ASKED.append((asked.workflow_info.workflow_type, asked.patch_id))
    return len(ASKED) % 2 == 0


@workflow.defn
def meets_two_patches() -> list[bool]:
    """Each patch twice, with a wait in between; a deprecated one is not asked for."""
    before = [workflow.patched("first"), workflow.patched("second")]
    workflow.sleep(0.01)
    workflow.deprecate_patch("third")
    return [*before, workflow.patched("first"), workflow.patched("second")]


@scenario(patch_activation_callback=_every_other, max_cached_workflows=0)
def a_worker_that_decides_on_patches(world: World) -> None:
    """What the callback says counts for the run, for ever: also when it is executed again, from its journal or its history."""
    ASKED.clear()
    assert world.run(meets_two_patches) == [False, True, False, True]
    assert ASKED == [("meets_two_patches", "first"), ("meets_two_patches", "second")]
