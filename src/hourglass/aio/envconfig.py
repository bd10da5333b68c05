"""Connection options from Temporal's configuration and the environment, with temporalio's names:
`Client.connect(**ClientConfig.load_client_connect_config())`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypedDict, cast

from hourglass import envconfig
from hourglass._contract.transport import TLSConfig
from hourglass.envconfig import (
    ClientConfigProfileDict,
    ClientConfigTLS,
    ClientConfigTLSDict,
    DataSource,
)

__all__ = [
    "ClientConfig",
    "ClientConfigProfile",
    "ClientConfigProfileDict",
    "ClientConfigTLS",
    "ClientConfigTLSDict",
    "ClientConnectConfig",
    "DataSource",
]


class ClientConnectConfig(TypedDict, total=False):
    """The keyword arguments for `Client.connect`."""

    target_host: str
    namespace: str
    api_key: str
    tls: bool | TLSConfig
    rpc_metadata: Mapping[str, str]


@dataclass(frozen=True)
class ClientConfigProfile(envconfig.ClientConfigProfile):
    """The configuration of a connection: a profile, overridden by environment variables."""

    def to_client_connect_config(self) -> ClientConnectConfig:
        """Return the keyword arguments for `Client.connect`."""
        arguments = self.connect_options()
        named = {"target_host" if name == "target" else name: value for name, value in arguments.items()}
        return cast(ClientConnectConfig, named)


@dataclass(frozen=True)
class ClientConfig(envconfig.ClientConfig):
    """All profiles of a configuration file, by name."""

    profiles: Mapping[str, ClientConfigProfile]
    _profile: ClassVar[type[envconfig.ClientConfigProfile]] = ClientConfigProfile

    @staticmethod
    def load_client_connect_config(
        profile: str | None = None,
        *,
        config_file: str | None = None,
        disable_file: bool = False,
        disable_env: bool = False,
        config_file_strict: bool = False,
        override_env_vars: Mapping[str, str] | None = None,
    ) -> ClientConnectConfig:
        """Return the keyword arguments for `Client.connect`, from a profile and the environment."""
        return ClientConfigProfile.load(
            profile,
            config_source=Path(config_file) if config_file and not disable_file else None,
            disable_file=disable_file,
            disable_env=disable_env,
            config_file_strict=config_file_strict,
            override_env_vars=override_env_vars,
        ).to_client_connect_config()
