"""The smallest workflow: one activity, one call.

    python examples/hello.py
    hourglass run examples/hello.py Ann

Both store their state in `hourglass.db` in the current folder. `HOURGLASS_TARGET=localhost:7233` runs the same on
a Temporal server.
"""

from __future__ import annotations

from hourglass import Client, Worker, activity, workflow


@activity.defn
def greet(name: str) -> str:
    return f"Hello, {name}!"


@workflow.defn
def hello(name: str) -> str:
    return greet(name)


def main() -> None:
    with Client.connect() as client, Worker(client, "hello", workflows=[hello], activities=[greet]):
        print(client.execute_workflow(hello, "world", task_queue="hello"))


if __name__ == "__main__":
    main()
