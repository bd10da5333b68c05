"""`@transactional`: an effect in the user's database and its record commit in one transaction, whichever process
dies.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, func, insert, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from hourglass import Client, RetryPolicy, Worker, activity, workflow
from hourglass.activity import Info
from hourglass.contrib.sqlalchemy import create_tables, purge, transactional
from hourglass.errors import ApplicationError, DefinitionError, EncodeError, UsageError, WorkflowFailedError
from hourglass.testing import ActivityEnvironment

from .ledger import PLACES, payments


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = create_engine(database_url)
    create_tables(made)
    payments.metadata.create_all(made)
    yield made
    made.dispose()


def count_payments(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(payments)).scalar_one()


def pay(session: Session | Connection, invoice: str = "a") -> None:
    session.execute(insert(payments).values(invoice=invoice, attempt=1))


ATTEMPT = Info(
    activity_id="1", activity_type="pay", attempt=1, namespace="default", workflow_id="w", workflow_run_id="r"
)


def run_attempt(fn: Any, *args: Any, **changes: Any) -> Any:
    """Run a function as an attempt of one activity, with changes to its `Info`."""
    return ActivityEnvironment(info=replace(ATTEMPT, **changes)).run(fn, *args)


@dataclass
class Receipt:
    invoice: str
    cents: int


def test_transactional_retry_returns_the_recorded_result_without_a_call(engine: Engine) -> None:
    """Other activities, runs, workflows and namespaces have their own records."""
    calls: list[str] = []

    @transactional(engine)
    def bill(session: Session, invoice: str) -> Receipt:
        calls.append(invoice)
        pay(session, invoice)
        return Receipt(invoice, 5)

    assert run_attempt(bill, "a") == run_attempt(bill, "a", attempt=2) == Receipt("a", 5)
    assert calls == ["a"]
    run_attempt(bill, "b", activity_id="2")
    run_attempt(bill, "c", workflow_run_id="r2")
    run_attempt(bill, "d", workflow_id="w2")
    run_attempt(bill, "e", namespace="other")
    assert count_payments(engine) == 5


def test_concurrent_attempts_run_a_transactional_function_once(engine: Engine) -> None:
    entered, release = threading.Event(), threading.Event()

    @transactional(engine)
    def bill(connection: Connection, number: int) -> int:
        pay(connection)
        entered.set()
        assert release.wait(60)
        return number

    with ThreadPoolExecutor() as pool:
        first = pool.submit(run_attempt, bill, 1)
        assert entered.wait(60)
        second = pool.submit(run_attempt, bill, 2)
        release.set()
        assert (first.result(60), second.result(60)) == (1, 1)
    assert count_payments(engine) == 1


def test_failed_transactional_function_leaves_no_effect_and_no_record(engine: Engine) -> None:
    @transactional(engine)
    def bill(session: Session, result: Any) -> Any:
        pay(session)
        if isinstance(result, Exception):
            raise result
        return result

    with pytest.raises(ValueError, match="no money"):
        run_attempt(bill, ValueError("no money"))
    with pytest.raises(EncodeError):
        run_attempt(bill, object())
    assert count_payments(engine) == 0
    assert run_attempt(bill, 7) == 7
    assert count_payments(engine) == 1


def test_transactional_function_that_commits_or_rolls_back_is_rejected(engine: Engine) -> None:
    @transactional(engine)
    def commits(connection: Connection) -> None:
        pay(connection)
        connection.commit()

    @transactional(engine)
    def rolls_back(session: Session) -> None:
        pay(session)
        session.rollback()

    with pytest.raises(ApplicationError, match="commits its transaction") as refused:
        run_attempt(commits)
    assert refused.value.non_retryable
    with pytest.raises(ApplicationError, match="rolls back its transaction"):
        run_attempt(rolls_back)
    assert count_payments(engine) == 0


def test_second_transactional_call_in_an_attempt_is_rejected(engine: Engine) -> None:
    """It would find the record of the first."""

    @transactional(engine)
    def bill(session: Session) -> int:
        pay(session)
        return 1

    def both() -> int:
        return bill() + bill()

    with pytest.raises(ApplicationError, match="second @transactional"):
        run_attempt(both)
    assert count_payments(engine) == 1


def test_transactional_rejects_engines_with_autocommit(engine: Engine) -> None:
    """AUTOCOMMIT would commit the effect without its record."""
    for autocommit_engine in (
        engine.execution_options(isolation_level="AUTOCOMMIT"),
        create_engine(engine.url, isolation_level="AUTOCOMMIT"),
    ):
        bill = transactional(autocommit_engine)(pay_with(Session))
        with pytest.raises(ApplicationError, match="AUTOCOMMIT"):
            run_attempt(bill)
        autocommit_engine.dispose()


def autocommit_engines(engine: Engine) -> Iterator[Engine]:
    """Yield engines whose driver commits every statement without SQLAlchemy's knowledge."""
    if engine.dialect.name == "sqlite":
        yield create_engine(engine.url, connect_args={"isolation_level": None})
    else:
        yield create_engine(engine.url, connect_args={"autocommit": True})
    listening = create_engine(engine.url)

    @event.listens_for(listening, "connect")
    def switch(connection: Any, _record: Any) -> None:
        if engine.dialect.name == "sqlite":
            connection.isolation_level = None
        else:
            connection.autocommit = True

    yield listening


