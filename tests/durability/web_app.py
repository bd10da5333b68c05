"""A web application that is loaded and connected before its server forks.

`/7` runs an errand and answers 8, the process id, and the seconds it took. Served by gunicorn (`gunicorn --preload
tests.durability.web_app:app`), or by the lines at the end, which fork in the same way: `python -m tests.durability.web_app
DESCRIPTOR PROCESSES`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from hourglass import Client

from . import work

client = Client.connect(f"local:{os.environ[work.FILE]}")
client.count_workflows()  # so that the children inherit a connection or an open file


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    number = int(environ["PATH_INFO"].strip("/"))
    began = time.perf_counter()
    try:
        result = client.execute_workflow(work.errand, number, id=f"errand-{number}")
    except Exception as error:
        start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
        return [f"{type(error).__name__}: {error}".encode()]
    took = time.perf_counter() - began
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{result} {os.getpid()} {took}".encode()]


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def _answer(listening: socket.socket) -> None:
    server = WSGIServer(("127.0.0.1", 0), _Quiet, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    server.server_name, server.server_port = "127.0.0.1", listening.getsockname()[1]
    server.setup_environ()
    server.set_app(app)
    server.serve_forever()


def main(descriptor: int, processes: int) -> None:
    listening = socket.socket(fileno=descriptor)
    children = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
                _answer(listening)
            finally:
                os._exit(1)
        children.append(child)
    signal.signal(signal.SIGTERM, lambda *_: [os.kill(child, signal.SIGTERM) for child in children])
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
