"""`hourglass start`: begin a workflow, without waiting for it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hourglass._cli import asking, connecting, console
from hourglass._cli.asking import Json, Values
from hourglass._cli.options import Codec, Namespace, Target
from hourglass.errors import UsageError


def start(
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow's name.")],
    arguments: Values = None,
    id: Annotated[str | None, typer.Option(metavar="ID", help="Its id.  [default: a fresh one]")] = None,
    task_queue: Annotated[str, typer.Option(metavar="NAME", help="The queue of its workers.")] = "default",
    start_delay: Annotated[float | None, typer.Option(metavar="SECONDS", help="Begin later.")] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for its result and show it.")] = False,
    target: Target = None,
    namespace: Namespace = None,
    codec: Codec = None,
    json: Json = False,
) -> None:
    """Start a workflow.

    \b
    Examples:
      hourglass start checkout '{"id": "o-1", "cents": 1200}' --id order-1
      hourglass start report daily --wait
    """
    _refuse_a_file(workflow)
    options: dict[str, Any] = {} if id is None else {"id": id}
    with connecting.connected(target, namespace, codec, makes_file=True) as client:
        handle = client.start_workflow(
            workflow, *asking.values(arguments), task_queue=task_queue, start_delay=start_delay, **options
        )
        if wait:
            asking.answer(handle.result(), json)
        elif json:
            asking.write_json({"id": handle.id, "run_id": handle.run_id})
        else:
            console.show(f"started {handle.id} (run {handle.run_id})")


def _refuse_a_file(workflow: str) -> None:
    """`run` takes a file, and people try it here: an engine would take it as a name that no worker ever knows."""
    file, _, name = workflow.rpartition(":") if ".py:" in workflow else (workflow, "", "")
    if file.endswith(".py"):
        raise UsageError(
            f"{workflow!r} is a file; start takes the name of a workflow, and a worker has its code"
            f"\n  hourglass worker {file}            in another terminal"
            f"\n  hourglass start {name or 'NAME'} …"
            f"\n  or both in one: hourglass run {workflow} …"
        )
