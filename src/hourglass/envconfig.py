"""Temporal's configuration of connections as objects: its TOML file, its profiles and the `TEMPORAL_…`
variables.

    profile = ClientConfigProfile.load("prod")
    client = Client.connect(**profile.connect_options())

`Client.connect` reads the same configuration automatically. This module is for programs that inspect or change the
configuration first. Reprs contain no secrets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, TypedDict, cast

from hourglass._contract.transport import TLSConfig
from hourglass.errors import TargetError

if TYPE_CHECKING:
    from hourglass._temporal.profiles import ConfigurationSource

__all__ = [
    "ClientConfig",
    "ClientConfigProfile",
    "ClientConfigProfileDict",
    "ClientConfigTLS",
    "ClientConfigTLSDict",
    "ConnectOptions",
    "DataSource",
]

DataSource: TypeAlias = Path | str | bytes
"""The path of a file, or the file's content."""


class ClientConfigTLSDict(TypedDict, total=False):
    """The TLS settings of a profile as a dictionary; each certificate is `{"path": …}` or `{"data": …}`."""

    disabled: bool | None
    server_name: str
    server_ca_cert: Mapping[str, str]
    client_cert: Mapping[str, str]
    client_key: Mapping[str, str]


class ClientConfigProfileDict(TypedDict, total=False):
    """A profile as a dictionary."""

    address: str
    namespace: str
    api_key: str
    tls: ClientConfigTLSDict
    grpc_meta: Mapping[str, str]


class ConnectOptions(TypedDict, total=False):
    """The arguments of `Client.connect`."""

    target: str
    namespace: str
    api_key: str
    tls: bool | TLSConfig
    rpc_metadata: Mapping[str, str]


@dataclass(frozen=True)
class ClientConfigTLS:
    """The TLS settings of a profile. Certificates are read on use."""

    disabled: bool | None = None
    """True disables TLS, False enables it, and None leaves the setting open."""
    server_name: str | None = None
    """The name that the server's certificate must have."""
    server_root_ca_cert: DataSource | None = field(default=None, repr=False)
    client_cert: DataSource | None = field(default=None, repr=False)
    client_private_key: DataSource | None = field(default=None, repr=False)

    def to_connect_tls_config(self) -> bool | TLSConfig:
        """Read the certificate files. Return the argument for `Client.connect(tls=…)`."""
        if self.disabled:
            return False
        return TLSConfig(
            server_root_ca_cert=_content(self.server_root_ca_cert),
            domain=self.server_name,
            client_cert=_content(self.client_cert),
            client_private_key=_content(self.client_private_key),
        )

    def to_dict(self) -> ClientConfigTLSDict:
        """Return the settings as a dictionary, for a TOML file."""
        settings = _without_none(
            disabled=self.disabled,
            server_name=self.server_name,
            server_ca_cert=_source_dict(self.server_root_ca_cert),
            client_cert=_source_dict(self.client_cert),
            client_key=_source_dict(self.client_private_key),
        )
        return cast(ClientConfigTLSDict, settings)

    @classmethod
    def from_dict(cls, d: ClientConfigTLSDict | None) -> Self | None:
        """Return the settings from a dictionary; None if the dictionary is empty."""
        if not d:
            return None
        return cls(
            disabled=d.get("disabled"),
            server_name=d.get("server_name"),
            server_root_ca_cert=_source(d.get("server_ca_cert")),
            client_cert=_source(d.get("client_cert")),
            client_private_key=_source(d.get("client_key")),
        )


