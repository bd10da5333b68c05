"""A program to be killed: appends numbered changes to a few runs, and prints each number once it is durable.

    python -m tests.embedded.store.append_program FILE FIRST_NUMBER [PAGES_BETWEEN_CHECKPOINTS]

The number of a change is the name of its signal.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys

from tests.embedded.stores import open_sqlite

from hourglass._history import events as h

from .run_changes import Story

RUNS = 7
AT_A_TIME = 5


async def write(path: str, first: int, checkpoint_pages: int = 200) -> None:
    """Append changes without end, a few at a time, and print each durable number."""
    store = open_sqlite(path, checkpoint_pages=checkpoint_pages)
    stories = [Story(f"{first}-{place}") for place in range(RUNS)]
    for story in stories:
        number = store.append(story.start())
    await store.durable(number)
    for begin in itertools.count(first, AT_A_TIME):
        numbers = []
        for each in range(begin, begin + AT_A_TIME):
            story = stories[each % RUNS]
            signal = h.WorkflowExecutionSignaled(signal_name=str(each))
            numbers.append((each, store.append(story.step([signal]))))
        for each, number in numbers:
            await store.durable(number)
            os.write(1, b"%d\n" % each)


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], *map(int, sys.argv[2:])))
