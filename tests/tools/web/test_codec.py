"""Payloads of a codec in the web UI: hidden by default, decoded on request."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

import httpx
import pytest
from tests.tools.web import flows
from tests.tools.web.conftest import asked, site_of

from hourglass import Client, Worker
from hourglass.converter import Payload
from hourglass.errors import WorkflowFailedError

SECRET = "hush-hush"


class Reversed:
    def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(each.data[::-1], "reversed", {"was": each.encoding.encode()}) for each in payloads]

    def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(each.data[::-1], (each.metadata or {})["was"].decode()) for each in payloads]


@pytest.fixture
def client() -> Iterator[Client]:
    with (
        Client.connect("local:", codec=Reversed()) as client,
        Worker(client, workflows=flows.WORKFLOWS, activities=flows.ACTIVITIES),
    ):
        yield client


@pytest.fixture
def path(client: Client) -> str:
    """The page of a run whose input, memo and notes contain the secret."""
    handle = client.start_workflow(
        flows.Purchase.run, flows.Order(SECRET), id="buy", memo={"about": f"memo {SECRET}"}
    )
    handle.execute_update(flows.Purchase.note, f"note {SECRET}")
    return f"/workflows/buy/{handle.describe().run_id}"


@pytest.fixture
def web(client: Client) -> Iterator[httpx.Client]:
    site = site_of(client, modules=[flows], codec=Reversed())
    with asked(site) as web:
        yield web


@pytest.mark.parametrize("part", ["", "/history", "/moments?at=0", "/moments?at=1", "/reset?event=4", "/why"])
def test_payloads_are_hidden_by_default(web: httpx.Client, path: str, part: str) -> None:
    """The secret appears neither decoded nor encoded."""
    answer = web.get(path + part)
    assert answer.status_code == 200
    assert SECRET not in answer.text
    assert base64.b64encode(SECRET[::-1].encode()).decode()[:8] not in answer.text


@pytest.mark.parametrize("part", ["", "/history", "/moments?at=1"])
def test_payloads_are_shown_on_request(web: httpx.Client, path: str, part: str) -> None:
    text = web.get(path + part + ("&" if "?" in part else "?") + "payloads=1").text
    assert SECRET in text
    assert "payloads=1" in text
    assert "Hide payloads" in text


@pytest.fixture
def failed(client: Client) -> str:
    """The page of a run whose activity fails with the secret as its message."""
    handle = client.start_workflow(flows.stuck, SECRET, id="blurts")
    while not any(each.last_failure for each in handle.describe().pending_activities):
        pass
    return f"/workflows/blurts/{handle.describe().run_id}"


@pytest.mark.parametrize("part", ["", "/history", "/reset?event=4", "/why"])
def test_messages_of_failures_are_hidden_with_a_codec(web: httpx.Client, failed: str, part: str) -> None:
    assert SECRET not in web.get(failed + part).text


@pytest.mark.parametrize("part", ["", "/why"])
def test_messages_of_failures_are_shown_on_request(web: httpx.Client, failed: str, part: str) -> None:
    assert SECRET in web.get(f"{failed}{part}?payloads=1").text


def test_messages_of_failed_runs_are_hidden_with_a_codec(web: httpx.Client, client: Client) -> None:
    handle = client.start_workflow(flows.fails, SECRET, id="gives-up")
    with pytest.raises(WorkflowFailedError):
        handle.result()
    path = f"/workflows/gives-up/{handle.describe().run_id}"
    for part in ("", "/why", "/history", "/moments"):
        assert SECRET not in web.get(path + part).text, part
    for part in ("", "/why"):
        assert SECRET in web.get(f"{path}{part}?payloads=1").text, part


def test_messages_of_parked_runs_are_hidden_with_a_codec(web: httpx.Client, client: Client) -> None:
    """Includes an error that the replay raises again."""
    handle = client.start_workflow(flows.parked_by, SECRET, id="parked")
    while not handle.describe().reported_problems:
        pass
    path = f"/workflows/parked/{handle.describe().run_id}"
    for part in ("", "/why", "/history", "/moments", "/moments?at=0"):
        assert SECRET not in web.get(path + part).text, part
    assert "KeyError (hidden)" in web.get(f"{path}/moments").text
    assert SECRET in web.get(f"{path}/moments?payloads=1").text


def test_step_values_are_shown_on_request(web: httpx.Client, path: str) -> None:
    key = web.get(path).text.partition('<li class="k-activity')[2].partition('id="s')[2].partition('"')[0]
    assert SECRET not in web.get(path, params={"span": key}).text
    assert f"{SECRET} paid 1" in web.get(path, params={"span": key, "payloads": "1"}).text


def test_query_answers_are_hidden(web: httpx.Client, path: str) -> None:
    assert "(hidden)" in web.post(f"{path}/query", data={"name": "note_count"}).text
    assert ">1</pre>" in web.post(f"{path}/query", data={"name": "note_count", "payloads": "1"}).text


def test_downloaded_history_keeps_encoded_payloads(web: httpx.Client, path: str) -> None:
    text = web.get(f"{path}/history.json?payloads=1").text
    assert SECRET not in text
    assert base64.b64encode(b"reversed").decode() in text


def test_payloads_are_not_decoded_without_a_codec(client: Client, path: str) -> None:
    with asked(site_of(client)) as web:
        text = web.get(f"{path}/history?payloads=1").text
    assert SECRET not in text
    assert "reversed" in text
