"""Targets: strings, environment variables and profiles, invalid values, and secrecy of keys."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.client.targeting import connect_to, resolve_target

from hourglass._contract.transport import TLSConfig
from hourglass.client import Client
from hourglass.errors import TargetError

SECRET = "hunter2-secret"


@pytest.fixture
def configuration(tmp_path: Path) -> dict[str, str]:
    """Write a configuration file with several profiles. Return the environment that names it."""
    (tmp_path / "key.pem").write_text(SECRET)
    file = tmp_path / "temporal.toml"
    file.write_text(
        f"""
        [profile.prod]
        address = "prod.example.com:7233"
        namespace = "shop"
        api_key = "{SECRET}"
        [profile.prod.grpc_meta]
        Other_Header = "{SECRET}"

        [profile.mutual]
        address = "mtls.example.com:7233"
        [profile.mutual.tls]
        server_name = "inner"
        client_cert_data = "CERT"
        client_key_path = "{tmp_path / "key.pem"}"

        [profile.plain]
        namespace = "dev"
        [profile.plain.tls]
        disabled = true

        [profile.half]
        [profile.half.tls]
        client_cert_data = "CERT"

        [profile.unverified]
        [profile.unverified.tls]
        disable_host_verification = true
        """
    )
    return {"TEMPORAL_CONFIG_FILE": str(file)}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:7233", "localhost:7233"),
        ("temporal.example.com:443", "temporal.example.com:443"),
        ("127.0.0.1:07233", "127.0.0.1:7233"),
        ("[::1]:7233", "[::1]:7233"),
        ("my_host-1.internal:80", "my_host-1.internal:80"),
    ],
)
def test_host_and_port_target_means_a_temporal_server_without_tls(text: str, address: str) -> None:
    target = resolve_target(text)
    assert (target.kind, target.address, target.namespace) == ("temporal", address, "default")
    assert not target.encrypted
    assert str(target) == address


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("orders.db", "did you mean local:orders.db"),
        ("data/orders", "did you mean local:data/orders"),
        ("localhost", r"did you mean localhost:7233\?"),
        ("[::1]", "has no port"),
        ("::1:7233", "write an IPv6 address in brackets"),
        ("[nonsense]:7233", "not a host name"),
        ("http://localhost:7233", "without a scheme"),
        ("localhost:0", "from 1 to 65535"),
        ("localhost:65536", "from 1 to 65535"),
        ("localhost:seven", "from 1 to 65535"),
        ("localhost:", "from 1 to 65535"),
        ("local host:7233", "not a host name"),
        (":7233", "not a host name"),
        ("profile:", "name of the profile is missing"),
        ("local::memory:", "write the target of an engine in memory as `local:`, without a path"),
        ("local://orders.db", "local:path.db, without a scheme"),
        ("local:orders/", "is not a file name"),
        ("local:..", "is not a file name"),
        ("local:a\0b", "is not a file name"),
    ],
)
def test_malformed_target_raises_target_error(text: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        resolve_target(text)


def test_target_local_means_the_in_memory_engine() -> None:
    target = resolve_target("local:", namespace="other")
    assert (target.kind, target.namespace, str(target)) == ("memory", "other", "local:")


def test_target_local_with_path_resolves_to_an_absolute_file_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = resolve_target("local:orders.db", namespace="shop")
    assert (target.kind, target.namespace, str(target)) == ("file", "shop", "local:orders.db")
    assert target.path == str(tmp_path / "orders.db")
    monkeypatch.setenv("HOME", "/home/me")
    assert resolve_target("local:~/orders.db").path == "/home/me/orders.db"
    assert resolve_target("local:/var/orders.db").path == "/var/orders.db"


def test_default_target_is_hourglass_db_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target = resolve_target()
    assert (target.kind, str(target), target.origin) == ("file", "local:hourglass.db", "the default")
    assert target.path == str(tmp_path / "hourglass.db")
    assert list(tmp_path.iterdir()) == []


def test_connecting_to_a_file_target_creates_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Client.connect("local:orders.db") as client:
        assert client.target == "local:orders.db"
        assert list(tmp_path.iterdir()) == []


def test_target_argument_precedes_hourglass_target_which_precedes_temporal_address() -> None:
    environ = {"TEMPORAL_ADDRESS": "third:1"}
    assert resolve_target(environ=environ).address == "third:1"
    environ["HOURGLASS_TARGET"] = "second:1"
    assert resolve_target(environ=environ).address == "second:1"
    assert resolve_target("first:1", environ).address == "first:1"


def test_temporal_profile_variable_alone_does_not_select_a_profile(configuration: dict[str, str]) -> None:
    assert str(resolve_target(environ=configuration | {"TEMPORAL_PROFILE": "prod"})) == "local:hourglass.db"


def test_api_key_namespace_and_metadata_of_the_environment_apply_to_temporal_address() -> None:
    target = resolve_target(
        environ={
            "TEMPORAL_ADDRESS": "cloud:7233",
            "TEMPORAL_NAMESPACE": "shop",
            "TEMPORAL_API_KEY": SECRET,
            "TEMPORAL_GRPC_META_Some_Header": "x",
        }
    )
    assert (target.namespace, target.api_key, target.tls) == ("shop", SECRET, True)
    assert dict(target.metadata) == {"some-header": "x"}


def test_api_key_of_the_environment_is_not_sent_to_another_address() -> None:
    environ = {"TEMPORAL_ADDRESS": "cloud:7233", "TEMPORAL_API_KEY": SECRET, "TEMPORAL_NAMESPACE": "shop"}
    target = resolve_target("elsewhere:7233", environ)
    assert (target.api_key, target.namespace, target.encrypted) == (None, "default", False)


def test_connect_arguments_override_environment_variables_one_by_one() -> None:
    environ = {
        "TEMPORAL_ADDRESS": "cloud:7233",
        "TEMPORAL_API_KEY": "old",
        "TEMPORAL_NAMESPACE": "shop",
        "TEMPORAL_GRPC_META_A": "1",
        "TEMPORAL_GRPC_META_B": "2",
    }
    target = resolve_target(environ=environ, namespace="mine", api_key="new", tls=False, metadata={"b": "3"})
    assert (target.namespace, target.api_key, target.tls) == ("mine", "new", False)
    assert dict(target.metadata) == {"a": "1", "b": "3"}


def test_tls_variables_enable_tls_with_certificates_from_paths_or_data(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"CA")
    target = resolve_target(
        environ={
            "TEMPORAL_ADDRESS": "host:7233",
            "TEMPORAL_TLS_SERVER_CA_CERT_PATH": str(tmp_path / "ca.pem"),
            "TEMPORAL_TLS_CLIENT_CERT_DATA": "CERT",
            "TEMPORAL_TLS_CLIENT_KEY_DATA": SECRET,
            "TEMPORAL_TLS_SERVER_NAME": "inner",
        }
    )
    assert target.tls == TLSConfig(b"CA", "inner", b"CERT", SECRET.encode())
    assert target.encrypted


@pytest.mark.parametrize(
    ("variables", "tls"),
    [
        ({}, None),
        ({"TEMPORAL_TLS": "true"}, TLSConfig()),
        ({"TEMPORAL_TLS": "1"}, TLSConfig()),
        ({"TEMPORAL_TLS": "FALSE"}, False),
        ({"TEMPORAL_TLS": "0", "TEMPORAL_API_KEY": SECRET}, False),
        ({"TEMPORAL_TLS": ""}, None),
    ],
)
def test_temporal_tls_variable_enables_or_disables_tls(variables: dict[str, str], tls: object) -> None:
    assert resolve_target(environ={"TEMPORAL_ADDRESS": "host:7233"} | variables).tls == tls


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TEMPORAL_TLS": "perhaps"}, "true or false"),
        ({"TEMPORAL_TLS_DISABLE_HOST_VERIFICATION": "yes"}, "VERIFICATION must be true or false"),
        ({"TEMPORAL_TLS_CLIENT_CERT_DATA": "CERT"}, "both client_cert and client_private_key"),
        ({"TEMPORAL_TLS_SERVER_CA_CERT_PATH": "/nowhere/ca.pem"}, "cannot read /nowhere/ca.pem"),
        (
            {"TEMPORAL_TLS_SERVER_CA_CERT_PATH": "/nowhere", "TEMPORAL_TLS_SERVER_CA_CERT_DATA": "CA"},
            "both TEMPORAL_TLS_SERVER_CA_CERT_PATH and TEMPORAL_TLS_SERVER_CA_CERT_DATA",
        ),
        ({"TEMPORAL_TLS_DISABLE_HOST_VERIFICATION": "true"}, "always verifies"),
        ({"TEMPORAL_ADDRESS": "host"}, "TEMPORAL_ADDRESS: 'host' has no port"),
    ],
)
def test_invalid_environment_variable_raises_target_error(variables: dict[str, str], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        resolve_target(environ={"TEMPORAL_ADDRESS": "host:7233"} | variables)


def test_profile_with_api_key_enables_tls(configuration: dict[str, str]) -> None:
    target = resolve_target("profile:prod", configuration)
    assert (target.address, target.namespace, target.api_key) == ("prod.example.com:7233", "shop", SECRET)
    assert target.tls is True
    assert dict(target.metadata) == {"other-header": SECRET}


def test_profile_certificates_are_read_from_data_and_files(configuration: dict[str, str]) -> None:
    target = resolve_target("profile:mutual", configuration)
    assert target.tls == TLSConfig(None, "inner", b"CERT", SECRET.encode())


def test_profile_without_address_uses_localhost_7233(configuration: dict[str, str]) -> None:
    target = resolve_target(environ=configuration | {"HOURGLASS_TARGET": "profile:plain"})
    assert (target.address, target.namespace, target.tls) == ("localhost:7233", "dev", False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", r"unknown profile 'absent' in .*; known profiles: half, mutual, plain, prod, unverified"),
        ("half", "profile 'half': mutual TLS needs both client_cert and client_private_key"),
        ("unverified", "always verifies"),
    ],
)
def test_missing_or_invalid_profile_raises_target_error(
    configuration: dict[str, str], name: str, message: str
) -> None:
    with pytest.raises(TargetError, match=message):
        resolve_target(f"profile:{name}", configuration)


def test_profile_value_of_wrong_type_raises_an_error_with_its_line_and_without_the_value(
    tmp_path: Path,
) -> None:
    file = tmp_path / "temporal.toml"
    for text, message in [
        ("address = 771", "line 2, column .*integer, expected a string"),
        ('tls = "771"', "line 2, column 7: invalid type: string, expected"),
        ('tls = { disabled = "771" }', "line 2, column .*string, expected a boolean"),
        (
            "[profile.x.tls]\nserver_name = 'a'\nclient_cert_data = 771",
            "line 4, .*integer, expected a string",
        ),
        ("grpc_meta = { a = 771 }", "line 2, column .*integer, expected a string"),
        ('grpc_meta = "771 \\"quoted\\" `771`"', "line 2, column .*string, expected"),
        ('api_key = "771"\napi_key = "771"', "line 3, column .*duplicate key"),
        (
            'tls = { client_key_data = "771", client_key_path = "771" }',
            "both client_key_path and client_key_data",
        ),
    ]:
        file.write_text(f"[profile.x]\n{text}\n")
        with pytest.raises(TargetError, match=message) as raised:
            resolve_target("profile:x", {"TEMPORAL_CONFIG_FILE": str(file)})
        assert str(file) in str(raised.value)
        assert "771" not in str(raised.value)


@pytest.mark.parametrize("content", [b"[profile", b"profile = 3", b"\xff\xfe", b"[profile]\nx = 1\n"])
def test_malformed_configuration_file_raises_target_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "temporal.toml"
    file.write_bytes(content)
    with pytest.raises(TargetError, match=str(file)):
        resolve_target("profile:x", {"TEMPORAL_CONFIG_FILE": str(file)})


def test_missing_configuration_file_raises_target_error(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="the configuration file"):
        resolve_target("profile:x", {"TEMPORAL_CONFIG_FILE": str(tmp_path / "none.toml")})


def test_profile_targets_match_temporalio_reader(configuration: dict[str, str]) -> None:
    from temporalio.envconfig import ClientConfigProfile

    for name in ("prod", "mutual", "plain"):
        theirs = ClientConfigProfile.load(
            name, config_source=Path(configuration["TEMPORAL_CONFIG_FILE"]), disable_env=True
        ).to_client_connect_config()
        ours = resolve_target(f"profile:{name}", configuration)
        assert ours.address == theirs.get("target_host", "localhost:7233")
        assert ours.namespace == theirs.get("namespace", "default")
        assert ours.api_key == theirs.get("api_key")
        assert dict(ours.metadata) == dict(theirs.get("rpc_metadata", {}))
        their_tls = theirs.get("tls")
        if isinstance(ours.tls, TLSConfig):
            assert ours.tls.client_cert == their_tls.client_cert
            assert ours.tls.client_private_key == their_tls.client_private_key
            assert ours.tls.domain == their_tls.domain
        else:
            assert ours.tls == their_tls


def test_default_configuration_file_is_in_the_user_configuration_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative XDG_CONFIG_HOME is ignored, as the XDG specification demands."""
    apple = tmp_path / "Library" / "Application Support"
    for place in (tmp_path / ".config", tmp_path / "xdg", apple):
        (place / "temporalio").mkdir(parents=True)
        (place / "temporalio" / "temporal.toml").write_text(f"[profile.x]\nnamespace = '{place}'\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for xdg, place in (("", ".config"), ("xdg", ".config"), (str(tmp_path / "xdg"), "xdg")):
        monkeypatch.setenv("XDG_CONFIG_HOME", xdg)
        expected = apple if sys.platform == "darwin" else tmp_path / place
        assert resolve_target("profile:x", None).namespace == str(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"namespace": " "}, "namespace must be a non-empty str"),
        ({"tls": "yes"}, "tls must be True, False or a TLSConfig"),
        ({"api_key": ""}, "API key is empty"),
        *(
            ({"api_key": f"key{odd}"}, "contains an invalid character")
            for odd in ("\n", "\r\nx: y", "\0", "\x1b", " x", "é")
        ),
        ({"metadata": {"a": 1}}, "str to str"),
        ({"metadata": {"a": "b\nc: d"}}, "control character"),
        ({"metadata": {"a\n": "b"}}, "control character"),
    ],
)
def test_invalid_connect_arguments_raise_target_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        resolve_target("host:7233", **arguments)


