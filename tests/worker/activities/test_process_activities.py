"""Process activities: what works in another interpreter, how they end, and that a death is only their own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hourglass._contract.handle import ActivityDeferred, AttemptCancelled
from hourglass._worker.activities.child_process import command
from hourglass._worker.activities.process_names import converter_place, place_of
from hourglass._worker.activities.process_wire import frame_limit
from hourglass.activity import activity_definition
from hourglass.converter import Converter, Payload
from hourglass.errors import DefinitionError

from . import in_processes
from .executing import attempt, failure, payloads, until, value, with_executor

pytestmark = pytest.mark.usefixtures("each_event_loop")


def script(run, **options):
    return with_executor(in_processes.ALL, run, **options)


def run(activity_type, *args, **facts):
    return script(lambda executor, _: executor.execute(attempt(activity_type, *args, **facts)))


class Reversing(Converter):
    """Writes strings backwards."""

    def encode(self, value):
        payload = super().encode(value)
        return Payload(payload.data[::-1], "reversed")

    def decode(self, payload, type=object):
        return super().decode(Payload(payload.data[::-1], "json/plain"), type)


def test_children_are_started_once_and_reused():
    """Two attempts run in the same other process, one after another."""

    async def twice(executor, _):
        results = [await executor.execute(attempt("pid")) for _ in range(2)]
        return results, executor.statistics()

    results, seen = script(twice)
    first, second = map(value, results)
    assert first == second != os.getpid()
    assert (seen.processes, seen.started_processes, seen.died_processes) == (1, 1, 0)


def test_process_slots_are_concurrent():
    """With two slots two attempts are in two processes."""

    async def both(executor, _):
        return await asyncio.gather(
            executor.execute(attempt("pid", token=b"1", activity_id="1")),
            executor.execute(attempt("pid", token=b"2", activity_id="2")),
        )

    one, two = map(value, script(both, max_processes=2))
    assert one != two


def test_arguments_and_info_in_a_process():
    """Dataclasses, the attempt's ids, static methods and type names work as in threads."""

    async def several(executor, _):
        return [
            value(await executor.execute(attempt(*each)))
            for each in (("price", {"id": "o", "cents": 4}), ("facts",), ("static", 1), ("renamed", 2))
        ]

    assert script(several) == [{"id": "o", "cents": 8}, ["1", "facts", 1, "w", True], 2, 6]


def test_heartbeats_pass_through_and_details_are_inherited():
    """A heartbeat reaches the engine with its details; those of an earlier attempt are there."""

    async def beating(executor, beats):
        result = await executor.execute(attempt("beats", heartbeat_details=payloads("before")))
        await until(lambda: beats)
        return value(result), beats

    assert script(beating) == ("before", [(b"t", payloads("cursor", 2))])


@pytest.mark.parametrize("name", ["until_cancelled", "waits"])
def test_cancellation_reaches_the_process(tmp_path, name):
    """Cancelled is raised at the next heartbeat, and wait_cancelled returns; the child lives on."""
    sign = tmp_path / "sign"

    async def cancelling(executor, beats):
        running = asyncio.ensure_future(executor.execute(attempt(name, str(sign))))
        await until(sign.exists)
        executor.cancel(b"t", "CANCELLED")
        return await running, beats, executor.statistics()

    result, beats, seen = script(cancelling)
    if name == "waits":
        assert value(result) is True
    else:
        assert isinstance(result, AttemptCancelled)
        assert beats[-1] == (b"t", payloads("cleaned up"))
    assert seen.died_processes == 0


def _gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("reason", ["CANCELLED", "TIMED_OUT"])
def test_process_that_ignores_cancellation_is_killed(tmp_path, reason):
    """After the grace period the process is killed, the attempt has ended, and the slot is usable."""
    sign = tmp_path / "sign"

    async def stubborn(executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("deaf", str(sign))))
        process = int(await until(lambda: sign.exists() and sign.read_text()))
        executor.cancel(b"t", reason)
        result = await running
        await until(lambda: _gone(process))
        return result, value(await executor.execute(attempt("static", 1))), executor.statistics()

    result, following, seen = script(stubborn, cancel_grace=0.01, hang_grace=0.01)
    assert isinstance(result, AttemptCancelled)
    assert following == 2
    assert (seen.started_processes, seen.died_processes) == (2, 1)


