"""Polling of an API until it is ready, with exponential backoff and a time limit.

    python examples/polling.py
    hourglass run examples/polling.py http://localhost:8000/jobs/1

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

The activity sends one request and fails while the result is not ready; its retry policy is the backoff. Polling adds a single
activity to the workflow's history, however long it takes. A `Retry-After` header of the API is respected.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hourglass import ApplicationError, Client, RetryPolicy, Worker, activity, workflow
from hourglass.errors import ActivityError, ApplicationErrorCategory


@activity.defn(
    start_to_close_timeout=timedelta(seconds=10),
    schedule_to_close_timeout=timedelta(hours=6),
    retry_policy=RetryPolicy(
        initial_interval=0.2, backoff_coefficient=2, maximum_interval=timedelta(minutes=5)
    ),
)
def outcome(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:
        answer = json.load(response)
        come_again = response.headers.get("Retry-After")
    if answer["state"] == "running":
        raise ApplicationError(
            "not yet",
            type="NotYet",
            next_retry_delay=float(come_again) if come_again else None,
            category=ApplicationErrorCategory.BENIGN,  # expected, so it is not logged as an error
        )
    return str(answer["result"])


@workflow.defn
def transcription(url: str) -> str:
    try:
        return f"done: {outcome(url)}"
    except ActivityError as error:
        return f"given up: {error.root_cause}"


class Job(BaseHTTPRequestHandler):
    """Fake API: not ready for the first three requests, one of them with `Retry-After`, then done."""

    asked = 0

    def do_GET(self) -> None:
        Job.asked += 1
        ready = Job.asked > 3
        self.send_response(200)
        if Job.asked == 2:
            self.send_header("Retry-After", "0.1")
        self.end_headers()
        self.wfile.write(
            json.dumps({"state": "done", "result": "hello"} if ready else {"state": "running"}).encode()
        )

    def log_message(self, format: str, *args: object) -> None:
        print(f"  {format % args}")


@contextmanager
def api() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Job) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/jobs/1"
        finally:
            server.shutdown()
            thread.join()


def main() -> None:
    with api() as url, Client.connect() as client, Worker(client, "polling", modules=[__name__]):
        print(client.execute_workflow(transcription, url, task_queue="polling"))


if __name__ == "__main__":
    main()
