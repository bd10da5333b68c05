"""Choosers, which decide the order of steps: the same choices lead to the same sequence."""

from __future__ import annotations

from collections.abc import Sequence

from hourglass import activity, workflow
from hourglass.testing import Chooser, Environment, Shuffled, Step, call


@activity.defn
def note(name: str) -> str:
    return name


@workflow.defn
def race() -> list[str]:
    done: list[str] = []

    def one(name: str) -> None:
        done.append(note(name))

    workflow.gather(*[workflow.spawn(one, name) for name in ("a", "b", "c", "d")])
    return done


class RecordingChooser:
    """Record the choices of another chooser."""

    def __init__(self, chooser: Chooser | None = None) -> None:
        self.chooser = chooser
        self.story: list[str] = []
        self.widest = 0

    def choose(self, steps: Sequence[Step]) -> int:
        chosen = 0 if self.chooser is None else self.chooser.choose(steps)
        self.widest = max(self.widest, len(steps))
        if steps[chosen].kind != "activation":  # its text has the run id, which differs each time
            self.story.append(str(steps[chosen]))
        return chosen


def _record(chooser: Chooser | None) -> tuple[list[str], RecordingChooser]:
    recorder = RecordingChooser(chooser)
    with Environment(chooser=recorder) as env:
        env.fake(note, lambda name: name)
        result = env.execute_workflow(race)
        assert sorted(result) == ["a", "b", "c", "d"]
        assert env.calls(note) == [call(name) for name in result]
        return result, recorder


def test_steps_run_first_come_first_served_by_default() -> None:
    result, recorder = _record(None)
    assert result == ["a", "b", "c", "d"]
    assert recorder.story[0].startswith("attempt note (1, attempt 1)")
    assert recorder.widest == 4


def test_seed_of_a_shuffled_chooser_determines_the_order_of_steps() -> None:
    orders = {seed: tuple(_record(Shuffled(seed))[0]) for seed in range(12)}
    assert orders == {seed: tuple(_record(Shuffled(seed))[0]) for seed in range(12)}
    assert len(set(orders.values())) > 3
    assert _record(Shuffled(3))[1].story == _record(Shuffled(3))[1].story
