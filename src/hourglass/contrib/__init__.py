"""Bridges to other libraries and services, each loaded only by the program that imports it; most need an extra.

opentelemetry  OpenTelemetry
s3             large payloads in a bucket; needs no extra
sqlalchemy     steps that happen exactly once in your database, and an outbox
"""

from __future__ import annotations

__all__: list[str] = []
