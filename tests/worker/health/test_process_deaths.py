"""A run that kills its worker process is identified and quarantined; other runs continue."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hourglass import Client, WorkflowHandle
from hourglass._evaluator.definition import define_function
from hourglass._worker.health import incidents
from hourglass._worker.health.incidents import Incident, Incidents, blame, folder_of, hang, notes_of
from hourglass._worker.health.lane_notes import SIZE, packed
from hourglass._worker.health.quarantine import Quarantine, digest_of
from hourglass._worker.health.stacks import HungStack
from hourglass._worker.targets import Target, resolve
from hourglass.errors import ActivityError, WorkflowFailedError

from ..lanes.lane_world import Clock, adds, failure_kind, lanes, stage
from ..scripted import settled, start, workflow

CRASHING_WORKER = Path(__file__).with_name("crashing_worker.py")


def body() -> None:
    pass


DEFINITION = define_function(body, None, ())


@pytest.fixture(autouse=True)
def own_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the notes of these tests apart from those of other processes."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(incidents, "SHARED_MEMORY", shared)
    return shared


def leave_notes(folder: Path, *bodies: bytes) -> None:
    """Start a process that records these runs as executing and then dies."""
    program = """
import os, sys
from pathlib import Path
from hourglass._worker.health import incidents
incidents.SHARED_MEMORY = Path(sys.argv[1])
record = incidents.Incidents(Path(sys.argv[2]))
for body in sys.argv[3:]:
    record.notes.note().write(bytes.fromhex(body))
os.kill(os.getpid(), 9)
"""
    arguments = (str(incidents.SHARED_MEMORY), str(folder), *(body.hex() for body in bodies))
    ended = subprocess.run([sys.executable, "-c", program, *arguments])
    assert ended.returncode == -signal.SIGKILL


@contextmanager
def opened(folder: Path) -> Iterator[Incidents]:
    record = Incidents(folder)
    try:
        yield record
    finally:
        record.close()


def death_counts(folder: Path) -> dict[str, int]:
    return {run_id: incident.times for run_id, incident in incidents._read(folder).items()}


def test_process_death_is_counted_for_each_run_that_was_executing(tmp_path: Path) -> None:
    folder = tmp_path / "x.db-worker"
    leave_notes(folder, packed("a", "t", "code"), packed("b", "t", "code"))
    with opened(folder) as record:
        assert sorted((incident.run_id, incident.times, incident.died) for incident in record.fresh) == [
            ("a", 1, True),
            ("b", 1, True),
        ]
    leave_notes(folder, packed("b", "t", "code"))
    with opened(folder) as record:
        assert death_counts(folder) == {"a": 1, "b": 2}
        assert [incident.run_id for incident in record.fresh] == ["b"]
    with opened(folder) as record:
        assert record.fresh == []


def test_process_death_count_of_a_run_restarts_when_its_code_changes(tmp_path: Path) -> None:
    folder = tmp_path / "x.db-worker"
    leave_notes(folder, packed("a", "t", "code"), packed("b", "t", "code", "1"), packed("c", "t"))
    leave_notes(folder, packed("a", "t", "other"), packed("b", "t", "code", "2"), packed("c", "t", "code"))
    with opened(folder):
        assert death_counts(folder) == {"a": 1, "b": 1, "c": 2}


def test_worker_process_that_exits_normally_leaves_no_notes_of_running_workflows(tmp_path: Path) -> None:
    folder = tmp_path / "x.db-worker"
    with opened(folder) as record:
        note = record.notes.note()
        assert note is not None
        note.write(packed("a", "t"))
        with opened(folder) as other:
            assert other.fresh == []
            assert len(list(tmp_path.glob("shared/*/*.notes"))) == 2
    assert list(tmp_path.glob("shared/*/*")) == []
    assert not folder.exists()


def test_incidents_of_runs_that_progressed_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "x.db-worker"
    leave_notes(folder, packed("a", "t"), packed("b", "t"))
    with opened(folder) as record:
        record.forget("a")
        assert death_counts(folder) == {"b": 1}
        record.forget("unknown")
        record.forget("b")
        assert death_counts(folder) == {}
    assert not folder.exists()


def test_only_the_run_that_held_the_gil_is_recorded_as_the_cause_of_a_killed_process(tmp_path: Path) -> None:
    folder, module = tmp_path / "x.db-worker", tmp_path / "shop.py"
    module.write_text("first")
    stack = HungStack(f'  File "{module}", line 1, in f\n', "shop.py:1 in f")
    program = """
import sys
from pathlib import Path
from hourglass._worker.health import incidents
from hourglass._worker.health.lane_notes import SIZE, packed
incidents.SHARED_MEMORY = Path(sys.argv[1])
record = incidents.Incidents(Path(sys.argv[2]))
notes = [record.notes.note() for _ in "ab"]
for note, name in zip(notes, "ab"):
    note.write(packed(name, "t", "code"))
