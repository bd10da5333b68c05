"""The files in `deploy`: commands, dashboard, systemd unit, containers and pinned dependencies."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hourglass import Client, Worker, activity, workflow
from hourglass._worker.tree.worker_metrics import described
from hourglass.metrics import Registry, prometheus_text
from hourglass.testing import Environment

from .test_commands import unknown_words

DEPLOY = Path(__file__).parents[2] / "deploy"


def _commands() -> list[list[str]]:
    """Return the command lines of containers and services, without the program's name."""
    docker, compose, unit = (
        (DEPLOY / name).read_text() for name in ("Dockerfile", "compose.yaml", "hourglass-worker.service")
    )
    found = [json.loads(each) for each in re.findall(r"^CMD (\[.*\])$", docker, re.MULTILINE)]
    found += [json.loads(each) for each in re.findall(r"command: (\[.*\])$", compose, re.MULTILINE)]
    found += [each.split() for each in re.findall(r"^ExecStart=\S+/hourglass (.*)$", unit, re.MULTILINE)]
    found += [
        each.split()
        for each in re.findall(r"# +docker compose exec worker hourglass (.*)$", compose, re.MULTILINE)
    ]
    assert len(found) == 5
    return found


@pytest.mark.parametrize("words", _commands(), ids=lambda words: str(words[0]))
def test_command_lines_in_deploy_exist(words: list[str]) -> None:
    assert unknown_words(words) == []


@activity.defn
def step() -> int:
    return 1


@workflow.defn
def flow() -> int:
    return step()


def test_grafana_dashboard_uses_existing_metrics(tmp_path: Path) -> None:
    board = json.loads((DEPLOY / "grafana" / "board.json").read_text())
    used = {
        name
        for panel in board["panels"]
        for target in panel.get("targets", ())
        for name in re.findall(r"\bhourglass_\w+", target["expr"])
    }
    registry = Registry()
    with (
        Client.connect(f"local:{tmp_path / 'a.db'}") as client,
        Worker(client, workflows=[flow], activities=[step], metrics=registry),
    ):
        client.execute_workflow(flow, id="one")
        exported = set(re.findall(r"^(hourglass_\w+)", prometheus_text(registry.collect()), re.MULTILINE))
    named = exported | {name for name, _, _ in described()}
    assert len(used) > 20
    assert {
        each for each in used if each not in exported and each.removesuffix("_total") not in named
    } == set()
    places = [each["gridPos"] for each in board["panels"]]
    assert all(each["x"] + each["w"] <= 24 for each in places)
    assert len({each["id"] for each in board["panels"]}) == len(board["panels"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_unit_is_valid(tmp_path: Path) -> None:
    text = (DEPLOY / "hourglass-worker.service").read_text()
    unit = tmp_path / "hourglass-worker.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    found = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert found.stdout + found.stderr == ""
    assert found.returncode == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_unit_has_an_exposure_below_two() -> None:
    """On the scale of `systemd-analyze security`, where 10 is the worst."""
    found = subprocess.run(
        [
            "systemd-analyze",
            "security",
            "--offline=true",
            "--threshold=20",
            DEPLOY / "hourglass-worker.service",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_deploy_actions_images_and_packages_are_pinned() -> None:
    workflows = "".join(path.read_text() for path in (DEPLOY.parent / ".github" / "workflows").glob("*.yml"))
    actions = re.findall(r"uses: (.*)", workflows)
    assert actions
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", each) for each in actions)
    composed = [(DEPLOY / name).read_text() for name in ("compose.yaml", "compose.temporal.yaml")]
    images = re.findall(r"^ +image: (.*)", "".join(composed), re.MULTILINE)
    named = [image for image in images if image != "hourglass-app"]
    named += re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert len(named) == 4
    assert all(re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", each) for each in named)
    required = re.split(r"\n(?=\w)", (DEPLOY / "requirements.txt").read_text())[1:]
    assert len(required) > 20
    assert all(re.match(r"[\w-]+==\S+ .*\\\n +--hash=sha256:[0-9a-f]{64}", each) for each in required)


@pytest.mark.parametrize("name", ["compose.yaml", "compose.temporal.yaml"])
def test_compose_services_are_hardened_and_secrets_have_no_default(name: str) -> None:
    text = (DEPLOY / name).read_text()
    hardened_block = text.partition("x-hardened: &hardened\n")[2].partition("\n\n")[0]
    assert {"read_only: true", "no-new-privileges:true", "cap_drop: [ALL]"} <= {
        line.strip(" -") for line in hardened_block.splitlines()
    }
    services = re.split(
        r"^  (?=\w+:$)", text.partition("\nservices:\n")[2].partition("\nvolumes:")[0], flags=re.MULTILINE
    )
    for service in filter(str.strip, services):
        assert re.search(r"<<: \*(hardened|app|worker)$", service, re.MULTILINE), service
    assert not re.search(r"\$\{\w*(TOKEN|PASSWORD):?-", text)
    assert "PASSWORD: admin" not in text


def test_deploy_example_application_packs_an_order_or_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DEPLOY))
    app = importlib.import_module("app")
    del sys.modules["app"]  # for good: other tests have packages of this name
    with Environment() as env:
        packed = env.start_workflow(app.Order, "o-1")
        packed.signal(app.Order.pack)
        assert packed.result() == "receipt of o-1, packed"
        assert env.execute_workflow(app.Order, "o-2") == "receipt of o-2, not packed in time"


def test_compose_variables_are_set_in_an_env_file() -> None:
    """Compose needs the required variables in every command, so they belong in a file. The page and the compose file
    show the same commands.
    """
    compose = (DEPLOY / "compose.yaml").read_text()
    page = (DEPLOY.parent / "docs" / "operations.md").read_text()
    for name in re.findall(r"\$\{(\w+):\?", compose):
        for text in (compose, page):
            assert f"echo {name}=$(" in text
            assert not re.search(rf"^.*{name}=\S.*docker compose", text, re.MULTILINE)
    exported = [line.removeprefix("#").strip() for line in compose.splitlines() if "docker compose " in line]
    assert exported
    assert all(line in page for line in exported)


def test_container_stop_timeouts_exceed_the_drain_timeout() -> None:
    drain = max(
        int(words[words.index("--drain-timeout") + 1]) for words in _commands() if "--drain-timeout" in words
    )
    texts = [
        (DEPLOY / name).read_text()
        for name in ("compose.yaml", "compose.temporal.yaml", "hourglass-worker.service")
    ]
    given = [
        int(each)
        for text in texts
        for each in re.findall(r"(?:stop_grace_period: |TimeoutStopSec=)(\d+)", text)
    ]
    assert len(given) == 3
    assert min(given) >= drain + 15
