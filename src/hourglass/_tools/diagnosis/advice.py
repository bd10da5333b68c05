"""Suggested actions, mostly commands to copy, for every cause that the reader can resolve. Pure.

Each function returns the actions for one situation, in the suggested order.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hourglass._history.events import WorkflowTaskCompleted
from hourglass._tools.diagnosis.diagnosis import Action, Cause, Facts
from hourglass._tools.timeline.spans import Span, Story


def _command(words: str, options: str) -> str:
    return f"hourglass {words} {options}".rstrip()


def _id(story: Story) -> str:
    return shlex.quote(story.workflow_id)


def start_worker(
    queue: str, options: str, why: str = "Start a worker with the workflow's code:"
) -> tuple[Action, ...]:
    """Return the actions when no worker polls the task queue."""
    return (Action(why, _command(f"worker FILE{_on(queue)}", options)),)


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


def start_elsewhere(story: Story, queue: str, options: str) -> tuple[Action, ...]:
    """Return the actions for a run that was started on a task queue without workers. The queue's name is probably
    misspelt."""
    return (
        Action(
            "Or, if it was started on the wrong queue, terminate it and start it on the right one:",
            _command(f"terminate {_id(story)} --reason 'wrong task queue'", options),
        ),
        Action(
            "",
            _command(
                f"start {shlex.quote(story.workflow_type)} … --id {_id(story)} --task-queue {shlex.quote(queue)}",
                options,
            ),
        ),
    )


def fix_parent(story: Story, parent: str, queue: str, options: str) -> tuple[Action, ...]:
    """Return the actions for a child that was started on a task queue without workers. The parent's code probably names the
    wrong queue.
    """
    return (
        Action(
            f"Or, if its parent chose the wrong queue, correct task_queue={queue!r} in the parent's code, and reset the "
            "parent:",
            _command(f"reset {shlex.quote(parent)} --before {shlex.quote(story.workflow_type)}", options),
        ),
    )


def parked(cause: Cause, facts: Facts) -> tuple[Action, ...]:
    """Return the actions for a parked run: fix the code, or reset the run to a point that matches the code."""
    terminate = Action("Or terminate it:", _command(f"terminate {_id(facts.story)}", facts.options))
    match cause:
        case Cause.NONDETERMINISM:
            return (*_misfit(facts), terminate)
        case Cause.UNKNOWN_WORKFLOW:
            why = "Start the worker with the file or module that has this type:"
            return (*start_worker(facts.story.task_queue, facts.options, why), terminate)
        case _:
            return (Action(_PARKED[cause]), terminate)


def fixed(facts: Facts) -> tuple[Action, ...]:
    """Return the actions if the worker's code fails the run, but the local code does not."""
    why = "Restart the worker with this code; the workflow continues automatically:"
    return start_worker(facts.story.task_queue, facts.options, why)


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
    name, options = _id(facts.story), facts.options
    line = Action(
        "To see the line, pass the code that the worker runs:", _command(f"why {name} --code FILE", options)
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
            _command(f"reset {name} --event-id {first}", options),
        ),
    )


def check_again(facts: Facts) -> tuple[Action, ...]:
    """Return the actions for a state that may soon be over."""
    return (
        Action(
            "Check again in a moment, or follow the workflow:",
            _command(f"show {_id(facts.story)} --follow", facts.options),
        ),
    )


def more_workers(facts: Facts) -> tuple[Action, ...]:
    """Return the actions if there are too few workers for the queue, or if they are unhealthy."""
    why = "Check the workers (log, /status), or start another worker:"
    return start_worker(facts.story.task_queue, facts.options, why)


def more_room(facts: Facts, queue: str) -> tuple[Action, ...]:
    """Return the actions if the workers that poll the queue have no free slot."""
    why = "Allow more concurrent activities (--max-concurrent-activities), or start another worker:"
    return start_worker(queue, facts.options, why)


def unpause(facts: Facts, activity_id: str) -> tuple[Action, ...]:
    """Return the actions for an activity that an operator paused."""
    named = shlex.quote(facts.story.workflow_id)
    return (
        Action(
            "Unpause the activity, in Temporal's web UI or with its command line:",
            f"temporal activity unpause --workflow-id {named} --activity-id {shlex.quote(activity_id)} "
            + facts.options.replace("--target", "--address"),
        ),
    )


def ignored_cancellation(facts: Facts) -> tuple[Action, ...]:
    """Return the actions for a run that is still open after a cancellation request."""
    return (
        Action("If the workflow is cleaning up, wait. To end it without any cleanup:"),
        Action("", _command(f"terminate {_id(facts.story)}", facts.options)),
    )


