"""A listener for tests: hears which activities workflow code calls, so that a test environment needs no list of them.

The listener is called with the decorated objects that are called durably in its own thread. Production has none, and
pays one look at a thread-local for each call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Listener = Callable[[Any], object]


class _ThreadListener(threading.local):
    # Of the class, so that every thread has one: what a thread has not costs an error to ask for.
    listener: Listener | None = None


_local = _ThreadListener()


def called(activity: Any) -> None:
    """Workflow code in this thread calls an activity."""
    listener = _local.listener
    if listener is not None:
        listener(activity)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have a listener told of every activity that workflow code in this thread calls."""
    before = _local.listener
    _local.listener = listener
    try:
        yield
    finally:
        _local.listener = before
