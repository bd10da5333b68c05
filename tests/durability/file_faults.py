"""Rounds of faults of the file of running workers: second names, replaced and restored files, deleted logs.

A round has two workers and a client, each a process, and one fault at a random moment of the seed. Afterwards every
acknowledged workflow must be in the file, in the moved file, or in the copy that the owner saved; or the owner must have
stopped with an error that says what is lost. `python -m tests.durability.file_faults --rounds 50` prints a table.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.embedded.multiprocess.children import Child, ready_worker
from tests.waiting import until

from hourglass import Client
from hourglass.errors import HourglassError

NAMES, REPLACED, LOGS = "names", "replaced", "logs"

ALLOWED = ("env", "HOURGLASS_ALLOW_HARD_LINKS=1")
MOUNTED = ("unshare", "-m", "sh", "-c", 'mount --bind "$0" "$1"; shift; exec "$@"')


class Load:
    """A client process that starts workflows and prints the acknowledged starts."""

    def __init__(self, path: Path, prefix: str, within: Sequence[str] = ()) -> None:
        self.path = path
        self._out = path.parent / f"load-{prefix}"
        command = [*within, sys.executable, "-m", "tests.durability.file_faults", "--load", str(path), prefix]
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[2]
            )

    def output_lines(self, what: str) -> list[str]:
        """Return its complete output lines after this word."""
        lines = self._out.read_text().rpartition("\n")[0].splitlines()
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{what} ")]

    def wait_for(self, what: str, more: int = 1) -> None:
        """Wait until it has printed this `times` more times."""
        before = len(self.output_lines(what))
        until(lambda: len(self.output_lines(what)) >= before + more, f"the client never says {what!r}", 60)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def load(path: str, prefix: str) -> None:
    """Start workflows until killed; repeat a failed call under another id."""
    with Client.connect(f"local:{path}") as client:
        number = 0
        while True:
            number += 1
            try:
                client.start_workflow("twice", number, id=f"{prefix}-{number}", rpc_timeout=10)
            except HourglassError as error:
                print("error", str(error).replace("\n", " "), flush=True)
                time.sleep(0.05)  # not a wait: the load of a client that retries
            else:
                print("ack", f"{prefix}-{number}", flush=True)


class Round:
    """One fault and its check. `violations` is empty if nothing was lost silently."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.path = folder, folder / "shop.db"
        self.chance = random.Random(seed)
        self.violations: list[str] = []
        self.workers: list[Child] = []
        self._stack = ExitStack()
        self._loads: list[Load] = []

    def __enter__(self) -> Round:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    # --- helpers of the faults --------------------------------------------------------------------------------

    def begin(self, *, within: Sequence[str] = ()) -> None:
        """Start two workers and the client; let them run for a while."""
        for _ in range(2):
            self.add(Child("worker", self.path, within=within))
            assert self.workers[-1].line() == "ready"
        self.begin_load(self.path, "load", within)
        self.work_on()

    def add(self, child: Child) -> Child:
        """End this process with the round."""
        self.workers.append(self._stack.enter_context(child))
        return child

    def begin_load(self, path: Path, prefix: str, within: Sequence[str] = ()) -> Load:
        made = Load(path, prefix, within)
        self._loads.append(made)
        made.wait_for("ack", 3)
        return made

    @property
    def load(self) -> Load:
        return self._loads[0]

    def work_on(self) -> None:
        """Continue until a random number of starts are acknowledged."""
        self.load.wait_for("ack", self.chance.randint(1, 60))

    def owner(self) -> Child:
        """Return the worker that owns the file."""
        owners: list[Child] = []

        def look() -> bool:
            alive = [worker for worker in self.workers if worker.process.poll() is None]
            owners[:] = [worker for worker in alive if worker.ask("standing") == "owner"]
            return bool(owners)

        until(look, "no worker owns the file", 60)
        return owners[0]

    def kill_owner(self) -> None:
        self.owner().kill()

    def kill_all(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()

    def end(self) -> None:
        for load in self._loads:
            load.stop()
        self._stack.close()

    def log(self) -> str:
        return "".join(line for worker in self.workers for line in list(worker.log))

    def expect(self, text: str, seconds: float = 60) -> None:
        """Wait until a worker has logged this."""
        until(lambda: text in self.log(), f"no worker logs {text!r}: {self.log()[-2000:]}", seconds)

    def refused(self, path: Path, text: str, within: Sequence[str] = ()) -> None:
        """Start a worker that must not open the file; return its message."""
        with Child("worker", path, within=within) as child:
            until(lambda: text in "".join(child.log) or child._lines.qsize(), "it says nothing", 60)
            line = child.line() if child._lines.qsize() else ""
            until(lambda: text in line + "".join(child.log), f"{line} {''.join(child.log)[-2000:]}", 30)

    def backup(self) -> Path:
        dest = self.folder / "backup.db"
        command = [
            sys.executable,
            "-c",
            "import hourglass, sys; hourglass.backup(*sys.argv[1:])",
            self.path,
            dest,
        ]
        subprocess.run(command, check=True, capture_output=True)
        return dest

    # --- the check --------------------------------------------------------------------------------------------

    def check(self, *files: Path, but: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        """End all processes. Every acknowledged workflow except `but` must be in one of the files, which must be
        sound."""
        self.end()
        stored: set[str] = set()
        for path in files:
            stored |= workflow_ids(path)
        acknowledged = {workflow_id for load in self._loads for workflow_id in load.output_lines("ack")}
        lost = sorted(acknowledged - stored - but)
        if lost:
            self.violations.append(
                f"{len(lost)} of {len(acknowledged)} acknowledged starts are lost: {lost[:3]} …"
            )

    def saved(self, suffix: str = "") -> list[Path]:
        return [
            path for path in self.folder.glob("*.saved-*") if path.name.endswith("-wal") == (suffix == "-wal")
        ]


def workflow_ids(path: Path) -> set[str]:
    """Return the workflow ids in a file that no process uses, and in its log."""
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], f"{path} is malformed"
        ids = {workflow_id for (workflow_id,) in connection.execute("SELECT workflow_id FROM runs")}
    connection.close()
    return ids


# --- second names -------------------------------------------------------------------------------------------


def linked(round: Round) -> None:
    """With a hard link on a file in use, opening it by either name is rejected; without the link work continues."""
    round.begin()
    link = round.folder / "link.db"
    os.link(round.path, link)
    round.refused(link, "has 2 names (hard links)")
    round.kill_owner()
    round.expect("has 2 names (hard links)")
    link.unlink()
    round.load.wait_for("ack", 5)
    round.check(round.path)


def linked_and_allowed(round: Round) -> None:
    """With the override, a linked file still has one owner and one log."""
    round.begin(within=ALLOWED)
    link = round.folder / "link.db"
    os.link(round.path, link)
    round.refused(link, "under another name", within=ALLOWED)
    if round.chance.random() < 0.5:
        round.load.stop()
        round.kill_all()  # its log stays beside the first name, and must not be left out by the second
        round.refused(link, "shop.db-wal", within=ALLOWED)
        round.add(Child("worker", round.path, within=ALLOWED))
        round.begin_load(round.path, "again", ALLOWED)
    round.check(round.path)


def linked_at_once(round: Round) -> None:
    """With the override, two workers that start at the same time by two names have one owner."""
    with ready_worker(round.path) as first:
        first.ask("leave")
        first.ended()
    link = round.folder / "link.db"
    os.link(round.path, link)
    for name in (round.path, link):
        round.add(Child("worker", name, within=ALLOWED))
    loads = [Load(name, name.stem, ALLOWED) for name in (round.path, link)]
    round._loads += loads
    until(lambda: any(load.output_lines("ack") for load in loads), "nothing is acknowledged")
    time.sleep(round.chance.uniform(0.2, 1.0))  # how long both try, not a wait
    round.check(round.path, link)


def mounted(round: Round) -> None:
    """A single file mounted at another path, as by a container engine, is rejected."""
    round.begin()
    place = round.folder / "mounted.db"
    place.touch()
    round.refused(place, "is mounted as a single file", within=(*MOUNTED, str(round.path), str(place)))
    round.load.wait_for("ack", 5)
    round.check(round.path)


# --- replaced and restored ------------------------------------------------------------------------------------


def replaced(round: Round) -> None:
    """A backup is moved over the file in use, and the owner may be killed immediately: both files stay sound."""
    round.begin()
    backup = round.backup()
    round.work_on()
    owner, content = round.owner(), backup.read_bytes()
    before = set(round.load.output_lines("ack"))
    os.replace(backup, round.path)
    round.expect("was replaced by another file")  # the owner says so once it has saved what it can
    round.end()
    if round.path.read_bytes() != content:
        round.violations.append("the new file was changed")
    assert owner.process.poll() is not None
    round.check(round.path, *round.saved(), but=set(round.load.output_lines("ack")) - before)


def replaced_and_killed(round: Round) -> None:
    """The owner is killed while the file is replaced: what it had not moved is in the old log, which is kept."""
    round.begin()
    backup = round.backup()
    round.work_on()
    owner = round.owner()
    os.replace(backup, round.path)
    time.sleep(round.chance.uniform(0, 0.01))  # the moment of the kill
    owner.kill()
    round.expect("was replaced")
    round.end()
    workflow_ids_alone(round)


def restored_after_kill(round: Round) -> None:
    """A backup is copied over the file of a killed owner whose log remains: rejected until a person decides."""
    round.begin()
    backup = round.backup()
    round.work_on()
    round.load.stop()  # a client without a worker would open the file itself
    round.kill_all()
    shutil.copyfile(backup, round.path)
    round.refused(round.path, "belongs to the previous file")
    round.end()
    workflow_ids_alone(round)


def workflow_ids_alone(round: Round) -> None:
    """Check that the restored file is sound without a log."""
    alone = round.folder / "alone.db"
    shutil.copyfile(round.path, alone)
    workflow_ids(alone)
    if not [*round.folder.glob("shop.db-wal"), *round.saved("-wal"), *round.saved()]:
        round.violations.append("neither the old log nor a copy is there")


def copied_into(round: Round) -> None:
    """A backup is copied into the file in place: it stays as it is, and the log is kept."""
    round.begin()
    backup = round.backup()
    round.work_on()
    shutil.copyfile(backup, round.path)
    round.expect("was changed while it was in use")
    round.end()
    workflow_ids_alone(round)
    if round.path.read_bytes() != backup.read_bytes():
        round.violations.append("the restored file was changed")


def truncated(round: Round) -> None:
    """The file is emptied or cut in place: the owner stops, and its log is kept."""
    round.begin()
    size = round.path.stat().st_size // 2 // 4096 * 4096 * round.chance.randint(0, 1)
    os.truncate(round.path, size)
    round.expect("was changed while it was in use")
    round.end()
    if round.path.stat().st_size != size or not round.saved("-wal"):
        round.violations.append("the truncated file was written, or the log is gone")


def moved_away(round: Round) -> None:
    """The file is moved: the owner writes everything into it and stops."""
    round.begin()
    moved = round.folder / "moved.db"
    os.rename(round.path, moved)
    round.expect("was deleted or moved away")
    _check_moved(round, moved)


def moved_and_killed(round: Round) -> None:
    """The file is moved without its log and the owner killed: opening it by the new name reports the log."""
    round.begin()
    moved = round.folder / "moved.db"
    round.kill_all()
    os.rename(round.path, moved)
    round.refused(moved, "shop.db-wal")
    round.load.stop()
    for suffix in ("-wal", "-shm"):
        with_suffix = round.folder / f"shop.db{suffix}"
        if with_suffix.exists():
            os.rename(with_suffix, f"{moved}{suffix}")
    round.check(moved)


def deleted(round: Round) -> None:
    """The file is deleted: its content is copied to another file."""
    round.begin()
    before = set(round.load.output_lines("ack"))
    os.unlink(round.path)
    round.expect("was deleted or moved away")
    round.end()
    round.check(*round.saved(), but=set(round.load.output_lines("ack")) - before)


def _check_moved(round: Round, moved: Path) -> None:
    round.end()
    files = [moved, *([round.path] if round.path.exists() else [])]
    round.check(*files)


# --- logs -----------------------------------------------------------------------------------------------------


def _log_gone(*suffixes: str) -> Callable[[Round], None]:
    def fault(round: Round) -> None:
        round.begin()
        for suffix in suffixes:
            Path(f"{round.path}{suffix}").unlink(missing_ok=True)
        if round.chance.random() < 0.5:
            round.load.wait_for("ack", 5)
        time.sleep(round.chance.uniform(0, 0.05))  # the moment of the kill
        acknowledged = set(round.load.output_lines("ack"))
        round.kill_owner()
        round.load.wait_for("ack", 5)
        round.check(round.path)
        assert acknowledged

    return fault


def log_moved_aside(round: Round) -> None:
    """The log is replaced by an empty one."""
    round.begin()
    log = round.folder / "shop.db-wal"
    os.rename(log, round.folder / "aside-wal")
    log.touch()
    round.load.wait_for("ack", 5)
    round.kill_owner()
    round.load.wait_for("ack", 5)
    round.check(round.path)


def log_emptied(round: Round) -> None:
    """The log is emptied in place: the owner reports the time of the first loss and stops."""
    round.begin()
    os.truncate(round.folder / "shop.db-wal", 0)
    round.expect("was truncated or overwritten")
    round.end()
    workflow_ids(round.path)


FILE_FAULTS: dict[str, dict[str, Callable[[Round], None]]] = {
    NAMES: {fault.__name__: fault for fault in (linked, linked_and_allowed, linked_at_once, mounted)},
    REPLACED: {
        fault.__name__: fault
        for fault in (
            replaced,
            replaced_and_killed,
            restored_after_kill,
            copied_into,
            truncated,
            moved_away,
            moved_and_killed,
            deleted,
        )
    },
    LOGS: {
        "log_deleted": _log_gone("-wal"),
        "index_deleted": _log_gone("-shm"),
        "both_deleted": _log_gone("-wal", "-shm"),
        "log_moved_aside": log_moved_aside,
        "log_emptied": log_emptied,
    },
}


def run_rounds(group: str, rounds: int, seed: int, only: str = "") -> Iterator[tuple[str, list[str]]]:
    """Run rounds of one group, with its faults in turn; yield the name and violations of each."""
    faults = [(name, fault) for name, fault in FILE_FAULTS[group].items() if only in ("", name)]
    for number in range(rounds):
        name, fault = faults[number % len(faults)]
        with (
            tempfile.TemporaryDirectory(prefix="file-fault-") as folder,
            Round(Path(folder), seed + number) as round,
        ):
            try:
                fault(round)
            except (AssertionError, sqlite3.Error) as error:
                round.violations.append(f"{type(error).__name__}: {error}")
            violations = [f"{name}, seed {seed + number}: {violation}" for violation in round.violations]
            if violations:
                violations.append(round.log()[-3000:])
        yield name, violations


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.durability.file_faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="of each group")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--group", choices=sorted(FILE_FAULTS), nargs="+", default=sorted(FILE_FAULTS))
    parser.add_argument("--only", default="", help="the name of one fault")
    options = parser.parse_args()
    bad = 0
    for group in options.group:
        made: Counter[str] = Counter()
        began = time.monotonic()
        for name, violations in run_rounds(group, options.rounds, options.seed, options.only):
            made[name] += 1
            bad += bool(violations)
            if violations:
                print("\n".join(violations), flush=True)
        print(
            f"{group}: {sum(made.values())} rounds in {time.monotonic() - began:.0f} s, {dict(made)}",
            flush=True,
        )
    print(f"{bad} rounds with violations")
    return 1 if bad else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        load(*sys.argv[2:])
    sys.exit(main())
