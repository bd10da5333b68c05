"""The generator of the blocking client from the asynchronous one: `make faces`. A test checks that its output is up to date.

    make faces                                     # write the generated code
    python -m tests.architecture.faces --check     # only list what is not up to date

A method of a client is written once, with `await`. The blocking method is the same text without `async` and `await`, under
names without `Async`. So authors, type checkers and editors see two complete classes, with signatures and docstrings. The
output is a whole file (`FILES`), or the part of a file between `BLOCKING` and `END`, generated from the part between
`AWAITED` and `BLOCKING`.

Code that differs in more than `await` belongs below both clients, in the session or in an operation.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from . import source

MADE = "# Made by `make faces` from {source}: edit that one."
AWAITED = "# --- faces: awaited, the source of what follows ---"
BLOCKING = "# --- faces: blocking, made by `make faces` from the lines above: edit those ---"
END = "# --- faces: end ---"

FILES = {
    "client/_async.py": "client/_blocking.py",
    "client/_async_activities.py": "client/_blocking_activities.py",
    "client/_async_handles.py": "client/_blocking_handles.py",
}
PAGES = (
    "client/_interception.py",
    "contrib/opentelemetry/_tracing.py",
    "limits/_debouncer.py",
    "progress/_following.py",
    "testing/_time_skipper.py",
)

REQUESTS = ("client/_async_requests.py", "client/_blocking_requests.py")
"""The methods of workflow handles that only send a request: one for each request of `DECLARED` with a `method`."""
DECLARED = "_contract/workflows.py"

REQUESTS_HEAD = """
\"\"\"The methods of workflow handles that only send a request, as the request declares them (`Request.method`).\"\"\"

from __future__ import annotations

from typing import Unpack

from hourglass._contract.workflows import (
    {kinds},
)
from hourglass.client import _operations
from hourglass.client._operations import Reference
from hourglass.client._options import RpcOptions
from hourglass.client._session import ClientSession


class AsyncWorkflowRequests:
    \"\"\"The methods of `AsyncWorkflowHandle` that only send a request.\"\"\"

    _session: ClientSession
    _reference: Reference
"""
REQUEST_METHOD = """
    async def {method}(self, {parameters}**rpc: Unpack[RpcOptions]) -> None:
        \"\"\"{doc}\"\"\"
        await self._session.arun(_operations.send(self._session, self._reference, {kind}{arguments}), rpc)
"""
NOT_PARAMETERS = ("workflow_id", "run_id", "request_id", "identity")
"""The fields of a request that a handle fills in."""

OUTBOUND = "client/_outbound.py"
"""The interceptors of both clients: a method for each class of `CALLS` that declares one."""
CALLS = "client/_calls.py"

OUTBOUND_HEAD = """
\"\"\"The outbound interceptors of both clients: one method for each call of `_calls`.\"\"\"

from __future__ import annotations

from typing import Any

from hourglass.client._calls import (
    {inputs},
)


"""
OUTBOUND_CLASSES = """
class AsyncClientOutboundInterceptor:
    \"\"\"The calls of an `AsyncClient`: as `ClientOutboundInterceptor`, awaited.\"\"\"

    def __init__(self, next: AsyncClientOutboundInterceptor) -> None:
        self.next = next

{methods}


"""
OUTBOUND_METHOD = """
    async def {method}(self, input: {input}) -> {returns}:
        \"\"\"{does}\"\"\"
        return await self.next.{method}(input)
"""

NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "StopAsyncIteration": "StopIteration",
    "_async": "_blocking",
    "_async_activities": "_blocking_activities",
    "_async_handles": "_blocking_handles",
    "_async_requests": "_blocking_requests",
    "acall": "call",
    "aeach": "each",
    "arun": "run",
    "aperform": "perform",
    "async_client_chain": "client_chain",
    "intercept_async_client": "intercept_client",
}
"""Names that differ by more than the prefix `Async`."""

SENTENCES = {
    "`AsyncClient`: each method runs an operation on the control loop and is awaited on the caller's loop.": (
        "`Client`: each method runs an operation on the control loop and blocks the calling thread."
    ),
    "A client for asyncio: the same names as `Client`, awaited. It works on any event loop.": (
        "A blocking client: for scripts, threads, web frameworks and wherever `await` is not available."
    ),
    "The calls of an `AsyncClient`: as `ClientOutboundInterceptor`, awaited.": (
        "The calls of a `Client`. Override the methods of the calls to intercept; call `self.next` to continue."
    ),
    "Handles of `AsyncClient`": "Handles of `Client`",
    "The methods of `AsyncWorkflowHandle`": "The methods of `WorkflowHandle`",
    "Activities of `AsyncClient`": "Activities of `Client`",
    "an `AsyncClient`": "a `Client`",
    "`async for": "`for",
}
"""Sentences that differ in the blocking client."""


def blocking(text: str) -> str:
    """Return the text of the blocking client, not yet formatted."""
    for awaited, blocked in SENTENCES.items():
        text = text.replace(awaited, blocked)
    lines = text.splitlines(keepends=True)
    # From the last word to the first, so that the positions of earlier words stay valid.
    for word in reversed(list(tokenize.generate_tokens(StringIO(text).readline))):
        if word.type == tokenize.NAME:
            (row, begin), (_, end) = word.start, word.end
            rest = lines[row - 1][end:]
            named = _name(word.string)
            lines[row - 1] = lines[row - 1][:begin] + (named + rest if named else rest.lstrip(" "))
    return "".join(lines)


def _name(word: str) -> str:
    if word in ("async", "await"):
        return ""
    return NAMES.get(word) or re.sub(r"^(Last|_)?Async(?=[A-Z])", r"\1", word)


def formatted(text: str, path: Path) -> str:
    """Return the text formatted by ruff as the file of this name."""
    ruff = [str(Path(sys.executable).with_name("ruff"))]
    name = ["--stdin-filename", str(path), "-"]
    for command in (
        ["check", "--fix-only", "--quiet", "--select", "I,UP028", "--unsafe-fixes"],
        ["format", "--quiet"],
    ):
        done = subprocess.run(
            [*ruff, *command, *name], input=text, capture_output=True, text=True, check=True
        )
        text = done.stdout
    return text


def call_points() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each input class of `CALLS` that declares an interceptor method, with its class arguments.

    Reads the text, because an import would need the generated file.
    """
    for node in ast.parse((source.PACKAGE / CALLS).read_text()).body:
        match node:
            case ast.ClassDef(name=name, keywords=[_, *_] as keywords):
                declared = {word.arg or "": ast.literal_eval(word.value) for word in keywords}
                yield name, {"returns": "None", **declared}
            case _:
                pass


