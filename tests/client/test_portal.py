"""The portal: calls from threads and loops, errors, cancellation, fork, exit and Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hourglass._worker.portal import Portal
from hourglass.errors import InternalError, UsageError


@pytest.fixture
def portal() -> Iterator[Portal]:
    made = Portal()
    yield made
    made.close()


async def thread_name() -> str:
    return threading.current_thread().name


async def raises() -> None:
    raise LookupError("not there")


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_call_runs_on_the_control_thread(portal: Portal) -> None:
    """A coroutine runs in the portal's own thread, and its value comes back."""
    assert portal.call(thread_name()) == "hourglass-control"


def test_a_call_reraises(portal: Portal) -> None:
    """What the coroutine raises is raised in the calling thread."""
    with pytest.raises(LookupError, match="not there"):
        portal.call(raises())


def test_timeout_error_of_the_coroutine_is_not_the_callers(portal: Portal) -> None:
    """A TimeoutError of the coroutine's own arrives as it was raised."""

    async def own() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        portal.call(own(), timeout=60)


def test_a_timeout_cancels_the_coroutine(portal: Portal) -> None:
    """A call that times out cancels what it waited for."""
    begun, cancelled = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    while not begun.is_set():  # on a busy machine the time may be over before the coroutine has begun
        with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
            portal.call(wait(), timeout=0.01)
    assert cancelled.wait(30)


def test_shielded_work_outlives_the_timeout(portal: Portal) -> None:
    """What the coroutine shields goes on after its caller gave up."""
    release = asyncio.Event()
    finished = threading.Event()

    async def work() -> None:
        await release.wait()
        finished.set()

    async def wait() -> None:
        await asyncio.shield(asyncio.ensure_future(work()))

    with pytest.raises(TimeoutError):
        portal.call(wait(), timeout=0.01)

    async def let_go() -> None:
        release.set()

    portal.call(let_go())
    assert finished.wait(30)


def test_blocking_call_on_the_control_loop_is_rejected(portal: Portal) -> None:
    """Waiting for oneself would never end, so it is an error."""

    async def call_again() -> None:
        portal.call(thread_name())

    with pytest.raises(InternalError, match="own thread"):
        portal.call(call_again())


def test_concurrent_calls_of_many_threads(portal: Portal) -> None:
    """Calls from many threads do not mix."""

    async def echo(value: int) -> int:
        await asyncio.sleep(0)
        return value

    got: list[tuple[int, int]] = []

    def call(number: int) -> None:
        for step in range(50):
            got.append((number * 50 + step, portal.call(echo(number * 50 + step))))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 400
    assert all(sent == received for sent, received in got)


def test_async_call_from_another_loop(portal: Portal) -> None:
    """An event loop elsewhere awaits the portal without blocking."""

    async def main() -> list[str]:
        return await asyncio.gather(portal.acall(thread_name()), portal.acall(thread_name()))

    assert asyncio.run(main()) == ["hourglass-control"] * 2


def test_cancelling_the_caller_cancels_the_coroutine(portal: Portal) -> None:
    """A cancelled task elsewhere cancels what it awaited through the portal."""
    begun, cancelled = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def main() -> None:
        task = asyncio.ensure_future(portal.acall(wait()))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert cancelled.wait(30)


def test_concurrent_async_calls_from_several_loops(portal: Portal) -> None:
    """Each gets its own answer or error, and nothing is kept of loops that have ended."""

    async def twice(number: int) -> int:
        await asyncio.sleep(0)
        if number % 10 == 3:
            raise ValueError(number)
        return 2 * number

    async def main() -> list[int | BaseException]:
        return await asyncio.gather(
            *[portal.acall(twice(each)) for each in range(50)], return_exceptions=True
        )

    for _ in range(5):
        answers = asyncio.run(main())
        assert [each for each in answers if isinstance(each, int)] == [
            2 * each for each in range(50) if each % 10 != 3
        ]
        assert [each.args for each in answers if isinstance(each, ValueError)] == [
            (3 + 10 * each,) for each in range(5)
        ]
    assert len(portal._mailboxes) == 1


def test_async_call_from_the_control_loop(portal: Portal) -> None:
    """On the control loop `acall` simply awaits."""

    async def inner() -> str:
        return await portal.acall(thread_name())

    assert portal.call(inner()) == "hourglass-control"


def test_blocking_call_inside_a_running_loop_warns_once(
    portal: Portal, caplog: pytest.LogCaptureFixture
) -> None:
    """A blocking call in a thread with a running loop works, and says once that AsyncClient exists."""

    async def main() -> list[str]:
        return [portal.call(thread_name()), portal.call(thread_name())]

    with caplog.at_level(logging.WARNING, "hourglass"):
        assert asyncio.run(main()) == ["hourglass-control"] * 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "AsyncClient" in caplog.text


def test_a_task_that_tries_to_exit_does_not_end_the_loop(
    portal: Portal, caplog: pytest.LogCaptureFixture
) -> None:
    """SystemExit inside a coroutine reaches its caller, and the control loop goes on."""

    async def leave() -> None:
        raise SystemExit(3)

    with caplog.at_level(logging.ERROR, "hourglass"), pytest.raises(SystemExit):
        portal.call(leave())
    assert portal.call(thread_name()) == "hourglass-control"


def test_closers_run_in_reverse_despite_failures(caplog: pytest.LogCaptureFixture) -> None:
    """Closers run latest first on the control loop; one that fails is logged and the others run."""
    portal = Portal()
    ran: list[str] = []

    def closer(name: str) -> None:
        async def close() -> None:
            ran.append(name)
            if name == "second":
                raise LookupError("broken")

        portal.at_exit(close)

    for name in ("first", "second", "third"):
        closer(name)

    async def unwanted() -> None:
        ran.append("unwanted")

    portal.at_exit(unwanted)()
    portal.close()
    assert ran == ["third", "second", "first"]
    assert "broken" in caplog.text


