"""Workers killed at random instants under load: what was acknowledged is kept, and no recorded step is repeated."""

from __future__ import annotations

import json
from pathlib import Path

from tests.effort import cases

from .audit import find_violations, recoveries
from .kill_load import Answers, Death, KillLoad, Size


def test_workflows_survive_repeated_kills_of_the_owner(tmp_path: Path) -> None:
    load = KillLoad(tmp_path, Size(workflows=60, kills=12), seed=1)
    answers = load.run()
    violations = find_violations(answers, load.path, load.notes)
    assert not violations, "\n".join([*violations[:20], load.log.read_text()[-4000:]])
    assert answers.kills == 12
    assert len(answers.receipts) >= 60


def test_workflows_survive_kills_of_owners_and_other_workers(tmp_path: Path) -> None:
    kills = cases(25, 250)
    size = Size(workflows=60, kills=kills, processes=3, life=0.2, limit=kills * 2.0 + 100)
    load = KillLoad(tmp_path, size, seed=2)
    answers = load.run()
    violations = find_violations(answers, load.path, load.notes)
    assert not violations, "\n".join([*violations[:20], load.log.read_text()[-4000:]])
    assert answers.kills == kills
    assert 0 < answers.owners < kills
    assert len(answers.receipts) >= 60


def test_recovery_time_is_measured_from_kill_to_last_retried_attempt(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    lines: list[dict[str, object]] = []

    def begin(
        run: str, attempt: int, process: int, at: float, *, of: str = "pack", done: bool = False
    ) -> None:
        name = {"run": run, "activity": "1", "type": of, "attempt": attempt, "process": process}
        lines.append({"what": "begun", "at": at, **name})
        if done:
            lines.append({"what": "done", "at": at, "token": f"{run}-{attempt}", **name})

    begin("a", 1, 7, 10.0)
    begin("b", 1, 7, 10.2)
    begin("a", 2, 8, 10.7, done=True)
    begin("b", 2, 8, 11.5, done=True)
    begin("done", 1, 7, 10.1, done=True)
    begin("fails", 1, 7, 10.1, of="charge")
    begin("fails", 2, 8, 19.0, of="charge", done=True)
    begin("once", 1, 7, 10.1, of="pay")
    begin("twice lost", 1, 7, 10.1)
    begin("twice lost", 3, 8, 19.0, done=True)
    notes.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    owner, idle = Death(7, 10.5, is_owner=True), Death(9, 12.0, is_owner=False)
    assert recoveries(Answers(deaths=[owner, idle]), notes) == {owner: 1.0}
