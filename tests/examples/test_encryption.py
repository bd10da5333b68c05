"""The encryption example: stored data is encrypted, keys can be replaced, and foreign payloads are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from encryption import Encryption, Patient, held, treatment

from hourglass import Client, Worker
from hourglass.converter import Payload

KEY = AESGCM.generate_key(256)
PLAIN = Payload(b'"measles"')


@pytest.mark.parametrize("codec", [None, Encryption({"a": KEY}, "a")], ids=["plain", "encrypted"])
def test_encryption_codec_hides_values_in_file_and_history(codec: Encryption | None, tmp_path: Path) -> None:
    """Without the codec both contain the value, which proves that this test can find it."""
    file = tmp_path / "clinic.db"
    with (
        Client.connect(f"local:{file}", codec=codec) as client,
        Worker(client, "encryption", modules=["encryption"]),
    ):
        handle = client.start_workflow(treatment, Patient("Ann", "measles"), task_queue="encryption")
        assert handle.result() == "Ann knows about the measles"
        in_history = b"measles" in held(handle)
    on_disk = any(b"measles" in each.read_bytes() for each in tmp_path.iterdir() if each.is_file())
    assert (in_history, on_disk) == (codec is None, codec is None)


def test_encryption_codec_decodes_payloads_of_an_older_key() -> None:
    sealed = Encryption({"old": KEY}, "old").encode([PLAIN])
    both = Encryption({"old": KEY, "new": AESGCM.generate_key(256)}, "new")
    assert both.decode(sealed) == [PLAIN]
    assert both.decode(both.encode([PLAIN])) == [PLAIN]


def test_encryption_codec_encrypts_equal_values_differently() -> None:
    codec = Encryption({"a": KEY}, "a")
    assert codec.encode([PLAIN]) != codec.encode([PLAIN])


def test_encryption_codec_rejects_plain_foreign_and_changed_payloads() -> None:
    codec = Encryption({"a": KEY}, "a")
    with pytest.raises(ValueError, match="not encrypted with a key of ours"):
        codec.decode([PLAIN])
    with pytest.raises(ValueError, match="not encrypted with a key of ours"):
        codec.decode(Encryption({"b": KEY}, "b").encode([PLAIN]))
    (sealed,) = codec.encode([PLAIN])
    changed = Payload(sealed.data[:-1] + bytes([sealed.data[-1] ^ 1]), sealed.encoding, sealed.metadata)
    with pytest.raises(InvalidTag):
        codec.decode([changed])
