"""A run that kills its process is found out and held back; all others go on."""

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

from ..lanes.lane_world import Clock, adds, failure_kind, stage, with_lanes
from ..scripted import settled, start, workflow

DEADLY = Path(__file__).with_name("deadly.py")


def body() -> None:
    pass


DEFINITION = define_function(body, None, ())


@pytest.fixture(autouse=True)
def own_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Notes of these tests are not those of other tests."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(incidents, "SHARED_MEMORY", shared)
    return shared


def leave(folder: Path, *bodies: bytes) -> None:
    """What a process leaves behind that dies while it executes some runs."""
    program = """
import os, sys
from pathlib import Path
from hourglass._worker.health import incidents
incidents.SHARED_MEMORY = Path(sys.argv[1])
record = incidents.Incidents(Path(sys.argv[2]))
for each in sys.argv[3:]:
    record.notes.note().write(bytes.fromhex(each))
os.kill(os.getpid(), 9)
"""
    arguments = (str(incidents.SHARED_MEMORY), str(folder), *(each.hex() for each in bodies))
    ended = subprocess.run([sys.executable, "-c", program, *arguments])
    assert ended.returncode == -signal.SIGKILL


@contextmanager
def opened(folder: Path) -> Iterator[Incidents]:
    record = Incidents(folder)
    try:
        yield record
    finally:
        record.close()


def counted(folder: Path) -> dict[str, int]:
    return {run_id: incident.times for run_id, incident in incidents._read(folder).items()}


def test_runs_of_a_killed_process_are_counted(tmp_path: Path) -> None:
    """One death for each, one more after the next; a run that is not in it stays as it was."""
    folder = tmp_path / "x.db-worker"
    leave(folder, packed("a", "t", "code"), packed("b", "t", "code"))
    with opened(folder) as record:
        assert sorted((each.run_id, each.times, each.died) for each in record.fresh) == [
            ("a", 1, True),
            ("b", 1, True),
        ]
    leave(folder, packed("b", "t", "code"))
    with opened(folder) as record:
        assert counted(folder) == {"a": 1, "b": 2}
        assert [each.run_id for each in record.fresh] == ["b"]
    with opened(folder) as record:
        assert record.fresh == []


def test_death_in_changed_code_counts_as_the_first(tmp_path: Path) -> None:
    """What changed may have mended it."""
    folder = tmp_path / "x.db-worker"
    leave(folder, packed("a", "t", "code"), packed("b", "t", "code", "1"), packed("c", "t"))
    leave(folder, packed("a", "t", "other"), packed("b", "t", "code", "2"), packed("c", "t", "code"))
    with opened(folder):
        assert counted(folder) == {"a": 1, "b": 1, "c": 2}


def test_process_that_ends_in_order_leaves_nothing(tmp_path: Path) -> None:
    """Neither notes nor a folder; while it lives its notes are its own."""
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


def test_progress_removes_incidents(tmp_path: Path) -> None:
    """And the folder goes with the last of them."""
    folder = tmp_path / "x.db-worker"
    leave(folder, packed("a", "t"), packed("b", "t"))
    with opened(folder) as record:
        record.forget("a")
        assert counted(folder) == {"b": 1}
        record.forget("unknown")
        record.forget("b")
        assert counted(folder) == {}
    assert not folder.exists()


def test_only_the_run_that_held_the_interpreter_is_blamed(tmp_path: Path) -> None:
    """The parent names it before it kills the process; those that were executing beside it are innocent."""
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
            noted = {each.run_id: each for each in notes_of(process.pid) or ()}
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
    hung_process("")  # an activity held the interpreter: no run is to blame
    with opened(folder) as record:
        assert counted(folder) == {"b": 2}
        module.write_text("second")
        assert record.current() == []  # a file on its stack has changed


def test_hangs_are_recorded_unless_the_process_ends_in_order(tmp_path: Path) -> None:
    """A process that is replaced because too many threads are stuck leaves them; counts of several processes add up."""
    folder = tmp_path / "x.db-worker"
    with opened(folder) as other, opened(folder) as record:
        for user in (record, other):
            user.add(hang("r", "t", HungStack("text", "place")))
        assert counted(folder) == {"r": 2}
        assert [incident.ended_process for incident in incidents._read(folder).values()] == [False]
    assert counted(folder) == {}


def test_unwritable_deaths_are_remembered_in_memory(tmp_path: Path) -> None:
    """To the process that has found them; its worker starts."""
    folder = tmp_path / "x.db-worker"
    leave(folder, packed("a", "t"))
    folder.touch()  # no folder
    with opened(folder) as record:
        assert [each.run_id for each in record.current()] == ["a"]
        record.forget("a")
        assert record.current() == []


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", '{"a": 1}', '[{"run_id": 7}]', "[" * 100_000, "\x00\xff"],
)
def test_damaged_incident_file_is_ignored(tmp_path: Path, content: str) -> None:
    """A worker starts, and counts anew."""
    folder = tmp_path / "x.db-worker"
    folder.mkdir(mode=0o700)
    (folder / "incidents.json").write_text(content)
    leave(folder, packed("a", "t"))
    with opened(folder):
        assert counted(folder) == {"a": 1}


