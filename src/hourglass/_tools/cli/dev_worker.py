"""The two processes of `hourglass dev`: the parent, which watches files, and the worker process.

The parent (`Reloader`) replaces the worker process whenever a file changes. It must not know workflows or engines. It stops
the worker process by closing a pipe. So a Ctrl-C, sent by the terminal to both processes, counts as a single request, and
the worker process cannot outlive its parent.

The worker process (`serve`) loads the code, checks the open runs against it, and then receives tasks. The check replays the
histories of the open runs with this code and changes no data. The process ends when its parent closes the pipe or dies. If
only a code change can fix a problem, the worker process reports the problem, and the exit code `WAITS` makes the parent wait
for a change. Tracebacks show only the author's lines, because ours are always the same.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from traceback import TracebackException
from types import FrameType
from typing import TYPE_CHECKING

from hourglass._http.access import Credentials
from hourglass._tools.cli import console
from hourglass._tools.cli.ui import TOKEN as UI_TOKEN
from hourglass._worker.code_origin import is_ours
from hourglass._worker.stop_event import StopEvent
from hourglass.errors import HourglassError, UsageError, WorkflowNotFoundError

if TYPE_CHECKING:
    from hourglass._tools.cli.dev import DevOptions
    from hourglass._tools.cli.loading import LoadedCode
    from hourglass.client import Client
    from hourglass.worker import Worker


class AuthorsLines(logging.Filter):
    """A log filter that removes our own frames from tracebacks, unless there are no others."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Accept every record, with a shortened traceback."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            record.msg = f"{record.getMessage()}\n{shortened(error)}"
            record.args, record.exc_info = (), None
        return True


def shortened(error: BaseException) -> str:
    """Return the traceback of an error and its causes without our frames. Without other frames, return the message."""
    summary = TracebackException.from_exception(error, compact=True)
    has_own = False
    link: TracebackException | None = summary
    while link is not None:
        if own := [frame for frame in link.stack if not is_ours(frame.filename)]:
            link.stack[:] = own
            has_own = True
        link = link.__cause__ or link.__context__
    return "".join(summary.format() if has_own else summary.format_exception_only()).rstrip()


_LIMIT = 10.0
"""The timeout in seconds for checking a single run."""


logger = logging.getLogger("hourglass.dev")

STOP, TARGET, PAGE = "HOURGLASS_DEV_STOP", "HOURGLASS_DEV_TARGET", "HOURGLASS_DEV_PAGE"
"""Environment variables of the worker process: the pipe that closes with its parent, the default target, and the socket and
credentials of the web UI. The parent keeps the socket and credentials, so that during a reload a browser waits instead of
being rejected, and stays logged in.
"""

WAITS = 3
"""The exit code of a worker process that needs a code change and has reported the reason."""

_GLANCE, _SETTLED = 100, 200  # milliseconds
_PROCESS_DRAIN = 8.0
_USAGE_ERROR = 2


def folders(sources: Sequence[str]) -> tuple[Path, ...]:
    """Return the directories to watch, i.e. the directories from which the sources are imported."""
    candidates = dict.fromkeys(
        _folder(Path(folder)) if _is_file(folder) else Path.cwd() for folder in sources
    )
    return tuple(
        folder for folder in candidates if not any(parent in folder.parents for parent in candidates)
    )


def _is_file(source: str) -> bool:
    return source.endswith(".py") or os.sep in source


def _folder(path: Path) -> Path:
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


class Reloader:
    """Runs a command repeatedly. `target` is the default target, for arguments that do not specify one."""

    def __init__(
        self,
        command: Sequence[str],
        watched: Sequence[Path],
        *,
        target: str = "",
        page: tuple[socket.socket, Credentials] | None = None,
    ) -> None:
        self._page = page
        self._command = command
        self._watched = watched
        self._target = target
        self._over = StopEvent()
        self._child: _WorkerProcess | None = None

    def run(self) -> int:
        """Run until Ctrl-C or SIGTERM, and return the exit code."""
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
            if not begun:  # only now, because changes are noticed from here on
                begun = True
                self._begin()
            elif changed:
                logger.info("changed: %s", ", ".join(changed))
                self._begin()
            elif self._child is not None and (code := self._child.poll()) is not None:
                self._child = None
                if code == _USAGE_ERROR:
                    return code
                if code != WAITS:
                    ended = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
                    logger.error("the worker ended (%s)", ended)
                logger.info("waiting for the next change")
        return 0

    def _begin(self) -> None:
        if self._child is not None:
            self._child.stop()
        self._child = _WorkerProcess(self._command, self._target, self._page)

    def _stop(self, number: int, _: FrameType | None) -> None:
        if self._over.is_set() and self._child is not None:
            self._child.kill()
        self._over.set()


class _WorkerProcess:
    """The parent's view of the worker process."""

    def __init__(
        self, command: Sequence[str], target: str, page: tuple[socket.socket, Credentials] | None
    ) -> None:
        reading, self._writing = os.pipe()
        environment = {**os.environ, STOP: str(reading), TARGET: target}
        environment.pop(UI_TOKEN, None)  # the credentials contain it, and workflow code does not need it
        passed = [reading]
        if page is not None:
            listening, credentials = page
            environment[PAGE] = f"{listening.fileno()} {credentials.to_text()}"
            passed += [listening.fileno(), credentials.link.unused]
        try:
            self._process = subprocess.Popen(command, env=environment, pass_fds=passed)
        finally:
            os.close(reading)

    def poll(self) -> int | None:
        code = self._process.poll()
        if code is not None:
            self._hang_up()
        return code

    def stop(self) -> None:
        self._hang_up()
        try:
            self._process.wait(_PROCESS_DRAIN)
        except subprocess.TimeoutExpired:
            logger.warning("the worker did not exit and is killed")
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _hang_up(self) -> None:
        writing, self._writing = self._writing, -1
        if writing >= 0:
            os.close(writing)


