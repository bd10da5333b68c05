"""Where to connect to, from the environment: `Client.connect(**ClientConfig.load_client_connect_config())`."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["ClientConfig"]


class ClientConfig:
    """What the environment says about connections."""

    @staticmethod
    def load_client_connect_config(*_: Any, **__: Any) -> dict[str, Any]:
        """The target that `HOURGLASS_TARGET` or `TEMPORAL_ADDRESS` names, if one does; `Client.connect` reads the rest itself."""
        target = os.environ.get("HOURGLASS_TARGET") or os.environ.get("TEMPORAL_ADDRESS")
        return {"target_host": target} if target else {}