def test_start_to_close_timeout_kills_the_process(tmp_path):
    """The timeout is taken from the task; no message from the engine is needed."""
    sign = str(tmp_path / "sign")
    task = attempt("deaf", sign, start_to_close_timeout=0.01)
    result = script(lambda executor, _: executor.execute(task), late=0.01, hang_grace=0.01)
    assert isinstance(result, AttemptCancelled)


def test_attempt_waiting_for_a_process_is_cancelled(tmp_path):
    """It ends as cancelled without ever starting."""
    first, second = tmp_path / "first", tmp_path / "second"

    async def queueing(executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("deaf", str(first), token=b"1")))
        await until(first.exists)
        waiting = asyncio.ensure_future(
            executor.execute(attempt("deaf", str(second), token=b"2", activity_id="2"))
        )
        await asyncio.sleep(0)
        executor.cancel(b"2", "CANCELLED")
        executor.cancel(b"1", "CANCELLED")
        return await running, await waiting

    for result in script(queueing, cancel_grace=0.01):
        assert isinstance(result, AttemptCancelled)
    assert not second.exists()


@pytest.mark.parametrize(
    ("how", "kind", "hopeless", "text"),
    [
        ("exit 3", "ProcessDied", False, "exit code 3"),
        ("kill", "ProcessDied", False, "SIGKILL"),
        ("segfault", "ProcessDied", False, "SIGSEGV"),
        ("late answer", "ProcessDied", False, "exit code 5"),
        ("sys.exit", "SystemExit", False, "4"),
        ("interrupt", "KeyboardInterrupt", False, "KeyboardInterrupt"),
        ("generator", "GeneratorExit", False, "GeneratorExit"),
        ("recursion", "RecursionError", False, "recursion"),
        ("memory", "MemoryError", False, "no more"),
        ("application", "Bank", True, "declined"),
        ("object", "EncodeError", True, "cannot be encoded"),
        ("large", "EncodeError", True, "3,145,740 bytes, more than the limit of 2,097,152"),
        ("large failure", "ValueError", False, "more than the limit of 2,097,152"),
    ],
)
def test_every_death_of_a_process_fails_its_attempt(how, kind, hopeless, text):
    """Death, exits and bad results fail this attempt; the next one runs."""

    async def ending(executor, _):
        first = await executor.execute(attempt("ends", how))
        return first, await executor.execute(attempt("ends", "well"))

    first, second = script(ending)
    assert failure(first)[:2] == (kind, hopeless)
    assert text in failure(first)[2]
    assert len(failure(first)[2]) < 5000
    assert value(second) == "well"


def test_death_of_a_process_fails_only_its_attempt(tmp_path):
    """The attempt in the other process completes."""
    sign = tmp_path / "sign"

    async def two(executor, _):
        living = asyncio.ensure_future(executor.execute(attempt("waits", str(sign), token=b"1")))
        await until(sign.exists)
        dead = await executor.execute(attempt("ends", "kill", token=b"2", activity_id="2"))
        executor.cancel(b"1", "CANCELLED")
        return await living, dead

    living, dead = script(two, max_processes=2)
    assert value(living) is True
    assert failure(dead)[0] == "ProcessDied"


def test_idle_process_that_is_killed_is_replaced():
    """No attempt fails."""

    async def killed(executor, _):
        first = value(await executor.execute(attempt("pid")))
        os.kill(first, 9)
        (child,) = executor.runner._processes._idle
        await until(lambda: not child.alive)
        return first, value(await executor.execute(attempt("pid")))

    first, second = script(killed)
    assert first != second


def test_forked_copy_of_a_process_reports_nothing():
    """A process that the activity forked also returns from the function, but reports no result and no
    heartbeats.
    """

    async def forking(executor, beats):
        first = value(await executor.execute(attempt("forks")))
        return first, value(await executor.execute(attempt("static", 1))), beats

    assert script(forking) == (["original", 0], 2, [])


def test_death_is_noticed_while_a_fork_holds_the_socket(tmp_path):
    """A fork keeps the socket open, so the exit of the process is noticed through the kernel."""
    sign = tmp_path / "sign"
    try:
        assert "exit code 7" in failure(run("forks_and_dies", str(sign)))[2]
    finally:
        sign.write_text("go")


def test_leaked_threads_end_with_their_process():
    """They live as long as the process."""

    async def leaking(executor, _):
        result = value(await executor.execute(attempt("leaks_threads")))
        process = value(await executor.execute(attempt("pid")))
        executor.stop()
        await until(lambda: _gone(process))
        return result

    assert script(leaking) >= 6


