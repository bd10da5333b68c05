"""Signals: handlers on classes and local functions, channels, what waits for whom, and what is dropped."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass._evaluator.events import SignalReceived
from hourglass.converter import Payload
from hourglass.errors import ApplicationError, ChannelEmptyError
from hourglass.workflow import Channel, RawPayload

from .acts import charge, work
from .conftest import Drive
from .driver import brief, cancel, signal

numbers: Channel[int] = Channel("numbers", int)


@workflow.defn
class Basket:
    """Collects what it is told."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.closed = False

    @workflow.run
    def run(self) -> list[str]:
        """Wait until closed."""
        workflow.wait_condition(lambda: self.closed)
        workflow.wait_condition(workflow.all_handlers_finished)
        return self.items

    @workflow.signal
    def add(self, item: str, twice: bool = False) -> None:
        """Add an item."""
        self.items += [item] * (2 if twice else 1)

    @workflow.signal(name="pay-for")
    def pay(self, item: str) -> None:
        """A handler that waits."""
        self.items.append(charge(item))

    @workflow.signal
    def close(self) -> None:
        """Enough."""
        self.closed = True

    @workflow.signal
    def fail(self) -> None:
        """A handler that fails the run."""
        raise ApplicationError("by signal")


def test_handlers_run_in_the_order_of_arrival(drive: Drive) -> None:
    """Signals of one activation are handled in their order, arguments bound by signature."""
    d = drive(Basket)
    d.begin()
    d.send(signal("add", "a"), signal("add", "b", True))
    d.send(signal("add", "c"), signal("close"))
    assert d.result == ["a", "b", "b", "c"]


def test_signals_that_come_with_the_start_are_seen_by_the_body(drive: Drive) -> None:
    """A handler of a class runs before the body begins."""

    @workflow.defn
    class Seen:
        def __init__(self) -> None:
            self.said: list[str] = []

        @workflow.run
        def run(self) -> list[str]:
            self.said.append("body")
            return self.said

        @workflow.signal
        def say(self, word: str) -> None:
            self.said.append(word)

    d = drive(Seen)
    d.begin(signal("say", "first"))
    assert d.result == ["first", "body"]


def test_signal_handlers_may_wait(drive: Drive) -> None:
    """A handler is a line of execution of its own; `all_handlers_finished` tells whether one still runs."""
    d = drive(Basket)
    d.begin()
    assert brief(d.send(signal("pay-for", "book"), signal("close"))) == ["charge(book)"]
    d.send(d.done("charge", "paid"))
    assert d.result == ["paid"]


def test_handler_failure_fails_the_run(drive: Drive) -> None:
    """What a signal's handler lets out decides the run's fate, as if the body had raised it."""
    d = drive(Basket)
    d.begin()
    d.send(signal("fail"))
    assert str(d.failure) == "by signal"


def test_first_terminal_command_is_the_result(drive: Drive) -> None:
    """The body returns and a handler fails in one activation: engines take the first, and so does the state."""

    @workflow.defn
    class Both:
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

    d = drive(Both)
    d.begin()
    assert brief(d.send(signal("end"))) == ["CompleteRun", "FailRun"]
    assert d.result == "done"
    assert d.run.state.result == d.terminal


def test_cancelled_run_does_not_cancel_its_handlers(drive: Drive) -> None:
    """A workflow's cancellation reaches the body, not the handlers of signals."""

    @workflow.defn
    class Careful:
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

    d = drive(Careful)
    d.begin()
    d.send(signal("pay"))
    assert brief(d.send(cancel())) == ["cancel timer 1"]
    d.send(d.done("charge", ""))
    assert d.result == "after the handler"


def test_local_functions_handle_signals(drive: Drive) -> None:
    """In function style the body registers its handlers; what came before waits, and is handled in order."""

    @workflow.defn
    def basket() -> list[str]:
        items: list[str] = []
        work("first")

        @workflow.signal
        def add(item: str) -> None:
            items.append(item)

        workflow.wait_condition(lambda: len(items) == 3)
        return items

    d = drive(basket)
    d.begin(signal("add", "a"))
    d.send(signal("add", "b"))
    assert d.run.state.signals["add"]
    d.send(d.done("work"))
    assert d.run.state.signals == {}
    d.send(signal("add", "c"))
    assert d.result == ["a", "b", "c"]


def test_undecodable_signal_is_dropped_and_logged(drive: Drive) -> None:
    """A signal with wrong arguments is dropped with a notice that does not show them; the run continues."""
    d = drive(Basket)
    d.begin()
    secret = SignalReceived("add", (Payload(b"{'secret"),))
    d.send(secret, signal("add", "fine"), signal("add", [1, 2]), signal("close"))
    assert d.result == ["fine"]
    assert len(d.run.notices) == 2
    assert "add" in d.run.notices[0]
    assert "secret" not in "".join(d.run.notices)


