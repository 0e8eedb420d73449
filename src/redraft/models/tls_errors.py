"""Why there is no secure connection, and what to do about it.

OpenSSL names the place in its source, and does not say that a file of certificates does not exist.
"""

from __future__ import annotations

import os
import ssl

NOT_TRUSTED = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's numbers (X509_V_ERR_...) for a certificate whose authority is not known here."""

OTHER_HOST = frozenset({62, 64})
"""Those for the name and for the address of another host."""

NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})
"""OpenSSL's reasons if what arrives is not TLS, such as a response over plain HTTP."""


def tls_error_text(error: ssl.SSLError) -> str:
    """Return what is wrong with a server's TLS, in words that say what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_error_text(
            getattr(error, "verify_code", 0), getattr(error, "verify_message", "") or str(error)
        )
    if error.reason in NO_TLS:
        return (
            "the server speaks no TLS at this port; if it speaks plain HTTP, its address begins "
            "with http://"
        )
    return error.reason.lower().replace("_", " ") if error.reason else error.strerror or str(error)


def _certificate_error_text(code: int, message: str) -> str:
    if code in NOT_TRUSTED:
        return f"its certificate is not trusted ({message}): {_advice_on_authorities()}"
    if code in OTHER_HOST:  # "Hostname mismatch, certificate is not valid for 'example.com'."
        return (
            f"its {message.partition(', ')[2].rstrip('.') or 'certificate is for another host'}: "
            "does the address have its name?"
        )
    return f"its {message if message.startswith('certificate') else f'certificate is refused: {message}'}"  # noqa: E501


def _advice_on_authorities() -> str:
    """Return how to have a certificate trusted, or why SSL_CERT_FILE or SSL_CERT_DIR does not do
    that.
    """
    file, folders = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        try:
            ssl.create_default_context(cafile=file)
        except ssl.SSLError:
            return "the file that SSL_CERT_FILE names has no certificates in PEM form"
        except OSError as error:
            return f"the file that SSL_CERT_FILE names cannot be read: {error.strerror}"
    if folders and not any(map(os.path.isdir, folders.split(os.pathsep))):
        return "the folder that SSL_CERT_DIR names does not exist"
    if file:
        return "add the certificate of its authority to the file that SSL_CERT_FILE names"
    return "set SSL_CERT_FILE to a file with the certificate of its authority, in PEM form"
