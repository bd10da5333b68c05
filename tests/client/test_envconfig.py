"""`hourglass.envconfig` and `hourglass.aio.envconfig`, compared with temporalio's own reader of configuration files
and environment variables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import temporalio.envconfig as theirs

from hourglass import envconfig as ours
from hourglass.aio import envconfig as aio
from hourglass.client import TLSConfig
from hourglass.errors import TargetError

FILE = """
[profile.default]
address = "default:7233"
namespace = "d"

[profile.prod]
address = "prod:7233"
api_key = "sesame-1"
[profile.prod.tls]
server_name = "other"
server_ca_cert_data = "CA"
[profile.prod.grpc_meta]
Some_Header = "v"

[profile.plain]
address = "plain:7233"
[profile.plain.tls]
disabled = true
"""
ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {},
    {"TEMPORAL_PROFILE": "prod"},
    {"TEMPORAL_ADDRESS": "env:1", "TEMPORAL_NAMESPACE": "n", "TEMPORAL_API_KEY": "sesame-2"},
    {"TEMPORAL_PROFILE": "plain", "TEMPORAL_GRPC_META_X_Y": "z"},
    {"TEMPORAL_TLS_SERVER_NAME": "named", "TEMPORAL_TLS": "true"},
    {"TEMPORAL_PROFILE": "prod", "TEMPORAL_TLS": "false"},
    {"TEMPORAL_PROFILE": "prod", "TEMPORAL_GRPC_META_SOME_HEADER": ""},
)


def connect_arguments(config: Any) -> dict[str, Any]:
    """Return the arguments of a connection, with the TLS configuration as a tuple."""
    tls = config.get("tls")
    if tls is not None and not isinstance(tls, bool):
        config = {**config, "tls": (tls.domain, tls.server_root_ca_cert, tls.client_cert)}
    return dict(config)


@pytest.mark.parametrize("environ", ENVIRONMENTS, ids=lambda each: ",".join(each) or "none")
def test_profile_and_environment_variables_resolve_as_in_temporalio(environ: dict[str, str]) -> None:
    options: Any = {"config_source": FILE, "override_env_vars": environ}
    temporalio_profile, hourglass_profile = (
        theirs.ClientConfigProfile.load(**options),
        aio.ClientConfigProfile.load(**options),
    )
    assert connect_arguments(hourglass_profile.to_client_connect_config()) == connect_arguments(
        temporalio_profile.to_client_connect_config()
    )
    assert hourglass_profile.to_dict() == temporalio_profile.to_dict()
    assert aio.ClientConfigProfile.from_dict(hourglass_profile.to_dict()) == hourglass_profile
    assert (
        connect_arguments(ours.ClientConfigProfile.load(**options).connect_options()).get("target")
        == hourglass_profile.address
    )


def test_empty_grpc_meta_variable_removes_the_header_of_the_profile() -> None:
    options: Any = {"config_source": FILE}
    environ = {"TEMPORAL_PROFILE": "prod"}
    assert ours.ClientConfigProfile.load(**options, override_env_vars=environ).grpc_meta == {
        "some-header": "v"
    }
    environ["TEMPORAL_GRPC_META_SOME_HEADER"] = ""
    assert ours.ClientConfigProfile.load(**options, override_env_vars=environ).grpc_meta == {}


def test_empty_temporal_variable_counts_as_unset() -> None:
    names = (
        "ADDRESS",
        "NAMESPACE",
        "API_KEY",
        "TLS",
        "TLS_SERVER_NAME",
        "TLS_SERVER_CA_CERT_PATH",
        "CONFIG_FILE",
    )
    environ = {f"TEMPORAL_{name}": "" for name in names}
    plain = ours.ClientConfigProfile.load("prod", config_source=FILE, override_env_vars={})
    assert ours.ClientConfigProfile.load("prod", config_source=FILE, override_env_vars=environ) == plain


def test_profile_connect_arguments_match_temporalio() -> None:
    temporalio_profile = theirs.ClientConfig.load(config_source=FILE).profiles
    for name, profile in aio.ClientConfig.load(config_source=FILE).profiles.items():
        assert connect_arguments(profile.to_client_connect_config()) == connect_arguments(
            temporalio_profile[name].to_client_connect_config()
        )


def test_client_config_loads_all_profiles_by_path_or_variable(tmp_path: Path) -> None:
    path = tmp_path / "temporal.toml"
    path.write_text(FILE)
    config = ours.ClientConfig.load(config_source=path)
    assert set(config.profiles) == {"default", "prod", "plain"}
    assert config == ours.ClientConfig.load(override_env_vars={"TEMPORAL_CONFIG_FILE": str(path)})
    assert config.to_dict() == theirs.ClientConfig.load(config_source=path).to_dict()
    assert ours.ClientConfig.from_dict(config.to_dict()) == config
    absent = {"TEMPORAL_CONFIG_FILE": str(tmp_path / "absent.toml")}
    assert ours.ClientConfig.load(override_env_vars=absent).profiles == {}
    assert "sesame" not in repr(config)


def test_profile_reads_certificate_files_only_when_connecting(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    profile = ours.ClientConfigProfile(address="h:1", tls=ours.ClientConfigTLS(server_root_ca_cert=path))
    with pytest.raises(TargetError, match="cannot read"):
        profile.connect_options()
    path.write_bytes(b"CA")
    assert profile.connect_options()["tls"] == TLSConfig(server_root_ca_cert=b"CA")


def test_hourglass_target_variable_overrides_temporal_variables() -> None:
    """Otherwise Temporal's API key would be sent to another address."""
    environ = {"HOURGLASS_TARGET": "local:x.db", "TEMPORAL_API_KEY": "sesame"}
    assert ours.ClientConfigProfile.load(override_env_vars=environ).connect_options() == {
        "target": "local:x.db"
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": "none", "config_source": FILE}, "unknown profile 'none'"),
        ({"config_source": "a ="}, "cannot read the configuration at line 1, column 4"),
        ({"config_source": Path("/nowhere.toml")}, "the configuration file .* does not exist"),
        (
            {"config_source": "[profile.default]\nadress = 'x'", "config_file_strict": True},
            "unknown field `adress`",
        ),
        (
            {"config_source": "[profile.default.tls]\nname = 'x'", "config_file_strict": True},
            "unknown field `name`",
        ),
        ({"config_source": "other = 1", "config_file_strict": True}, "unknown field `other`"),
    ],
)
def test_invalid_profile_or_configuration_file_raises_target_error(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TargetError, match=message):
        ours.ClientConfigProfile.load(**options, override_env_vars={})
