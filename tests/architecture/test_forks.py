"""Fork handlers: one file registers them, in a fixed order."""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys

import pytest

from hourglass._forks import ForkStage

from . import source

ORDER = """
import os, random, sys
from hourglass._forks import ForkStage, at_fork

log = []
stages = list(ForkStage)
random.Random(sys.argv[1]).shuffle(stages)
for stage in stages:
    at_fork(
        stage,
        before=lambda stage=stage: log.append(f"before {stage.name}"),
        in_parent=lambda stage=stage: log.append(f"parent {stage.name}"),
        in_child=lambda stage=stage: log.append(f"child {stage.name}"),
    )
at_fork(stages[0], in_child=lambda: 1 / 0)
child = os.fork()
if child:
    os.waitpid(child, 0)
print(*log, sep="\\n", flush=True)
os._exit(0)
"""


def test_only_one_file_registers_fork_handlers() -> None:
    registering = {
        module.place
        for module in source.modules()
        for node in module.nodes
        if isinstance(node, ast.Attribute) and node.attr == "register_at_fork"
    }
    assert registering == {"_forks.py"}


def test_every_fork_stage_is_used_and_documented() -> None:
    used = {
        node.attr
        for module in source.modules()
        for node in module.nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "ForkStage"
    }
    assert used == set(ForkStage.__members__)
    assert all(len(stage.value) > 20 for stage in ForkStage)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_fork_handlers_run_in_stage_order_despite_a_failure() -> None:
    command = [sys.executable, "-c", ORDER, str(random.random())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    names = [stage.name for stage in ForkStage]
    before = [f"before {name}" for name in reversed(names)]
    child = [f"child {name}" for name in names]
    parent = [f"parent {name}" for name in names]
    assert done.stdout.split("\n")[:-1] == [*before, *child, *before, *parent]
    assert "ZeroDivisionError" in done.stderr