@pytest.mark.parametrize("size", [1, 100, SIZE, SIZE + 100])
def test_damaged_notes_are_read_partially(tmp_path: Path, size: int) -> None:
    """Whatever is in the file of a dead process."""
    folder = tmp_path / "x.db-worker"
    with opened(folder) as record:
        left = record._path.with_name(record._path.name.replace(f"-{os.getpid()}-", "-1-"))
        left.write_bytes(os.urandom(size))
        with opened(folder):
            assert not left.exists()


def test_foreign_incident_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_shared_memory: Path
) -> None:
    """A link, a file, or one that others may write to."""
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
    with pytest.raises(OSError, match="alone"):
        Incidents(tmp_path / "x.db-worker")
    assert incidents.open_incidents(Target(kind="file", path=str(tmp_path / "x.db"))) is None
    (tmp_path / "state" / "notes").chmod(0o700)
    leave(tmp_path / "open-worker", packed("a", "t"))
    (tmp_path / "open-worker").mkdir()
    (tmp_path / "open-worker").chmod(0o777)
    with opened(tmp_path / "open-worker"):
        assert list((tmp_path / "open-worker").iterdir()) == []


def test_full_disk_disables_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for the notes is taken at the start; where there is none, the worker works without."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    target = Target(kind="file", path=str(tmp_path / "x.db"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        assert incidents.open_incidents(target) is None
    record = incidents.open_incidents(target)
    assert record is not None
    incidents.close_incidents(record)


def test_location_of_the_incident_folder(tmp_path: Path) -> None:
    """Beside a file, whatever it is called by; for a server in the user's state, by address and namespace; none in memory."""
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


def test_quarantine_grows_after_two_deaths() -> None:
    """A minute, two, four, each followed by one try; never more than six hours."""
    for times, wait in ((2, 60), (3, 120), (4, 240), (40, 6 * 3600)):
        clock = Clock()
        quarantine = Quarantine(clock=clock)
        quarantine.restore([death(times=times)])
        assert quarantine.held("r", None) is None  # which code it is now is not known yet
        assert quarantine.held("r", DEFINITION) is not None
        clock.now += wait - 1
        assert quarantine.held("r", DEFINITION) is not None
        clock.now += 2
        assert quarantine.held("r", DEFINITION) is None
        assert quarantine.held("r", DEFINITION) is not None


class Record:
    """A record of incidents in memory."""

    def __init__(self, incidents: list[Incident]) -> None:
        self.fresh = self._incidents = incidents
        self.forgotten: list[str] = []

    def current(self) -> list[Incident]:
        return self._incidents

    def add(self, incident: Incident) -> None: ...

    def forget(self, *run_ids: str) -> None:
        self.forgotten += run_ids


def test_progress_clears_a_suspicion() -> None:
    """It is executed, but not beside others; who is told learns that it went on."""
    record = Record([death(times=1)])
    quarantine = Quarantine(record)
    assert quarantine.is_suspect("r")
    assert not quarantine.is_suspect("s")
    assert quarantine.held("r", DEFINITION) is None
    quarantine.run_progressed("r")
    assert not quarantine.is_suspect("r")
    assert record.forgotten == ["r"]


def test_changed_code_releases_a_run() -> None:
    """The file of the workflow is not what it was when the process died."""
    quarantine = Quarantine()
    quarantine.restore([death(code="other")])
    assert quarantine.held("r", DEFINITION) is None
    assert not quarantine.is_suspect("r")


def test_local_activity_is_released_by_its_own_end() -> None:
    """That the code before it went on says nothing; one more death is asked for."""
    quarantine = Quarantine()
    quarantine.restore([death(activity_id="1", times=2), death("s", activity_id="1", times=3)])
    assert quarantine.held("r", DEFINITION) is None
    assert quarantine.held("s", DEFINITION) is not None
    quarantine.run_progressed("s")
    quarantine.attempt_ended("s", "2")
    assert quarantine.held("s", DEFINITION) is not None
    quarantine.attempt_ended("s", "1")
    assert quarantine.held("s", DEFINITION) is None


def test_two_killing_runs_quarantine_the_workflow() -> None:
    """A thousand runs of a bad deploy do not take two thousand processes; those that only were there do not count."""
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


def test_suspects_are_executed_one_at_a_time() -> None:
    """On one lane, though others are free, and they do not leave it when it is slow."""

    async def script(world):
        for name in ("a", "b"):
            world.submit(start(name, "gate", name))
        await world.begun("a")
        world.submit(start("other", "adds", "other"))
        for _ in range(10):
            world.clock.now += 0.1
            world.lanes.look()
        await settled(lambda: world.answers("other"))
        assert "b" not in stage.begun
        stage.go.set()
        await settled(lambda: world.answers("b"))
        assert stage.threads["a"] == stage.threads["b"] == ["lane-0+1"]

    quarantine = Quarantine()
    quarantine.restore([death("a", times=1, code=""), death("b", times=1, code="")])
    with_lanes(script, count=3, workflows=[gate, adds], context={"quarantine": quarantine})


