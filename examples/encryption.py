"""Encryption: arguments and results leave the process as ciphertext, and nothing readable is stored.

    pip install cryptography
    python examples/encryption.py

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server, which then holds secrets that it cannot read.

A codec encodes every outgoing and decodes every incoming payload. This one uses AES-256-GCM and stores the key's name with the
ciphertext, so that keys can be rotated while old workflows are open. It rejects payloads that it did not encrypt: somebody with
write access to the server must not be able to inject plain values. In production, load the keys from a key service.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hourglass import Client, Worker, WorkflowHandle, activity, workflow
from hourglass.converter import Payload

ENCODING = "binary/encrypted"


class Encryption:
    """Codec that encrypts with the current key and decrypts with the key named in the payload."""

    def __init__(self, keys: Mapping[str, bytes], current: str) -> None:
        self._ciphers = {name: AESGCM(key) for name, key in keys.items()}
        self._current = current

    def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._sealed(payload) for payload in payloads]

    def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._opened(payload) for payload in payloads]

    def _sealed(self, payload: Payload) -> Payload:
        nonce = os.urandom(12)
        name = self._current.encode()
        # The whole payload is encrypted, including its encoding; the key's name is authenticated.
        secret = self._ciphers[self._current].encrypt(nonce, msgspec.msgpack.encode(payload), name)
        return Payload(nonce + secret, ENCODING, {"key": name})

    def _opened(self, payload: Payload) -> Payload:
        name = (payload.metadata or {}).get("key", b"")
        cipher = self._ciphers.get(name.decode())
        if payload.encoding != ENCODING or cipher is None:
            raise ValueError("this payload was not encrypted with a key of ours")
        plain = cipher.decrypt(payload.data[:12], payload.data[12:], name)
        return msgspec.msgpack.decode(plain, type=Payload)


@dataclass
class Patient:
    name: str
    diagnosis: str


@activity.defn
def inform(patient: Patient) -> str:
    return f"{patient.name} knows about the {patient.diagnosis}"


@workflow.defn
def treatment(patient: Patient) -> str:
    return inform(patient)


def held(handle: WorkflowHandle[str]) -> bytes:
    """Return the stored payloads of a workflow: arguments, results, failures."""
    data = re.findall(r'"data":\s*"([^"]*)"', handle.history().to_json())
    return b"".join(base64.b64decode(each) for each in data)


def main() -> None:
    encryption = Encryption({"2026": AESGCM.generate_key(256)}, current="2026")
    with Client.connect(codec=encryption) as client, Worker(client, "encryption", modules=[__name__]):
        handle = client.start_workflow(treatment, Patient("Ann", "measles"), task_queue="encryption")
        print(handle.result())
        print(f"the engine knows: {b'measles' in held(handle)}")


if __name__ == "__main__":
    main()