print("noted", flush=True)
sys.stdin.read()
"""

    def hung_process(blamed: str) -> None:
        command = [sys.executable, "-c", program, str(incidents.SHARED_MEMORY), str(folder)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"noted\n"
            noted = {item.run_id: item for item in notes_of(process.pid) or ()}
            blame(process.pid, noted.get(blamed), stack)
            process.kill()

    hung_process("b")
    with opened(folder) as record:
        (incident,) = record.fresh
        assert (incident.run_id, incident.times, incident.stopped_process, incident.died) == (
            "b",
            1,
            True,
            False,
        )
        assert (incident.stack, incident.place) == (stack.text, stack.place)
    hung_process("b")
    hung_process("")  # an activity held the GIL: no run is the cause
    with opened(folder) as record:
        assert death_counts(folder) == {"b": 2}
        module.write_text("second")
        assert record.current() == []  # a file on its stack has changed


def test_recorded_hangs_are_removed_when_the_process_exits_normally(tmp_path: Path) -> None:
    folder = tmp_path / "x.db-worker"
    with opened(folder) as other, opened(folder) as record:
        for user in (record, other):
            user.add(hang("r", "t", HungStack("text", "place")))
        assert death_counts(folder) == {"r": 2}
        assert [incident.ended_process for incident in incidents._read(folder).values()] == [False]
    assert death_counts(folder) == {}


def test_process_deaths_are_kept_in_memory_if_the_incident_folder_is_not_writable(tmp_path: Path) -> None:
    folder = tmp_path / "x.db-worker"
    leave_notes(folder, packed("a", "t"))
    folder.touch()  # a file in place of the folder
    with opened(folder) as record:
        assert [incident.run_id for incident in record.current()] == ["a"]
        record.forget("a")
        assert record.current() == []


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", '{"a": 1}', '[{"run_id": 7}]', "[" * 100_000, "\x00\xff"],
)
def test_damaged_incident_file_is_ignored(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "x.db-worker"
    folder.mkdir(mode=0o700)
    (folder / "incidents.json").write_text(content)
    leave_notes(folder, packed("a", "t"))
    with opened(folder):
        assert death_counts(folder) == {"a": 1}


@pytest.mark.parametrize("size", [1, 100, SIZE, SIZE + 100])
def test_damaged_notes_of_a_dead_process_are_read_and_removed(tmp_path: Path, size: int) -> None:
    folder = tmp_path / "x.db-worker"
    with opened(folder) as record:
        left = record._path.with_name(record._path.name.replace(f"-{os.getpid()}-", "-1-"))
        left.write_bytes(os.urandom(size))
        with opened(folder):
            assert not left.exists()


def test_incident_folder_that_others_control_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_shared_memory: Path
) -> None:
    monkeypatch.setenv("HOURGLASS_STATE_DIR", str(tmp_path / "state"))
    ours = own_shared_memory / f"hourglass-{os.geteuid()}"
    real = tmp_path / "real"
    real.mkdir()
    for make in (lambda: ours.symlink_to(real), ours.touch, lambda: (ours.mkdir(), ours.chmod(0o777))):
        make()
        with opened(tmp_path / "x.db-worker") as record:
            assert record._path.parent == tmp_path / "state" / "notes"
        ours.rmdir() if ours.is_dir() and not ours.is_symlink() else ours.unlink()
    assert list(real.iterdir()) == []
    monkeypatch.setattr(incidents, "SHARED_MEMORY", tmp_path / "none")
    (tmp_path / "state" / "notes").chmod(0o777)
    with pytest.raises(OSError, match="must belong to this user"):
        Incidents(tmp_path / "x.db-worker")
    assert incidents.open_incidents(Target(kind="file", path=str(tmp_path / "x.db"))) is None
    (tmp_path / "state" / "notes").chmod(0o700)
    leave_notes(tmp_path / "open-worker", packed("a", "t"))
    (tmp_path / "open-worker").mkdir()
    (tmp_path / "open-worker").chmod(0o777)
    with opened(tmp_path / "open-worker"):
        assert list((tmp_path / "open-worker").iterdir()) == []


def test_full_disk_disables_incident_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    target = Target(kind="file", path=str(tmp_path / "x.db"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        assert incidents.open_incidents(target) is None
    record = incidents.open_incidents(target)
    assert record is not None
    incidents.close_incidents(record)


def test_incident_folder_is_beside_the_file_or_in_the_users_state(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    file.touch()
    (tmp_path / "other.db").symlink_to(file)
    assert folder_of(resolve(f"local:{file}")) == tmp_path.resolve() / "x.db-worker"
    assert folder_of(resolve(f"local:{tmp_path}/other.db")) == tmp_path.resolve() / "x.db-worker"
    assert folder_of(resolve("local:")) is None
    home = {"HOURGLASS_STATE_DIR": str(tmp_path)}
    one = folder_of(resolve("localhost:7233"), home)
    two = folder_of(resolve("localhost:7233", namespace="other"), home)
    assert one is not None
    assert two is not None
    assert one.parent == two.parent == tmp_path
    assert one != two
    state = folder_of(resolve("localhost:7233"), {"XDG_STATE_HOME": str(tmp_path)})
    assert state is not None
    assert state.parent == tmp_path / "hourglass"


def death(run_id: str = "r", **changes: object) -> Incident:
    values: dict[str, object] = {
        "workflow_type": "body",
        "code": digest_of(DEFINITION),
        "times": 2,
        "at": time.time(),
        **changes,
    }
    return Incident(run_id, **values)  # type: ignore[arg-type]


def test_quarantine_time_doubles_after_each_death_from_the_second() -> None:
    for times, wait in ((2, 60), (3, 120), (4, 240), (40, 6 * 3600)):
        clock = Clock()
        quarantine = Quarantine(clock=clock)
        quarantine.restore([death(times=times)])
        assert quarantine.held("r", None) is None  # its current code is not known yet
        assert quarantine.held("r", DEFINITION) is not None
        clock.now += wait - 1
        assert quarantine.held("r", DEFINITION) is not None
        clock.now += 2
        assert quarantine.held("r", DEFINITION) is None
        assert quarantine.held("r", DEFINITION) is not None


class IncidentsInMemory:
    """A record of incidents in memory."""

    def __init__(self, incidents: list[Incident]) -> None:
        self.fresh = self._incidents = incidents
        self.forgotten: list[str] = []

    def current(self) -> list[Incident]:
        return self._incidents

    def add(self, incident: Incident) -> None: ...

    def forget(self, *run_ids: str) -> None:
        self.forgotten += run_ids


def test_run_that_progresses_is_no_longer_suspect() -> None:
    record = IncidentsInMemory([death(times=1)])
    quarantine = Quarantine(record)
    assert quarantine.is_suspect("r")
    assert not quarantine.is_suspect("s")
    assert quarantine.held("r", DEFINITION) is None
    quarantine.release("r")
    assert not quarantine.is_suspect("r")
    assert record.forgotten == ["r"]


def test_changed_code_releases_a_quarantined_run() -> None:
    quarantine = Quarantine()
    quarantine.restore([death(code="other")])
    assert quarantine.held("r", DEFINITION) is None
    assert not quarantine.is_suspect("r")


def test_run_quarantined_for_a_local_activity_is_released_when_that_activity_ends() -> None:
    quarantine = Quarantine()
    quarantine.restore([death(activity_id="1", times=2), death("s", activity_id="1", times=3)])
    assert quarantine.held("r", DEFINITION) is None
    assert quarantine.held("s", DEFINITION) is not None
    quarantine.release("s")
    quarantine.release("s", "2")
    assert quarantine.held("s", DEFINITION) is not None
    quarantine.release("s", "1")
    assert quarantine.held("s", DEFINITION) is None


def test_two_runs_that_killed_processes_quarantine_their_workflow() -> None:
    """Runs that were only executing at a death do not count."""
    quarantine = Quarantine()
    quarantine.restore([death("a"), death("b", times=1), death("c", times=1)])
    assert quarantine.held("new", DEFINITION) is None
    quarantine = Quarantine()
    quarantine.restore([death("a"), death("b")])
    assert quarantine.held("new", DEFINITION) is not None
    quarantine = Quarantine()
    quarantine.restore([death("a", code="x"), death("b", code="x")])
    assert quarantine.held("new", DEFINITION) is None  # other code


@workflow
def gate(name: str) -> int:
    stage.enter(name)
    stage.go.wait()
    return 0


async def test_suspect_runs_are_executed_one_at_a_time() -> None:
    quarantine = Quarantine()
    quarantine.restore([death("a", times=1, code=""), death("b", times=1, code="")])
    async with lanes(count=3, workflows=[gate, adds], context={"quarantine": quarantine}) as world:
        for name in ("a", "b"):
            world.submit(start(name, "gate", name))
        await world.begun("a")
        world.submit(start("other", "adds", "other"))
        for _ in range(10):
            world.clock.now += 0.1
            world.lanes.check()
        await settled(lambda: world.answers("other"))
        assert "b" not in stage.begun
        stage.go.set()
        await settled(lambda: world.answers("b"))
        assert stage.threads["a"] == stage.threads["b"] == ["lane-0+1"]


async def test_quarantined_run_fails_its_task_with_process_died() -> None:
    quarantine = Quarantine()
    quarantine.restore([death(code="")])
    async with lanes(context={"quarantine": quarantine}) as world:
        failed = await world.evaluate(start("r", "adds", "r"))
        assert failure_kind(failed) == "ProcessDied"
        assert "the worker's process died while its code was executing (2×)" in failed.failure.message
        assert world.lanes.counts()[0].parked == {"r": "ProcessDied"}


class Service:
    """A worker that is restarted whenever its process ends, as by a service manager."""

    def __init__(self, folder: Path, lanes: int = 1) -> None:
        self.file, self.log = folder / "x.db", folder / "log"
        self.errors = folder / "errors"
        self.lanes = lanes
        self.ends: list[int] = []
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        while self._thread.is_alive():
            if self._process is not None:
                self._process.terminate()
            self._thread.join(0.5)

    def _serve(self) -> None:
        while not self._over.is_set():
            environ = {**os.environ, "ALONE": "1" if self.ends else ""}
            with open(self.errors, "ab") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, str(CRASHING_WORKER), str(self.file), str(self.log), str(self.lanes)],
                    env=environ,
                    stderr=errors,
                )
            self.ends.append(self._process.wait())

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with Client.connect(f"local:{tmp_path / 'x.db'}") as client:
        yield client


def results(handles: list[WorkflowHandle[int]]) -> list[int]:
    return [handle.result(timeout=60) for handle in handles]


def test_run_that_kills_its_process_twice_is_quarantined_and_others_complete(
    tmp_path: Path, client: Client
) -> None:
    client.start_workflow("kills_the_process", "x", id="killer")
    with Service(tmp_path) as service:
        others = [client.start_workflow("healthy", n, id=f"h{n}") for n in range(4)]
        assert results(others) == [n + 1 for n in range(4)]
        killer = client.get_workflow_handle("killer")
        while not killer.describe().parked or len(service.lines()) < 2:
            time.sleep(0.01)
        assert results([client.start_workflow("healthy", 7, id="later")]) == [8]
    assert service.lines() == ["workflow x"] * 2
    assert service.ends[:2] == [-signal.SIGKILL] * 2
    assert "2 times so far: the run is quarantined" in service.errors.read_text()
    (incident,) = json.loads((tmp_path / "x.db-worker" / "incidents.json").read_text())
    assert (incident["workflow_type"], incident["times"]) == ("kills_the_process", 2)


def test_run_that_kills_the_process_is_identified_among_three_suspects(
    tmp_path: Path, client: Client
) -> None:
    names = ["good-1", "bad", "good-2"]
    handles = {name: client.start_workflow("kills_among_three", name, id=name) for name in names}
    with Service(tmp_path, lanes=3) as service:
        assert handles["good-1"].result(timeout=60) == "good-1"
        assert handles["good-2"].result(timeout=60) == "good-2"
        while not handles["bad"].describe().parked or len(service.ends) < 2:
            time.sleep(0.01)
        assert results([client.start_workflow("healthy", 7, id="later")]) == [8]
    lines = service.lines()
    assert sorted(lines[:3]) == sorted(f"kills_among_three {name}" for name in names)
    assert lines.count("kills_among_three bad") == 2


def test_activity_that_kills_its_process_fails_after_its_maximum_attempts(
    tmp_path: Path, client: Client
) -> None:
    calling = client.start_workflow("calls", "x", id="calling")
    with Service(tmp_path) as service:
        with pytest.raises(WorkflowFailedError) as failed:
            calling.result(timeout=60)
        assert isinstance(failed.value.__cause__, ActivityError)
        assert results([client.start_workflow("healthy", 1, id="h")]) == [2]
    assert service.lines() == ["activity x"] * 2


def test_local_activity_that_kills_its_process_quarantines_its_run(tmp_path: Path, client: Client) -> None:
    client.start_workflow("calls_local", "x", id="calling")
    with Service(tmp_path) as service:
        others = [client.start_workflow("healthy", n, id=f"h{n}") for n in range(2)]
        assert results(others) == [1, 2]
        calling = client.get_workflow_handle("calling")
        while len(service.lines()) < 3 or not calling.describe().parked:
            time.sleep(0.01)
        assert results([client.start_workflow("healthy", 7, id="later")]) == [8]
    assert service.lines() == ["activity x"] * 3


def test_forked_child_of_a_workflow_exits_without_completing_it(tmp_path: Path, client: Client) -> None:
    with Service(tmp_path) as service:
        assert client.execute_workflow("forks", id="f") == "parent"
        assert results([client.start_workflow("healthy", 1, id="h")]) == [2]
        while "a process that a workflow forked" not in service.errors.read_text():
            time.sleep(0.01)
        process = service._process
        assert process is not None
        while [pid for pid in _children(process.pid) if not _is_zombie(pid)]:
            time.sleep(0.01)


def _children(pid: int) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                pids.append(int(entry.name))
    return pids


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
