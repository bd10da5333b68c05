"""Lost answers, and waits without a worker: what clients of a file receive."""

from __future__ import annotations

import logging
import queue
from pathlib import Path
from typing import Any

import pytest

from hourglass import Client, Worker, activity, workflow
from hourglass._contract import activities as ac
from hourglass._contract import service as s
from hourglass._embedded.api import requests
from hourglass._embedded.api.answering import EngineClosed
from hourglass._embedded.engine import Engine
from hourglass._embedded.multiprocess import calls
from hourglass.client import _wait_notices
from hourglass.errors import ServiceError

tokens: queue.SimpleQueue[bytes] = queue.SimpleQueue()


@activity.defn(heartbeat_timeout=None)
def completed_by_client() -> str:
    tokens.put(activity.info().task_token)
    activity.complete_async()


@workflow.defn
def awaits_client() -> str:
    return completed_by_client()


class _LosesFirstAnswer:
    def __init__(self, kind: type[s.Request[Any]]) -> None:
        self._kind = kind
        self.times = 0

    async def __call__(self, engine: Engine, request: s.Request[Any]) -> Any:
        answer = await requests.answer(engine, request)
        if isinstance(request, self._kind) and not self.times:
            self.times += 1
            raise EngineClosed("the answer is lost")
        return answer


def test_repeated_activity_completion_after_lost_answer_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = _LosesFirstAnswer(ac.CompleteActivity)
    monkeypatch.setattr(calls, "answer", cut)
    with (
        Client.connect(f"local:{tmp_path / 'orders.db'}") as client,
        Worker(client, workflows=[awaits_client], activities=[completed_by_client]),
    ):
        handle = client.start_workflow(awaits_client, id="w")
        token = tokens.get(timeout=30)
        client.get_activity_handle(token=token).complete("done")
        assert cut.times == 1
        assert handle.result(timeout=30) == "done"
        with pytest.raises(ServiceError) as caught:
            client.get_activity_handle(token=token).complete("again")
        assert caught.value.status == "NOT_FOUND"


def test_waiting_for_result_on_unserved_task_queue_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_wait_notices, "SILENCE", 0.01)
    with (
        Client.connect(f"local:{tmp_path / 'orders.db'}") as client,
        Worker(client, "served", workflows=[awaits_client], activities=[completed_by_client]),
        caplog.at_level(logging.WARNING, "hourglass"),
    ):
        handle = client.start_workflow(awaits_client, id="w", task_queue="nobody's")
        for _ in range(2):
            with pytest.raises(TimeoutError):
                handle.result(timeout=0.3)
    messages = [record.getMessage() for record in caplog.records if "no worker serves" in record.getMessage()]
    assert len(messages) == 1
    assert 'workflow w waits in task queue "nobody\'s"' in messages[0]
    assert "serves 'served'" in messages[0]
