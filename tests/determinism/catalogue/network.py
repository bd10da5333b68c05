"""A request from workflow code: it is sent again by every execution, and the answer is another one."""

from __future__ import annotations

import socket

from hourglass import workflow

from .acts import note


@workflow.defn(name="network")
def bug(folder: str) -> str:
    line = socket.socket(socket.AF_UNIX)  # caught: check HG107
    line.connect(f"{folder}/server")  # caught: check HG107, watch
    answer = line.recv(100).decode()  # caught: check HG107, watch
    line.close()  # caught: check HG107
    return note(answer)  # caught: replay


arguments = ("{folder}",)
