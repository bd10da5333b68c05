"""Suggested actions, mostly commands to copy, for every cause that the reader can resolve. Pure.

Each function returns the actions for one situation, in the suggested order.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hourglass._history.events import WorkflowTaskCompleted
from hourglass._tools.diagnosis.diagnosis import Action, Cause, Facts, command
from hourglass._tools.timeline.spans import Span


def start_worker(
    queue: str, options: str, why: str = "Start a worker with the workflow's code:"
) -> tuple[Action, ...]:
    """Return the action that starts a worker of the task queue."""
    return (Action(why, command(f"worker FILE{_on(queue)}", options)),)


def _on(queue: str) -> str:
    """Return the option that names a task queue, or "" for the default queue."""
    return "" if queue in ("", "default") else f" --task-queue {shlex.quote(queue)}"


def serve_version(queue: str, needed: str, versions: list[str], options: str) -> tuple[Action, ...]:
    """Return the actions if no worker of the right version polls: start one, or make another version current."""
    if needed:
        return start_worker(
            queue, options, f"Start a worker of version {needed}, with the code of that version:"
        )
    name, _, build_id = next(version for version in versions if version).partition(".")
    make = f"Set a current version: client.set_current_version({name!r}, {build_id!r})"
    return (Action(make), *start_worker(queue, options, "Or start a worker without a version:"))


def change_queue(facts: Facts, parent: str, queue: str) -> tuple[Action, ...]:
    """Return the actions for a run that was started on a task queue without workers. The queue's name is probably misspelt.

    For a child, the parent's code must be corrected, because a restarted child would have no parent.
    """
    story_type = shlex.quote(facts.story.workflow_type)
    if parent:
        correct = (
            f"Or, if its parent chose the wrong queue, correct task_queue={queue!r} in the parent's code"
        )
        return (
            Action(
                f"{correct}, and reset the parent:",
                facts.command(f"reset {shlex.quote(parent)} --before {story_type}"),
            ),
        )
    return (
        Action(
            "Or, if it was started on the wrong queue, terminate it and start it on the right one:",
            facts.command(f"terminate {facts.id} --reason 'wrong task queue'"),
        ),
        Action("", facts.command(f"start {story_type} … --id {facts.id} --task-queue {shlex.quote(queue)}")),
    )


def parked(cause: Cause, facts: Facts) -> tuple[Action, ...]:
    """Return the actions for a parked run: fix the code, or reset the run to a point that matches the code."""
    terminate = Action("Or terminate it:", facts.command(f"terminate {facts.id}"))
    match cause:
        case Cause.NONDETERMINISM:
            return (*_misfit(facts), terminate)
        case Cause.UNKNOWN_WORKFLOW:
            why = "Start the worker with the file or module that has this type:"
            return (*start_worker(facts.story.task_queue, facts.options, why), terminate)
        case _:
            return (Action(_PARKED[cause]), terminate)


_PARKED = {
    Cause.UNDECODABLE: (
        "Make the code accept the arguments (types, converter, codec), and restart the worker; the workflow continues "
        "automatically. If the arguments were wrong, send them again."
    ),
    Cause.KILLS: (
        "Check the logs of the worker and of the system (a crash in an extension module, a lack of memory), and fix the "
        "cause. The run is executed again when the workflow's file has changed, or after a while; after a reset, "
        "immediately."
    ),
    Cause.HUNG: "Find the code of the workflow that blocks or computes for long, and move it into an activity.",
    Cause.TASK_FAILS: "If the next attempt fails as well, check the worker's log.",
    Cause.BUG: "Fix the line and restart the worker; the run continues automatically.",
}


def _misfit(facts: Facts) -> tuple[Action, ...]:
    line = Action(
        "To see the line, pass the code that the worker runs:", facts.command(f"why {facts.id} --code FILE")
    )
    first = next(
        (str(event.id) for event in facts.events if isinstance(event.attributes, WorkflowTaskCompleted)), "N"
    )
    return (
        *(() if facts.replayed is not None else (line,)),
        Action(
            "Restore the old code, or put the change behind workflow.patched('…'); the run continues automatically."
        ),
        Action(
            "Or reset the workflow, to execute it again with the current code:",
            facts.command(f"reset {facts.id} --event-id {first}"),
        ),
    )


def check_again(facts: Facts) -> tuple[Action, ...]:
    """Return the actions for a state that may soon be over."""
    why = "Check again in a moment, or follow the workflow:"
    return (Action(why, facts.command(f"show {facts.id} --follow")),)


def unpause(facts: Facts, activity_id: str) -> tuple[Action, ...]:
    """Return the actions for an activity that an operator paused."""
    return (
        Action(
            "Unpause the activity, in Temporal's web UI or with its command line:",
            f"temporal activity unpause --workflow-id {facts.id} --activity-id {shlex.quote(activity_id)} "
            + facts.options.replace("--target", "--address"),
        ),
    )


def or_cancel(facts: Facts, text: str) -> tuple[Action, ...]:
    """Return the action with this text, and as an alternative the cancellation of the workflow."""
    return (
        Action(text),
        Action("Or request cancellation of the workflow:", facts.command(f"cancel {facts.id}")),
    )


def send_signal(facts: Facts, names: tuple[str, ...]) -> tuple[Action, ...]:
    """Return the actions for a run that waits for a signal from a client."""
    return tuple(
        Action(
            "Send the signal:" if at == 0 else "",
            facts.command(f"signal {shlex.quote(name)} {facts.id} VALUE"),
        )
        for at, name in enumerate(names)
    )


def send_something(facts: Facts, without: str = "") -> tuple[Action, ...]:
    """Return the actions for a run that may wait for one of the messages that it accepts."""
    sent = [("signal", message) for message in facts.signals] + [
        ("update", message) for message in facts.updates
    ]
    sent = [message for message in sent if message != ("update", without)]
    if not sent:
        return (
            (Action("Check the line: no known signal or update could change the condition."),)
            if facts.positions
            else ()
        )
    return tuple(
        Action(
            "If a signal or update would make the workflow continue, send it:" if at == 0 else "",
            facts.command(f"{kind} {shlex.quote(message)} {facts.id} …"),
        )
        for at, (kind, message) in enumerate(sent[:4])
    )


NOTHING = (Action("Nothing: the workflow continues automatically at that time."),)


def after_failure(facts: Facts, step: str) -> tuple[Action, ...]:
    """Return the actions for a failed run, including a reset to the point of the failure."""
    again = f"reset {facts.id}" + (f" --before {shlex.quote(step)}" if step else "")
    return (*see(facts), Action("Once the cause is fixed, reset the workflow:", facts.command(again)))


def after_undoing(facts: Facts, first: str, since: Sequence[Span]) -> tuple[Action, ...]:
    """Return the actions for a run that failed and then ran other steps, which may have undone its work.

    Continuing from the failure would rely on results that no longer exist. For example, it would ship an order that was
    refunded.
    """
    ran = ", ".join(dict.fromkeys(span.name for span in since))
    start = f"start {shlex.quote(facts.story.workflow_type)} … --id {facts.id}{_on(facts.story.task_queue)}"
    again = Action(
        f"Or reset it to before {first}, the first step that may have been undone:",
        facts.command(f"reset {facts.id} --before {shlex.quote(first)}"),
    )
    return (
        Action(
            f"Show what it did, and check that {ran} left nothing behind:", facts.command(f"show {facts.id}")
        ),
        Action("Once the cause is fixed, start it again:", facts.command(start)),
        *((again,) if first else ()),
    )


def see(facts: Facts) -> tuple[Action, ...]:
    """Return the action that shows the whole story."""
    return (Action("Show what it did:", facts.command(f"show {facts.id}")),)
