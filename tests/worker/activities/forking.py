"""A program that runs an activity that forks, then another one. A separate process, because a fork copies other tests'
threads.
"""

from __future__ import annotations

import asyncio
import os
import sys

import uvloop

from hourglass import activity

from ..scripted import attempt
from .executing import value, with_executor


@activity.defn
def forks() -> str:
    child = os.fork()
    if child == 0:
        activity.heartbeat("from the copy")
        return "copy"
    return exit_code(child)


@activity.defn
def forks_and_raises() -> str:
    child = os.fork()
    if child == 0:
        raise ValueError("in the copy")
    return exit_code(child)


@activity.defn
async def forks_async() -> str:
    child = os.fork()
    if child == 0:
        await asyncio.sleep(0)
        return "copy"
    return exit_code(child)


@activity.defn
def echo(text: str) -> str:
    return text


def exit_code(child: int) -> str:
    return str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


async def run(executor, beats):
    first = value(await executor.execute(attempt(sys.argv[1])))
    return first, value(await executor.execute(attempt("echo", "on"))), beats


if __name__ == "__main__":
    if sys.argv[2] == "uvloop":
        asyncio.new_event_loop = asyncio.events.new_event_loop = uvloop.new_event_loop
    print(with_executor([forks, forks_and_raises, forks_async, echo], run, max_threads=1))