@dataclass(frozen=True)
class ClientConfigProfile:
    """The configuration of a single connection: a profile, overridden by environment variables."""

    address: str | None = None
    namespace: str | None = None
    api_key: str | None = field(default=None, repr=False)
    tls: ClientConfigTLS | None = None
    grpc_meta: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def load(
        cls,
        profile: str | None = None,
        *,
        config_source: DataSource | None = None,
        disable_file: bool = False,
        disable_env: bool = False,
        config_file_strict: bool = False,
        override_env_vars: Mapping[str, str] | None = None,
    ) -> Self:
        """Return a profile of the configuration file, overridden by environment variables. By default it is the profile
        named by `TEMPORAL_PROFILE`, or `default`.

        `config_source` is a path, or file content, to read instead of Temporal's own file. `override_env_vars` replaces the
        environment. A named profile must exist. If `HOURGLASS_TARGET` is set and neither a profile nor a file is named, only
        this variable is used, because Temporal's variables belong to Temporal's address.
        """
        environ = os.environ if override_env_vars is None else override_env_vars
        if profile is None and config_source is None and not disable_env and environ.get("HOURGLASS_TARGET"):
            return cls(address=environ["HOURGLASS_TARGET"])
        settings = _source_of(config_source, config_file_strict, environ).load_profile(
            profile, disable_file=disable_file, disable_env=disable_env
        )
        return cls.from_dict(cast(ClientConfigProfileDict, settings))

    def connect_options(self) -> ConnectOptions:
        """Read the certificates and return the arguments for `Client.connect`. An API key without TLS settings enables
        TLS."""
        tls = None if self.api_key is None else True
        arguments = _without_none(
            target=self.address or None,
            namespace=self.namespace,
            api_key=self.api_key,
            tls=tls if self.tls is None else self.tls.to_connect_tls_config(),
            rpc_metadata=self.grpc_meta or None,
        )
        return cast(ConnectOptions, arguments)

    def to_dict(self) -> ClientConfigProfileDict:
        """Return the profile as a dictionary, for a TOML file."""
        settings = _without_none(
            address=self.address,
            namespace=self.namespace,
            api_key=self.api_key,
            tls=None if self.tls is None else self.tls.to_dict() or None,
            grpc_meta=self.grpc_meta or None,
        )
        return cast(ClientConfigProfileDict, settings)

    @classmethod
    def from_dict(cls, d: ClientConfigProfileDict) -> Self:
        """Return the profile from a dictionary."""
        return cls(
            address=d.get("address"),
            namespace=d.get("namespace"),
            api_key=d.get("api_key"),
            tls=ClientConfigTLS.from_dict(d.get("tls")),
            grpc_meta=d.get("grpc_meta") or {},
        )


@dataclass(frozen=True)
class ClientConfig:
    """All profiles of a configuration, by name."""

    profiles: Mapping[str, ClientConfigProfile]
    _profile: ClassVar[type[ClientConfigProfile]] = ClientConfigProfile

    @classmethod
    def load(
        cls,
        *,
        config_source: DataSource | None = None,
        config_file_strict: bool = False,
        override_env_vars: Mapping[str, str] | None = None,
    ) -> Self:
        """Return all profiles of the configuration file, or none if there is no file. The only environment variable that is
        read is `TEMPORAL_CONFIG_FILE`.
        """
        environ = os.environ if override_env_vars is None else override_env_vars
        return cls.from_dict(_source_of(config_source, config_file_strict, environ).load_profiles())

    def to_dict(self) -> dict[str, ClientConfigProfileDict]:
        """Return the profiles as a dictionary, for a TOML file."""
        return {name: profile.to_dict() for name, profile in self.profiles.items()}

    @classmethod
    def from_dict(cls, d: Mapping[str, Mapping[str, Any]]) -> Self:
        """Return the profiles from a dictionary."""
        return cls(
            {
                name: cls._profile.from_dict(cast(ClientConfigProfileDict, profile))
                for name, profile in d.items()
            }
        )


def _source_of(source: DataSource | None, strict: bool, environ: Mapping[str, str]) -> ConfigurationSource:
    from hourglass._temporal.profiles import ConfigurationSource

    return ConfigurationSource(environ, source, strict)


def _content(source: DataSource | None) -> bytes | None:
    if isinstance(source, Path):
        try:
            return source.read_bytes()
        except OSError as error:
            raise TargetError(f"cannot read {source}: {error.strerror}") from None
    return source.encode() if isinstance(source, str) else source


def _source(source: Mapping[str, Any] | None) -> DataSource | None:
    if not source:
        return None
    if "data" in source:
        data = source["data"]  # the reader returns bytes
        return data if isinstance(data, str) else bytes(data).decode()
    return Path(source["path"]) if "path" in source else None


def _without_none(**settings: object) -> dict[str, object]:
    return {name: value for name, value in settings.items() if value is not None}


def _source_dict(source: DataSource | None) -> Mapping[str, str] | None:
    if source is None:
        return None
    if isinstance(source, Path):
        return {"path": str(source)}
    return {"data": source if isinstance(source, str) else source.decode()}
