"""`--codec MODULE:OBJECT`: commands that send and show encoded values."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import main
from hourglass import Client, RetryPolicy, Worker, activity, workflow
from hourglass.errors import WorkflowFailedError

SECRETS = """
import base64
from hourglass.converter import Payload


class Reversed:
    def encode(self, payloads):
        return [Payload(each.data[::-1], "binary/reversed", {"was": each.encoding.encode()}) for each in payloads]

    def decode(self, payloads):
        return [self.opened(each) for each in payloads]

    def opened(self, payload):
        if payload.encoding != "binary/reversed":
            raise ValueError("not one of ours")
        return Payload(payload.data[::-1], payload.metadata["was"].decode())


codec = Reversed()
nothing = 3
"""


@activity.defn
def returns_secret(name: str) -> str:
    return f"psst, {name}"


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def fails_with_secret() -> None:
    raise ValueError("the safe is behind the clock")


@workflow.defn
def runs_failing_activity() -> None:
    fails_with_secret()


@workflow.defn
def secret(name: str) -> str:
    @workflow.query
    def who() -> str:
        return f"it is {name}"

    return returns_secret(name)


@pytest.fixture
def codec_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Create a working directory with a module of codecs. Yield the module's name."""
    name = f"secrets_{abs(hash(tmp_path)) % 10**8}"
    (tmp_path / f"{name}.py").write_text(SECRETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("HOURGLASS_CODEC", raising=False)
    yield name
    sys.modules.pop(name, None)


def test_start_query_and_show_commands_use_the_codec_option(
    codec_module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, codec = "local:shop.db", importlib.import_module(codec_module).codec
    options = ["--target", target, "--codec", f"{codec_module}:codec"]
    with (
        Client.connect(target, codec=codec) as client,
        Worker(client, workflows=[secret], activities=[returns_secret]),
    ):
        assert main(["start", "secret", "Ann", "--id", "s-1", "--wait", *options]) == 0
        assert capsys.readouterr().out == "psst, Ann\n"
        assert main(["query", "who", "s-1", *options]) == 0
        assert capsys.readouterr().out == "it is Ann\n"
        assert main(["show", "s-1", "--payloads", *options]) == 0
        assert "psst, Ann" in capsys.readouterr().out
        assert main(["show", "s-1", "--payloads", "--target", target]) == 0
        assert "psst, Ann" not in capsys.readouterr().out


def test_why_and_show_decode_failure_messages_with_the_codec_option(
    codec_module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, codec = "local:shop.db", importlib.import_module(codec_module).codec
    with (
        Client.connect(target, codec=codec) as client,
        Worker(client, workflows=[runs_failing_activity], activities=[fails_with_secret]),
    ):
        with pytest.raises(WorkflowFailedError, match="behind the clock"):
            client.execute_workflow(runs_failing_activity, id="t-1")
        for command in ("why", "show"):
            assert main([command, "t-1", "--target", target, "--codec", f"{codec_module}:codec"]) == 0
            assert "ValueError: the safe is behind the clock" in capsys.readouterr().out
            assert main([command, "t-1", "--target", target]) == 0
            out = capsys.readouterr().out
            assert ("behind the clock" in out, "encoded" in out) == (False, True)
        Path("t-1.json").write_text(client.get_workflow_handle("t-1").history().to_json())
    assert main(["show", "t-1.json", "--codec", f"{codec_module}:codec"]) == 0
    assert "the safe is behind the clock" in capsys.readouterr().out


def test_hourglass_codec_variable_selects_the_codec(
    codec_module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option overrides it; a class is instantiated."""
    codec = importlib.import_module(codec_module).codec
    with (
        Client.connect("local:shop.db", codec=codec) as client,
        Worker(client, workflows=[secret], activities=[returns_secret]),
    ):
        client.execute_workflow(secret, "Ann", id="s-1")
        command = ["show", "s-1", "--payloads", "--target", "local:shop.db"]
        monkeypatch.setenv("HOURGLASS_CODEC", f"{codec_module}:Reversed")
        assert main(command) == 0
        assert "psst, Ann" in capsys.readouterr().out
        assert main([*command, "--codec", ""]) == 0
        assert "psst, Ann" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        ("codec", "write the codec as MODULE:OBJECT"),
        ("{}:nobody", "has no 'nobody'"),
        ("{}:nothing", "is not a codec: pass an object with encode(payloads) and decode(payloads)"),
        ("no_such_module_here:codec", "module 'no_such_module_here' was not found"),
    ],
)
def test_invalid_codec_option_is_rejected_before_a_file_is_created(
    codec: str, message: str, codec_module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["start", "secret", "Ann", "--codec", codec.format(codec_module)]) == 2
    assert message in capsys.readouterr().err
    assert not Path("hourglass.db").exists()
