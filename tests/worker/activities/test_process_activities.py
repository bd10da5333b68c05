"""Process activities: features that work in a child process, every way a child can end, and isolation of its failures."""

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

from ..scripted import attempt, payloads
from . import in_processes
from .executing import failure, running_executor, until, value, with_executor

pytestmark = pytest.mark.usefixtures("each_event_loop")


def executing(**options):
    return running_executor(in_processes.ALL, **options)


def script(run, **options):
    return with_executor(in_processes.ALL, run, **options)


def run(activity_type, *args, **facts):
    return script(lambda executor, _: executor.execute(attempt(activity_type, *args, **facts)))


class Reversing(Converter):
    """A converter that reverses the encoded bytes."""

    def encode(self, value):
        payload = super().encode(value)
        return Payload(payload.data[::-1], "reversed")

    def decode(self, payload, type=object):
        return super().decode(Payload(payload.data[::-1], "json/plain"), type)


async def test_activity_process_is_started_once_and_reused():
    async with executing() as (executor, _):
        results = [await executor.execute(attempt("pid")) for _ in range(2)]
        seen = executor.runner.statistics()
    first, second = map(value, results)
    assert first == second != os.getpid()
    assert (seen.processes, seen.started_processes, seen.died_processes) == (1, 1, 0)


async def test_process_activities_run_concurrently_in_separate_processes():
    async with executing(max_processes=2) as (executor, _):
        first, second = await asyncio.gather(
            executor.execute(attempt("pid", token=b"1", activity_id="1")),
            executor.execute(attempt("pid", token=b"2", activity_id="2")),
        )
    assert value(first) != value(second)


async def test_process_activity_has_typed_arguments_and_info():
    async with executing() as (executor, _):
        calls = (("price", {"id": "o", "cents": 4}), ("facts",), ("static", 1), ("renamed", 2))
        values = [value(await executor.execute(attempt(*call))) for call in calls]
    assert values == [{"id": "o", "cents": 8}, ["1", "facts", 1, "w", True], 2, 6]


async def test_process_activity_sends_heartbeats_and_reads_earlier_details():
    async with executing() as (executor, beats):
        result = await executor.execute(attempt("beats", heartbeat_details=payloads("before")))
        await until(lambda: beats)
        assert (value(result), beats) == ("before", [(b"t", payloads("cursor", 2))])


@pytest.mark.parametrize("name", ["until_cancelled", "waits"])
async def test_process_activity_receives_its_cancellation(tmp_path, name):
    sign = tmp_path / "sign"
    async with executing() as (executor, beats):
        running = asyncio.ensure_future(executor.execute(attempt(name, str(sign))))
        await until(sign.exists)
        executor.cancel(b"t", "CANCELLED")
        result, seen = await running, executor.runner.statistics()
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
async def test_activity_process_that_ignores_cancellation_is_killed_after_the_grace_period(tmp_path, reason):
    sign = tmp_path / "sign"
    async with executing(cancel_grace=0.01, hang_grace=0.01) as (executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("ignores_cancellation", str(sign))))
        process = int(await until(lambda: sign.exists() and sign.read_text()))
        executor.cancel(b"t", reason)
        result = await running
        await until(lambda: _gone(process))
        following, seen = value(await executor.execute(attempt("static", 1))), executor.runner.statistics()
    assert isinstance(result, AttemptCancelled)
    assert following == 2
    assert (seen.started_processes, seen.died_processes) == (2, 1)


def test_worker_kills_the_activity_process_after_the_start_to_close_timeout(tmp_path):
    """The worker takes the timeout from the task; no message from the engine is needed."""
    sign = str(tmp_path / "sign")
    task = attempt("ignores_cancellation", sign, start_to_close_timeout=0.01)
    result = script(lambda executor, _: executor.execute(task), late=0.01, hang_grace=0.01)
    assert isinstance(result, AttemptCancelled)


