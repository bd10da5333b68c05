"""For tests: the real Temporal dev server as a context manager, and pytest fixtures around it (see `plugin`).

with dev_server() as server, Client.connect(server.target) as client:
    ...
"""

from __future__ import annotations

from hourglass.testing._dev_server import DevServer, dev_server

__all__ = ["DevServer", "dev_server"]