def test_hanging_closer_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """A closer that exceeds its limit is cancelled, and closing goes on."""
    portal = Portal()

    async def hang() -> None:
        await asyncio.Event().wait()

    portal.at_exit(hang, limit=0.01)
    portal.close()
    assert portal.closed
    assert "did not finish" in caplog.text


def test_closed_portal_rejects_calls() -> None:
    """Calls on a closed portal raise, leave no coroutine behind, and closing twice is harmless."""
    portal = Portal()
    portal.close()
    portal.close()
    with pytest.raises(UsageError, match="closed"):
        portal.call(thread_name())
    with pytest.raises(UsageError, match="closed"):
        portal.at_exit(thread_name)


def test_remaining_tasks_are_cancelled_at_close() -> None:
    """Closing cancels what still runs, so that `finally` blocks are executed."""
    portal = Portal()
    begun, cleaned = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    portal.submit(wait())
    assert begun.wait(30)
    portal.close()
    assert cleaned.is_set()


def test_waiting_calls_fail_when_the_portal_closes() -> None:
    """A call that waits in a thread or on a loop when the portal closes ends with a clear error."""
    portal = Portal()
    begun = threading.Semaphore(0)
    told: list[BaseException] = []

    async def wait() -> None:
        begun.release()
        await asyncio.Event().wait()

    def blocked() -> None:
        try:
            portal.call(wait())
        except BaseException as error:
            told.append(error)

    def awaiting() -> None:
        try:
            asyncio.run(portal.acall(wait()))
        except BaseException as error:
            told.append(error)

    threads = [threading.Thread(target=blocked), threading.Thread(target=awaiting)]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=30)
    assert begun.acquire(timeout=30)
    portal.close()
    for thread in threads:
        thread.join(30)
    assert [type(error) for error in told] == [UsageError, UsageError]
    assert all("closed while this call was waiting" in str(error) for error in told)


def test_the_process_has_one_portal() -> None:
    """`current` gives every thread the same portal."""
    seen: list[Portal] = []
    threads = [threading.Thread(target=lambda: seen.append(Portal.current())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {Portal.current()}


FORK = """
import os, sys
from hourglass._worker.portal import Portal
async def pid(): return os.getpid()
inherited = Portal.current()
assert inherited.call(pid()) == os.getpid()
child = os.fork()
if child == 0:
    try:
        inherited.call(pid())
    except Exception as error:
        print(type(error).__name__, error)
    assert Portal.current() is not inherited
    assert Portal.current().call(pid()) == os.getpid()
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert inherited.call(pid()) == os.getpid()
sys.exit(os.waitstatus_to_exitcode(status) + 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_creates_its_own_portal() -> None:
    """After a fork the inherited portal says so, a new one works, and both processes exit properly."""
    done = run_script(FORK)
    assert done.returncode == 8, done.stderr
    assert "UsageError" in done.stdout
    assert "forked" in done.stdout
    assert done.stderr == ""


EXIT = """
import asyncio, atexit, sys
from hourglass._worker.portal import Portal
portal = Portal.current()
atexit.register(print, "engine's own exit")
async def close(name): print(name)
portal.at_exit(lambda: close("client"))
portal.at_exit(lambda: close("worker"))
portal.submit(asyncio.sleep(3600))
sys.exit(5)
"""


def test_exit_is_clean_and_keeps_its_code() -> None:
    """At exit closers run latest first and before older exit handlers; the exit code stays."""
    done = run_script(EXIT)
    assert done.returncode == 5, done.stderr
    assert done.stdout.splitlines() == ["worker", "client", "engine's own exit"]
    assert done.stderr == ""


LATE = """
import atexit
def late():
    try:
        Portal.current()
    except Exception as error:
        print(type(error).__name__, error)
atexit.register(late)
from hourglass._worker.portal import Portal
Portal.current()
"""


def test_portal_is_closed_after_exit() -> None:
    """Code that runs after the portal's exit gets a clear error instead of a new thread."""
    done = run_script(LATE)
    assert done.returncode == 0, done.stderr
    assert "UsageError Hourglass cannot be used while the interpreter is exiting" in done.stdout


INTERRUPT = """
import asyncio, os, sys
from hourglass._worker.portal import Portal
async def wait():
    os.write(1, b"waiting\\n")
    try:
        await asyncio.Event().wait()
    finally:
        os.write(1, b"cancelled\\n")
try:
    Portal.current().call(wait())
except KeyboardInterrupt:
    os.write(1, b"interrupted\\n")
    sys.exit(9)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_interrupts_a_call() -> None:
    """SIGINT ends a blocked call at once, cancels its coroutine and leaves a clean exit."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", INTERRUPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 9, errors
    assert set(output.splitlines()) == {"interrupted", "cancelled"}
    assert errors == ""


WAITING = """
from hourglass import Client, workflow

@workflow.defn
def flow() -> None: ...

with Client.connect("local:") as client:
    handle = client.start_workflow(flow)
    print("waiting", flush=True)
    handle.result()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_traceback_of_ctrl_c_shows_the_callers_line(tmp_path: Path) -> None:
    """A program that is interrupted while it waits for a result shows its own line, and not the way through our files."""
    program = tmp_path / "waiting.py"
    program.write_text(WAITING)
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    files = [line.strip().split('"')[1] for line in errors.splitlines() if line.startswith("  File ")]
    assert files[0] == str(program)
    assert len(files) <= 2, errors  # the method that was called, and nothing below it
