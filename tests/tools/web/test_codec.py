"""Payloads of a codec in the web UI: hidden by default, decoded on request."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

import httpx
import pytest
from tests.tools.web import flows
from tests.tools.web.conftest import http_client, site_of

from hourglass import Client, Worker
from hourglass.converter import Payload
from hourglass.errors import WorkflowFailedError

SECRET = "hush-hush"


class ReversingCodec:
    def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(each.data[::-1], "reversed", {"was": each.encoding.encode()}) for each in payloads]

    def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(each.data[::-1], (each.metadata or {})["was"].decode()) for each in payloads]


@pytest.fixture
def client() -> Iterator[Client]:
    with (
        Client.connect("local:", codec=ReversingCodec()) as client,
        Worker(client, workflows=flows.WORKFLOWS, activities=flows.ACTIVITIES),
    ):
        yield client


@pytest.fixture
def secret_run(client: Client) -> str:
    """The page of a run whose input, memo and notes contain the secret."""
    handle = client.start_workflow(
        flows.Purchase.run, flows.Order(SECRET), id="buy", memo={"about": f"memo {SECRET}"}
    )
    handle.execute_update(flows.Purchase.note, f"note {SECRET}")
    return f"/workflows/buy/{handle.describe().run_id}"


@pytest.fixture
def web(client: Client) -> Iterator[httpx.Client]:
    site = site_of(client, modules=[flows], codec=ReversingCodec())
    with http_client(site) as web:
        yield web


@pytest.mark.parametrize("part", ["", "/history", "/moments?at=0", "/moments?at=1", "/reset?event=4", "/why"])
def test_web_ui_hides_payloads_by_default(web: httpx.Client, secret_run: str, part: str) -> None:
    """The secret appears neither decoded nor encoded."""
    answer = web.get(secret_run + part)
    assert answer.status_code == 200
    assert SECRET not in answer.text
    assert base64.b64encode(SECRET[::-1].encode()).decode()[:8] not in answer.text


@pytest.mark.parametrize("part", ["", "/history", "/moments?at=1"])
def test_web_ui_shows_decoded_payloads_on_request_and_in_links(
    web: httpx.Client, secret_run: str, part: str
) -> None:
    text = web.get(secret_run + part + ("&" if "?" in part else "?") + "payloads=1").text
    assert SECRET in text
    assert "payloads=1" in text
    assert "Hide payloads" in text


@pytest.fixture
def failing_run(client: Client) -> str:
    """The page of a run whose activity fails with the secret as its message."""
    handle = client.start_workflow(flows.stuck, SECRET, id="blurts")
    while not any(each.last_failure for each in handle.describe().pending_activities):
        pass
    return f"/workflows/blurts/{handle.describe().run_id}"


@pytest.mark.parametrize("part", ["", "/history", "/reset?event=4", "/why"])
def test_web_ui_with_codec_hides_activity_failure_messages(
    web: httpx.Client, failing_run: str, part: str
) -> None:
    assert SECRET not in web.get(failing_run + part).text


@pytest.mark.parametrize("part", ["", "/why"])
def test_web_ui_with_codec_shows_activity_failure_messages_on_request(
    web: httpx.Client, failing_run: str, part: str
) -> None:
    assert SECRET in web.get(f"{failing_run}{part}?payloads=1").text


def test_web_ui_with_codec_hides_messages_of_failed_runs(web: httpx.Client, client: Client) -> None:
    handle = client.start_workflow(flows.fails, SECRET, id="gives-up")
    with pytest.raises(WorkflowFailedError):
        handle.result()
    secret_run = f"/workflows/gives-up/{handle.describe().run_id}"
    for part in ("", "/why", "/history", "/moments"):
        assert SECRET not in web.get(secret_run + part).text, part
    for part in ("", "/why"):
        assert SECRET in web.get(f"{secret_run}{part}?payloads=1").text, part


def test_web_ui_with_codec_hides_messages_of_parked_runs(web: httpx.Client, client: Client) -> None:
    """Includes an error that the replay raises again."""
    handle = client.start_workflow(flows.parked_by, SECRET, id="parked")
    while not handle.describe().reported_problems:
        pass
    secret_run = f"/workflows/parked/{handle.describe().run_id}"
    for part in ("", "/why", "/history", "/moments", "/moments?at=0"):
        assert SECRET not in web.get(secret_run + part).text, part
    assert "KeyError (hidden)" in web.get(f"{secret_run}/moments").text
    assert SECRET in web.get(f"{secret_run}/moments?payloads=1").text


def test_web_ui_with_codec_shows_step_values_on_request(web: httpx.Client, secret_run: str) -> None:
    key = (
        web.get(secret_run).text.partition('<li class="k-activity')[2].partition('id="s')[2].partition('"')[0]
    )
    assert SECRET not in web.get(secret_run, params={"span": key}).text
    assert f"{SECRET} paid 1" in web.get(secret_run, params={"span": key, "payloads": "1"}).text


def test_web_ui_with_codec_hides_query_answers_unless_requested(web: httpx.Client, secret_run: str) -> None:
    assert "(hidden)" in web.post(f"{secret_run}/query", data={"name": "note_count"}).text
    assert ">1</pre>" in web.post(f"{secret_run}/query", data={"name": "note_count", "payloads": "1"}).text


def test_downloaded_history_keeps_encoded_payloads(web: httpx.Client, secret_run: str) -> None:
    text = web.get(f"{secret_run}/history.json?payloads=1").text
    assert SECRET not in text
    assert base64.b64encode(b"reversed").decode() in text


def test_web_ui_without_codec_shows_encoded_payloads(client: Client, secret_run: str) -> None:
    with http_client(site_of(client)) as web:
        text = web.get(f"{secret_run}/history?payloads=1").text
    assert SECRET not in text
    assert "reversed" in text
