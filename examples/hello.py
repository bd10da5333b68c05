"""The smallest workflow: one activity, one call. `python examples/hello.py` needs nothing but Hourglass."""

from __future__ import annotations

import os

from hourglass import Client, Worker, activity, workflow


@activity.defn
def greet(name: str) -> str:
    return f"Hello, {name}!"


@workflow.defn
def hello(name: str) -> str:
    return greet(name)


def main() -> None:
    target = os.environ.get("HOURGLASS_TARGET", "local:")
    with (
        Client.connect(target) as client,
        Worker(client, task_queue="hello", workflows=[hello], activities=[greet]),
    ):
        print(client.execute_workflow(hello, "world", task_queue="hello"))


if __name__ == "__main__":
    main()
