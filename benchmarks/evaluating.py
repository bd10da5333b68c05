"""Part `evaluator`: time per activation of the evaluator alone, including the conversion of Core's messages."""

from __future__ import annotations

import json
import time
from typing import Any

from temporalio.bridge.proto.workflow_activation import WorkflowActivation

from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.definition import workflow_definition
from hourglass._evaluator.evaluator import Evaluator
from hourglass._temporal.activations import CommandDefaults, activation_from_proto, completion_to_proto

from .report import Row, interleave
from .subjects_hourglass import sequence

_SIZES = (10, 100, 1000, 10_000)


def measure(*, quick: bool) -> list[Row]:
    """Evaluate sequences of 10 to 10,000 steps, each size as a subject, so that the ratios show growth."""
    subjects = {}
    for steps in _SIZES[:3] if quick else _SIZES:
        activations = _activations(steps)
        repetitions = max(1, 2000 // steps)
        subjects[f"Hourglass, {steps} steps"] = lambda a=activations, r=repetitions: _evaluate(a, r)
    return interleave(subjects, rounds=3 if quick else 7, part="evaluator", case="sequence")


def _evaluate(activations: list[bytes], repetitions: int) -> dict[str, float]:
    definition = workflow_definition(sequence)
    assert definition is not None
    defaults = CommandDefaults(task_queue="bench", namespace="default")
    elapsed = cpu = 0.0
    for _ in range(repetitions):
        run = Evaluator(definition, "run", RunSettings(task_queue="bench"))
        completion = b""
        started, cpu_started = time.perf_counter(), time.thread_time()
        for data in activations:
            completion = completion_to_proto(run.activate(activation_from_proto(data)), defaults)
        elapsed += time.perf_counter() - started
        cpu += time.thread_time() - cpu_started
        if not run.closed or not completion:
            raise RuntimeError("the measured workflow did not complete")
        run.drop()
    count = repetitions * len(activations)
    return {"µs/activation": elapsed / count * 1e6, "µs CPU/act.": cpu / count * 1e6}


def _activations(steps: int) -> list[bytes]:
    """Return the activations Core would send: the start, then one activity result at a time."""
    first: Any = WorkflowActivation(run_id="run", history_length=3)
    start = first.jobs.add().initialize_workflow
    start.workflow_type = "Sequence"
    start.workflow_id = "bench"
    start.randomness_seed = 1
    _set_payload(start.arguments.add(), steps)
    activations = [first.SerializeToString()]
    for number in range(steps):
        message: Any = WorkflowActivation(run_id="run", history_length=9 + 6 * number)
        message.timestamp.seconds = 1_700_000_000 + number
        job = message.jobs.add().resolve_activity
        job.seq = number + 1
        _set_payload(job.result.completed.result, number)
        activations.append(message.SerializeToString())
    return activations


def _set_payload(payload: Any, value: int) -> None:
    payload.metadata["encoding"] = b"json/plain"
    payload.data = json.dumps(value).encode()
