"""Certificates that a test makes, and what a TLS server shows."""

import datetime
import ssl
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Pair:
    """A self-signed certificate for 127.0.0.1 and localhost, and its private key, both as PEM."""

    def __init__(self, name: str, *, password: bytes | None = None) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
        made = (
            x509.CertificateBuilder(subject, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        self.certificate = made.public_bytes(serialization.Encoding.PEM)
        self.key = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        self.shown = made.public_bytes(serialization.Encoding.DER)  # in a handshake

    def write(self, folder: Path) -> None:
        """Replace server.pem and server.key, each at once."""
        for name, content in (("server.pem", self.certificate), ("server.key", self.key)):
            new = folder / f"{name}.new"
            new.write_bytes(content)
            new.replace(folder / name)


def trusting(*pairs: Pair) -> ssl.SSLContext:
    """A client's context that trusts these certificates only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata="".join(pair.certificate.decode() for pair in pairs))
    return context


def shown_at(port: int) -> bytes:
    """The certificate that a server shows to a new connection, in DER."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port), timeout=60))
