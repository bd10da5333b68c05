"""The codec at the client's edge: requests are encoded before they leave, answers decoded when they come.

Runs in worker threads, for a codec is the user's code and may be slow. Failures are encoded too.
"""

from __future__ import annotations

from typing import TypeVar

A = TypeVar("A")
