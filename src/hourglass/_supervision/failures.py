"""What can go wrong in supervision. Messages name paths and ids, never values that processes carry."""

from __future__ import annotations

from hourglass.errors import HourglassError, UsageError


class SupervisionError(HourglassError):
    """The root of what supervision raises."""


class SpecError(SupervisionError, UsageError, ValueError):
    """A child spec, or a supervisor's options, are not what they must be."""


class StartFailed(SupervisionError):
    """A child did not start; its cause says why."""


class IntensityExceeded(SupervisionError):
    """A supervisor's children ended more often than it may restart them; its cause is the last one's error."""


class DeadProcess(SupervisionError):
    """A process that has ended tried to act, or was asked for what only a living one has."""


class NotRunning(SupervisionError):
    """The supervisor is not running: not started yet, stopping, or between two restarts."""


class NoSuchChild(SupervisionError, LookupError):
    """No child of that id, or no process at that path."""


class AlreadyRegistered(SupervisionError):
    """The name belongs to a living process."""


class NotRegistered(SupervisionError, LookupError):
    """No living process has that name."""
