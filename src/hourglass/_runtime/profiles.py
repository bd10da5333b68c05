"""Temporal's own configuration of a client: its environment variables and the profiles of its TOML file, as
data.

Both spell the same settings, so both are first turned into one flat table of texts and then checked by the
same code. Nothing is guessed: what Temporal's tools would silently ignore (a boolean that is none, a
certificate without its key) is an error that names the place. No message holds a value that may be secret.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hourglass._contract.service import TLSConfig
from hourglass.errors import TargetError

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_META_PREFIX = "TEMPORAL_GRPC_META_"
_TEXTS = ("address", "namespace", "api_key")
_SOURCES = ("client_cert", "client_key", "server_ca_cert")


@dataclass(frozen=True)
class Settings:
    """What Temporal's configuration says; None where it says nothing."""

    address: str | None = None
    namespace: str | None = None
    api_key: str | None = field(default=None, repr=False)
    tls: TLSConfig | bool | None = field(default=None, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)


# --- environment ------------------------------------------------------------------------------------------


def settings_from_environment(environ: Mapping[str, str]) -> Settings:
    """What the `TEMPORAL_…` variables say. An empty variable counts as not set."""
    variables = {name: value for name, value in environ.items() if value and name.startswith("TEMPORAL_")}
    disabled = None
    if (switch := variables.get("TEMPORAL_TLS")) is not None:
        if switch.lower() not in _BOOLEANS:
            raise TargetError("TEMPORAL_TLS must be true or false")
        disabled = not _BOOLEANS[switch.lower()]
    tls = {
        f"{source}_{form}": value
        for source in _SOURCES
        for form in ("path", "data")
        if (value := variables.get(f"TEMPORAL_TLS_{source.upper()}_{form.upper()}")) is not None
    }
    if (server_name := variables.get("TEMPORAL_TLS_SERVER_NAME")) is not None:
        tls["server_name"] = server_name
    insecure = variables.get("TEMPORAL_TLS_DISABLE_HOST_VERIFICATION", "false").lower()
    _refuse_unverified_host(_BOOLEANS.get(insecure, True), "TEMPORAL_TLS_DISABLE_HOST_VERIFICATION")
    return Settings(
        address=variables.get("TEMPORAL_ADDRESS"),
        namespace=variables.get("TEMPORAL_NAMESPACE"),
        api_key=variables.get("TEMPORAL_API_KEY"),
        tls=_tls(tls, disabled, given=bool(tls) or disabled is False, where="the environment"),
        metadata={
            _header(name.removeprefix(_META_PREFIX)): value
            for name, value in variables.items()
            if name.startswith(_META_PREFIX)
        },
    )


# --- profiles ---------------------------------------------------------------------------------------------


def settings_from_profile(name: str, environ: Mapping[str, str]) -> Settings:
    """What the profile `name` of Temporal's configuration file says."""
    path = configuration_file(environ)
    profiles = _table(_read_toml(path).get("profile", {}), "profile", path)
    if name not in profiles:
        known = ", ".join(sorted(profiles)) or "none"
        raise TargetError(f"{path} has no profile {name!r} (it has: {known})")
    where = f"profile {name!r} of {path}"
    profile = _table(profiles[name], f"profile.{name}", path)
    texts = {key: _text(profile[key], key, where) for key in _TEXTS if profile.get(key)}
    metadata = _table(profile.get("grpc_meta", {}), "grpc_meta", path)
    return Settings(
        **texts,
        tls=_profile_tls(profile, where, path),
        metadata={_header(key): _text(value, f"grpc_meta.{key}", where) for key, value in metadata.items()},
    )


def configuration_file(environ: Mapping[str, str]) -> Path:
    """Where Temporal's configuration file is: `TEMPORAL_CONFIG_FILE`, or the system's usual place."""
    if named := environ.get("TEMPORAL_CONFIG_FILE"):
        return Path(named)
    return _configuration_directory(environ) / "temporalio" / "temporal.toml"


def _configuration_directory(environ: Mapping[str, str]) -> Path:
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    if sys.platform == "win32":
        return Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
    named = environ.get("XDG_CONFIG_HOME", "")
    return Path(named) if os.path.isabs(named) else home / ".config"


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise TargetError(
            f"there is no configuration file {path}; TEMPORAL_CONFIG_FILE can name another"
        ) from None
    except OSError as error:
        raise TargetError(f"cannot read the configuration file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TargetError(f"the configuration file {path} is no valid TOML: {error}") from None


def _profile_tls(profile: Mapping[str, Any], where: str, path: Path) -> TLSConfig | bool | None:
    if "tls" not in profile:
        return None
    table = _table(profile["tls"], "tls", path)
    disabled = _flag(table, "disabled", where)
    _refuse_unverified_host(_flag(table, "disable_host_verification", where) is True, where)
    names = [f"{source}_{form}" for source in _SOURCES for form in ("path", "data")] + ["server_name"]
    texts = {name: _text(table[name], f"tls.{name}", where) for name in names if table.get(name)}
    return _tls(texts, disabled, given=True, where=where)


# --- what both share --------------------------------------------------------------------------------------


def _tls(
    texts: Mapping[str, str], disabled: bool | None, *, given: bool, where: str
) -> TLSConfig | bool | None:
    """TLS settings as checked data: False where it is switched off, None where nothing is said of it."""
    if disabled:
        return False
    if not given:
        return None
    certificate, key, root = (_source(texts, source, where) for source in _SOURCES)
    if (certificate is None) != (key is None):
        raise TargetError(f"{where}: a client certificate and its key are only of use together")
    return TLSConfig(
        server_root_ca_cert=root,
        domain=texts.get("server_name"),
        client_cert=certificate,
        client_private_key=key,
    )


def _source(texts: Mapping[str, str], name: str, where: str) -> bytes | None:
    path, data = texts.get(f"{name}_path"), texts.get(f"{name}_data")
    if path is not None and data is not None:
        raise TargetError(f"{where}: {name} is given both as a path and as data; one of them must go")
    if path is None:
        return None if data is None else data.encode()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TargetError(f"{where}: cannot read {name} from {path}: {error.strerror}") from None


def _refuse_unverified_host(asked: bool, where: str) -> None:
    if asked:
        raise TargetError(f"{where}: Hourglass does not connect without verifying the server's certificate")


def _header(name: str) -> str:
    return name.lower().replace("_", "-")


def _text(value: object, key: str, where: str) -> str:
    if not isinstance(value, str):
        raise TargetError(f"{where}: {key} must be a text, not {type(value).__name__}")
    return value


def _flag(table: Mapping[str, Any], key: str, where: str) -> bool | None:
    value = table.get(key)
    if value is not None and not isinstance(value, bool):
        raise TargetError(f"{where}: tls.{key} must be true or false, not {type(value).__name__}")
    return value


def _table(value: object, key: str, path: Path) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TargetError(f"{path}: {key} must be a table, not {type(value).__name__}")
    return value
