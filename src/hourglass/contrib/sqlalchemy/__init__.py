"""SQLAlchemy: activities with exactly-once effects in your database, and workflows that start when your transactions commit.

Supports PostgreSQL and SQLite. Install the bridge with `pip install 'hourglass-temporal[sqlalchemy]'`.

    _tables         the tables in your database: `metadata`, `create_tables`, `purge`
    outbox          workflow starts and signals that are sent if your transaction commits
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
