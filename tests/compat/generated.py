"""Random programs as data, and the random course of events under which each is recorded. A seed says it all.

A program is a tree of operations, executed by `programs.interpreted` and by its twin. A block is a list:

    act MS FAILS KIND       run an activity of that duration and cancellation type, wait for it
    start MS FAILS KIND     the same without waiting
    join N                  wait for the n-th activity that is still open
    timed MS LIMIT          an activity within `wait_for`
    sleep MS, turn          a timer, a turn given away
    spawn BLOCK             a task
    gather BLOCKS           tasks, and all of them
    first BLOCKS            tasks, and the first of them
    all BLOCKS LIMIT        tasks, and all of them within a time limit
    completed MS …          activities, and a follow-up for each as it completes
    limit MS BLOCK          a block within a time limit
    add N                   change the number
    until N MS              wait for the number to grow by n, at most so long
    cancel N                cancel the n-th task or activity that is still open
    try BLOCK BLOCK         a block; when it is stopped, the second block
    draw                    change the number at random
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

Block = list[list[Any]]

# Seed 22 issues a command after its run's completion, in one task: temporalio's server refuses that for ever.
SEEDS = tuple(seed for seed in range(31) if seed != 22)
_KINDS = ("try", "wait", "abandon")
_WEIGHTS = {
    "act": 14,
    "start": 6,
    "join": 4,
    "sleep": 8,
    "turn": 4,
    "spawn": 8,
    "gather": 8,
    "first": 5,
    "all": 3,
    "completed": 4,
    "limit": 5,
    "add": 6,
    "until": 6,
    "cancel": 7,
    "try": 6,
    "draw": 3,
}
_NESTING = {"spawn", "gather", "first", "all", "limit", "try"}


@dataclass(frozen=True)
class Course:
    """The events during a recording: pairs of a pause in milliseconds and a step."""

    steps: tuple[tuple[int, str], ...]


def make_program(seed: int) -> dict[str, Any]:
    """Return the program of a seed. Every third program may contain `timed`, which needs a primitive of its own."""
    dice = random.Random(f"program {seed}")
    weights = dict(_WEIGHTS, timed=6) if seed % 3 == 2 else _WEIGHTS
    return {
        "main": _block(dice, weights, 0, dice.randint(4, 7)),
        "handlers": [_block(dice, weights, 1, dice.randint(1, 3)) for _ in range(3)],
        "limit": 50,
    }


def make_course(seed: int) -> Course:
    """Return the events of a seed: signals, pauses of the worker and cancellations."""
    dice = random.Random(f"course {seed}")
    steps: list[tuple[int, str]] = []
    for _ in range(dice.randint(2, 6)):
        what = dice.choices(("signal", "pause", "cancel"), (5, 4, 1))[0]
        if what == "signal":
            steps.append((dice.choice((0, 20, 80)), f"signal {dice.randrange(3)}"))
        elif what == "pause":
            steps.append((dice.choice((0, 50)), "stop"))
            steps += [(0, f"signal {dice.randrange(3)}")] * dice.randrange(2)
            steps.append((dice.choice((100, 300)), "go"))
        else:
            steps.append((dice.choice((50, 200)), "cancel"))
    return Course(tuple(steps))


def _block(dice: random.Random, weights: dict[str, int], depth: int, length: int) -> Block:
    return [_operation(dice, weights, depth) for _ in range(length)]


def _operation(dice: random.Random, weights: dict[str, int], depth: int) -> list[Any]:
    allowed = [name for name in weights if depth < 3 or name not in _NESTING]
    name = dice.choices(allowed, [weights[each] for each in allowed])[0]

    def block() -> Block:
        return _block(dice, weights, depth + 1, dice.randint(1, 3))

    def blocks() -> list[Block]:
        return [block() for _ in range(dice.randint(2, 3))]

    pause = dice.choice((0, 0, 1, 10, 40, 120))
    match name:
        case "act" | "start":
            return [name, pause, dice.random() < 0.1, dice.choice(_KINDS)]
        case "timed":
            return [name, pause, dice.choice((20, 100))]
        case "sleep":
            return [name, dice.choice((1, 10, 50, 150))]
        case "spawn":
            return [name, block()]
        case "gather" | "first":
            return [name, blocks()]
        case "all":
            return [name, blocks(), dice.choice((20, 150))]
        case "completed":
            return [name, *(dice.choice((0, 10, 60)) for _ in range(3))]
        case "limit":
            return [name, dice.choice((20, 150)), block()]
        case "until":
            return [name, dice.randint(1, 3), dice.choice((10, 50, 200))]
        case "add" | "cancel" | "join":
            return [name, dice.randint(1, 5)]
        case "try":
            return [name, block(), block()]
    return [name]