def _changes(watched: Iterable[Path], over: threading.Event) -> Iterator[list[str]]:
    """Yield the names of changed Python files. While there are none, yield empty lists several times a second."""
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


_DRAIN = 2.0
_MOST_BROKEN_LOGGED = 10


class Life:
    """The role of a worker process, as created by its parent. `target` is used if the command line does not specify one."""

    def __init__(self, pipe: int, target: str, page: str) -> None:
        self.target = target
        self.page = page
        self.over = StopEvent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it too, and stops us
        signal.signal(signal.SIGTERM, lambda *_: self.over.set())
        threading.Thread(target=self._listen, args=(pipe,), name="hourglass-dev", daemon=True).start()

    def _listen(self, pipe: int) -> None:
        # The pipe carries no data. The read returns when the writing end is closed, by the parent itself or by its death.
        while os.read(pipe, 1):
            pass
        self.over.set()


def enter(environment: MutableMapping[str, str]) -> Life | None:
    """Return the role of the worker process, or None in the parent process."""
    pipe = environment.pop(STOP, "")
    target = environment.pop(TARGET, "")
    page = environment.pop(PAGE, "")
    return Life(int(pipe), target, page) if pipe else None


def serve(options: DevOptions, life: Life) -> int:
    """Serve the task queues until the parent closes the pipe, and return the exit code."""
    from hourglass._tools.cli.loading import LoadError, load
    from hourglass._tools.cli.worker import connected

    for handler in logging.getLogger().handlers:
        handler.addFilter(AuthorsLines())
    try:
        loaded = load(options.sources)
    except LoadError as error:
        console.error(str(error))
        return WAITS
    try:
        client = connected(options.engine, life.over)
        if client is None:
            return 0
        with client:
            return _serve(options, client, loaded, life)
    except HourglassError as error:
        console.error(str(error))
        return _USAGE_ERROR


def _serve(options: DevOptions, client: Client, loaded: LoadedCode, life: Life) -> int:
    from hourglass.worker import Worker

    if client.target == "local:":
        logger.warning("an engine in memory loses all workflows at each reload: use --target local:FILE")
    if not _fits(options, client, loaded, life) and options.strict:
        logger.error("the worker receives no tasks, because --strict is set")
        return WAITS
    if life.over.is_set():
        return 0
    worker = Worker(
        client,
        options.queues[0],
        modules=loaded.modules,
        verify="always",
        watch="warn",
        graceful_shutdown_timeout=_DRAIN,
    )
    with worker, _page(client, loaded, worker, life):
        for queue in options.queues[1:]:
            worker.start_worker(queue)
        logger.info(
            "receiving tasks from %s: %s", client.target, ", ".join((*loaded.workflows, *loaded.activities))
        )
        while not life.over.wait(1.0):  # bounded, so that signals are handled on every platform
            pass
    return 0


@contextmanager
def _page(client: Client, loaded: LoadedCode, worker: Worker, life: Life) -> Iterator[None]:
    """Serve the web UI of this worker, if its parent has created a socket for it."""
    if not life.page:
        yield
        return
    descriptor, _, secrets = life.page.partition(" ")
    from hourglass._tools.timeline.watching import decoder
    from hourglass._tools.web.server import served
    from hourglass._tools.web.site import Site

    site = Site(
        client,
        target=client.target,
        modules=loaded.modules,
        workers=lambda: (worker,),
        decode=None if client.codec is None else decoder(client.codec),
    )
    listening = socket.socket(fileno=int(descriptor))
    with served(site, credentials=Credentials.from_text(secrets), listening=listening):
        yield


def _fits(options: DevOptions, client: Client, loaded: LoadedCode, life: Life) -> bool:
    """Replay the newest open runs of the loaded types and served queues. Report the runs that this code would break."""
    tried, broken = 0, 0
    is_served = (
        run
        for run in client.list_workflows("ExecutionStatus = 'Running'")
        if run.workflow_type in loaded.workflows and run.task_queue in options.queues
    )
    runs = list(islice(is_served, options.check))
    if not runs:
        return True
    from hourglass.replay import Replayer

    # Changed arguments do not break a run, because engines compare only the commands.
    with Replayer(
        modules=loaded.modules,
        converter=client.converter,
        codec=client.codec,
        compare_arguments=False,
        timeout=_LIMIT,
    ) as replayer:
        for run in runs:
            if life.over.is_set():
                break
            try:
                history = client.get_workflow_handle(run.id, run_id=run.run_id).history()
            except WorkflowNotFoundError:
                continue  # deleted meanwhile
            tried += 1
            error = replayer.try_replay(history).error
            if error is None:
                continue
            broken += 1
            if broken <= _MOST_BROKEN_LOGGED:
                reason = str(error) or type(error).__name__
                reason = reason.replace(f"{Path.cwd()}{os.sep}", "").replace("\n", "\n    ")
                logger.error("this code would break %s (%s):\n    %s", run.id, run.workflow_type, reason)
    if broken:
        advice = "fix the code, or put the change behind workflow.patched(…)"
        logger.error("%d of %d open runs would break; %s", broken, tried, advice)
    elif tried:
        logger.info("%s this code", "1 open run matches" if tried == 1 else f"{tried} open runs match")
    return not broken
