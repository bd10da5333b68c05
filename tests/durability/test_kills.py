"""Workers killed at random instants under load: what was acknowledged is kept, and no recorded step is repeated."""

from __future__ import annotations

import json
from pathlib import Path

from tests.effort import cases

from .campaign import KillCampaign
from .written import recoveries


def test_workflows_survive_kills_of_owners_and_other_workers(tmp_path: Path) -> None:
    campaign = KillCampaign(tmp_path, 1, cases(25, 250), gap=0.4)
    findings = campaign.run()
    assert not findings.violations, "\n".join([*findings.violations[:20], findings.log[-4000:]])
    assert set(findings.faults) == set(KillCampaign.kinds)
    assert findings.recoveries or "was lost" in findings.log, "no kill has interrupted an activity"
    assert (
        min(
            findings.checked[kind]
            for kind in ("start", "race", "signal", "update", "result", "total", "attempt")
        )
        > 0
    )


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
    assert recoveries({7: 10.5, 9: 12.0}, notes) == {7: 1.0}
