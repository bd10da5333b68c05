"""A shop that takes an order in a transaction, and kills itself at PLACE; run by `test_outbox`.

    python outbox_program.py TARGET DATABASE QUEUE PLACE

In the same transaction, an outbox starts the order's workflow and signals its two items.
"""

from __future__ import annotations

import os
import signal
import sys

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from hourglass import Client
from hourglass.contrib.sqlalchemy import Outbox, outbox

BEFORE_COMMIT, AFTER_COMMIT, AFTER_START = PLACES = (
    "before the commit",
    "after the commit",
    "after the start",
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    target, database, queue, place = sys.argv[1:]
    engine = create_engine(database)
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": place})
        outbox.start_workflow(session, "Tally", 2, id=place, task_queue=queue)
        for number in (1, 2):
            outbox.signal(session, place, "add", number)
        if place == BEFORE_COMMIT:
            session.flush()
            die()
    if place == AFTER_COMMIT:
        die()
    with Client.connect(target) as client:
        relay = Outbox(engine, client)
        # The engine has the start, and the row that asked for it is still there.
        relay._change = lambda row, statement: die()  # type: ignore[method-assign]
        relay.deliver()