def request_methods() -> str:
    """Return the text of the methods that only send a request, not yet formatted."""
    tree = ast.parse((source.PACKAGE / DECLARED).read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    kinds, methods = [], []
    for name, node in classes.items():
        fields = list(_fields(node, classes))
        declared = [
            value.value for field, _, value in fields if field == "method" and isinstance(value, ast.Constant)
        ]
        if not declared:
            continue
        parameters = [
            (field, hint, value)
            for field, hint, value in fields
            if field not in NOT_PARAMETERS and not hint.startswith("ClassVar")
        ]
        signature = "".join(
            f"{field}: {hint}{' = ' + ast.unparse(value) if value is not None else ''}, "
            for field, hint, value in parameters
        )
        arguments = "".join(f", {field}={field}" for field, _, _ in parameters)
        doc = (ast.get_docstring(node) or "").replace("\n", "\n        ").replace("\n        \n", "\n\n")
        doc = f"{doc}\n        " if "\n" in doc else doc
        kinds.append(name)
        methods.append(
            REQUEST_METHOD.format(
                method=declared[0], parameters=signature, doc=doc, kind=name, arguments=arguments
            )
        )
    return REQUESTS_HEAD.format(kinds=",\n    ".join(sorted(kinds))) + "".join(methods)


def _fields(
    node: ast.ClassDef, classes: dict[str, ast.ClassDef]
) -> Iterator[tuple[str, str, ast.expr | None]]:
    """Yield the fields of a request with their annotations and defaults, those of its bases first."""
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _fields(classes[base.id], classes)
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=field), annotation=annotation, value=value):
                yield field, ast.unparse(annotation), value
            case _:
                pass


def outbound() -> str:
    """Return the text of the outbound interceptors, not yet formatted."""
    points = list(call_points())
    methods = "".join(OUTBOUND_METHOD.format(input=name, **point) for name, point in points)
    head = OUTBOUND_HEAD.format(inputs=",\n    ".join(sorted(name for name, _ in points)))
    awaited = OUTBOUND_CLASSES.format(methods=methods)
    return head + awaited + blocking(awaited)


def made() -> Iterator[tuple[Path, str]]:
    """Yield every file with generated code, and the text that it should have."""
    for origin, target in FILES.items():
        text = blocking((source.PACKAGE / origin).read_text())
        path = source.PACKAGE / target
        yield path, formatted(f"{MADE.format(source=Path(origin).name)}\n{text}", path)
    text = f"{MADE.format(source=DECLARED)}\n{request_methods()}"
    for target, content in zip(REQUESTS, (text, blocking(text)), strict=True):
        path = source.PACKAGE / target
        yield path, formatted(content, path)
    path = source.PACKAGE / OUTBOUND
    yield path, formatted(f"{MADE.format(source=Path(CALLS).name)}\n{outbound()}", path)
    for place in PAGES:
        path = source.PACKAGE / place
        before, awaited, after = re.split(
            f"{AWAITED}\n|{BLOCKING}\n.*?(?={END}\n)", path.read_text(), flags=re.DOTALL
        )
        yield path, formatted(f"{before}{AWAITED}\n{awaited}{BLOCKING}\n{blocking(awaited)}{after}", path)


def stale() -> list[Path]:
    """Return the files whose generated code is not up to date."""
    return [path for path, text in made() if not path.exists() or path.read_text() != text]


def made_lines() -> int:
    """Count the generated lines of the source."""
    whole = sum(
        len((source.PACKAGE / target).read_text().splitlines())
        for target in (*FILES.values(), *REQUESTS, OUTBOUND)
    )
    parts = [(source.PACKAGE / place).read_text().partition(BLOCKING)[2].partition(END)[0] for place in PAGES]
    return whole + sum(len(part.splitlines()) for part in parts)


def main() -> None:
    """Write the generated code, or list what is not up to date."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.architecture.faces", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, and fail where something is stale"
    )
    if parser.parse_args().check:
        sys.exit("\n".join(f"{path.relative_to(source.ROOT)}: run `make faces`" for path in stale()) or 0)
    for path, text in made():
        path.write_text(text)


if __name__ == "__main__":
    main()
