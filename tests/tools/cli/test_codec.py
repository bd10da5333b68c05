"""`--codec MODULE:OBJECT`: commands that send and show values where the values are encoded."""

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
def whispers(name: str) -> str:
    return f"psst, {name}"


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def spills() -> None:
    raise ValueError("the safe is behind the clock")


@workflow.defn
def tells() -> None:
    spills()


@workflow.defn
def secret(name: str) -> str:
    @workflow.query
    def who() -> str:
        return f"it is {name}"

    return whispers(name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A working directory with a module of codecs, whose name it gives."""
    name = f"secrets_{abs(hash(tmp_path)) % 10**8}"
    (tmp_path / f"{name}.py").write_text(SECRETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("HOURGLASS_CODEC", raising=False)
    yield name
    sys.modules.pop(name, None)


def test_values_pass_through_the_codec(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Started, asked, waited for and shown: each by a command with the codec, by option or by environment."""
    target, codec = "local:shop.db", importlib.import_module(folder).codec
    given = ["--target", target, "--codec", f"{folder}:codec"]
    with (
        Client.connect(target, codec=codec) as client,
        Worker(client, workflows=[secret], activities=[whispers]),
    ):
        assert main(["start", "secret", "Ann", "--id", "s-1", "--wait", *given]) == 0
        assert capsys.readouterr().out == "psst, Ann\n"
        assert main(["query", "who", "s-1", *given]) == 0
        assert capsys.readouterr().out == "it is Ann\n"
        assert main(["show", "s-1", "--payloads", *given]) == 0
        assert "psst, Ann" in capsys.readouterr().out
        assert main(["show", "s-1", "--payloads", "--target", target]) == 0
        assert "psst, Ann" not in capsys.readouterr().out


def test_failure_messages_pass_through_the_codec(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What failed is told in clear with the codec, and without it that it is encoded."""
    target, codec = "local:shop.db", importlib.import_module(folder).codec
    with (
        Client.connect(target, codec=codec) as client,
        Worker(client, workflows=[tells], activities=[spills]),
    ):
        with pytest.raises(WorkflowFailedError, match="behind the clock"):
            client.execute_workflow(tells, id="t-1")
        for command in ("why", "show"):
            assert main([command, "t-1", "--target", target, "--codec", f"{folder}:codec"]) == 0
            assert "ValueError: the safe is behind the clock" in capsys.readouterr().out
            assert main([command, "t-1", "--target", target]) == 0
            out = capsys.readouterr().out
            assert ("behind the clock" in out, "encoded" in out) == (False, True)
        Path("t-1.json").write_text(client.get_workflow_handle("t-1").history().to_json())
    assert main(["show", "t-1.json", "--codec", f"{folder}:codec"]) == 0
    assert "the safe is behind the clock" in capsys.readouterr().out


def test_codec_from_the_environment(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`HOURGLASS_CODEC` is taken where no option is given; a class is made into a codec."""
    codec = importlib.import_module(folder).codec
    with (
        Client.connect("local:shop.db", codec=codec) as client,
        Worker(client, workflows=[secret], activities=[whispers]),
    ):
        client.execute_workflow(secret, "Ann", id="s-1")
        shown = ["show", "s-1", "--payloads", "--target", "local:shop.db"]
        monkeypatch.setenv("HOURGLASS_CODEC", f"{folder}:Reversed")
        assert main(shown) == 0
        assert "psst, Ann" in capsys.readouterr().out
        assert main([*shown, "--codec", ""]) == 0
        assert "psst, Ann" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("codec", "write the codec as MODULE:OBJECT"),
        ("{}:nobody", "has no 'nobody'"),
        ("{}:nothing", "is not a codec: pass an object with encode(payloads) and decode(payloads)"),
        ("no_such_module_here:codec", "module 'no_such_module_here' was not found"),
    ],
)
def test_invalid_codec_is_rejected(
    named: str, said: str, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said before anything is asked, with exit code 2, and makes no file."""
    assert main(["start", "secret", "Ann", "--codec", named.format(folder)]) == 2
    assert said in capsys.readouterr().err
    assert not Path("hourglass.db").exists()
