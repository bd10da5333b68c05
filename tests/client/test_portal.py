"""The portal: calls from threads and event loops, errors, cancellation, fork, exit and Ctrl-C."""

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


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_portal_call_does_not_replace_a_timeout_error_of_the_coroutine(portal: Portal) -> None:
    async def own() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        portal.call(own(), timeout=60)


def test_portal_call_timeout_cancels_the_coroutine(portal: Portal) -> None:
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


def test_shielded_task_continues_after_portal_call_timeout(portal: Portal) -> None:
    release = asyncio.Event()
    finished = threading.Event()

    async def work() -> None:
        await release.wait()
        finished.set()

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(work())

    task = portal.call(start())  # first: the timeout may pass before the next call begins

    async def wait() -> None:
        await asyncio.shield(task)

    with pytest.raises(TimeoutError):
        portal.call(wait(), timeout=0.01)

    async def set_release() -> None:
        release.set()

    portal.call(set_release())
    assert finished.wait(30)


def test_blocking_portal_call_on_the_control_loop_is_rejected(portal: Portal) -> None:
    """It would wait for itself."""

    async def call_again() -> None:
        portal.call(thread_name())

    with pytest.raises(InternalError, match="own thread"):
        portal.call(call_again())


def test_cancelling_a_task_cancels_the_coroutine_of_its_acall(portal: Portal) -> None:
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


def test_concurrent_acalls_return_their_own_results_and_errors(portal: Portal) -> None:
    """No mailboxes remain for the event loops that have ended."""

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


def test_acall_works_on_the_control_loop(portal: Portal) -> None:
    async def inner() -> str:
        return await portal.acall(thread_name())

    assert portal.call(inner()) == "hourglass-control"


def test_blocking_portal_call_in_a_running_loop_warns_once(
    portal: Portal, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> list[str]:
        return [portal.call(thread_name()), portal.call(thread_name())]

    with caplog.at_level(logging.WARNING, "hourglass"):
        assert asyncio.run(main()) == ["hourglass-control"] * 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "AsyncClient" in caplog.text


def test_system_exit_in_a_coroutine_does_not_stop_the_control_loop(
    portal: Portal, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with caplog.at_level(logging.ERROR, "hourglass"), pytest.raises(SystemExit):
        portal.call(leave())
    assert portal.call(thread_name()) == "hourglass-control"


def test_portal_closers_run_in_reverse_order_despite_failures(caplog: pytest.LogCaptureFixture) -> None:
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


def test_portal_closer_that_exceeds_its_limit_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    portal = Portal()

    async def hang() -> None:
        await asyncio.Event().wait()

    portal.at_exit(hang, limit=0.01)
    portal.close()
    assert portal.closed
    assert "did not finish" in caplog.text


def test_closed_portal_rejects_calls() -> None:
    portal = Portal()
    portal.close()
    portal.close()
    with pytest.raises(UsageError, match="closed"):
        portal.call(thread_name())
    with pytest.raises(UsageError, match="closed"):
        portal.at_exit(thread_name)


def test_closing_the_portal_cancels_remaining_tasks() -> None:
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


def test_closing_the_portal_fails_waiting_calls() -> None:
    portal = Portal()
    begun = threading.Semaphore(0)
    errors: list[BaseException] = []

    async def wait() -> None:
        begun.release()
        await asyncio.Event().wait()

    def blocked() -> None:
        try:
            portal.call(wait())
        except BaseException as error:
            errors.append(error)

    def awaiting() -> None:
        try:
            asyncio.run(portal.acall(wait()))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=blocked), threading.Thread(target=awaiting)]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=30)
    assert begun.acquire(timeout=30)
    portal.close()
    for thread in threads:
        thread.join(30)
    assert [type(error) for error in errors] == [UsageError, UsageError]
    assert all("closed while this call was waiting" in str(error) for error in errors)


def test_all_threads_share_one_current_portal() -> None:
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
def test_forked_child_rejects_the_inherited_portal_and_creates_its_own() -> None:
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


def test_portal_closers_run_at_interpreter_exit_and_keep_the_exit_code() -> None:
    """They run before exit handlers that were registered earlier."""
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


def test_portal_cannot_be_created_while_the_interpreter_exits() -> None:
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
def test_ctrl_c_interrupts_a_portal_call_and_cancels_its_coroutine() -> None:
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
def test_ctrl_c_traceback_contains_no_internal_frames(tmp_path: Path) -> None:
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
