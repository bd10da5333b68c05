"""A running tree: start, stop, and access to its processes by path.

Inspection never changes the tree and never waits. The root has no supervisor: if it ends, the tree has ended,
and `wait` returns the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from hourglass._supervision.exits import Exit, NoSuchChild
from hourglass._supervision.node import GRACE, MonotonicClock, Node
from hourglass._supervision.process import ChildView, Process, launch
from hourglass._supervision.reports import Reports, Sink, SupervisionReport, log_report
from hourglass._supervision.spec import ChildSpec, check_spec

_MAX_DRAWN = (
    20  # the maximum number of children per supervisor in a drawing; further children are only counted
)


async def start_tree(
    spec: ChildSpec, *, clock: MonotonicClock | None = None, sink: Sink = log_report, grace: float = GRACE
) -> Tree:
    """Start a root process and wait until its whole tree has started. Stop all tasks and raise `StartFailed` if
    the start fails.

    `grace` is how long a killed coroutine may keep running before it is closed.
    """
    check_spec(spec)
    node = Node(clock, Reports(sink), grace=grace)
    root = Process(node, spec.id, None)
    launch(root, spec)
    tree = Tree(root, spec)
    try:
        await root.wait_started()
    except BaseException:
        await tree.stop()
        raise
    return tree


class Tree:
    """A tree of processes."""

    def __init__(self, root: Process, spec: ChildSpec) -> None:
        self.root = root
        self._spec = spec

    async def stop(self) -> Exit:
        """Stop all processes in order, and wait until no task of the tree is left. May be called repeatedly."""
        self.root.begin_stop(self._spec.shutdown_limit)
        reason = await self.root.wait_dead()
        await self.root.node.wait_unwound()
        return reason

    def reports(self) -> tuple[SupervisionReport, ...]:
        """Return the latest reports, oldest first."""
        return self.root.node.reports.recent()

    def paths(self) -> list[str]:
        """Return the paths of all live processes, each before its children, in order of start."""
        return [process.path for process in _living(self.root)]

    def find(self, path: str) -> Process:
        """Return the live process at a path. Raise `NoSuchChild` with the segment that does not exist."""
        first, *segments = path.split("/")
        if not self.root.alive or first != self.root.id:
            raise NoSuchChild(
                f"no process at {path!r}: the tree's root is {self.root.id!r} ({self.root.state.value})"
            )
        process = self.root
        for id in segments:
            child = next((view.process for view in process.family() if view.id == id), None)
            if child is None or not child.alive:
                raise NoSuchChild(f"no process at {path!r}: {process.path} has no running child {id!r}")
            process = child
        return process

    def kill(self, path: str) -> None:
        """Kill the process at a path, and its subtree."""
        self.find(path).kill()

    def render(self) -> str:
        """Return the tree as text: each process with its state and number of restarts."""
        lines = [f"{self.root.id}  {self.root.state.value}"]
        if self.root.alive:
            lines += _draw(self.root, "")
        return "\n".join(lines)


def _living(process: Process) -> Iterator[Process]:
    if process.alive:
        yield process
        for view in process.family():
            if view.process is not None:
                yield from _living(view.process)


def _draw(process: Process, margin: str) -> Iterator[str]:
    views = tuple(process.family())
    shown, hidden = views[:_MAX_DRAWN], len(views) - _MAX_DRAWN
    for index, view in enumerate(shown):
        last = index == len(shown) - 1 and hidden <= 0
        yield f"{margin}{'└── ' if last else '├── '}{_describe(view)}"
        if view.process is not None:
            yield from _draw(view.process, margin + ("    " if last else "│   "))
    if hidden > 0:
        yield f"{margin}└── … and {hidden} more"


def _describe(view: ChildView) -> str:
    suffix = "" if not view.restarts else f", {view.restarts} restart{'s' if view.restarts > 1 else ''}"
    return f"{view.id}  {view.state}{suffix}"
