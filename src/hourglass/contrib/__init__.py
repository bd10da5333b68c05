"""Bridges to other libraries. Each needs its extra, and is loaded only by the program that imports it.

opentelemetry  OpenTelemetry
"""

from __future__ import annotations

__all__: list[str] = []
