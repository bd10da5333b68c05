"""An entity: a workflow that *is* a customer's loyalty account, answers updates, and lives for years.

    python examples/entity.py

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

There is one workflow per account, identified by its id, so changes never race. An update returns a result, or its validator
rejects it before anything is recorded. To limit the history, the account continues as new after some changes or when the
server suggests it: a new run with an empty history and the same id, which clients do not notice.
"""

from __future__ import annotations

from dataclasses import dataclass

from hourglass import ApplicationError, Client, Worker, workflow
from hourglass.client import WorkflowHandle
from hourglass.errors import UpdateFailedError

CHANGES_PER_RUN = 100


@dataclass
class Account:
    owner: str
    points: int = 0
    runs: int = 1


@workflow.defn
class Loyalty:
    @workflow.init
    def __init__(self, account: Account) -> None:
        self.account = account
        self.changes = 0
        self.closed = False

    @workflow.run
    def run(self, account: Account) -> Account:
        workflow.wait_condition(lambda: self.closed or self.is_long)
        workflow.wait_condition(workflow.all_handlers_finished)  # answer all pending updates first
        if not self.closed:
            self.account.runs += 1
            workflow.continue_as_new(self.account)
        return self.account

    @property
    def is_long(self) -> bool:
        return self.changes >= CHANGES_PER_RUN or workflow.info().is_continue_as_new_suggested

    @workflow.update
    def earn(self, points: int) -> int:
        return self.change(points)

    @workflow.update
    def redeem(self, points: int) -> int:
        return self.change(-points)

    @redeem.validator
    def check(self, points: int) -> None:
        if points > self.account.points:
            raise ApplicationError(f"there are only {self.account.points} points")

    @workflow.query
    def state(self) -> Account:
        return self.account

    @workflow.signal
    def close(self) -> None:
        self.closed = True

    def change(self, points: int) -> int:
        self.changes += 1
        self.account.points += points
        return self.account.points


def open_account(client: Client, owner: str) -> WorkflowHandle[Account]:
    """Return the account of an owner. Start it with the first points, in one request, if it does not exist."""
    first = client.with_start(Loyalty.run, Account(owner), id=f"loyalty-{owner}", task_queue="entity")
    first.execute_update(Loyalty.earn, 50)
    return client.get_workflow_handle(f"loyalty-{owner}", workflow=Loyalty.run)


def main() -> None:
    with Client.connect() as client, Worker(client, "entity", modules=[__name__]):
        account = open_account(client, "ann")
        for _ in range(250):
            account.execute_update(Loyalty.earn, 10)
        print(account.query(Loyalty.state))
        try:
            account.execute_update(Loyalty.redeem, 1_000_000)
        except UpdateFailedError as error:
            print(f"refused: {error.cause}")
        print(f"{account.execute_update(Loyalty.redeem, 2000)} points are left")
        account.signal(Loyalty.close)
        print(account.result())


if __name__ == "__main__":
    main()
