"""For programs that are killed and started again: processes one after the other, without loading large libraries each time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable


def lives(program: Callable[[], None]) -> None:
    """Run a program in a process of its own, again after each kill, until it ends; then print how many were killed.

    The processes are forked from this one, which has loaded the modules and done nothing with them: no thread, no connection.
    """
    deaths = 0
    while True:
        child = os.fork()
        if not child:
            program()
            sys.exit()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL:
            break
        deaths += 1
    print(deaths)
    sys.exit(code)
