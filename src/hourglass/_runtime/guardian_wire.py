"""What a guardian and the process that it guards tell each other, and what is handed over at the start. Data and its form only.

Over a pair of sockets, one JSON document per line. The process says: it lives (`Beat`), all is loaded and work may come
(`Loaded`), it works (`Ready`), a run hung and its lane was replaced (`RunHung`), that run went on after all (`RunWentOn`), it
ends (`Leaving`). The guardian says one thing: `STOP`.

Loaded by the guardian, which stays small: nothing but the standard library.
"""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

VARIABLE = "HOURGLASS_GUARDED"
STOP = b"stop\n"
REFUSED = 2
"""The exit code of a process for which starting again would change nothing: a wrong option, a module that does not load."""
REPLACE_ME = 75
"""The exit code of a process that is not healthy and knows it."""

_REAL_TIME: int | None = getattr(signal, "SIGRTMIN", None)
# Programs use SIGUSR1 and SIGUSR2 themselves; hardly any uses the real-time signals.
STACK_SIGNAL = signal.SIGUSR2 if _REAL_TIME is None else _REAL_TIME + 7
"""Makes a guarded process write where it stands."""


@dataclass(frozen=True, kw_only=True)
class Handover:
    """What a guarded process is given: descriptors, its parent's number, its place among others, and how often it should beat."""

    socket: int
    notes: int
    stacks: int
    hangs: int
    parent: int
    place: int
    interval: float


@dataclass(frozen=True)
class Beat:
    """The process lives: a thread of it had the interpreter."""


@dataclass(frozen=True)
class Loaded:
    """All is loaded. Work may come from now on, before `Ready` is said."""


@dataclass(frozen=True)
class Ready:
    """The process works."""


@dataclass(frozen=True)
class RunHung:
    """A run hung in workflow code: `stack` is the author's frames, `place` the innermost. `costly`: it stopped the whole process.

    `times` and `age` (seconds since the last time) are what a guardian knows; `owed`: its failure has not been told yet.
    `died`: the process died while the run's code was executing, which has no stack, but says which `code` it was;
    `activity` is the id of a local activity that was at it instead.
    """

    run_id: str
    workflow_type: str
    stack: str
    place: str
    costly: bool = False
    times: int = 1
    age: float = 0.0
    owed: bool = False
    died: bool = False
    code: str = ""
    activity: str = ""


@dataclass(frozen=True)
class RunWentOn:
    """A run that hung has moved."""

    run_id: str


@dataclass(frozen=True)
class Leaving:
    """The work is done; what is left is the interpreter's end, in which no thread can beat."""


Said: TypeAlias = Beat | Loaded | Ready | RunHung | RunWentOn | Leaving

_KINDS: dict[str, type[Any]] = {
    each.__name__: each for each in (Beat, Loaded, Ready, RunHung, RunWentOn, Leaving)
}


def encode(said: Said) -> bytes:
    """One line."""
    return json.dumps({"said": type(said).__name__, **asdict(said)}).encode() + b"\n"


def decode(line: bytes) -> Said | None:
    """What a line says; None if it is nothing that we know. It is checked, for the process that says it runs the
    user's code.
    """
    try:
        document = json.loads(line)
        found: Said = _KINDS[document.pop("said")](**document)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return found


def encode_hangs(hangs: list[RunHung]) -> bytes:
    """All hangs that the next process should know."""
    return json.dumps([asdict(each) for each in hangs]).encode()


def decode_hangs(content: bytes) -> list[RunHung]:
    """The same, read by that process."""
    return [RunHung(**each) for each in json.loads(content or b"[]")]


def encode_handover(handover: Handover) -> str:
    """As the value of an environment variable."""
    return json.dumps(asdict(handover))


def decode_handover(value: str) -> Handover:
    """The same, read by the process."""
    return Handover(**json.loads(value))