def failing_activity(facts: Facts) -> tuple[Action, ...]:
    """Return the actions for a failing activity. The engine retries it, and its code can be fixed in the meantime."""
    return (
        Action(
            "Fix the cause, and restart the worker if the cause is in its code; the activity is retried automatically."
        ),
        Action(
            "Or request cancellation of the workflow:", _command(f"cancel {_id(facts.story)}", facts.options)
        ),
    )


def unknown_activity(facts: Facts, queue: str) -> tuple[Action, ...]:
    """Return the actions if the workers of the queue do not have the activity."""
    why = "Start the worker with the file or module of the activity as well; the activity is retried automatically:"
    return start_worker(queue, facts.options, why)


def longer_timeout(facts: Facts) -> tuple[Action, ...]:
    """Return the actions for an activity that takes longer than its timeout."""
    return (
        Action(
            "Make the activity faster, send heartbeats, or raise its timeout in @activity.defn(…); then restart the worker."
        ),
        Action(
            "Or request cancellation of the workflow:", _command(f"cancel {_id(facts.story)}", facts.options)
        ),
    )


def send_signal(facts: Facts, names: tuple[str, ...]) -> tuple[Action, ...]:
    """Return the actions for a run that waits for a signal from a client."""
    return tuple(
        Action(
            "Send the signal:" if at == 0 else "",
            _command(f"signal {shlex.quote(name)} {_id(facts.story)} VALUE", facts.options),
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
            _command(f"{kind} {shlex.quote(message)} {_id(facts.story)} …", facts.options),
        )
        for at, (kind, message) in enumerate(sent[:4])
    )


def unblock_fiber(facts: Facts) -> tuple[Action, ...]:
    """Return the actions for a fiber that waits for another fiber."""
    return (
        Action("Another task of the workflow must act first: check where the other tasks wait."),
        *send_something(facts)[:4],
    )


def nothing() -> tuple[Action, ...]:
    """Return the action that tells the reader to do nothing, because the run continues automatically."""
    return (Action("Nothing: the workflow continues automatically at that time."),)


def diagnose_child(child_id: str, options: str) -> tuple[Action, ...]:
    """Return the action that diagnoses a child."""
    return (Action("Diagnose the child:", _command(f"why {shlex.quote(child_id)}", options)),)


def after_failure(facts: Facts, step: str) -> tuple[Action, ...]:
    """Return the actions for a failed run, including a reset to the point of the failure."""
    name, options = _id(facts.story), facts.options
    again = f"reset {name} --before {shlex.quote(step)}" if step else f"reset {name}"
    return (
        Action("Show what it did:", _command(f"show {name}", options)),
        Action("Once the cause is fixed, reset the workflow:", _command(again, options)),
    )


def after_undoing(facts: Facts, first: str, since: Sequence[Span]) -> tuple[Action, ...]:
    """Return the actions for a run that failed and then ran other steps, which may have undone its work.

    Continuing from the failure would rely on results that no longer exist. For example, it would ship an order that was
    refunded.
    """
    name, options = _id(facts.story), facts.options
    ran = ", ".join(dict.fromkeys(span.name for span in since))
    start = f"start {shlex.quote(facts.story.workflow_type)} … --id {name}{_on(facts.story.task_queue)}"
    again = Action(
        f"Or reset it to before {first}, the first step that may have been undone:",
        _command(f"reset {name} --before {shlex.quote(first)}", options),
    )
    return (
        Action(
            f"Show what it did, and check that {ran} left nothing behind:", _command(f"show {name}", options)
        ),
        Action("Once the cause is fixed, start it again:", _command(start, options)),
        *((again,) if first else ()),
    )


def see(facts: Facts) -> tuple[Action, ...]:
    """Return the action that shows the whole story."""
    return (Action("Show what it did:", _command(f"show {_id(facts.story)}", facts.options)),)


def diagnose_moved(facts: Facts, target: str) -> tuple[Action, ...]:
    """Return the actions for a run that was moved to another target."""
    command = _command(f"why {_id(facts.story)}", f"--target {shlex.quote(target)}")
    return (Action("Diagnose it on the server:", command), *see(facts))


def search(similar: Sequence[str], options: str) -> tuple[Action, ...]:
    """Return the actions if the workflow was not found, because of a wrong id or a wrong target."""
    first = [
        Action(
            "Diagnose the workflow with the correct id:", _command(f"why {shlex.quote(workflow_id)}", options)
        )
        for workflow_id in similar[:1]
    ]
    return (
        *first,
        Action("List the workflows:", _command("list", options)),
        Action(
            "Or use another --target or --namespace; closed workflows are deleted after the retention period."
        ),
    )


def reach(options: str) -> tuple[Action, ...]:
    """Return the actions if the server, or the file of the embedded engine, cannot be reached."""
    return (
        Action("Check the target and the connection:", _command("doctor", options)),
        Action("Or choose another target: --target host:port, --target local:FILE, or HOURGLASS_TARGET."),
    )
