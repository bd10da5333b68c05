"""Smoke test of the packages: `python -m tests.smoke` builds them into dist/ and tries the wheel in bare environments.

Each extra is installed with the wheel into an empty environment, so that a missing dependency or file is detected.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
from hourglass import Client, Worker, activity, workflow

@activity.defn
def greet(name: str) -> str:
    return f"hello {name}"

@workflow.defn
def hello(name: str) -> str:
    return greet(name)

with Client.connect("local:smoke.db") as client, Worker(client, workflows=[hello], activities=[greet]):
    assert client.execute_workflow(hello, "ada") == "hello ada"
"""

COMMAND = """
import subprocess, sys
from pathlib import Path

hourglass = Path(sys.executable).parent / "hourglass"
listed = subprocess.run([hourglass, "list", "--target", "local:smoke.db"], text=True, capture_output=True, check=True)
assert "hello" in listed.stdout, listed
"""

EXTRAS = {
    "": "",
    "cli": COMMAND,
    "ui": "import hourglass._tools.web.app",
    "dev": COMMAND + "assert (Path(sys.executable).parent / 'temporal').exists()",
    "pydantic": "import pydantic",
    "pydantic-ai": "import hourglass.contrib.pydantic_ai",
    "openai-agents": "import hourglass.contrib.openai_agents",
    "opentelemetry": "import hourglass.contrib.opentelemetry",
    "sqlalchemy": "import hourglass.contrib.sqlalchemy",
}
"""Code to run with each extra, after a workflow was executed on a file; "" is the package without extras."""


def build() -> Path:
    """Build the source distribution and the wheel into dist/; return the wheel."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(ROOT / "dist"), str(ROOT)], check=True)
    (wheel,) = (ROOT / "dist").glob("*.whl")
    return wheel


def try_extra(wheel: Path, extra: str, code: str) -> None:
    """Install the wheel with this extra into a new environment and run a workflow and the code there."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder, "env"), with_pip=True)
        python = Path(folder, "env", "bin", "python")
        wanted = f"{wheel}[{extra}]" if extra else str(wheel)
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted], check=True
        )
        subprocess.run([python, "-m", "pip", "check", "--disable-pip-version-check"], check=True)
        script = Path(folder, "program.py")
        script.write_text(PROGRAM + code)
        subprocess.run(
            [python, "-I", "-W", "error::DeprecationWarning:hourglass", script], cwd=folder, check=True
        )


def main() -> None:
    """Build, and try every extra."""
    wheel = build()
    for extra, code in EXTRAS.items():
        print(f"{wheel.name}[{extra}]", flush=True)
        try_extra(wheel, extra, code)


if __name__ == "__main__":
    main()
