"""The two tables of Hourglass in your database, and functions to create and purge them.

`metadata` is for Alembic: add it to `target_metadata`. `create_tables` is for programs without migrations. Times are in UTC.
Payloads are encoded by your converter but not by the codec, because the database and its encryption are under your control.
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
    # The identity of the activity. Concurrent attempts of the same activity wait for each other on this key.
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
    # A sequence on PostgreSQL. On SQLite, only INTEGER columns generate values.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("kind", Text, nullable=False),
    Column("workflow_id", Text, nullable=False),
    Column("request", LargeBinary, nullable=False),  # the request, with its request id
    Column("written_at", DateTime(timezone=True), nullable=False),
    Column(
        "due_at", DateTime(timezone=True), nullable=False
    ),  # earliest time to send the row; while a relay has leased the row, the end of its lease
    Column("attempts", Integer, nullable=False, default=0),
    Column("refused_at", DateTime(timezone=True)),  # time of the rejection; rejected rows are not retried
    Column("last_error", Text),
    Index("hourglass_outbox_order", "workflow_id", "id"),
    Index("hourglass_outbox_due", "due_at"),
    sqlite_autoincrement=True,  # otherwise ids of deleted rows would be reused, which breaks the order
)

DATABASES = ("postgresql", "sqlite")


def check_database(name: str) -> None:
    """Raise `UsageError` for a database that is not supported."""
    if name not in DATABASES:
        raise UsageError(f"hourglass.contrib.sqlalchemy works with PostgreSQL and SQLite, not with {name}")


def create_tables(engine: Engine) -> None:
    """Create the tables if they do not exist. With an `AsyncEngine`, use `await connection.run_sync(metadata.create_all)`
    instead.
    """
    check_database(engine.dialect.name)
    metadata.create_all(engine)


def purge(engine: Engine, older_than: Duration) -> int:
    """Delete the activity records older than this, and return their number.

    Without its record, an activity is executed again if the engine starts another attempt. Therefore, keep records longer
    than any activity may be retried (`schedule_to_close_timeout`), and longer than a run may wait for a worker. A month is
    usual.
    """
    limit = now() - timedelta(seconds=seconds(older_than, "older_than"))
    with engine.begin() as connection:
        return connection.execute(delete(steps).where(steps.c.recorded_at < limit)).rowcount


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)
