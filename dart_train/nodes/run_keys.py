"""The secrets of one run on several nodes: a token, and an authority that signs a certificate for each node.

They are made when the run begins, lie in its directory, readable by this user alone, and travel to the nodes with Ray.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_gym.utils.durable_files import make_directories, write_file
from dart_train.config.run_config import RUN_TOKEN_ENV
from dart_train.core.train_errors import DartTrainError

TOKEN_NAMES = (RUN_TOKEN_ENV, "DART_ENGINE_TOKEN", "VLLM_API_KEY")
"""Environment variables under which desktops, our engines and vLLM look for the token."""

AUTHORITY_ENV = "SSL_CERT_FILE"
_LIFE = datetime.timedelta(days=365)


@dataclass(frozen=True, slots=True)
class RunKeys:
    """Secrets of a run.

    Attributes:
        token: bearer token of all its servers.
        authority: certificate of the run's authority, PEM.
        authority_key: its key, PEM.
    """

    token: str
    authority: bytes
    authority_key: bytes

    @classmethod
    def of_run(cls, directory: Path) -> RunKeys:
        """Those that lie in a directory; made if none do."""
        files = [directory / name for name in ("token", "authority.pem", "authority.key")]
        if not all(file.exists() for file in files):
            made = cls._make()
            make_directories(directory)
            os.chmod(directory, 0o700)
            for file, data in zip(files, (made.token.encode(), made.authority, made.authority_key), strict=True):
                write_file(file, data, mode=0o600)
        token, authority, key = (file.read_bytes() for file in files)
        return cls(token.decode(), authority, key)

    @classmethod
    def _make(cls) -> RunKeys:
        x509, hashes, serialization, ec = _cryptography()
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dart-train run")])
        builder = _builder(x509, name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        usage = {
            "key_encipherment": False, "data_encipherment": False, "key_agreement": False, "content_commitment": False,
            "encipher_only": False, "decipher_only": False, "digital_signature": True, "key_cert_sign": True,
            "crl_sign": True,
        }  # fmt: skip
        signed = builder.add_extension(x509.KeyUsage(**usage), True).sign(key, hashes.SHA256())
        return cls(secrets.token_urlsafe(32), signed.public_bytes(serialization.Encoding.PEM), _pem(key))

    def certificate(self, host: str) -> tuple[bytes, bytes]:
        """A certificate for a node's IP address, and its key, both PEM."""
        x509, hashes, serialization, ec = _cryptography()
        authority = x509.load_pem_x509_certificate(self.authority)
        signer = serialization.load_pem_private_key(self.authority_key, None)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        builder = _builder(x509, name, authority.subject, key).add_extension(address, False)
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        signed = builder.add_extension(own, False).sign(signer, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM), _pem(key)

    def environment(self, authority: Path) -> dict[str, str]:
        """Environment of a process that reaches the run's servers, or is one; `authority` names the file of trust."""
        return {**dict.fromkeys(TOKEN_NAMES, self.token), AUTHORITY_ENV: str(authority)}


def _cryptography() -> tuple[Any, ...]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise DartTrainError(f"{error}: a run on Ray needs it: pip install 'dart-gui[ray]'") from error
    return x509, hashes, serialization, ec


def _builder(x509: Any, subject: Any, issuer: Any, key: Any) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + _LIFE)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)


def _pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
