"""`python -m hourglass` runs the `hourglass` command."""

from __future__ import annotations

import sys

from hourglass._tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
