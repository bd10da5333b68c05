"""Bridges to other people's libraries. Each needs its extra, and is imported by those who want it alone.

opentelemetry  OpenTelemetry
"""

from __future__ import annotations

__all__: list[str] = []
