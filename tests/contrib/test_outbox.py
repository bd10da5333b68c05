"""The transactional outbox: committed requests are sent in order and once, by any number of relays."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, func, select, text, update
from sqlalchemy.orm import Session

from hourglass import Client, Worker, workflow
from hourglass.contrib.sqlalchemy import Outbox, create_tables, outbox
from hourglass.contrib.sqlalchemy._tables import now
from hourglass.contrib.sqlalchemy._tables import outbox as rows
from hourglass.errors import ArgumentError, UsageError
from hourglass.testing import DevServer

from .outbox_program import AFTER_COMMIT, AFTER_START, PLACES


@workflow.defn
class Tally:
    def __init__(self) -> None:
        self.numbers: list[int] = []

    @workflow.run
    def run(self, wanted: int) -> list[int]:
        workflow.wait_condition(lambda: len(self.numbers) >= wanted)
        return self.numbers

    @workflow.signal
    def add(self, number: int) -> None:
        self.numbers.append(number)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = create_engine(database_url)
    create_tables(made)
    yield made
    made.dispose()


@pytest.fixture
def client() -> Iterator[Client]:
    with Client.connect("local:") as connected, Worker(connected, workflows=[Tally]):
        yield connected


def count_rows(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(rows)).scalar_one()


def test_outbox_sends_committed_rows_in_order_and_no_rolled_back_rows(engine: Engine, client: Client) -> None:
    with Session(engine) as session, session.begin():
        assert outbox.start_workflow(session, Tally.run, 3, id="kept") == "kept"
        for number in (1, 2, 3):
            outbox.signal(session, "kept", Tally.add, number)
    with Session(engine) as session:
        outbox.start_workflow(session, Tally.run, 0, id="dropped")
        session.rollback()
    assert Outbox(engine, client).deliver() == 4
    assert client.get_workflow_handle("kept").result() == [1, 2, 3]
    assert [each.id for each in client.list_workflows()] == ["kept"]
    assert count_rows(engine) == 0


def test_outbox_row_sent_twice_starts_or_signals_once(engine: Engine, client: Client) -> None:
    """As after a relay that died between the engine's answer and the deletion of the row."""
    with Session(engine) as session, session.begin():
        outbox.start_workflow(session, Tally.run, 2, id="once")
        outbox.signal(session, "once", Tally.add, 1)
    relay = Outbox(engine, client)
    delete_row = relay._change
    for _ in range(2):
        relay._change = lambda row, statement: None  # type: ignore[method-assign]
        assert relay.deliver() == 1  # sent, and not deleted: the relay is as good as dead
        with engine.begin() as connection:  # its lease passes
            connection.execute(update(rows).values(due_at=now() - timedelta(seconds=1)))
        relay._change = delete_row  # type: ignore[method-assign]
        with engine.begin() as connection:
            first = connection.execute(select(func.min(rows.c.id))).scalar_one()
            connection.execute(
                update(rows).where(rows.c.id != first).values(due_at=now() + timedelta(hours=1))
            )
        assert relay.deliver() == 1
        with engine.begin() as connection:
            connection.execute(update(rows).values(due_at=now()))
    client.get_workflow_handle("once").signal(Tally.add, 2)
    assert client.get_workflow_handle("once").result() == [1, 2]
    assert len(list(client.list_workflows())) == 1


def test_outbox_with_three_relays_sends_each_row_once_and_in_order(engine: Engine, client: Client) -> None:
    with Session(engine) as session, session.begin():
        for each in range(5):
            outbox.start_workflow(session, Tally.run, 4, id=f"tally-{each}")
        for number in range(4):
            for each in range(5):
                outbox.signal(session, f"tally-{each}", Tally.add, number)
    with Outbox(engine, client), Outbox(engine, client), Outbox(engine, client):
        while count_rows(engine):
            threading.Event().wait(0.02)
    for each in range(5):
        assert client.get_workflow_handle(f"tally-{each}").result() == [0, 1, 2, 3]


def test_rejected_outbox_row_is_logged_kept_and_can_be_retried(
    engine: Engine, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with Session(engine) as session, session.begin():
        outbox.signal(session, "late", Tally.add, 7)
        outbox.start_workflow(session, Tally.run, 1, id="late")
    relay = Outbox(engine, client)
    with caplog.at_level(logging.ERROR, "hourglass.outbox"):
        assert relay.deliver() == 1
    assert "was rejected" in caplog.text
    with engine.connect() as connection:
        assert "WorkflowNotFoundError" in connection.execute(select(rows.c.last_error)).scalar_one()
    assert relay.retry_refused() == 1
    assert relay.deliver() == 1
    assert client.get_workflow_handle("late").result() == [7]


def test_outbox_row_stays_in_order_while_the_engine_is_unavailable(engine: Engine, client: Client) -> None:
    with Session(engine) as session, session.begin():
        outbox.start_workflow(session, Tally.run, 1, id="patient")
        outbox.signal(session, "patient", Tally.add, 1)
    with Client.connect("local:") as closed_client:
        closed = Outbox(engine, closed_client)
    assert closed.deliver() == 0
    with engine.begin() as connection:
        assert connection.execute(select(rows.c.attempts).order_by(rows.c.id)).scalars().all() == [1, 0]
        connection.execute(update(rows).values(due_at=now()))
    assert Outbox(engine, client).deliver() == 2
    assert client.get_workflow_handle("patient").result() == [1]


@pytest.mark.server
def test_outbox_starts_only_committed_workflows_after_kill_on_a_server(
    engine: Engine, database_url: str, quick_server: DevServer
) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id TEXT PRIMARY KEY)"))
    queue = f"outbox-{uuid.uuid4().hex[:8]}"
    program = str(Path(__file__).with_name("outbox_program.py"))
    shops = [
        subprocess.Popen([sys.executable, program, quick_server.target, database_url, queue, place])
        for place in PLACES
    ]
    assert [shop.wait(120) for shop in shops] == [-signal.SIGKILL] * 3
    with engine.begin() as connection:
        orders = connection.execute(text("SELECT id FROM orders")).scalars().all()
        connection.execute(update(rows).values(due_at=now()))  # the dead relay's lease passes
    assert set(orders) == {AFTER_COMMIT, AFTER_START}
    with (
        Client.connect(quick_server.target) as client,
        Worker(client, queue, workflows=[Tally]),
        Outbox(engine, client),
    ):
        for place in orders:
            assert client.get_workflow_handle(place).result(timeout=60) == [1, 2]
        while count_rows(engine):
            threading.Event().wait(0.02)
        started = [each.id for each in client.list_workflows(f"TaskQueue = '{queue}'")]
        assert sorted(started) == sorted(orders)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE orders"))


def test_outbox_rejects_invalid_arguments_when_the_row_is_written() -> None:
    engine = create_engine("sqlite://")
    create_tables(engine)
    with Session(engine) as session:
        with pytest.raises(ArgumentError):
            outbox.start_workflow(session, Tally.run, id="no argument")  # type: ignore[call-arg]
        with pytest.raises(UsageError, match="unknown start option"):
            outbox.start_workflow(session, Tally.run, 1, ident="x")  # type: ignore[call-arg]
        with pytest.raises(UsageError, match="non-empty"):
            outbox.signal(session, "", "add", 1)
    with pytest.raises(UsageError, match="Session or a Connection"):
        outbox.signal(engine, "x", "add", 1)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="needs an Engine"):
        Outbox("sqlite://", None)  # type: ignore[arg-type]
    engine.dispose()
