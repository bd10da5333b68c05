"""The twin of a TypeScript workflow that executes random programs, which come as its argument.

The programs are such that the order in which branches take turns does not show in what they ask for: every activity is
called with the path of its place. What shows is who wins where two things happen at once.

    act, slow MS, fail, local, child        an activity, a slow one, one that fails, a local one; a child
    sleep MS                                a timer
    all BLOCKS, any BLOCKS                  branches, and all of them or the first of them
    until N MS                              wait for so many signals more, at most so long
    patch ID BLOCK BLOCK                    the new way, the old way
    limit MS BLOCK                          a block within a time limit
"""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.errors import ActivityError

from ._corpus import act, entering, local

TWINS: dict[str, Any] = {}
twin = entering(TWINS)

Block = list[list[Any]]


@twin("interpreted")
class Interpreted:
    """Executes a program."""

    def __init__(self) -> None:
        self.signals = 0

    @workflow.run
    def run(self, program: Block) -> str:
        self._block(program, "p")
        return "end"

    @workflow.signal
    def put(self, item: int) -> None:
        act("echo", f"signal {item}")
        self.signals += 1

    @workflow.update
    def set(self, number: int) -> Any:
        answer = act("echo", f"update {number}")
        workflow.sleep(0.005)
        return answer

    def _block(self, block: Block, path: str) -> None:
        for place, (kind, *arguments) in enumerate(block):
            getattr(self, "_do_" + kind)(f"{path}.{place}", *arguments)

    def _branches(self, path: str, blocks: list[Block]) -> list[workflow.Task[None]]:
        return [workflow.spawn(self._block, block, f"{path}/{at}") for at, block in enumerate(blocks)]

    def _do_act(self, path: str) -> None:
        act("echo", path)

    def _do_slow(self, path: str, pause: int) -> None:
        act("slow", path, pause)

    def _do_fail(self, path: str) -> None:
        try:
            act("fails", path)
        except ActivityError:
            act("echo", path + " failed")

    def _do_local(self, path: str) -> None:
        local("echo", path)

    def _do_child(self, path: str) -> None:
        workflow.execute_child_workflow("kid", path, id=workflow.info().workflow_id + path)

    def _do_sleep(self, path: str, pause: int) -> None:
        workflow.sleep(pause / 1000)

    def _do_all(self, path: str, blocks: list[Block]) -> None:
        workflow.gather(*self._branches(path, blocks))

    def _do_any(self, path: str, blocks: list[Block]) -> None:
        workflow.wait(self._branches(path, blocks), return_when="FIRST_COMPLETED")
        act("echo", path + " one")

    def _do_until(self, path: str, number: int, limit: int) -> None:
        wanted = self.signals + number
        try:
            workflow.wait_condition(lambda: self.signals >= wanted, timeout=limit / 1000)
        except TimeoutError:
            act("echo", [path, False])
        else:
            act("echo", [path, True])

    def _do_patch(self, path: str, name: str, new: Block, old: Block) -> None:
        self._block(new if workflow.patched(name) else old, path + "!")

    def _do_limit(self, path: str, limit: int, block: Block) -> None:
        late = False
        try:
            with workflow.timeout(limit / 1000):
                self._block(block, path + "<")
        except TimeoutError:
            late = True
        act("echo", [path, late])
