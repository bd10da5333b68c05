"""`hourglass start`: begin a workflow, without waiting for it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hourglass._cli import asking, connecting, console
from hourglass._cli.asking import Json, Values
from hourglass._cli.options import Codec, Namespace, Target


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
