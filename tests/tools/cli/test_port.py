"""`hourglass port`: what it changes, what it leaves, and what it says of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import main
from hourglass._tools.cli.port import MODULES, ported
from hourglass.errors import UsageError

PROGRAM = '''\
"""A program of temporalio's: temporalio stays in texts and comments."""

import temporalio.client  # not temporalio itself
import temporalio.worker as w, os
from temporalio import activity, workflow as flow
from temporalio.common import (
    RetryPolicy,  # temporalio's
)

NAME = "temporalio"


@flow.defn
class A:
    @flow.run
    async def run(self, klient: "str", é: int = 1) -> temporalio.client.Client:
        return é, temporalio.client.Client, getattr(self, "temporalio")
'''

PORTED = '''\
"""A program of temporalio's: temporalio stays in texts and comments."""

import hourglass.aio.client  # not temporalio itself
import hourglass.aio.worker as w, os
from hourglass.aio import activity, workflow as flow
from hourglass.aio.common import (
    RetryPolicy,  # temporalio's
)

NAME = "temporalio"


@flow.defn
class A:
    @flow.run
    async def run(self, klient: "str", é: int = 1) -> hourglass.aio.client.Client:
        return é, hourglass.aio.client.Client, getattr(self, "temporalio")
'''


def test_only_imports_are_changed() -> None:
    """Modules in imports, and where they are used by their full name; not texts, comments or attributes."""
    assert ported(PROGRAM) == (PORTED, [])
    assert ported(PORTED) == (PORTED, []), "what is ported stays as it is"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import temporalio.nexus", "no nexus"),
        ("from temporalio import nexus", "no nexus"),
        ("from temporalio.contrib.pydantic import pydantic_data_converter", "no contrib: see"),
        ("from temporalio.client import CloudOperationsClient", "client has no CloudOperationsClient"),
        ("from temporalio.api.common.v1 import Payload", "Temporal's own messages"),
    ],
)
def test_unsupported_names_are_reported(line: str, told: str) -> None:
    """With its line, and why where that is known."""
    _, ((number, note),) = ported(f"import os\n{line}\n")
    assert number == 2
    assert told in note


def test_every_replacement_module_exists() -> None:
    """What the table promises can be imported."""
    source = "".join(f"import temporalio.{module}\n" for module in MODULES)
    assert ported(source)[1] == []


def test_port_command_prints_a_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes only when told to, and ends with 1 where something is left to do."""
    path = tmp_path / "app.py"
    path.write_text(PROGRAM)
    assert main(["port", str(tmp_path)]) == 0
    shown, told = capsys.readouterr()
    assert told.strip() == "1 file would be changed: use --write to change them"
    assert "-from temporalio import activity, workflow as flow" in shown
    assert "+from hourglass.aio import activity, workflow as flow" in shown
    assert path.read_text() == PROGRAM
    assert main(["port", "--write", str(path)]) == 0
    assert path.read_text() == PORTED
    assert capsys.readouterr().err.strip() == "changed 1 file"
    assert main(["port", str(path)]) == 0
    assert capsys.readouterr().err.strip() == "nothing to change in 1 file"
    path.write_text("import temporalio.nexus\n")
    assert main(["port", str(path)]) == 1


@pytest.mark.parametrize(
    "content", [b"def broken(:\n", b"\xff\xfe\x00"], ids=["not valid Python", "not UTF-8"]
)
def test_unparsable_file_is_reported(tmp_path: Path, content: bytes) -> None:
    """A file that is no Python is asked for wrongly."""
    path = tmp_path / "app.py"
    path.write_bytes(content)
    assert main(["port", str(path)]) == 2
    assert main(["port", str(tmp_path / "nothing.py")]) == 2
    with pytest.raises(UsageError, match="not valid Python"):
        ported("def broken(:")
