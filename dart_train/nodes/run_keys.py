"""The secrets of one run on several nodes: a token, and an authority that signs a certificate for each node.

They are created when the run begins, in its directory, where only this user can read them. Ray brings them to nodes.
"""

import datetime
import ipaddress
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dart_gym.utils.durable_files import make_directories, write_file
from dart_train.config.run_config import RUN_TOKEN_ENV
from dart_train.core.train_errors import DartTrainError

TOKEN_NAMES = (RUN_TOKEN_ENV, "DART_ENGINE_TOKEN", "VLLM_API_KEY")
"""Variables from which desktops, our engines and vLLM read the token."""

AUTHORITY_ENV = "SSL_CERT_FILE"
_LIFE = datetime.timedelta(days=365)
_SIGNS = ("digital_signature", "key_cert_sign", "crl_sign")
_USAGES = ("key_encipherment", "data_encipherment", "key_agreement", "content_commitment", "encipher_only")


@dataclass(frozen=True, slots=True)
class RunKeys:
    """Bearer token of a run, and certificate and key of its authority, both PEM."""

    token: str
    authority: bytes
    authority_key: bytes

    @classmethod
    def of_run(cls, directory: Path) -> Self:
        """Return the keys in a directory, creating them first if necessary."""
        files = [directory / name for name in ("token", "authority.pem", "authority.key")]
        if not all(file.exists() for file in files):
            make_directories(directory)
            os.chmod(directory, 0o700)
            for file, data in zip(files, (secrets.token_urlsafe(32).encode(), *_signed(None, None)), strict=True):
                write_file(file, data, mode=0o600)
        token, authority, key = (file.read_bytes() for file in files)
        return cls(token.decode(), authority, key)

    def certificate(self, host: str) -> tuple[bytes, bytes]:
        """Return a certificate for a node's IP address, and its key, both PEM."""
        return _signed(host, self)

    def environment(self, authority: Path) -> dict[str, str]:
        """Return the variables of servers of the run and their clients; `authority` is the file of the authority."""
        return {**dict.fromkeys(TOKEN_NAMES, self.token), AUTHORITY_ENV: str(authority)}


def _signed(host: str | None, by: RunKeys | None) -> tuple[bytes, bytes]:
    """Return certificate and key, PEM, of a node that the authority `by` signs for, or of a new authority."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise DartTrainError(f"{error}: a run on Ray needs it: pip install 'dart-gui[ray]'") from error
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host or "dart-train run")])
    issuer = name
    signer = key
    extensions = list[tuple[Any, bool]]()
    if by is None or host is None:
        usage = {**dict.fromkeys(_USAGES, False), **dict.fromkeys(_SIGNS, True), "decipher_only": False}
        extensions += [(x509.BasicConstraints(ca=True, path_length=0), True), (x509.KeyUsage(**usage), True)]
    else:
        issuer = x509.load_pem_x509_certificate(by.authority).subject
        signer = serialization.load_pem_private_key(by.authority_key, None)  # type: ignore[assignment]
        extensions.append((x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), False))
        extensions.append((x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False))
    extensions.append((x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False))
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_after(now + _LIFE)
    builder = builder.not_valid_before(now - datetime.timedelta(days=1))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), private
