"""`hourglass why`: one page on what a workflow does or waits for, what is wrong, and what to do about it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from hourglass._cli import asking, connecting
from hourglass._cli.asking import Json, RunId, WorkflowId
from hourglass._cli.options import Codec, Namespace, Target
from hourglass.errors import ConnectionFailedError, NamespaceNotFoundError, WorkflowNotFoundError

if TYPE_CHECKING:
    from hourglass._story.diagnosis import Diagnosis


def why(
    workflow_id: WorkflowId,
    run_id: RunId = None,
    code: Annotated[
        list[str] | None,
        typer.Option(
            "--code", "-c", metavar="FILE|MODULE", help="Also try this code on its history: would it go on?"
        ),
    ] = None,
    target: Target = None,
    namespace: Namespace = None,
    codec: Codec = None,
    json: Json = False,
) -> None:
    """Say why a workflow waits or failed, and what to do about it.

    One page: what it does or waits for, since when, what failed and at which line.

    Exit code 1 where it cannot be looked at; 0 otherwise, whatever is wrong with it.

    \b
    Examples:
      hourglass why order-1
      hourglass why order-1 --code app.py
    """
    from hourglass._cli import why_page

    diagnosis = _diagnosis(workflow_id, run_id, code or [], target, namespace, codec)
    if json:
        asking.write_json(why_page.document(diagnosis))
    else:
        why_page.show(diagnosis)
    if diagnosis.start is None:
        raise typer.Exit(1)


def _diagnosis(
    workflow_id: str,
    run_id: str | None,
    code: list[str],
    target: str | None,
    namespace: str | None,
    codec: str | None,
) -> Diagnosis:
    from hourglass._cli import why_absent
    from hourglass._cli.codecs import codec_named
    from hourglass._cli.loading import load
    from hourglass._cli.why_facts import Asked
    from hourglass._runtime.targets import resolve
    from hourglass._story import reasons

    options = connecting.options_of(target, namespace)
    loaded = load(code) if code else None
    where = str(resolve(target, namespace=namespace))
    with ExitStack() as stack:
        replayer = None
        if loaded is not None:
            from hourglass.replay import Replayer

            replayer = stack.enter_context(Replayer(modules=loaded.modules, codec=codec_named(codec)))
        try:
            client = stack.enter_context(connecting.connected(target, namespace, codec))
            asked = Asked(client, options, replayer, connecting.temporal_options(target, namespace))
            try:
                return asked.diagnosis(workflow_id, run_id)
            except WorkflowNotFoundError:
                return why_absent.diagnosis(client, workflow_id, run_id, options)
        except (ConnectionFailedError, NamespaceNotFoundError) as error:
            return reasons.unreachable(workflow_id, where, str(error).partition("\n")[0], options)