def test_transactional_rejects_drivers_with_autocommit(engine: Engine) -> None:
    for autocommit_engine in autocommit_engines(engine):
        with pytest.raises(ApplicationError, match="AUTOCOMMIT") as refused:
            run_attempt(transactional(autocommit_engine)(pay_with(Session)))
        assert refused.value.non_retryable
        autocommit_engine.dispose()
    assert count_payments(engine) == 0
    run_attempt(transactional(engine)(pay_with(Session)))  # nothing was recorded
    assert count_payments(engine) == 1


def test_transactional_accepts_sqlite_recipe_with_begin_listener(engine: Engine) -> None:
    """SQLAlchemy's recipe for SQLite: the driver begins no transactions, a listener sends BEGIN."""
    if engine.dialect.name != "sqlite":
        pytest.skip("a recipe for SQLite")
    recipe = create_engine(engine.url, connect_args={"isolation_level": None})

    @event.listens_for(recipe, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    run_attempt(transactional(recipe)(pay_with(Session)))
    assert count_payments(engine) == 1
    recipe.dispose()


async def bill_on_async_engine(url: str, number: int, connect_args: dict[str, Any] | None = None) -> int:
    """Pay on a new async engine, and return the number."""
    made = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"), connect_args=connect_args or {})

    @transactional(made)
    async def bill(session: AsyncSession, number: int) -> int:
        await session.execute(insert(payments).values(invoice="a", attempt=1))
        return number

    try:
        return await bill(number)
    finally:
        await made.dispose()


def test_transactional_rejects_async_drivers_with_autocommit(database_url: str, engine: Engine) -> None:
    autocommit = {"isolation_level": None} if engine.dialect.name == "sqlite" else {"autocommit": True}
    with pytest.raises(ApplicationError, match="AUTOCOMMIT"):
        run_attempt(bill_on_async_engine, database_url, 1, autocommit)
    assert count_payments(engine) == 0


def test_transactional_rejects_session_commits_and_accepts_savepoints(engine: Engine) -> None:
    def commit(session: Session) -> None:
        pay(session)
        session.commit()

    def commit_at_the_end(session: Session) -> None:
        with session.begin():
            pay(session)

    def use_savepoint(session: Session) -> None:
        with session.begin_nested():
            pay(session)

    for fn in (commit, commit_at_the_end):
        with pytest.raises(ApplicationError, match=f"{fn.__name__} commits its transaction"):
            run_attempt(transactional(engine)(fn))
        assert count_payments(engine) == 0
    run_attempt(transactional(engine)(use_savepoint))
    assert count_payments(engine) == 1


def test_commit_on_the_driver_connection_is_reported_as_non_retryable(engine: Engine) -> None:
    @transactional(engine)
    def bill(connection: Connection) -> None:
        pay(connection)
        connection.connection.commit()

    with pytest.raises(ApplicationError, match="ended its transaction"):
        run_attempt(bill)
    with pytest.raises(ApplicationError, match="committed without a result") as again:
        run_attempt(bill, attempt=2)
    assert again.value.non_retryable


@pytest.mark.parametrize(
    "ending", ["COMMIT", "/* by hand */ commit;", "ROLLBACK", "driver commit", "driver rollback"]
)
def test_statement_after_a_commit_or_rollback_is_reported(engine: Engine, ending: str) -> None:
    """It begins a new transaction, so an open transaction at the end is not proof enough."""

    @transactional(engine)
    def bill(connection: Connection) -> None:
        pay(connection)
        if ending.startswith("driver"):
            getattr(connection.connection, ending.removeprefix("driver "))()
        else:
            connection.exec_driver_sql(ending)
        pay(connection, "b")

    with pytest.raises(ApplicationError, match="ended its transaction") as reported:
        run_attempt(bill)
    assert reported.value.non_retryable
    assert count_payments(engine) == (
        1 if "commit" in ending.lower() else 0
    )  # what came after it is rolled back


def test_suppressed_statement_error_is_reported_on_postgresql(engine: Engine) -> None:
    """PostgreSQL would roll back at the commit. SQLite continues after such an error."""

    @transactional(engine)
    def bill(connection: Connection) -> None:
        pay(connection)
        with contextlib.suppress(DBAPIError):
            connection.execute(text("SELECT * FROM gone"))

    if engine.dialect.name == "sqlite":
        run_attempt(bill)
        assert count_payments(engine) == 1
    else:
        with pytest.raises(ApplicationError, match="a statement that failed"):
            run_attempt(bill)
        assert count_payments(engine) == 0


def pay_with(kind: type[Any]) -> Any:
    def bill(session: Any) -> None:
        pay(session)

    bill.__annotations__["session"] = kind
    return bill


def test_transactional_async_function_runs_once(database_url: str, engine: Engine) -> None:
    assert run_attempt(bill_on_async_engine, database_url, 1) == 1
    assert run_attempt(bill_on_async_engine, database_url, 2) == 1
    assert count_payments(engine) == 1


class Till:
    def __init__(self, name: str) -> None:
        self.name = name

    @activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
    @transactional(lambda: Till.engine)
    def take(self, session: Session, invoice: str, *, times: int = 1) -> str:
        for _ in range(times):
            pay(session, invoice)
        return f"{self.name} {invoice}"

    engine: Engine


@workflow.defn
def takings(local: bool) -> str:
    if local:
        return Till.take.local("a")
    one = Till.take("a")
    return f"{one}, {Till.take.options(activity_id='mine').local('b')}"


def test_transactional_method_is_an_activity_and_needs_a_fixed_id_if_local(engine: Engine) -> None:
    Till.engine = engine
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[takings], activities=[Till("left")]),
    ):
        assert client.execute_workflow(takings, False, id="t") == "left a, left b"
        with pytest.raises(WorkflowFailedError) as failed:
            client.execute_workflow(takings, True, id="u")
    assert "whose id is not the same in all attempts" in str(failed.value.__cause__)
    assert count_payments(engine) == 2


