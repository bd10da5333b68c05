"""Bridges to other libraries. Each needs its extra, and is loaded only by the program that imports it.

opentelemetry  OpenTelemetry
sqlalchemy     steps that happen exactly once in your database, and an outbox
"""

from __future__ import annotations

__all__: list[str] = []
