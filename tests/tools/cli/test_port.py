"""`hourglass port`: the changes that it makes, and the names that it reports."""

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


def test_port_changes_imports_and_qualified_names_only() -> None:
    assert ported(PROGRAM) == (PORTED, [])
    assert ported(PORTED) == (PORTED, []), "what is ported stays as it is"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("import temporalio.nexus", "no nexus"),
        ("from temporalio import nexus", "no nexus"),
        ("from temporalio.contrib.pydantic import pydantic_data_converter", "no contrib: see"),
        ("from temporalio.client import CloudOperationsClient", "client has no CloudOperationsClient"),
        ("from temporalio.api.common.v1 import Payload", "Temporal's own messages"),
    ],
)
def test_port_reports_unsupported_names_with_line_and_reason(line: str, message: str) -> None:
    _, ((number, note),) = ported(f"import os\n{line}\n")
    assert number == 2
    assert message in note


def test_port_table_maps_only_supported_modules() -> None:
    source = "".join(f"import temporalio.{module}\n" for module in MODULES)
    assert ported(source)[1] == []


def test_port_command_prints_a_diff_and_writes_only_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "app.py"
    path.write_text(PROGRAM)
    assert main(["port", str(tmp_path)]) == 0
    shown, message = capsys.readouterr()
    assert message.strip() == "1 file would be changed: use --write to change them"
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
def test_port_command_rejects_missing_or_invalid_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "app.py"
    path.write_bytes(content)
    assert main(["port", str(path)]) == 2
    assert main(["port", str(tmp_path / "nothing.py")]) == 2
    with pytest.raises(UsageError, match="not valid Python"):
        ported("def broken(:")
