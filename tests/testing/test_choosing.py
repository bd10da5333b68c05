"""Who decides what happens next: the seam for exploring orders, and that the same choices give the same story."""

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


class Telling:
    """Keeps the story of another chooser."""

    def __init__(self, chooser: Chooser | None = None) -> None:
        self.chooser = chooser
        self.story: list[str] = []
        self.widest = 0

    def choose(self, steps: Sequence[Step]) -> int:
        chosen = 0 if self.chooser is None else self.chooser.choose(steps)
        self.widest = max(self.widest, len(steps))
        if steps[chosen].kind != "activation":  # named by its run id, which is another each time
            self.story.append(str(steps[chosen]))
        return chosen


def _told(chooser: Chooser | None) -> tuple[list[str], Telling]:
    telling = Telling(chooser)
    with Environment(chooser=telling) as env:
        env.fake(note, lambda name: name)
        result = env.execute_workflow(race)
        assert sorted(result) == ["a", "b", "c", "d"]
        assert env.calls(note) == [call(name) for name in result]
        return result, telling


def test_default_order_is_first_come_first_served() -> None:
    """What came first happens first."""
    result, telling = _told(None)
    assert result == ["a", "b", "c", "d"]
    assert telling.story[0].startswith("attempt note (1, attempt 1)")
    assert telling.widest == 4


def test_seed_determines_the_order() -> None:
    """A seed gives the same order each time, and different seeds reach different ones."""
    orders = {seed: tuple(_told(Shuffled(seed))[0]) for seed in range(12)}
    assert orders == {seed: tuple(_told(Shuffled(seed))[0]) for seed in range(12)}
    assert len(set(orders.values())) > 3
    assert _told(Shuffled(3))[1].story == _told(Shuffled(3))[1].story
