"""A program that pays invoices in its own database, and kills itself at several places; run by `test_transactional`.

    python -m ledger FILE DATABASE MARKS

A process dies once at each place; the file MARKS/<place> records it. The program prints the results of all payments and the
number of kills.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from sqlalchemy import Column, Engine, Integer, MetaData, Table, Text, create_engine, insert
from sqlalchemy.orm import Session

from hourglass import Client, RetryPolicy, Worker, activity, workflow
from hourglass.contrib.sqlalchemy import create_tables, transactional

PLACES = ("before the transaction", "before the effect", "before the commit", "after the commit")

payments = Table(
    "payments",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("invoice", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
)


_dying = threading.Lock()
"""Ensures one place per kill: otherwise two threads could write their marks before one signal ends the process."""


def die_at(place: str, invoice: str) -> None:
    mark = Path(sys.argv[3], place)
    if place == invoice and not mark.exists():
        _dying.acquire()  # never released: this process ends here
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


engine: Engine


def database() -> Engine:
    return engine


@transactional(database)
def pay(session: Session, invoice: str) -> int:
    attempt = activity.info().attempt
    die_at("before the effect", invoice)
    session.execute(insert(payments).values(invoice=invoice, attempt=attempt))
    die_at("before the commit", invoice)
    return attempt


@activity.defn(
    start_to_close_timeout=1,  # short: a killed attempt is retried only after it
    heartbeat_timeout=None,
    retry_policy=RetryPolicy(initial_interval=0.01, maximum_interval=0.1),
)
def settle(invoice: str) -> int:
    die_at("before the transaction", invoice)
    attempt = pay(invoice)
    die_at("after the commit", invoice)
    return attempt


@workflow.defn
def settlement(invoice: str) -> int:
    return settle(invoice)


def serve() -> None:
    global engine
    engine = create_engine(sys.argv[2])
    create_tables(engine)
    payments.metadata.create_all(engine)
    with (
        Client.connect(f"local:{sys.argv[1]}") as client,
        Worker(client, workflows=[settlement], activities=[settle]),
    ):
        handles = [
            client.start_workflow(settlement, place, id=place, request_id=place.replace(" ", "-"))
            for place in PLACES
        ]
        print(*[f"{handle.id}: {handle.result()}" for handle in handles], sep="\n")


if __name__ == "__main__":
    from restarts import run_until_exit  # in the directory of this program

    run_until_exit(serve)
