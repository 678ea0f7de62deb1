"""What to do about a TLS connection that was not made, in one form for all clients."""

import ssl

TRUST = "SSL_CERT_FILE"
"""The environment variable that names a CA (PEM) in place of the machine's own, which OpenSSL reads."""


def tls_advice(error: BaseException) -> str | None:
    """Return why no TLS connection was made and what to do; None for an error of another kind."""
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, ssl.SSLError) and hasattr(cause, "reason")):
        cause = cause.__cause__  # aiohttp's own are SSLErrors without what those say
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = cause.verify_message.rstrip(".")
        if cause.verify_code in (62, 64):  # of another host name or address
            return f"{reason}; next step: use a name that stands in the certificate (subjectAltName), or make another"
        return (
            f"its certificate is not trusted ({reason}); next step: for a CA of your own set {TRUST} to its "
            "certificate (PEM)"
        )
    if isinstance(cause, ssl.SSLError):
        speaks_none = cause.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
        what = "it speaks no TLS; next step: an address with http:// or ws://" if speaks_none else None
        return what or f"TLS failed ({cause.reason or cause})"
    return None
