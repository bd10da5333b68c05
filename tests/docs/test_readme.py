"""The README and the package: first program, links, metadata, and the manual in the terminal."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from command_line import main
from hourglass._tools.cli.app import PAGES
from hourglass._tools.cli.docs import manual, pages

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_readme_program_continues_after_kill_and_charges_once(tmp_path: Path) -> None:
    program = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert program is not None
    (tmp_path / "shop.py").write_text(program[1])
    environment = {name: value for name, value in os.environ.items() if "HOURGLASS" not in name} | {
        "PYTHONUNBUFFERED": "1"
    }
    command = [sys.executable, "shop.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "charging 500 for order-1\n"
        _wait_for_timer(tmp_path)
        first.send_signal(signal.SIGKILL)
    for _ in range(2):
        again = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert again.stdout == "receipt for order-1\n"
    assert (tmp_path / "hourglass.db").exists()


def _wait_for_timer(folder: Path) -> None:
    """Wait until the run's history contains a started timer."""
    for _ in range(200):
        shown = subprocess.run(
            [
                sys.executable,
                "-m",
                "hourglass",
                "export",
                "order-1",
                "--target",
                f"local:{folder / 'hourglass.db'}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if "TIMER_STARTED" in shown.stdout:
            return
    raise AssertionError("the program never slept")


LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize(
    "page", [*sorted(ROOT.glob("*.md")), ROOT / "examples" / "README.md"], ids=lambda page: page.name
)
def test_relative_links_and_sections_exist_in_a_checkout(page: Path) -> None:
    """Concerns pages outside the manual."""
    for link in LINK.findall(page.read_text()):
        assert not link.startswith(PROJECT["urls"]["Source"]), link
        if link.startswith("https://"):
            continue
        path, _, section = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not section or section in _sections(target), link


def _sections(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_build_hook_makes_readme_links_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links to pictures lead to the raw file, other links to a page."""
    stub = ModuleType("hatchling.metadata.plugin.interface")
    stub.MetadataHookInterface = object  # type: ignore[attr-defined]  # hatchling is there in builds alone
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    hook: Any = runpy.run_path(str(ROOT / "hatch_build.py"))["ReadmeHook"]()
    hook.root = str(ROOT)
    metadata = dict(PROJECT)
    hook.update(metadata)
    text, base = metadata["readme"]["text"], PROJECT["urls"]["Source"]
    assert all(link.startswith(("https://", "#")) for link in LINK.findall(text))
    assert f"({base}/blob/main/docs/tutorial.md)" in text
    assert f"({base}/raw/main/docs/pictures/page-run.png)" in text
    assert metadata["readme"]["content-type"] == "text/markdown"
    assert len(LINK.findall(text)) == len(LINK.findall(README))


def test_package_metadata_is_complete() -> None:
    assert PROJECT["authors"]
    assert len(PROJECT["keywords"]) >= 5
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= set(PROJECT["urls"])
    assert f"The distribution is called `{PROJECT['name']}`" in README


def test_docs_command_lists_shows_and_searches_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    listed = capsys.readouterr().out
    assert all(each.relative_to(manual()).with_suffix("").as_posix() in listed for each in pages(manual()))
    for name in ("howto/sagas", "sagas", "docs/howto/sagas.md"):
        assert main(["docs", name]) == 0
        assert capsys.readouterr().out.startswith("# Sagas: undo earlier steps")
    assert main(["docs", "saga"]) == 2
    assert "howto/sagas" in capsys.readouterr().err
    assert main(["docs", "--search", "continue_as_new", "--json"]) == 0
    assert '"page": "workflows"' in capsys.readouterr().out


def test_manual_pages_named_in_messages_exist() -> None:
    named = set()
    for source in (ROOT / "src").rglob("*.py"):
        named.update(re.findall(r"hourglass docs ([a-z][\w/-]+)", source.read_text()))
    named.update(page for _, page in PAGES)
    existing = {each.relative_to(manual()).with_suffix("").as_posix() for each in pages(manual())}
    existing |= {each.rpartition("/")[2] for each in existing}
    assert named <= existing
