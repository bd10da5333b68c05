"""Where to connect to, from the environment: `Client.connect(**ClientConfig.load_client_connect_config())`."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["ClientConfig", "ClientConfigProfile"]


class ClientConfig:
    """What the environment says about connections."""

    @staticmethod
    def load_client_connect_config(*_: Any, **__: Any) -> dict[str, Any]:
        """The target that `HOURGLASS_TARGET` or `TEMPORAL_ADDRESS` names, if one does; `Client.connect` reads the rest itself."""
        target = os.environ.get("HOURGLASS_TARGET") or os.environ.get("TEMPORAL_ADDRESS")
        return {"target_host": target} if target else {}


class ClientConfigProfile(dict[str, Any]):
    """The same as a profile that a program may change before it connects: its `address` is the target."""

    @classmethod
    def load(cls, *_: Any, **__: Any) -> ClientConfigProfile:
        """What the environment says."""
        found = ClientConfig.load_client_connect_config()
        return cls({"address": found["target_host"]} if found else {})

    def to_client_connect_config(self) -> dict[str, Any]:
        """What `Client.connect` is given."""
        said = dict(self)
        address = said.pop("address", None)
        return {**said, **({"target_host": address} if address else {})}