def test_output_of_a_process_is_passed_through(capfd):
    """Its standard output and error are the worker's."""
    run("prints", "hello from afar")
    seen = capfd.readouterr()
    assert "hello from afar" in seen.out
    assert "hello from afar" in seen.err


def test_signals_to_the_process_group_do_not_end_a_process():
    """SIGINT and SIGTERM are handled by the worker, which drains first."""
    assert value(run("ignores_group_signals")) == ["still here"]


def test_complete_async_in_a_process():
    """`complete_async` works there; `client()` raises an error with the alternative."""
    assert run("elsewhere") == ActivityDeferred(b"t")
    kind, hopeless, message = failure(run("asks_for_client"))
    assert (kind, hopeless) == ("UsageError", True)
    assert "Client.connect" in message


def test_wrong_arguments_fail_without_a_retry():
    """Too few, too many, of a wrong type: a failure that names the activity."""
    kind, hopeless, message = failure(run("static"))
    assert (kind, hopeless) == ("ArgumentError", True)
    assert "activity static" in message


def test_abandoned_attempts_lose_their_process(tmp_path):
    """An abandoned attempt ends at once, and its process is killed."""
    sign = tmp_path / "sign"

    async def abandoning(executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("deaf", str(sign))))
        process = int(await until(lambda: sign.exists() and sign.read_text()))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert executor.running == 0
        return await until(lambda: _gone(process))

    assert script(abandoning)


def test_process_activity_must_be_importable():
    """Bound under another name: the attempt fails with the remedy; a method is rejected by the worker."""
    kind, _, message = failure(run("bound_elsewhere"))
    assert kind == "DefinitionError"
    assert "Decorate the function where it is defined" in message
    for given in (in_processes.Tools(), in_processes.Tools().method):
        with pytest.raises(DefinitionError, match="is a method"):
            with_executor([given], None)


def test_process_imports_only_resolved_places():
    """The name on the wire does not appear in the message to the process."""
    definition = activity_definition(in_processes.original)
    assert definition.name == "renamed"
    assert place_of(definition) == f"{in_processes.__name__}:original"


def test_own_converter_is_created_in_the_process():
    """Its class is imported there; a converter with arguments is rejected."""

    async def reversed_(executor, _):
        task = attempt("static")
        given = type(task)(
            token=b"t", activity_id="1", activity_type="static", arguments=(Reversing().encode(12),)
        )
        return await executor.execute(given)

    result = script(reversed_, converter=Reversing())
    assert (result.result.data, result.result.encoding) == (b"31", "reversed")
    stateful = Reversing()
    stateful.key = "secret"
    with pytest.raises(DefinitionError, match="have no state") as caught:
        converter_place(stateful)
    assert "secret" not in str(caught.value)


SCRIPT = """
import asyncio, os, sys
from hourglass import activity
from hourglass._contract.handle import ActivityTask
from hourglass._worker.activities.executors import ActivityExecutor
from hourglass._worker.activities.runners import worker_runner
from hourglass.activity._context import Equipment
from hourglass._worker.resolver import Resolver
from hourglass.converter import default_converter

@activity.defn(executor="process")
def where() -> list[str]:
    return [__name__, *sys.argv[1:]]

@activity.defn(executor="process")
def started() -> list[object]:
    return [__debug__, sys.flags.isolated, sys.flags.dev_mode, sys.flags.bytes_warning, sys.get_int_max_str_digits(), sys.path]

@activity.defn(executor="process")
def stays() -> None:
    print(os.getpid(), flush=True)
    activity.wait_cancelled()

class Outcome:
    def __init__(self):
        self.future = asyncio.get_running_loop().create_future()
    def executed(self, result):
        self.future.set_result(result)

def start(name):
    async def main():
        known = Resolver(activities=[where, started, stays])
        executor = ActivityExecutor(Equipment(), lambda *_: None, worker_runner(known, default_converter, max_threads=1))
        try:
            outcome = Outcome()
            executor.begin(ActivityTask(token=b"t", activity_id="1", activity_type=name), outcome)
            return await outcome.future
        finally:
            executor.stop()
    return asyncio.run(main())

"""
GUARDED = SCRIPT + 'if __name__ == "__main__":\n    print(start(sys.argv[1]).result.data.decode())\n'
UNGUARDED = SCRIPT + "print(start(sys.argv[1]).failure.message)\n"


