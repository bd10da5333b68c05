"""What Temporal's TypeScript SDK recorded replays on the same programs as plain functions."""

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
    """One replayer for the whole corpus, as one would use it."""
    with Replayer(workflows=list(TWINS.values())) as replayer:
        yield replayer


def _history(name: str) -> History:
    folder, _, stem = name.rpartition("/")
    return History.from_file(HERE / (folder or "typescript") / f"{stem}.json")


def does_the_same(replayer: Replayer, name: str) -> None:
    """Assert that the code does what a recording says, whatever its order within a task."""
    difference = replayer.try_replay(_history(name)).difference
    if difference is not None:
        raise difference


@pytest.mark.parametrize("name", NAMES)
def test_typescript_history_replays(replayer: Replayer, name: str) -> None:
    """The twin asks for what the history says, with the recorded arguments, and ends as recorded."""
    does_the_same(replayer, name)


@pytest.mark.parametrize("name", OLDER)
def test_older_typescript_history_replays(replayer: Replayer, name: str) -> None:
    """Releases of before 2025 do not say which SDK they are, and hold back what comes after a run's end."""
    does_the_same(replayer, name)


def test_every_typescript_twin_has_a_recording() -> None:
    """There are 84 recordings, every workflow type has a twin, and every twin but the child's a recording."""
    assert (len(NAMES), len(OLDER)) == (74, 10)
    types = {_history(name).workflow_type for name in NAMES + OLDER}
    assert types == set(TWINS) - {"kid"}


@pytest.mark.parametrize("folder", ["typescript", "typescript_1_8", "typescript_1_10", "go"])
def test_recordings_do_not_identify_the_machine(folder: str) -> None:
    """No recording holds the name or a path of the machine that it was made on, in payloads neither."""
    for path in (HERE / folder).glob("*.json"):
        text = path.read_text()
        hidden = [base64.b64decode(data) for data in re.findall(r'"data":"([A-Za-z0-9+/=]+)"', text)]
        whole = text.encode() + b" ".join(hidden)
        assert set(re.findall(r'"identity":"([^"]*)"', text)) <= {"recorder"}
        assert not re.search(rb"/(home|root|tmp|work|Users)/|node_modules|localhost|127\.0\.0\.1", whole), (
            path
        )


@workflow.defn(name="chains")
def chains_without_a_step(names: list[str]) -> list[str]:
    """Does not do the last step of each chain."""
    tasks: list[workflow.Task[str]] = [start("gated", name) for name in names]
    return workflow.gather(*tasks)


@workflow.defn(name="chains")
def chains_of_others(names: list[str]) -> list[str]:
    """Calls another activity at the end of each chain."""

    def chain(name: str) -> str:
        return str(act("other", act("gated", name) + "!"))

    return workflow.gather(*[workflow.spawn(chain, name) for name in names])


@workflow.defn(name="mixed")
class MixedWithMore(typescript_twins.Mixed):
    """Does one thing more at the end."""

    @workflow.run
    def run(self) -> int:
        workflow.gather(workflow.spawn(self.side), workflow.spawn(self.timer))
        workflow.wait_condition(lambda: len(self.log) >= 4)
        act("echo", "more")
        return len(self.log)


@pytest.mark.parametrize(
    ("name", "changed"),
    [("chains", chains_without_a_step), ("chains", chains_of_others), ("mixed", MixedWithMore)],
)
def test_changed_code_is_refused(name: str, changed: object) -> None:
    """Order is forgiven, a step that is missing, another or one too many is not."""
    with Replayer(workflows=[changed]) as replayer, pytest.raises(NondeterminismError):
        replayer.replay(_history(name))


@workflow.defn(name="chains")
def chains_with_other_words(names: list[str]) -> list[str]:
    """Passes on something else."""

    def chain(name: str) -> str:
        return str(act("echo", act("gated", name) + "?"))

    return workflow.gather(*[workflow.spawn(chain, name) for name in names])


def test_changed_arguments_are_refused_unless_allowed() -> None:
    """Arguments are compared here too, though the order is not."""
    with Replayer(workflows=[chains_with_other_words]) as replayer:
        error = replayer.try_replay(_history("chains")).difference
    assert isinstance(error, NondeterminismError)
    assert "arguments of activity echo" in str(error)
    with Replayer(workflows=[chains_with_other_words], compare_arguments=False) as replayer:
        assert replayer.try_replay(_history("chains")).does_the_same


def test_tolerated_order_does_not_affect_the_next_replay(replayer: Replayer) -> None:
    """A history that Core refused and the second look took leaves the replayer fit for the next."""
    for name in ("mixed", "sequence", "raceInScope", "parallel"):
        assert replayer.try_replay(_history(name)).does_the_same
