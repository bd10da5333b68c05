"""The parent of `hourglass dev`: watches files, and replaces the process that works whenever one changes.

Must not know: workflows, engines. The process that works is asked to stop by the end of a pipe, so that Ctrl-C, which a
terminal sends to both, is one request and not two; and so that it does not outlive its parent.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from hourglass.errors import UsageError

logger = logging.getLogger("hourglass.dev")

STOP, TARGET = "HOURGLASS_DEV_STOP", "HOURGLASS_DEV_TARGET"
"""Variables that make a process the one that works: the pipe that ends with its parent, and where to work if not said."""

WAITS = 3
"""The exit code of a process that can do nothing before the next change, and has said why."""

_GLANCE, _SETTLED = 100, 200  # milliseconds
_DRAIN = 8.0
_ASKED_WRONGLY = 2


def folders(sources: Sequence[str]) -> tuple[Path, ...]:
    """What to watch: where the sources are imported from."""
    found = dict.fromkeys(_folder(Path(each)) if _is_file(each) else Path.cwd() for each in sources)
    return tuple(each for each in found if not any(other in each.parents for other in found))


def _is_file(source: str) -> bool:
    return source.endswith(".py") or os.sep in source


def _folder(path: Path) -> Path:
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


class Reloader:
    """Runs a command again and again. `target` is where it works, if its arguments do not say that."""

    def __init__(self, command: Sequence[str], watched: Sequence[Path], *, target: str = "") -> None:
        self._command = command
        self._watched = watched
        self._target = target
        self._over = threading.Event()
        self._child: _Child | None = None

    def run(self) -> int:
        """Until Ctrl-C or SIGTERM; returns the exit code."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return self._run()
        finally:
            if self._child is not None:
                self._child.stop()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run(self) -> int:
        begun = False
        for changed in _changes(self._watched, self._over):
            if not begun:  # only now: what changes from here on is seen
                begun = True
                self._begin()
            elif changed:
                logger.info("changed: %s", ", ".join(changed))
                self._begin()
            elif self._child is not None and (code := self._child.poll()) is not None:
                self._child = None
                if code == _ASKED_WRONGLY:
                    return code
                if code != WAITS:
                    logger.error("the worker ended (%s)", _how(code))
                logger.info("waiting for the next change")
        return 0

    def _begin(self) -> None:
        if self._child is not None:
            self._child.stop()
        self._child = _Child(self._command, self._target)

    def _stop(self, number: int, _: FrameType | None) -> None:
        if self._over.is_set() and self._child is not None:
            self._child.kill()
        self._over.set()


class _Child:
    """The process that works."""

    def __init__(self, command: Sequence[str], target: str) -> None:
        reading, self._writing = os.pipe()
        environment = {**os.environ, STOP: str(reading), TARGET: target}
        try:
            self._process = subprocess.Popen(command, env=environment, pass_fds=(reading,))
        finally:
            os.close(reading)

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._hang_up()
        return code

    def stop(self) -> None:
        """Ask it to end, and see to it that it does."""
        self._hang_up()
        try:
            self._process.wait(_DRAIN)
        except subprocess.TimeoutExpired:
            logger.warning("the worker does not end; it is killed")
            self.kill()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()

    def _hang_up(self) -> None:
        writing, self._writing = self._writing, -1
        if writing >= 0:
            os.close(writing)


def _changes(watched: Iterable[Path], over: threading.Event) -> Iterator[list[str]]:
    """Names of Python files that changed; nothing, several times a second, while none does."""
    try:
        from watchfiles import PythonFilter, watch
    except ModuleNotFoundError:
        raise UsageError(
            "hourglass dev needs one more package: pip install 'hourglass-temporal[dev]'"
        ) from None
    for changes in watch(
        *watched,
        watch_filter=PythonFilter(),
        debounce=_SETTLED,
        stop_event=over,
        rust_timeout=_GLANCE,
        yield_on_timeout=True,
        raise_interrupt=False,
        ignore_permission_denied=True,
    ):
        yield sorted({os.path.relpath(path) for _, path in changes})


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
