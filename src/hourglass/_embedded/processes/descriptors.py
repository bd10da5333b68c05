"""Open descriptors that a forked child must not keep: locks and sockets whose end tells others that we are gone.

A child of `fork` shares them, and while it lives nobody notices our death: the lock stays taken, peers see no
end of their connections. So the child replaces each by the null device, at once. They are replaced and not
closed because objects of ours still know their numbers. Must not know: what the descriptors are for.
"""

from __future__ import annotations

import os

_held: dict[int, tuple[int, int]] = {}


def hold(descriptor: int) -> None:
    """From now on a forked child drops it."""
    found = os.fstat(descriptor)
    _held[descriptor] = (found.st_dev, found.st_ino)


def let_go(descriptor: int) -> None:
    """It is about to be closed. Safe to call twice."""
    _held.pop(descriptor, None)


def _after_fork() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, identity in _held.items():
        try:
            found = os.fstat(descriptor)
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == identity:  # its number may be another's by now
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
