"""Time travel in a child process: timeouts, inherited environment and codecs."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.tools.web import flows
from tests.tools.web.conftest import http_client, site_of

from hourglass import Client, Worker
from hourglass._tools.web.replay_child import WalkResult
from hourglass._tools.web.replays import ReplayFailedError, TimeTravel
from hourglass.converter import ActivitySerializationContext, Payload, WorkflowSerializationContext
from hourglass.errors import UsageError
from hourglass.replay import History

CODE = """
import os
import re
import subprocess
import sys

from hourglass import workflow

INHERITED = sorted(os.environ)
DESCRIPTORS = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

if "BROKEN_WITHOUT" in os.environ.get("HOME", ""):
    os.environ["NEEDED_BY_THE_CODE"]


@workflow.defn
def looks() -> str:
    names, descriptors, here = INHERITED, DESCRIPTORS, os.getpid()
    workflow.sleep(0.01)
    return "done"


@workflow.defn
def backtracks() -> str:
    if "ONLY_IN_THE_WORKER" not in os.environ:
        re.match("(a+)+$", "a" * 60 + "!")
    return "done"


@workflow.defn
def dies() -> str:
    if "ONLY_IN_THE_WORKER" not in os.environ:
        os._exit(7)
    return "done"
"""


@pytest.fixture
def replayed_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of workflows that behave differently in the child process, whose environment lacks a variable."""
    (tmp_path / "replayed_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ONLY_IN_THE_WORKER", "1")
    yield importlib.import_module("replayed_code")
    del sys.modules["replayed_code"]


@pytest.fixture
def client(replayed_module: ModuleType) -> Iterator[Client]:
    with (
        Client.connect("local:") as client,
        Worker(
            client,
            workflows=[
                replayed_module.looks,
                replayed_module.backtracks,
                replayed_module.dies,
                *flows.WORKFLOWS,
            ],
        ),
    ):
        yield client


def _history(client: Client, name: str) -> History:
    handle = client.start_workflow(name, id=name)
    handle.result()
    return handle.history()


def test_hung_replay_is_killed_and_replaced_while_the_web_ui_answers(
    client: Client, replayed_module: ModuleType
) -> None:
    """The regular expression blocks only the interpreter of the child process."""
    _history(client, "backtracks")
    _history(client, "looks")
    site = site_of(client, modules=[replayed_module])
    site._time_travel = TimeTravel([replayed_module], client, limit=8)
    with http_client(site) as web, ThreadPoolExecutor() as threads:
        run = client.get_workflow_handle("backtracks").describe().run_id
        hung = threads.submit(web.get, f"/workflows/backtracks/{run}/moments")
        while not hung.done():
            assert web.get("/workflows").status_code == 200
        answer = hung.result()
        assert answer.status_code == 500
        assert "was stopped after 8 seconds" in answer.text
        run = client.get_workflow_handle("looks").describe().run_id
        assert "start timer" in web.get(f"/workflows/looks/{run}/moments").text


def test_closing_time_travel_kills_a_running_replay(client: Client, replayed_module: ModuleType) -> None:
    history = _history(client, "backtracks")
    travel = TimeTravel([replayed_module], client, limit=300)
    failures: list[Exception] = []

    def walk() -> None:
        try:
            travel.walk(history, None)
        except ReplayFailedError as error:
            failures.append(error)

    thread = threading.Thread(target=walk)
    thread.start()
    while travel._child is None:
        pass
    process = travel._child
    travel.close()
    thread.join(60)
    assert not thread.is_alive()
    assert failures
    assert process.exit_code() is not None


def test_dead_replay_process_is_reported_with_its_exit_code_and_replaced(
    client: Client, replayed_module: ModuleType
) -> None:
    dying, fine = _history(client, "dies"), _history(client, "looks")
    travel = TimeTravel([replayed_module], client)
    try:
        with pytest.raises(ReplayFailedError, match="exit code 7"):
            travel.walk(dying, None)
        assert travel.walk(fine, None).error == ""
    finally:
        travel.close()


def _first_values(walked: WalkResult) -> dict[str, Any]:
    fibers = walked.moments[0].fibers
    assert fibers is not None
    assert len(fibers) == 1
    return fibers[0].frames[0].values


def test_replay_process_inherits_only_listed_variables_and_no_descriptors(
    client: Client, replayed_module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOURGLASS_UI_TOKEN", "a-token-for-the-web-ui")
    monkeypatch.setenv("DATABASE_PASSWORD", "hush")
    monkeypatch.setenv("SHOP_REGION", "eu")
    monkeypatch.setenv("HOURGLASS_REPLAY_ENV", "SHOP_REGION, NOT_SET")
    history = _history(client, "looks")
    inherited, sent = os.pipe()
    os.set_inheritable(inherited, True)
    travel = TimeTravel([replayed_module], client)
    try:
        values = _first_values(travel.walk(history, 0))
    finally:
        travel.close()
        os.close(inherited)
        os.close(sent)
    assert "'SHOP_REGION'" in values["names"]
    for name in ("HOURGLASS_UI_TOKEN", "DATABASE_PASSWORD", "ONLY_IN_THE_WORKER"):
        assert name not in values["names"]
    assert (
        int(values["descriptors"]) <= 6
    )  # three streams, the socket, the folder that is listed, the module's file
    assert int(values["here"]) != os.getpid()


def test_replay_import_error_names_the_variable_that_passes_environment(
    client: Client, replayed_module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/BROKEN_WITHOUT")
    travel = TimeTravel([replayed_module], client)
    try:
        with pytest.raises(UsageError, match=r"KeyError: 'NEEDED_BY_THE_CODE'[^$]*HOURGLASS_REPLAY_ENV"):
            travel.walk(_history(client, "looks"), 0)
        monkeypatch.setenv("NEEDED_BY_THE_CODE", "1")
        monkeypatch.setenv("HOURGLASS_REPLAY_ENV", "NEEDED_BY_THE_CODE")
        assert travel.walk(_history_of(client, "looks"), 0).error == ""
    finally:
        travel.close()


def _history_of(client: Client, workflow_id: str) -> History:
    return client.get_workflow_handle(workflow_id).history()


class KeyedCodec:
    """A codec with a key for each workflow, which exists only in this process."""

    def __init__(self, key: str = "") -> None:
        self._key = key

    def with_context(self, context: object) -> KeyedCodec:
        assert isinstance(context, WorkflowSerializationContext | ActivitySerializationContext)
        return KeyedCodec(f"{os.getpid()} {context.workflow_id}")

    def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(each.data[::-1], "keyed", {"was": each.encoding.encode(), "key": self._key.encode()})
            for each in payloads
        ]

    def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        assert all((each.metadata or {})["key"].decode() == self._key for each in payloads)
        return [Payload(each.data[::-1], (each.metadata or {})["was"].decode()) for each in payloads]


def test_replay_process_requests_decoding_from_the_web_ui_process() -> None:
    with (
        Client.connect("local:", codec=KeyedCodec()) as client,
        Worker(client, workflows=flows.WORKFLOWS, activities=flows.ACTIVITIES),
    ):
        handle = client.start_workflow(flows.quick, "ada", id="secret")
        assert handle.result() == "ada paid 1"
        travel = TimeTravel([flows], client)
        try:
            walked = travel.walk(handle.history(), 0)
        finally:
            travel.close()
    assert walked.error == ""
    assert _first_values(walked)["name"] == "'ada'"
