"""`hourglass replay` and `export`: check recorded histories against the current code before a deployment, and export
histories.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from json import loads as decode
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from hourglass._tools.cli import connecting, console
from hourglass._tools.cli.connecting import (
    AnyQuery,
    Code,
    DecodingEngine,
    Engine,
    Json,
    MaybeWorkflowId,
    RunId,
)
from hourglass._tools.timeline.text import near
from hourglass.errors import HistoryError, NondeterminismError, UsageError

if TYPE_CHECKING:
    from hourglass.replay import History, ReplayResult


MostWorkflows = Annotated[int, typer.Option("--limit", "-n", min=1, help="The maximum number of workflows.")]


def replay(
    histories: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|FOLDER",
            help="Histories in JSON or binary (.bin); of a folder, all its files.",
        ),
    ] = None,
    code: Code = None,
    query: Annotated[
        str | None,
        typer.Option(metavar="FILTER", help="Also the histories of workflows that match a filter."),
    ] = None,
    limit: MostWorkflows = 100,
    arguments: Annotated[
        bool, typer.Option(help="Compare arguments and results too; Temporal lets them change.")
    ] = True,
    *,
    engine: DecodingEngine,
    json: Json = False,
) -> None:
    """Check whether code still fits recorded histories.

    The exit code is 1 if a worker of the run's engine would not continue a run. The output then shows file and line, the
    expected command and the actual one. It also shows where the embedded engine and a Temporal server differ, and for
    histories of other SDKs whether the code does the same in another order.

    \b
    Examples:
      hourglass replay histories/ --code app.py
      hourglass replay --query "ExecutionStatus = 'Running'" --code app.orders
    """
    from hourglass._tools.cli.loading import load
    from hourglass.replay import Replayer

    if not code:
        raise UsageError("pass the file with the workflows, for example --code app.py")
    if not histories and query is None:
        raise UsageError("pass history files, or use --query to load histories from the target")
    loaded = load(code)
    failed = 0
    count = 0
    with Replayer(
        modules=loaded.modules, codec=engine.payload_codec(), compare_arguments=arguments
    ) as replayer:
        for name, history in _histories(histories or [], query, limit, engine):
            count += 1
            result = replayer.try_replay(history)
            failed += not result.ok
            _print_result(name, result, json)
    if not json:
        console.show(f"{count - failed} of {count} fit")
    if not count:
        raise UsageError("no histories were found")
    if failed:
        raise typer.Exit(1)


def _histories(
    paths: list[str], query: str | None, limit: int, engine: Engine
) -> Iterator[tuple[str, History]]:
    from hourglass.replay import History

    for path in _files(paths):
        yield str(path), History.from_file(path)
    if query is not None:
        with engine.connect() as client:
            for run in islice(client.list_workflows(query), limit):
                yield run.id, client.get_workflow_handle(run.id, run_id=run.run_id).history()


def _files(paths: list[str]) -> Iterator[Path]:
    for text in paths:
        path = Path(text)
        if path.is_dir():
            files = sorted([*path.rglob("*.json"), *path.rglob("*.bin")])
            if not files:
                raise UsageError(f"{path} contains no .json or .bin files")
            yield from files
        elif path.is_file():
            yield path
        else:
            raise UsageError(f"file or folder {path} does not exist")


def _print_result(name: str, result: ReplayResult, json: bool) -> None:
    error = result.error
    if json:
        document = {
            "ok": result.ok,
            "error": error,
            "same": result.does_the_same,
            "difference": result.difference,
            "engine": result.engine,
            "refused_by": list(result.refused_by),
        }
        connecting.write_json({"history": name, **document}, indent=None)
    elif error is None:
        console.show(f"fits    {console.one_line(name)}")
        if result.difference is not None:
            _indented(
                "a worker of the Temporal server of this run would continue it; a worker of the embedded engine would "
                f"reject it:\n{_seen_from_here(result.difference)}"
            )
    else:
        verdict = "BROKEN" if isinstance(error, HistoryError) else "BREAKS"
        console.show(f"{verdict}  {console.one_line(name)}")
        _indented(_seen_from_here(error))
        if result.does_the_same and isinstance(error, NondeterminismError):
            _indented("the code does the same as the history, in another order")
        elif result.difference is not None and str(result.difference) != str(error):
            _indented(f"differences other than the order:\n{_seen_from_here(result.difference)}")
        if not result.engine and result.refused_by == ("embedded",):
            _indented(
                "a worker of the embedded engine would reject this run; a worker of a Temporal server would continue it, "
                "but would send new commands late"
            )


def _seen_from_here(error: Exception) -> str:
    """Return the message of an error, with short file names and the command's option in place of the API's argument."""
    file = error.file if isinstance(error, NondeterminismError) else ""
    message = str(error).replace("Replayer(…, compare_arguments=False)", "--no-arguments")
    return message.replace(f" {file}:", f" {near(file)}:") if file else message


def _indented(text: str) -> None:
    console.show("        " + text.replace("\n", "\n        "))


def export(
    workflow_id: MaybeWorkflowId = None,
    query: AnyQuery = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A file; a folder for several.  [default for one: stdout]"),
    ] = None,
    limit: MostWorkflows = 100,
    run_id: RunId = None,
    *,
    engine: Engine,
    json: Json = False,
) -> None:
    """Write histories as JSON, which `replay` and `show` read.

    Temporal's own tools read them as well. Arguments and results are written as they are stored: encrypted values stay encrypted.

    \b
    Examples:
      hourglass export order-1 --to order-1.json
      hourglass export --query "WorkflowType = 'checkout'" --to histories/
    """
    connecting.one_or_many(workflow_id, query)
    with engine.connect(about=workflow_id, run_id=run_id) as client:
        if workflow_id is not None:
            history = client.get_workflow_handle(workflow_id, run_id=run_id).history()
            if to is None:
                connecting.write_json(decode(history.to_json()))
                return
            path = to / f"{_file_name(workflow_id)}.json" if to.is_dir() else to
            _write(history, path)
            _print_written([(workflow_id, path)], json)
            return
        if to is None:
            raise UsageError("several histories need a folder, for example --to histories/")
        written: list[tuple[str, Path]] = []
        to.mkdir(parents=True, exist_ok=True)
        for run in islice(client.list_workflows(query or ""), limit):
            path = to / f"{_file_name(run.id)}.{run.run_id}.json"
            _write(client.get_workflow_handle(run.id, run_id=run.run_id).history(), path)
            written.append((run.id, path))
    _print_written(written, json)
    if not json:
        count = "1 history" if len(written) == 1 else f"{len(written)} histories"
        console.show(f"{count} in {to}" + ("; use --limit to write more" * (len(written) == limit)))


def _file_name(workflow_id: str) -> str:
    """Return an id as a file name that is valid on every system and stays in its directory."""
    return quote(workflow_id, safe=" @+=,").replace(".", "%2E" if workflow_id.strip(".") == "" else ".")[:180]


def _write(history: History, path: Path) -> None:
    try:
        history.to_file(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _print_written(written: list[tuple[str, Path]], json: bool) -> None:
    for workflow_id, path in written:
        if json:
            connecting.write_json({"id": workflow_id, "file": str(path)}, indent=None)
        else:
            console.show(f"{path}")