def test_transactional_function_called_directly_commits_without_a_record(engine: Engine) -> None:
    bill = transactional(engine)(pay_with(Session))
    bill()
    bill()
    assert count_payments(engine) == 2


def test_transactional_misuse_raises_at_definition_or_first_call() -> None:
    engine = create_engine("sqlite://")
    with pytest.raises(DefinitionError, match="needs an Engine"):
        transactional("sqlite://")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="Session or Connection"):
        transactional(engine)(pay_with(int))
    with pytest.raises(DefinitionError, match="an `async def` function needs"):
        transactional(engine)(pay_with(AsyncSession))
    with pytest.raises(DefinitionError, match="below @activity"):
        transactional(engine)(activity.defn(pay_with(int)))
    bill = transactional(lambda: "engine")(pay_with(Session))  # type: ignore[arg-type,return-value]
    with pytest.raises(UsageError, match="needs an Engine"):
        run_attempt(bill)


def test_transactional_activity_pays_once_after_kill_at_any_point(database_url: str, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    command = [
        sys.executable,
        Path(__file__).with_name("ledger.py"),
        tmp_path / "flow.db",
        database_url,
        marks,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    *results, deaths = ended.stdout.splitlines()
    assert int(deaths) == len(PLACES) == len(os.listdir(marks))
    engine = create_engine(database_url)
    with engine.connect() as connection:
        rows = connection.execute(select(payments.c.invoice, payments.c.attempt)).all()
        steps = connection.execute(text("SELECT count(*) FROM hourglass_steps")).scalar_one()
    assert Counter(invoice for invoice, _ in rows) == Counter(PLACES)
    assert steps == len(PLACES)
    # The answer is that of the attempt that paid, also where a later one told it.
    assert results == [f"{place}: {dict(iter(rows))[place]}" for place in PLACES]
    assert purge(engine, 3600) == 0
    assert purge(engine, 0) == len(PLACES)
    engine.dispose()
