"""Histories recorded by Temporal's TypeScript SDK replay on the same programs as plain functions."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hourglass import workflow
from hourglass.errors import NondeterminismError
from hourglass.replay import History, Replayer

from . import typescript_cancelling, typescript_everyday, typescript_random, typescript_twins
from ._corpus import act, start

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in (HERE / "typescript").glob("*.json"))
OLDER = sorted(f"{path.parent.name}/{path.stem}" for path in HERE.glob("typescript_1_*/*.json"))
TWINS = {
    **typescript_twins.TWINS,
    **typescript_cancelling.TWINS,
    **typescript_random.TWINS,
    **typescript_everyday.TWINS,
}


@pytest.fixture(scope="module")
def replayer() -> Iterator[Replayer]:
    """A replayer for the whole corpus."""
    with Replayer(workflows=list(TWINS.values())) as replayer:
        yield replayer


def _history(name: str) -> History:
    folder, _, stem = name.rpartition("/")
    return History.from_file(HERE / (folder or "typescript") / f"{stem}.json")


def assert_same_commands(replayer: Replayer, name: str) -> None:
    """Assert that the code issues the recorded commands, in any order within a task."""
    difference = replayer.try_replay(_history(name)).difference
    if difference is not None:
        raise difference


@pytest.mark.parametrize("name", NAMES)
def test_typescript_history_replays_on_equivalent_workflow(replayer: Replayer, name: str) -> None:
    assert_same_commands(replayer, name)


@pytest.mark.parametrize("name", OLDER)
def test_typescript_history_from_before_2025_replays_on_equivalent_workflow(
    replayer: Replayer, name: str
) -> None:
    """These releases do not write the name of the SDK, and send no commands after the end of a run."""
    assert_same_commands(replayer, name)


def test_every_equivalent_of_a_typescript_workflow_has_a_recorded_history() -> None:
    assert (len(NAMES), len(OLDER)) == (74, 10)
    types = {_history(name).workflow_type for name in NAMES + OLDER}
    assert types == set(TWINS) - {"kid"}


@pytest.mark.parametrize("folder", ["typescript", "typescript_1_8", "typescript_1_10", "go"])
def test_recorded_histories_do_not_identify_the_recording_machine(folder: str) -> None:
    for path in (HERE / folder).glob("*.json"):
        text = path.read_text()
        hidden = [base64.b64decode(data) for data in re.findall(r'"data":"([A-Za-z0-9+/=]+)"', text)]
        content = text.encode() + b" ".join(hidden)
        assert set(re.findall(r'"identity":"([^"]*)"', text)) <= {"recorder"}
        assert not re.search(rb"/(home|root|tmp|work|Users)/|node_modules|localhost|127\.0\.0\.1", content), (
            path
        )


@workflow.defn(name="chains")
def chains_without_a_step(names: list[str]) -> list[str]:
    tasks: list[workflow.Task[str]] = [start("gated", name) for name in names]
    return workflow.gather(*tasks)


@workflow.defn(name="chains")
def chains_with_another_activity(names: list[str]) -> list[str]:
    def chain(name: str) -> str:
        return str(act("other", act("gated", name) + "!"))

    return workflow.gather(*[workflow.spawn(chain, name) for name in names])


@workflow.defn(name="mixed")
class MixedWithMore(typescript_twins.Mixed):
    """Calls one activity more at the end."""

    @workflow.run
    def run(self) -> int:
        workflow.gather(workflow.spawn(self.side), workflow.spawn(self.timer))
        workflow.wait_condition(lambda: len(self.log) >= 4)
        act("echo", "more")
        return len(self.log)


@pytest.mark.parametrize(
    ("name", "changed"),
    [("chains", chains_without_a_step), ("chains", chains_with_another_activity), ("mixed", MixedWithMore)],
)
def test_replay_of_typescript_history_detects_changed_code(name: str, changed: object) -> None:
    with Replayer(workflows=[changed]) as replayer, pytest.raises(NondeterminismError):
        replayer.replay(_history(name))


@workflow.defn(name="chains")
def chains_with_other_arguments(names: list[str]) -> list[str]:
    def chain(name: str) -> str:
        return str(act("echo", act("gated", name) + "?"))

    return workflow.gather(*[workflow.spawn(chain, name) for name in names])


def test_replay_of_typescript_history_detects_changed_arguments_unless_disabled() -> None:
    with Replayer(workflows=[chains_with_other_arguments]) as replayer:
        error = replayer.try_replay(_history("chains")).difference
    assert isinstance(error, NondeterminismError)
    assert "arguments of activity echo" in str(error)
    with Replayer(workflows=[chains_with_other_arguments], compare_arguments=False) as replayer:
        assert replayer.try_replay(_history("chains")).does_the_same


def test_replayer_works_after_a_tolerated_order(replayer: Replayer) -> None:
    for name in ("mixed", "sequence", "raceInScope", "parallel"):
        assert replayer.try_replay(_history(name)).does_the_same