@pytest.mark.parametrize(
    ("address", "arguments", "expects_warning"),
    [
        ("temporal.example.com:7233", {"api_key": SECRET, "tls": False}, True),
        ("10.0.0.7:7233", {"api_key": SECRET, "tls": False}, True),
        ("10.0.0.7:7233", {"metadata": {"Authorization": SECRET}, "tls": False}, True),
        ("temporal.example.com:7233", {"api_key": SECRET}, False),
        ("temporal.example.com:7233", {"tls": False}, False),
        ("localhost:7233", {"api_key": SECRET, "tls": False}, False),
        ("127.0.0.9:7233", {"api_key": SECRET, "tls": False}, False),
        ("[::1]:7233", {"api_key": SECRET, "tls": False}, False),
    ],
)
def test_api_key_without_tls_logs_a_warning_unless_the_host_is_local(
    address: str,
    arguments: dict[str, Any],
    expects_warning: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect(address: str, **_: object) -> str:
        return address

    monkeypatch.setattr("hourglass._temporal.connection.connect", connect)
    connect_to(resolve_target(address, **arguments))
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert bool(warnings) is expects_warning
    assert SECRET not in "".join(warnings)


def test_target_repr_str_and_log_hide_secrets(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = resolve_target(
        "host:7233",
        api_key=SECRET,
        metadata={"authorization": SECRET},
        tls=TLSConfig(client_cert=SECRET.encode(), client_private_key=SECRET.encode()),
    )

    async def connect(address: str, **_: object) -> str:
        return address

    import sys
    import types

    fake = types.ModuleType("hourglass._temporal.connection")
    fake.connect = connect  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hourglass._temporal.connection", fake)
    with caplog.at_level(logging.INFO, "hourglass"):
        opened = connect_to(target)
    assert opened == "host:7233"
    assert "connecting to host:7233 (namespace default, TLS, from the argument)" in caplog.text
    for text in (repr(target), str(target), caplog.text):
        assert SECRET not in text
