"""A module of temporalio's, as `hourglass port` leaves it: imported under a name of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from hourglass._tools.cli.port import ported


def ported_module(path: str, name: str) -> ModuleType:
    """The module of a file, its imports changed and nothing else."""
    source, notes = ported(Path(path).read_text(), path)
    assert not notes, notes
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    exec(compile(source, path, "exec"), vars(module))
    return module
