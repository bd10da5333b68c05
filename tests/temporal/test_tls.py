"""Error messages of failed TLS connections, against a TLS peer with certificates created here."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hourglass._contract.transport import TLSConfig
from hourglass._temporal.rpc_errors import explain_transport
from hourglass.errors import ConnectionFailedError

from . import live

JARGON = ("tonic", "hyper", "ConnectError", "Custom {", "Status {", "InvalidCertificate(", "Err(")


def certificate(name: str, days: int = 1) -> tuple[bytes, bytes]:
    """Create a self-signed certificate for a name, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=3))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start peers that speak TLS or plain text and close each connection after the first bytes."""
    listening: list[socket.socket] = []

    def start(pair: tuple[bytes, bytes] | None, *, mutual: bool = False) -> str:
        context = None
        if pair is not None:
            (tmp_path / "cert.pem").write_bytes(pair[0])
            (tmp_path / "key.pem").write_bytes(pair[1])
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
            context.set_alpn_protocols(["h2"])
            if mutual:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(tmp_path / "cert.pem")
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        listening.append(sock)
        threading.Thread(target=_serve, args=(sock, context), daemon=True).start()
        return f"localhost:{sock.getsockname()[1]}"

    yield start
    for sock in listening:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()


def _serve(sock: socket.socket, context: ssl.SSLContext | None) -> None:
    while True:
        try:
            plain, _ = sock.accept()
        except OSError:
            return
        with suppress(OSError), plain:
            if context is None:
                plain.recv(100)
                plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            else:
                with context.wrap_socket(plain, server_side=True) as secure:
                    secure.recv(100)


async def connect_error(target: str, tls: TLSConfig | bool | None) -> str:
    """Return the message of the connection error, which must name the address and contain no jargon."""
    with pytest.raises(ConnectionFailedError) as caught:
        await live.connect(target, tls=tls, timeout=10)
    message = str(caught.value)
    assert target in message
    assert not [term for term in JARGON if term in message], message
    return message


async def test_tls_error_for_an_untrusted_authority_names_the_option_that_trusts_it(
    peer: Callable[..., str],
) -> None:
    assert "server_root_ca_cert" in await connect_error(peer(certificate("localhost")), True)


async def test_tls_error_for_an_expired_certificate_says_so(peer: Callable[..., str]) -> None:
    pair = certificate("localhost", days=-1)
    assert "has expired" in await connect_error(peer(pair), TLSConfig(server_root_ca_cert=pair[0]))


async def test_tls_error_for_another_host_name_lists_the_certificates_names(peer: Callable[..., str]) -> None:
    pair = certificate("example.org")
    message = await connect_error(peer(pair), TLSConfig(server_root_ca_cert=pair[0]))
    assert "is not valid for the name of the target (valid names: example.org" in message
    assert "domain=" in message


async def test_tls_error_for_a_missing_client_certificate_names_its_option(peer: Callable[..., str]) -> None:
    pair = certificate("localhost")
    message = await connect_error(peer(pair, mutual=True), TLSConfig(server_root_ca_cert=pair[0]))
    # The peer may close the connection before its reason is read.
    assert "client_cert=" in message or "closed the connection" in message


async def test_plain_connection_to_a_tls_server_asks_whether_it_needs_tls(peer: Callable[..., str]) -> None:
    assert "Check whether it needs TLS" in await connect_error(peer(certificate("localhost")), None)


async def test_tls_error_for_a_plain_server_says_that_it_does_not_speak_tls(peer: Callable[..., str]) -> None:
    assert "does not use TLS" in await connect_error(peer(None), True)


async def test_tls_error_for_an_unreadable_private_key_says_so(peer: Callable[..., str]) -> None:
    pair = certificate("localhost")
    tls = TLSConfig(client_cert=pair[0], client_private_key=b"junk")
    assert "cannot be read" in await connect_error(peer(None), tls)


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("InvalidCertificate(NotValidYet)", "not valid yet"),
        ("InvalidCertificate(Revoked)", "cannot be accepted (Revoked)"),
        ("received fatal alert: UnknownCA", "rejected the client's TLS certificate (UnknownCA)"),
        ("received fatal alert: ProtocolVersion", "aborted the TLS handshake (ProtocolVersion)"),
        ("hyper::Error(Io, Kind(ConnectionReset))", "does not speak gRPC"),
    ],
)
def test_tls_errors_of_core_are_explained(reason: str, message: str) -> None:
    explanation = explain_transport(reason)
    assert explanation is not None
    assert message in explanation


def test_connection_errors_without_tls_are_not_explained() -> None:
    assert explain_transport('code: 111, kind: ConnectionRefused, message: "Connection refused"') is None
