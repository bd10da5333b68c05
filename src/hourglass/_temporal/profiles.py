"""Temporal's configuration file and `TEMPORAL_…` variables, read by temporalio's own reader.

The reader accepts an empty variable as a value, ignores a boolean that is neither true nor false, treats a missing file
as empty, and quotes the file, including secrets, in its errors. Here an empty variable counts as not set (except for a
header, which it deletes). Invalid booleans, missing files and parse errors raise `TargetError` with the position and
without any value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hourglass._temporal import core
from hourglass.errors import TargetError

_HEADER = "TEMPORAL_GRPC_META_"
_SWITCHES = ("TEMPORAL_TLS", "TEMPORAL_TLS_DISABLE_HOST_VERIFICATION")
_BOOLEANS = ("true", "false", "1", "0")
_POSITION = re.compile(r"TOML parse error at (line \d+, column \d+)\n")
_VALUE = re.compile(r"(?<=^invalid )(type|value): ([\w ]+) (?:\".*\"|`.*`), ")


@dataclass(frozen=True)
class ConfigurationSource:
    """The source of Temporal's configuration: the environment, and a file (its path, its content, or Temporal's
    default file).
    """

    environ: Mapping[str, str]
    source: Path | str | bytes | None = None
    strict: bool = False

    def load_profile(
        self, profile: str | None, *, disable_file: bool = False, disable_env: bool = False
    ) -> dict[str, Any]:
        """Return one profile as temporalio's dictionary, overridden by the environment. Raises `TargetError`."""
        profile_name = profile or (None if disable_env else self._variables.get("TEMPORAL_PROFILE"))
        where = (
            "the environment" if disable_file else f"profile {profile_name or 'default'!r} of {self._file}"
        )
        if not disable_env:
            self._check_switches()
        if not disable_file and (profile_name or isinstance(self.source, Path)):
            profiles = self.load_profiles(must_exist=True)
            if profile_name and profile_name not in profiles:
                available = ", ".join(sorted(profiles)) or "none"
                raise TargetError(
                    f"unknown profile {profile_name!r} in {self._file}; known profiles: {available}"
                )
        loaded: dict[str, Any] = self._read(
            core.load_profile, profile=profile, disable_file=disable_file, disable_env=disable_env
        )
        if loaded.get("tls", {}).get("disable_host_verification"):
            raise TargetError(
                f"{where}: Hourglass always verifies the server's certificate: remove disable_host_verification"
            )
        return loaded

    def load_profiles(self, *, must_exist: bool = False) -> dict[str, dict[str, Any]]:
        """Return the file's profiles by name, without the environment. Raises `TargetError`."""
        config_file = (
            self._variables.get("TEMPORAL_CONFIG_FILE") if self.source is None and must_exist else None
        )
        path = Path(config_file) if config_file else self.source
        if isinstance(path, Path) and not path.exists():
            raise TargetError(
                f"the configuration file {path} does not exist; set TEMPORAL_CONFIG_FILE to use another file"
            )
        loaded: dict[str, dict[str, Any]] = self._read(core.load_profiles)
        return loaded

    @property
    def _variables(self) -> dict[str, str]:
        return {
            name: value
            for name, value in self.environ.items()
            if name.startswith("TEMPORAL_") and (value or name.startswith(_HEADER))
        }

    @property
    def _file(self) -> str:
        """Return the name of the file, or of its content, for messages."""
        match self.source:
            case None:
                return self._variables.get("TEMPORAL_CONFIG_FILE", "Temporal's configuration file")
            case Path():
                return str(self.source)
            case _:
                return "the configuration"

    def _check_switches(self) -> None:
        for name in _SWITCHES:
            if self._variables.get(name, "true").lower() not in _BOOLEANS:
                raise TargetError(f"{name} must be true or false")

    def _read(self, reader: Any, **options: Any) -> Any:
        """Call one of temporalio's functions. Remove the lines and values of the file from its error messages."""
        source = self.source
        try:
            return reader(
                path=os.fspath(source) if isinstance(source, Path) else None,
                data=source.encode()
                if isinstance(source, str)
                else source
                if isinstance(source, bytes)
                else None,
                config_file_strict=self.strict,
                env_vars=self._variables,
                **options,
            )
        except RuntimeError as error:
            reason = str(error).strip()
        kind, _, detail = reason.partition(": ")
        if kind == "Invalid configuration":
            raise TargetError(
                f"the settings of {self._file} and the environment are invalid or contradictory: {detail}"
            )
        position = _POSITION.match(detail)
        line = _VALUE.sub(r"\1: \2, ", detail.splitlines()[-1])
        place = f" at {position[1]}" if position else ""
        raise TargetError(f"cannot read {self._file}{place}: {line}")
