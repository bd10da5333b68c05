"""Restarts of programs that kill themselves, without loading large libraries each time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable


def run_until_exit(program: Callable[[], None]) -> None:
    """Run a program in a forked process, again after each SIGKILL. Print the number of kills. This process has loaded
    the modules, and has no thread and no connection that the children would share.
    """
    kills = 0
    while True:
        child = os.fork()
        if not child:
            program()
            sys.exit()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL:
            break
        kills += 1
    print(kills)
    sys.exit(code)
