"""How to reach a server over TLS: certificates as data, with a `repr` that shows none of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hourglass.errors import TargetError


@dataclass(frozen=True)
class TLSConfig:
    """TLS, and mutual TLS with a client certificate and its private key. All certificates are PEM bytes.

    `domain` is the name that the server's certificate must carry, where it differs from the address.
    """

    server_root_ca_cert: bytes | None = field(default=None, repr=False)
    domain: str | None = None
    client_cert: bytes | None = field(default=None, repr=False)
    client_private_key: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.client_cert is None) != (self.client_private_key is None):
            raise TargetError("mutual TLS needs both client_cert and client_private_key, or neither")