def test_attempt_waiting_for_a_process_is_cancelled_without_starting(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"

    async def queueing(executor, _):
        running = asyncio.ensure_future(
            executor.execute(attempt("ignores_cancellation", str(first), token=b"1"))
        )
        await until(first.exists)
        waiting = asyncio.ensure_future(
            executor.execute(attempt("ignores_cancellation", str(second), token=b"2", activity_id="2"))
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
async def test_exit_crash_or_bad_result_of_an_activity_process_fails_its_attempt(how, kind, hopeless, text):
    async with executing() as (executor, _):
        first = await executor.execute(attempt("ends", how))
        second = await executor.execute(attempt("ends", "well"))
    assert failure(first)[:2] == (kind, hopeless)
    assert text in failure(first)[2]
    assert len(failure(first)[2]) < 5000
    assert value(second) == "well"


async def test_crash_of_an_activity_process_fails_only_its_own_attempt(tmp_path):
    sign = tmp_path / "sign"
    async with executing(max_processes=2) as (executor, _):
        living = asyncio.ensure_future(executor.execute(attempt("waits", str(sign), token=b"1")))
        await until(sign.exists)
        dead = await executor.execute(attempt("ends", "kill", token=b"2", activity_id="2"))
        executor.cancel(b"1", "CANCELLED")
        living = await living
    assert value(living) is True
    assert failure(dead)[0] == "ProcessDied"


async def test_killed_idle_activity_process_is_replaced():
    async with executing() as (executor, _):
        first = value(await executor.execute(attempt("pid")))
        os.kill(first, 9)
        (child,) = executor.runner._processes._idle
        await until(lambda: not child.alive)
        second = value(await executor.execute(attempt("pid")))
    assert first != second


async def test_fork_of_an_activity_process_sends_no_result_and_no_heartbeat():
    async with executing() as (executor, beats):
        first = value(await executor.execute(attempt("forks")))
        assert (first, value(await executor.execute(attempt("static", 1))), beats) == (["original", 0], 2, [])


def test_activity_process_exit_is_detected_while_a_fork_holds_its_socket(tmp_path):
    sign = tmp_path / "sign"
    try:
        assert "exit code 7" in failure(run("forks_and_dies", str(sign)))[2]
    finally:
        sign.write_text("go")


async def test_threads_leaked_by_a_process_activity_do_not_keep_the_process_alive():
    async with executing() as (executor, _):
        result = value(await executor.execute(attempt("leaks_threads")))
        process = value(await executor.execute(attempt("pid")))
        executor.stop()
        await until(lambda: _gone(process))
        assert result >= 6


def test_process_activity_output_reaches_the_workers_stdout_and_stderr(capfd):
    run("prints", "hello from afar")
    seen = capfd.readouterr()
    assert "hello from afar" in seen.out
    assert "hello from afar" in seen.err


def test_activity_process_ignores_sigint_and_sigterm():
    """The worker handles both signals for its process group, and drains first."""
    assert value(run("ignores_group_signals")) == ["still here"]


def test_process_activity_can_complete_async_but_has_no_client():
    assert run("completes_async") == ActivityDeferred(b"t")
    kind, hopeless, message = failure(run("asks_for_client"))
    assert (kind, hopeless) == ("UsageError", True)
    assert "Client.connect" in message


def test_process_activity_with_wrong_arguments_fails_without_retry():
    kind, hopeless, message = failure(run("static"))
    assert (kind, hopeless) == ("ArgumentError", True)
    assert "activity static" in message


async def test_process_of_an_abandoned_attempt_is_killed(tmp_path):
    sign = tmp_path / "sign"
    async with executing() as (executor, _):
        running = asyncio.ensure_future(executor.execute(attempt("ignores_cancellation", str(sign))))
        process = int(await until(lambda: sign.exists() and sign.read_text()))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert executor.running == 0
        assert await until(lambda: _gone(process))


def test_process_activity_that_cannot_be_imported_by_name_is_rejected():
    kind, _, message = failure(run("bound_elsewhere"))
    assert kind == "DefinitionError"
    assert "Decorate the function where it is defined" in message
    for rejected in (in_processes.Tools(), in_processes.Tools().method):
        with pytest.raises(DefinitionError, match="is a method"):
            with_executor([rejected], None)


def test_process_imports_an_activity_by_its_module_path_not_its_type_name():
    """The name in a task must never select what is imported."""
    definition = activity_definition(in_processes.original)
    assert definition.name == "renamed"
    assert place_of(definition) == f"{in_processes.__name__}:original"


async def test_custom_converter_class_is_imported_in_the_activity_process():
    async with executing(converter=Reversing()) as (executor, _):
        task = attempt("static")
        encoded = type(task)(
            token=b"t", activity_id="1", activity_type="static", arguments=(Reversing().encode(12),)
        )
        result = await executor.execute(encoded)
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
from hourglass._worker.activities.runners import WorkerRunner
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

def start(name):
    async def main():
        resolver = Resolver(activities=[where, started, stays])
        runner = lambda executor: WorkerRunner(executor, resolver, default_converter, max_threads=1)
        executor = ActivityExecutor(Equipment(), lambda *_: None, runner)
        try:
            outcome = asyncio.get_running_loop().create_future()
            executor.begin(ActivityTask(token=b"t", activity_id="1", activity_type=name), outcome.set_result)
            return await outcome
        finally:
            executor.stop()
    return asyncio.run(main())

"""
GUARDED = SCRIPT + 'if __name__ == "__main__":\n    print(start(sys.argv[1]).result.data.decode())\n'
UNGUARDED = SCRIPT + "print(start(sys.argv[1]).failure.message)\n"


@pytest.mark.parametrize("name", ["program.py", "program"])
def test_process_activity_of_a_script_is_imported_as_mp_main(tmp_path, name):
    program = tmp_path / name
    program.write_text(GUARDED)
    done = subprocess.run(
        [sys.executable, program, "where"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == '["__mp_main__","where"]'


def test_process_activity_of_a_dash_m_program_is_imported_by_module_name(tmp_path):
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
def test_activity_process_inherits_interpreter_flags_and_import_path(tmp_path, flags, expected):
    program = tmp_path / "program.py"
    program.write_text(GUARDED)
    working_directory = tmp_path / "elsewhere"
    working_directory.mkdir()
    for trap in ("hourglass", "msgspec", "selectors", "sitecustomize"):
        (working_directory / f"{trap}.py").write_text(
            "raise SystemExit('imported from the working directory')\n"
        )
    done = subprocess.run(
        [sys.executable, *flags, program, "started"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=working_directory,
    )
    assert done.returncode == 0, done.stderr
    *flags_in_the_child, path = json.loads(done.stdout)
    assert flags_in_the_child == expected
    assert str(working_directory) not in path
    assert "" not in path


def test_invalid_interpreter_flags_are_not_passed_to_an_activity_process(monkeypatch):
    monkeypatch.setattr(sys, "warnoptions", [])
    monkeypatch.setattr(sys, "_xoptions", {"odd": True, "pycache_prefix": "/x"})
    arguments = command(5, 6, ["/a"])
    assert arguments[0] == sys.executable
    assert arguments[-3:] == ["5", "6", "/a"]
    assert arguments[-8:-4] == ["-X", "pycache_prefix=/x", "-P", "-c"]


@pytest.mark.parametrize("length", [0xFFFF_FFFF, 2**30, 6_000_000])
async def test_oversized_message_from_an_activity_process_fails_its_attempt(length):
    async with executing() as (executor, _):
        first = await executor.execute(attempt("floods", length))
        second, seen = await executor.execute(attempt("pid")), executor.runner.statistics()
    kind, hopeless, message = failure(first)
    assert (kind, hopeless) == ("FrameTooLarge", False)
    assert f"{length:,} bytes" in message
    assert value(second) > 0
    assert (seen.started_processes, seen.died_processes) == (2, 1)


@pytest.mark.parametrize(("payload_limit", "limit"), [(None, 2**30), (0, 2**20), (2**31, 2**30)])
def test_message_limit_of_an_activity_process_follows_the_payload_limit(payload_limit, limit):
    assert frame_limit(payload_limit) == limit


def test_process_activity_of_a_script_without_main_guard_fails_with_the_remedy(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, program, "where"], capture_output=True, text=True, timeout=60, check=False
    )
    assert 'if __name__ == "__main__"' in done.stdout


def test_process_activity_defined_by_python_dash_c_fails():
    code = textwrap.dedent(SCRIPT) + "print(start('where').failure.message)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "move it into a module" in done.stdout


def test_activity_processes_die_when_the_worker_is_killed(tmp_path):
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
    """Whether the process is gone, or a zombie that its parent has not reaped."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return _gone(process)


def test_process_activity_found_in_the_workers_modules_runs():
    async def late(executor, _):
        return await executor.execute(attempt("late_found"))

    assert value(with_executor([], late, modules=("worker.activities.late",))) == "late_found"
