"""`hourglass` as a program of the chaos, with the workflows of `regex`: `python -m tests.chaos.regex_program worker FILE …`."""

from __future__ import annotations

import sys

from hourglass._tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
