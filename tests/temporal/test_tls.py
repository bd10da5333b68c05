"""TLS that does not come about, in plain words: who has to change what. Against a real TLS peer, with certificates made here."""

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
from hourglass._temporal.refusals import explain_transport
from hourglass.errors import ConnectionFailedError

from . import live

JARGON = ("tonic", "hyper", "ConnectError", "Custom {", "Status {", "InvalidCertificate(", "Err(")


def certificate(name: str, days: int = 1) -> tuple[bytes, bytes]:
    """A certificate that signs itself, for a name, and its key."""
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
    """Starts peers that speak TLS, or plain text, and end each conversation after the first words."""
    listening: list[socket.socket] = []

    def start(pair: tuple[bytes, bytes] | None, *, wants_ours: bool = False) -> str:
        context = None
        if pair is not None:
            (tmp_path / "cert.pem").write_bytes(pair[0])
            (tmp_path / "key.pem").write_bytes(pair[1])
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
            context.set_alpn_protocols(["h2"])
            if wants_ours:
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


def refused(target: str, tls: TLSConfig | bool | None) -> str:
    """What connecting says; in words for people, with the address."""

    async def test() -> str:
        with pytest.raises(ConnectionFailedError) as caught:
            await live.connect(target, tls=tls, timeout=10)
        return str(caught.value)

    said: list[str] = []

    async def run() -> None:
        said.append(await test())

    live.run(run)
    assert target in said[0]
    assert not [each for each in JARGON if each in said[0]], said[0]
    return said[0]


def test_untrusted_authority(peer: Callable[..., str]) -> None:
    """The message names the option that trusts it."""
    assert "server_root_ca_cert" in refused(peer(certificate("localhost")), True)


def test_expired_certificate(peer: Callable[..., str]) -> None:
    """It may be the clock."""
    pair = certificate("localhost", days=-1)
    assert "has expired" in refused(peer(pair), TLSConfig(server_root_ca_cert=pair[0]))


def test_certificate_for_another_name(peer: Callable[..., str]) -> None:
    """The names that it carries are told, and the option that says another one."""
    pair = certificate("example.org")
    said = refused(peer(pair), TLSConfig(server_root_ca_cert=pair[0]))
    assert "is not valid for the name of the target (valid names: example.org" in said
    assert "domain=" in said


def test_missing_client_certificate(peer: Callable[..., str]) -> None:
    """Mutual TLS, and we have none."""
    pair = certificate("localhost")
    said = refused(peer(pair, wants_ours=True), TLSConfig(server_root_ca_cert=pair[0]))
    assert (
        "client_cert=" in said or "closed the connection" in said
    )  # the peer may be gone before its reason is read


def test_plain_connection_to_a_tls_server(peer: Callable[..., str]) -> None:
    """The question is asked."""
    assert "Check whether it needs TLS" in refused(peer(certificate("localhost")), None)


def test_tls_connection_to_a_plain_server(peer: Callable[..., str]) -> None:
    """The server answers in plain text."""
    assert "does not use TLS" in refused(peer(None), True)


def test_unreadable_private_key(peer: Callable[..., str]) -> None:
    """It is ours that is wrong."""
    pair = certificate("localhost")
    tls = TLSConfig(client_cert=pair[0], client_private_key=b"junk")
    assert "cannot be read" in refused(peer(None), tls)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("InvalidCertificate(NotValidYet)", "not valid yet"),
        ("InvalidCertificate(Revoked)", "cannot be accepted (Revoked)"),
        ("received fatal alert: UnknownCA", "rejected the client's TLS certificate (UnknownCA)"),
        ("received fatal alert: ProtocolVersion", "aborted the TLS handshake (ProtocolVersion)"),
        ("hyper::Error(Io, Kind(ConnectionReset))", "does not speak gRPC"),
    ],
)
def test_other_tls_errors_of_core(reason: str, said: str) -> None:
    """What a real peer does not say on demand."""
    told = explain_transport(reason)
    assert told is not None
    assert said in told


def test_other_connection_errors_are_unchanged() -> None:
    """A refused connection is no matter of TLS."""
    assert explain_transport('code: 111, kind: ConnectionRefused, message: "Connection refused"') is None
