"""I2: live fibers and re-execution of the journal return the same completions, byte for byte, and the same state."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hourglass._evaluator.commands import Completion, Succeeded
from hourglass._evaluator.events import Activation, RunStarted

from .driver import EPOCH, SECOND, as_bytes, encode, evaluate, open_run, state_of, verify
from .generated import RandomEngine, programs, steps
from .interpreted_plain import InterpretedPlain
from .protocol import Protocol

Script = list[tuple[list[int], int]]

relaxed = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def execute(program: dict[str, Any], script: Script, drops: list[int]) -> tuple[Any, list[Completion]]:
    """Execute a program by a script; drop its fibers before the activations in `drops`."""
    run = open_run(InterpretedPlain, verify=True)
    engine, protocol = RandomEngine(), Protocol()
    completions: list[Completion] = []
    started = RunStarted(workflow_type="Interpreted", workflow_id="w", arguments=(encode(program),), seed=5)
    for number, (picks, extra) in enumerate([([], 15), *script]):
        events = engine.next_events(picks, extra)
        if number == 0:
            events.insert(0, started)
        if not events or run.closed:
            break
        if number in drops:
            run.drop()
        activation = Activation(
            run_id="run-1", events=tuple(events), timestamp_ns=EPOCH + number * SECOND, history_length=number
        )
        completion = run.activate(activation)
        assert isinstance(completion, Succeeded), repr(run.error)
        protocol.check(completion.commands)
        for command in completion.commands:
            engine.record_command(command)
        completions.append(completion)
    return run, completions


def derived_state(state: Any) -> dict[str, Any]:
    """Return the state derived_state from the journal, in a comparable form."""
    fields = msgspec.structs.asdict(state)
    return {name: value for name, value in fields.items() if name != "journal"}


@relaxed
@given(programs(), steps, st.lists(st.integers(1, 30), max_size=6))
def test_dropping_fibers_changes_neither_completions_nor_state(
    program: dict[str, Any], script: Script, drops: list[int]
) -> None:
    kept, expected = execute(program, script, [])
    dropped, produced = execute(program, script, drops)
    try:
        assert [as_bytes(completion) for completion in produced] == [
            as_bytes(completion) for completion in expected
        ]
        assert derived_state(dropped.state) == derived_state(kept.state)
    finally:
        kept.drop()
        dropped.drop()


@relaxed
@given(programs(), steps)
def test_rebuilding_fibers_restores_the_derived_state(program: dict[str, Any], script: Script) -> None:
    run, _ = execute(program, script, [])
    before = derived_state(run.state)
    run.drop()
    run.rebuild()
    try:
        assert derived_state(run.state) == before
    finally:
        run.drop()


@relaxed
@given(programs(), steps)
def test_evaluation_without_fibers_returns_the_same_completions(
    program: dict[str, Any], script: Script
) -> None:
    run, expected = execute(program, script, [])
    state = state_of()
    try:
        for activation, completion in zip(run.state.journal, expected, strict=True):
            state, produced = evaluate(InterpretedPlain, state, activation)
            assert as_bytes(produced) == as_bytes(completion)
        assert derived_state(state) == derived_state(run.state)
    finally:
        run.drop()


@relaxed
@given(programs(), steps)
def test_verify_accepts_deterministic_programs(program: dict[str, Any], script: Script) -> None:
    run, _ = execute(program, script, [])
    try:
        assert verify(run) is None
    finally:
        run.drop()


@relaxed
@given(programs(), steps)
def test_deserialized_journal_restores_the_same_state(program: dict[str, Any], script: Script) -> None:
    run, _ = execute(program, script, [])
    journal = msgspec.msgpack.decode(msgspec.msgpack.encode(run.state.journal), type=list[Activation])
    assert journal == run.state.journal
    other = open_run(InterpretedPlain, state_of(journal))
    other.rebuild()
    try:
        assert derived_state(other.state) == derived_state(run.state)
    finally:
        run.drop()
        other.drop()
