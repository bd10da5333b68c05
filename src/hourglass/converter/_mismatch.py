"""How decoding says no, before it is known which payload it was: what does not fit, and where."""

from __future__ import annotations

_LONGEST_PATH = 200


class ValuePath:
    """Where in a value a conversion is: `$.items[0].price`. The text is made only when a message needs it.

    All places of one conversion share `refused`: the values that fitted no member of a union. Without it, unions within
    unions would try every combination of members on a bad value, which takes for ever from 40 levels on.
    """

    __slots__ = ("_above", "_step", "refused")

    def __init__(self, above: ValuePath | None = None, step: str = "$") -> None:
        self._above = above
        self._step = step
        self.refused: dict[tuple[int, str] | None, Mismatch] = {} if above is None else above.refused

    def field(self, name: str) -> ValuePath:
        """The place of a field."""
        return ValuePath(self, f".{name}")

    def item(self, index: object) -> ValuePath:
        """The place of an item; keys of dicts are contents and not shown, so theirs is `...`."""
        return ValuePath(self, f"[{index}]")

    def __str__(self) -> str:
        steps: list[str] = []
        place: ValuePath | None = self
        while place is not None:
            steps.append(place._step)
            place = place._above
        return "".join(reversed(steps))


class Mismatch(ValueError):
    """A value does not fit its type. `problem` speaks of types and shapes only, `path` of the place.

    A ValueError, so that msgspec hands it on from its hooks.
    """

    def __init__(self, problem: str, path: ValuePath | str = "$") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = str(path)

    def __str__(self) -> str:
        return self.problem if self.path == "$" else f"{self.problem} at {self.path[:_LONGEST_PATH]}"
