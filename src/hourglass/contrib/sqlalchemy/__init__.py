"""SQLAlchemy: activities with exactly-once effects in your database, and workflows that start with its
transactions. Install it by `pip install 'hourglass-temporal[sqlalchemy]'`, for PostgreSQL and SQLite.

    _tables         the tables in your database: `metadata`, `create_tables`, `purge`
    outbox          workflows that start, and signals that are sent, with your transaction
    _transactional  `@transactional`: an activity that commits its effect and its record together
"""

from __future__ import annotations

from hourglass.contrib import _require_extra

with _require_extra("sqlalchemy"):
    from hourglass.contrib.sqlalchemy import outbox
    from hourglass.contrib.sqlalchemy._tables import create_tables, metadata, purge
    from hourglass.contrib.sqlalchemy._transactional import transactional
    from hourglass.contrib.sqlalchemy.outbox import Outbox

__all__ = ["Outbox", "create_tables", "metadata", "outbox", "purge", "transactional"]
