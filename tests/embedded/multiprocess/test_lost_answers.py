"""Answers that never arrive: the owner is killed after the commit, before its client receives the answer."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from hourglass import Client
from hourglass._embedded.multiprocess import wire

from . import work
from .children import Child, ready_worker


class LossyProxy:
    """A proxy between clients and the owner: at the answer to a request of one kind it kills the owner and drops the
    answer.

    The owner's socket is moved aside, and the proxy listens under its name.
    """

    def __init__(self, path: Path, owner: Child, kind: str) -> None:
        self._owner = owner
        self._kind = kind
        self._numbers: set[int] = set()
        self.killed = threading.Event()
        place = f"{path}-sock"
        self._aside = f"{path}-aside"
        os.rename(place, self._aside)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(place)
        self._listening.listen()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> LossyProxy:
        self._run(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()
        for thread in self._threads:
            thread.join(20)

    def _run(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        self._listening.close()  # one client is enough; it cannot connect again
        owner = socket.socket(socket.AF_UNIX)
        owner.connect(self._aside)
        self._run(self._forward, client, owner, True)
        self._forward(owner, client, False)
        client.close()
        owner.close()

    def _forward(self, source: socket.socket, target: socket.socket, is_asking: bool) -> None:
        reader = source.makefile("rb")
        try:
            while head := reader.read(4):
                frame = reader.read(struct.unpack(">I", head)[0])
                if is_asking:
                    self._note(frame)
                elif self._is_the_answer(frame):
                    self._owner.kill()
                    self.killed.set()
                    target.shutdown(socket.SHUT_RDWR)
                    return
                target.sendall(head + frame)
        except OSError:
            pass
        finally:
            reader.close()

    def _note(self, frame: bytes) -> None:
        message = wire.decode_to_owner(frame)
        if isinstance(message, wire.RequestMessage) and message.kind == self._kind:
            self._numbers.add(message.number)

    def _is_the_answer(self, frame: bytes) -> bool:
        message = wire.decode_to_client(frame)
        return isinstance(message, wire.AnswerMessage) and message.number in self._numbers


@contextmanager
def answer_lost(path: Path, kind: str) -> Iterator[Client]:
    """Yield a client whose owner is killed before it answers the first request of this kind."""
    with (
        ready_worker(path) as owner,
        LossyProxy(path, owner, kind) as proxy,
        Client.connect(f"local:{path}") as client,
    ):
        yield client
        assert proxy.killed.is_set()


def test_start_with_a_lost_answer_is_one_run(path: Path) -> None:
    with answer_lost(path, "StartWorkflow") as client:
        handle = client.start_workflow(work.twice, 1, id="once")
        assert [summary.run_id for summary in client.list_workflows()] == [handle.run_id]
        with ready_worker(path):
            assert handle.result(timeout=30) == 3
            assert client.count_workflows() == 1


def test_signal_with_a_lost_answer_is_delivered_once(path: Path) -> None:
    with answer_lost(path, "SignalWorkflow") as client:
        handle = client.start_workflow(work.Tally.run, id="tally")
        handle.signal(work.Tally.note, "once")
        with ready_worker(path):
            assert handle.query(work.Tally.count) == 1
            handle.signal(work.Tally.stop)
            assert handle.result(timeout=30) == ["once"]


def test_termination_with_a_lost_answer_is_not_an_error(path: Path) -> None:
    with answer_lost(path, "TerminateWorkflow") as client:
        handle = client.start_workflow(work.Tally.run, id="tally")
        handle.terminate("enough")
        assert handle.describe().status.name == "TERMINATED"


def test_result_with_a_lost_answer_is_requested_again(path: Path) -> None:
    with answer_lost(path, "WaitForClose") as client:
        assert client.start_workflow(work.twice, 5, id="once").result(timeout=30) == 7


def test_execute_with_a_lost_answer_is_one_run(path: Path) -> None:
    with answer_lost(path, "ExecuteWorkflow") as client:
        assert client.execute_workflow(work.twice, 5, id="once") == 7
        assert client.count_workflows() == 1
