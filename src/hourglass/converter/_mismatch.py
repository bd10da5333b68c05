"""The one way in which decoding says no, before it is known which payload it was."""

from __future__ import annotations


class Mismatch(ValueError):
    """A value does not fit its type. `problem` speaks of types and shapes only, `path` of the place.

    A ValueError, so that msgspec hands it on from its hooks.
    """

    def __init__(self, problem: str, path: str = "$") -> None:
        super().__init__(problem, path)
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        return self.problem if self.path == "$" else f"{self.problem} at {self.path[:200]}"