def test_dynamic_handler_receives_unknown_signals(drive: Drive) -> None:
    """It receives the name and undecoded arguments of signals without a handler."""

    @workflow.defn
    class Dynamic:
        def __init__(self) -> None:
            self.got: list[Any] = []

        @workflow.run
        def run(self) -> list[Any]:
            workflow.wait_condition(lambda: len(self.got) == 3)
            return self.got

        @workflow.signal
        def known(self) -> None:
            self.got.append("known")

        @workflow.signal(dynamic=True)
        def other(self, name: str, arguments: list[RawPayload]) -> None:
            self.got.append([name, *(argument.decode() for argument in arguments)])

    d = drive(Dynamic)
    d.begin()
    d.send(signal("what", 1, "two"), signal("known"), signal("ever"))
    assert d.result == [["what", 1, "two"], "known", ["ever"]]


# --- channels ---------------------------------------------------------------------------------------------------------


def test_channel_is_read_in_order(drive: Drive) -> None:
    """`receive` takes one message at a time, those first that came first, and waits while there is none."""

    @workflow.defn
    def reader() -> list[int]:
        return [numbers.receive() for _ in range(3)]

    d = drive(reader)
    d.begin(signal("numbers", 1))
    d.send(signal("numbers", 2), signal("numbers", 3), signal("numbers", 4))
    assert d.result == [1, 2, 3]


def test_receive_times_out(drive: Drive) -> None:
    """`TimeoutError`, and a later message stays for the next reader."""

    @workflow.defn
    def reader() -> list[Any]:
        try:
            numbers.receive(timeout=5)
        except TimeoutError:
            workflow.sleep(10)
            return ["late", numbers.receive(timeout=5)]
        return []

    d = drive(reader)
    d.begin()
    d.send(d.fired(1))
    assert d.send(signal("numbers", 8)) == ()
    d.send(d.fired(2))
    assert d.result == ["late", 8]


def test_receive_in_time_cancels_its_timer(drive: Drive) -> None:
    """A message that arrives in time leaves no timer."""

    @workflow.defn
    def reader() -> int:
        return numbers.receive(timeout=5)

    d = drive(reader)
    d.begin()
    assert brief(d.send(signal("numbers", 8))) == ["cancel timer 1", "CompleteRun"]


def test_receive_nowait_and_drain(drive: Drive) -> None:
    """Looking without waiting: one message or `ChannelEmptyError`; all that are there."""

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

    d = drive(reader)
    d.begin()
    d.send(signal("numbers", 1), signal("numbers", 2), signal("numbers", 3))
    d.send(d.done("work"))
    assert d.result == [1, [2, 3], []]


def test_several_receivers_get_one_message_each(drive: Drive) -> None:
    """Those who wait longest are served first, and nobody twice."""

    @workflow.defn
    def readers() -> list[list[Any]]:
        got: list[list[Any]] = []
        tasks = [workflow.spawn(lambda name: got.append([name, numbers.receive()]), name) for name in "abc"]
        workflow.gather(*tasks)
        return got

    d = drive(readers)
    d.begin()
    d.send(signal("numbers", 1), signal("numbers", 2))
    d.send(signal("numbers", 3))
    assert d.result == [["a", 1], ["b", 2], ["c", 3]]


def test_cancelled_receiver_loses_no_message(drive: Drive) -> None:
    """A receiver is cancelled in the activation in which its message arrives: the next receiver gets it."""

    @workflow.defn
    class Readers:
        def __init__(self) -> None:
            self.got: list[Any] = []
            self.tasks: list[Any] = []

        @workflow.run
        def run(self) -> list[Any]:
            self.tasks = [workflow.spawn(self.read, name) for name in "ab"]
            workflow.wait_condition(lambda: self.got)
            return self.got

        def read(self, name: str) -> None:
            self.got.append([name, numbers.receive()])

        @workflow.signal
        def stop(self) -> None:
            self.tasks[0].cancel()

    d = drive(Readers)
    d.begin()
    d.send(signal("stop"), signal("numbers", 5))
    assert d.result == [["b", 5]]


def test_channel_message_of_a_wrong_type_is_logged(drive: Drive) -> None:
    """It is dropped with a notice; the receiver continues to wait."""

    @workflow.defn
    def reader() -> int:
        return numbers.receive()

    d = drive(reader)
    d.begin()
    d.send(signal("numbers", "text"))
    assert "numbers" in d.run.notices[0]
    d.send(signal("numbers", 4))
    assert d.result == 4


def test_notices_are_not_repeated_by_a_re_execution(drive: Drive) -> None:
    """What was dropped and reported once is not reported again when the fibers are rebuilt."""
    d = drive(Basket)
    d.begin()
    d.send(signal("add", [1]))
    d.run.drop()
    d.send(signal("close"))
    assert len(d.run.notices) == 1
