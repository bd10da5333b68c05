"""The two tables that Hourglass keeps in your database, and what makes and empties them.

`metadata` is for Alembic: add it to `target_metadata`. `create_tables` is for programs without migrations. Times are UTC.
Payloads are as your converter writes them, without the codec: the database is yours, and so is its encryption.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    delete,
)

from hourglass._evaluator.options import Duration, seconds
from hourglass.errors import UsageError

metadata = MetaData()
"""The tables of Hourglass in your database, for Alembic's `target_metadata`."""

steps = Table(
    "hourglass_steps",
    metadata,
    # Which activity it was: the key on which attempts of the same activity wait for each other.
    Column("namespace", Text, primary_key=True),
    Column("workflow_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("activity_id", Text, primary_key=True),
    Column("activity_type", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, index=True),
    Column("result", LargeBinary),  # a payload; null only while the transaction is open
)

outbox = Table(
    "hourglass_outbox",
    metadata,
    # A sequence on PostgreSQL; on SQLite only INTEGER counts by itself.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("kind", Text, nullable=False),
    Column("workflow_id", Text, nullable=False),
    Column("request", LargeBinary, nullable=False),  # what is sent, with its request id
    Column("written_at", DateTime(timezone=True), nullable=False),
    Column(
        "due_at", DateTime(timezone=True), nullable=False
    ),  # not before; in the hands of a relay until then
    Column("attempts", Integer, nullable=False, default=0),
    Column("refused_at", DateTime(timezone=True)),  # not tried again
    Column("last_error", Text),
    Index("hourglass_outbox_order", "workflow_id", "id"),
    Index("hourglass_outbox_due", "due_at"),
    sqlite_autoincrement=True,  # else the id of a row that has gone is used again, and the order with it
)

DATABASES = ("postgresql", "sqlite")


def check_database(name: str) -> None:
    """Refuse a database on which none of this was tried."""
    if name not in DATABASES:
        raise UsageError(f"hourglass.contrib.sqlalchemy works with PostgreSQL and SQLite, not with {name}")


def create_tables(engine: Engine) -> None:
    """Make the tables where they are missing. An `AsyncEngine`: `await connection.run_sync(metadata.create_all)`."""
    check_database(engine.dialect.name)
    metadata.create_all(engine)


def purge(engine: Engine, older_than: Duration) -> int:
    """Forget steps recorded longer ago than this, and return how many.

    What is forgotten is done again if the engine still makes an attempt: keep them for longer than any activity may
    be tried (`schedule_to_close_timeout`), and than a run may stand still while no worker is there. A month is usual.
    """
    limit = now() - timedelta(seconds=seconds(older_than, "older_than"))
    with engine.begin() as connection:
        return connection.execute(delete(steps).where(steps.c.recorded_at < limit)).rowcount


def now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)