@pytest.mark.parametrize("name", ["program.py", "program"])
def test_script_is_imported_as_a_module(tmp_path, name):
    """A function of the program itself is found: its file is imported under another name than __main__."""
    program = tmp_path / name
    program.write_text(GUARDED)
    done = subprocess.run(
        [sys.executable, program, "where"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == '["__mp_main__","where"]'


def test_program_run_with_dash_m_is_imported_by_its_name(tmp_path):
    """`python -m package.module` is imported by its real name."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "work.py").write_text(GUARDED)
    done = subprocess.run(
        [sys.executable, "-m", "shop.work", "where"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == '["shop.work","where"]'


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], [True, 0, False, 0, 4300]),
        (["-O"], [False, 0, False, 0, 4300]),
        (["-I"], [True, 1, False, 0, 4300]),
        (["-X", "dev", "-b"], [True, 0, True, 1, 4300]),
        (["-X", "int_max_str_digits=5000"], [True, 0, False, 0, 5000]),
    ],
)
def test_process_inherits_interpreter_flags(tmp_path, flags, expected):
    """And the import path; the working directory is not added to it."""
    program = tmp_path / "program.py"
    program.write_text(GUARDED)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for trap in ("hourglass", "msgspec", "selectors", "sitecustomize"):
        (elsewhere / f"{trap}.py").write_text("raise SystemExit('imported from the working directory')\n")
    done = subprocess.run(
        [sys.executable, *flags, program, "started"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=elsewhere,
    )
    assert done.returncode == 0, done.stderr
    *found, path = json.loads(done.stdout)
    assert found == expected
    assert str(elsewhere) not in path
    assert "" not in path


def test_unreadable_interpreter_flag_is_left_out(monkeypatch):
    """Somebody changed what the interpreter remembers of its options: a child starts all the same."""
    monkeypatch.setattr(sys, "warnoptions", [])
    monkeypatch.setattr(sys, "_xoptions", {"odd": True, "pycache_prefix": "/x"})
    found = command(5, 6, ["/a"])
    assert found[0] == sys.executable
    assert found[-3:] == ["5", "6", "/a"]
    assert found[-8:-4] == ["-X", "pycache_prefix=/x", "-P", "-c"]


@pytest.mark.parametrize("length", [0xFFFF_FFFF, 2**30, 6_000_000])
def test_oversized_message_of_a_process_fails_its_attempt(length):
    """The attempt fails and may be retried, and the next process works."""

    async def flooding(executor, _):
        first = await executor.execute(attempt("floods", length))
        return first, await executor.execute(attempt("pid")), executor.statistics()

    first, second, seen = script(flooding)
    kind, hopeless, message = failure(first)
    assert (kind, hopeless) == ("FrameTooLarge", False)
    assert f"{length:,} bytes" in message
    assert value(second) > 0
    assert (seen.started_processes, seen.died_processes) == (2, 1)


@pytest.mark.parametrize(("given", "limit"), [(None, 2**30), (0, 2**20), (2**31, 2**30)])
def test_message_limit_of_a_child_follows_the_payload_limit(given, limit):
    """Follows the limit of payloads, and is bounded also where those have none."""
    assert frame_limit(given) == limit


def test_script_without_a_main_guard_fails_the_attempt(tmp_path):
    """It would start workers without end; the message has the remedy."""
    program = tmp_path / "program.py"
    program.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, program, "where"], capture_output=True, text=True, timeout=60, check=False
    )
    assert 'if __name__ == "__main__"' in done.stdout


def test_process_activity_needs_a_file():
    """Code of `python -c` cannot be imported again."""
    code = textwrap.dedent(SCRIPT) + "print(start('where').failure.message)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "move it into a module" in done.stdout


def test_children_die_with_their_parent(tmp_path):
    """The worker is killed with -9 while an activity runs: its process does not outlive it."""
    program = tmp_path / "program.py"
    program.write_text(GUARDED)
    with subprocess.Popen([sys.executable, program, "stays"], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait(20)
    deadline = time.monotonic() + 30
    while not _ended(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _ended(process: int) -> bool:
    """Gone, or dead and not yet taken away by whoever adopted it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return _gone(process)


def test_activity_found_late_runs_in_a_process():
    """An activity that is not yet registered is found in the worker's modules by a thread, and then runs in a
    process.
    """

    async def late(executor, _):
        return await executor.execute(attempt("late_found"))

    assert value(with_executor([], late, modules=("worker.activities.late",))) == "late_found"
