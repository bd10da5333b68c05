"""Import of a temporalio module after `hourglass port` has changed its imports."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from hourglass._tools.cli.port import ported


def ported_module(path: str, name: str) -> ModuleType:
    """Import a file under another name, with only its imports changed."""
    source, notes = ported(Path(path).read_text(), path)
    assert not notes, notes
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    exec(compile(source, path, "exec"), vars(module))
    return module
