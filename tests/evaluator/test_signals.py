"""Signals: handlers of classes and local functions, channels, order, and dropped signals."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass._evaluator.events import SignalReceived
from hourglass.converter import Payload
from hourglass.errors import ApplicationError, ChannelEmptyError
from hourglass.workflow import Channel

from .activities import charge, work
from .conftest import Drive
from .driver import brief, cancel, signal

numbers: Channel[int] = Channel("numbers", int)


@workflow.defn
class Basket:
    def __init__(self) -> None:
        self.items: list[str] = []
        self.closed = False

    @workflow.run
    def run(self) -> list[str]:
        workflow.wait_condition(lambda: self.closed)
        workflow.wait_condition(workflow.all_handlers_finished)
        return self.items

    @workflow.signal
    def add(self, item: str, twice: bool = False) -> None:
        self.items += [item] * (2 if twice else 1)

    @workflow.signal(name="pay-for")
    def pay(self, item: str) -> None:
        self.items.append(charge(item))

    @workflow.signal
    def close(self) -> None:
        self.closed = True


def test_signal_handlers_run_in_the_order_of_arrival(begin_run: Drive) -> None:
    d = begin_run(Basket)
    d.send(signal("add", "a"), signal("add", "b", True))
    d.send(signal("add", "c"), signal("close"))
    assert d.result == ["a", "b", "b", "c"]


def test_signal_that_arrives_with_the_start_is_handled_before_the_body(drive: Drive) -> None:
    @workflow.defn
    class RecordsSignals:
        def __init__(self) -> None:
            self.log: list[str] = []

        @workflow.run
        def run(self) -> list[str]:
            self.log.append("body")
            return self.log

        @workflow.signal
        def say(self, word: str) -> None:
            self.log.append(word)

    d = drive(RecordsSignals)
    d.begin(signal("say", "first"))
    assert d.result == ["first", "body"]


def test_all_handlers_finished_waits_for_a_signal_handler(begin_run: Drive) -> None:
    d = begin_run(Basket)
    assert brief(d.send(signal("pay-for", "book"), signal("close"))) == ["charge(book)"]
    d.send(d.done("charge", "paid"))
    assert d.result == ["paid"]


def test_first_of_two_terminal_commands_is_the_result(begin_run: Drive) -> None:
    @workflow.defn
    class ReturnsAndFails:
        def __init__(self) -> None:
            self.go = False

        @workflow.run
        def run(self) -> str:
            workflow.wait_condition(lambda: self.go)
            return "done"

        @workflow.signal
        def end(self) -> None:
            self.go = True
            workflow.sleep(0)
            workflow.sleep(0)
            workflow.wait_condition(lambda: True)
            workflow.wait_condition(lambda: True)
            raise ApplicationError("too late")

    d = begin_run(ReturnsAndFails)
    assert brief(d.send(signal("end"))) == ["CompleteRun", "FailRun"]
    assert d.result == "done"
    assert d.run.state.result == d.terminal


def test_run_cancellation_does_not_reach_signal_handlers(begin_run: Drive) -> None:
    @workflow.defn
    class WaitsForItsHandlers:
        @workflow.run
        def run(self) -> str:
            try:
                workflow.sleep(1000)
            except workflow.Cancelled:
                workflow.wait_condition(workflow.all_handlers_finished)
            return "after the handler"

        @workflow.signal
        def pay(self) -> None:
            charge("a")

    d = begin_run(WaitsForItsHandlers)
    d.send(signal("pay"))
    assert brief(d.send(cancel())) == ["cancel timer 1"]
    d.send(d.done("charge", ""))
    assert d.result == "after the handler"


def test_undecodable_signal_is_dropped_and_logged(begin_run: Drive) -> None:
    """The log message does not contain the arguments."""
    d = begin_run(Basket)
    secret = SignalReceived("add", (Payload(b"{'secret"),))
    d.send(secret, signal("add", "fine"), signal("add", [1, 2]), signal("close"))
    assert d.result == ["fine"]
    assert len(d.run.notices) == 2
    assert "add" in d.run.notices[0]
    assert "secret" not in "".join(d.run.notices)


# --- channels ---------------------------------------------------------------------------------------------------------


def test_channel_receive_times_out_and_keeps_later_messages(begin_run: Drive) -> None:
    @workflow.defn
    def reader() -> list[Any]:
        try:
            numbers.receive(timeout=5)
        except TimeoutError:
            workflow.sleep(10)
            return ["late", numbers.receive(timeout=5)]
        return []

    d = begin_run(reader)
    d.send(d.fired(1))
    assert d.send(signal("numbers", 8)) == ()
    d.send(d.fired(2))
    assert d.result == ["late", 8]


def test_channel_receive_cancels_its_timer_when_a_message_arrives(begin_run: Drive) -> None:
    @workflow.defn
    def reader() -> int:
        return numbers.receive(timeout=5)

    d = begin_run(reader)
    assert brief(d.send(signal("numbers", 8))) == ["cancel timer 1", "CompleteRun"]


def test_channel_receive_nowait_and_drain_do_not_wait(begin_run: Drive) -> None:
    @workflow.defn
    def reader() -> list[Any]:
        work("x")
        first = numbers.receive_nowait()
        rest = numbers.drain()
        try:
            numbers.receive_nowait()
        except ChannelEmptyError:
            return [first, rest, numbers.drain()]
        return []

    d = begin_run(reader)
    d.send(signal("numbers", 1), signal("numbers", 2), signal("numbers", 3))
    d.send(d.done("work"))
    assert d.result == [1, [2, 3], []]


def test_channel_receivers_get_one_message_each_in_order_of_waiting(begin_run: Drive) -> None:
    @workflow.defn
    def readers() -> list[list[Any]]:
        received: list[list[Any]] = []
        tasks = [
            workflow.spawn(lambda name: received.append([name, numbers.receive()]), name) for name in "abc"
        ]
        workflow.gather(*tasks)
        return received

    d = begin_run(readers)
    d.send(signal("numbers", 1), signal("numbers", 2))
    d.send(signal("numbers", 3))
    assert d.result == [["a", 1], ["b", 2], ["c", 3]]


def test_message_of_a_cancelled_channel_receiver_goes_to_the_next(begin_run: Drive) -> None:
    @workflow.defn
    class Readers:
        def __init__(self) -> None:
            self.received: list[Any] = []
            self.tasks: list[Any] = []

        @workflow.run
        def run(self) -> list[Any]:
            self.tasks = [workflow.spawn(self.read, name) for name in "ab"]
            workflow.wait_condition(lambda: self.received)
            return self.received

        def read(self, name: str) -> None:
            self.received.append([name, numbers.receive()])

        @workflow.signal
        def stop(self) -> None:
            self.tasks[0].cancel()

    d = begin_run(Readers)
    d.send(signal("stop"), signal("numbers", 5))
    assert d.result == [["b", 5]]


def test_channel_message_of_the_wrong_type_is_dropped_and_logged(begin_run: Drive) -> None:
    @workflow.defn
    def reader() -> int:
        return numbers.receive()

    d = begin_run(reader)
    d.send(signal("numbers", "text"))
    assert "numbers" in d.run.notices[0]
    d.send(signal("numbers", 4))
    assert d.result == 4


def test_re_execution_does_not_repeat_log_messages_of_dropped_signals(begin_run: Drive) -> None:
    d = begin_run(Basket)
    d.send(signal("add", [1]))
    d.run.drop()
    d.send(signal("close"))
    assert len(d.run.notices) == 1