def test_quarantined_run_reports_the_reason() -> None:
    """The failed task has a name of its own, and the run counts as parked."""

    async def script(world):
        failed = await world.evaluate(start("r", "adds", "r"))
        assert failure_kind(failed) == "ProcessDied"
        assert "the worker's process died while its code was executing (2×)" in failed.failure.message
        assert world.lanes.counts()[0].parked == {"r": "ProcessDied"}

    quarantine = Quarantine()
    quarantine.restore([death(code="")])
    with_lanes(script, context={"quarantine": quarantine})


class Service:
    """A worker that is started again whenever it ends, as a service manager does."""

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
                    [sys.executable, str(DEADLY), str(self.file), str(self.log), str(self.lanes)],
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
    return [each.result(timeout=60) for each in handles]


def test_run_that_kills_its_process_is_quarantined_alone(tmp_path: Path, client: Client) -> None:
    """Executed twice, then held back; four others, started behind it, end. A reset run would be another one."""
    client.start_workflow("kills", "x", id="killer")
    with Service(tmp_path) as service:
        others = [client.start_workflow("healthy", n, id=f"h{n}") for n in range(4)]
        assert results(others) == [n + 1 for n in range(4)]
        killer = client.get_workflow_handle("killer")
        while not killer.describe().parked or len(service.lines()) < 2:
            time.sleep(0.01)
        assert results([client.start_workflow("healthy", 7, id="later")]) == [8]
    assert service.lines() == ["workflow x"] * 2
    assert service.ends[:2] == [-signal.SIGKILL] * 2
    assert "2 times now: it is not executed again" in service.errors.read_text()
    (known,) = json.loads((tmp_path / "x.db-worker" / "incidents.json").read_text())
    assert (known["workflow_type"], known["times"]) == ("kills", 2)


def test_culprit_among_several_suspects_is_found(tmp_path: Path, client: Client) -> None:
    """Three were in work at once when the process died; each is tried alone, and two of them end."""
    names = ["good-1", "bad", "good-2"]
    handles = {name: client.start_workflow("meets", name, id=name) for name in names}
    with Service(tmp_path, lanes=3) as service:
        assert handles["good-1"].result(timeout=60) == "good-1"
        assert handles["good-2"].result(timeout=60) == "good-2"
        while not handles["bad"].describe().parked or len(service.ends) < 2:
            time.sleep(0.01)
        assert results([client.start_workflow("healthy", 7, id="later")]) == [8]
    lines = service.lines()
    assert sorted(lines[:3]) == sorted(f"meets {name}" for name in names)
    assert lines.count("meets bad") == 2


def test_activity_that_kills_its_process_uses_up_its_attempts(tmp_path: Path, client: Client) -> None:
    """Each death is an attempt; its policy allows two, and then it fails. Nothing else is held back."""
    calling = client.start_workflow("calls", "x", id="calling")
    with Service(tmp_path) as service:
        with pytest.raises(WorkflowFailedError) as failed:
            calling.result(timeout=60)
        assert isinstance(failed.value.__cause__, ActivityError)
        assert results([client.start_workflow("healthy", 1, id="h")]) == [2]
    assert service.lines() == ["activity x"] * 2


def test_killing_local_activity_quarantines_its_run(tmp_path: Path, client: Client) -> None:
    """Its task comes again after each death, from the beginning: after three the run waits, and others go on."""
    client.start_workflow("calls_local", "x", id="calling")
    with Service(tmp_path) as service:
        others = [client.start_workflow("healthy", n, id=f"h{n}") for n in range(2)]
        assert results(others) == [1, 2]
        calling = client.get_workflow_handle("calling")
        while len(service.lines()) < 3 or not calling.describe().parked:
            time.sleep(0.01)
        assert results([client.start_workflow("healthy", 7, id="later")]) == [8]
    assert service.lines() == ["activity x"] * 3


def test_forking_workflow_leaves_no_process(tmp_path: Path, client: Client) -> None:
    """The child ends where the workflow's code ends, says so, and answers nothing; the parent goes on."""
    with Service(tmp_path) as service:
        assert client.execute_workflow("forks", id="f") == "parent"
        assert results([client.start_workflow("healthy", 1, id="h")]) == [2]
        while "a process that a workflow forked" not in service.errors.read_text():
            time.sleep(0.01)
        process = service._process
        assert process is not None
        while [each for each in _children(process.pid) if not _is_zombie(each)]:
            time.sleep(0.01)


def _children(pid: int) -> list[int]:
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(each.name))
    return found


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
