"""Connections without TLS that can be trusted: the error says what is wrong and what to do."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import trustme

import vendors
from redraft.errors import ModelUnavailableError
from redraft.models import Chat
from redraft.models.openai_client import ClientModel

from .http_servers import server_context, serving

NOW = datetime.now(UTC)
TO_DO = r"is not trusted \(.+\): set SSL_CERT_FILE to a file with the certificate of its authority"


def dated(begin, end):
    """Return what issues a certificate that is valid between these days from now."""
    days = {"not_before": NOW + timedelta(begin), "not_after": NOW + timedelta(end)}
    return lambda authority: authority.issue_cert("127.0.0.1", **days)


CERTIFICATES = {
    "of another authority": (
        lambda _: trustme.CA().issue_cert("127.0.0.1"),
        r"is not trusted .+: add the certificate of its authority to",
    ),
    "of another host": (
        lambda authority: authority.issue_cert("127.0.0.2"),
        "its certificate is not valid for '127.0.0.1'",
    ),
    "of a name": (
        lambda authority: authority.issue_cert("other.example"),
        "its certificate is not valid for '127.0.0.1'",
    ),
    "expired": (dated(-9, -1), "its certificate has expired"),
    "of the future": (dated(1, 9), "its certificate is not yet valid"),
    "none": (
        None,
        "speaks no TLS at this port; if it speaks plain HTTP, its address begins with http://",
    ),
}
CLIENTS = {
    "ours": lambda url: Chat("m", url),
    "openai": lambda url: ClientModel(
        vendors.openai.AsyncOpenAI(base_url=url, api_key="k", http_client=httpx.AsyncClient()), "m"
    ),
}


async def answer_at_once(reader, writer):
    """Refuse whatever is sent, as a server without TLS does."""
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()


async def error_of(client, ask, certificate):
    """Return the message of a client for a server with a certificate; None: it has no TLS."""
    context = None
    if certificate is not None:
        context = server_context(trustme.CA())
        certificate.configure_cert(context)
    async with serving(answer_at_once, context) as port:
        with pytest.raises(ModelUnavailableError) as caught:
            await CLIENTS[client](f"https://127.0.0.1:{port}/v1").complete(ask())
    assert not caught.value.retryable
    text = str(caught.value)
    assert "no secure (TLS) connection: " in text
    assert "_ssl.c" not in text
    return text


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", CERTIFICATES)
async def test_each_fault_of_a_certificate_has_its_words(ask, authority, trusted, kind, client):
    """They name the fault and not OpenSSL's source, also for the client of another package."""
    make, words = CERTIFICATES[kind]
    text = await error_of(client, ask, make and make(authority))
    assert re.search(words, text), text


AUTHORITIES = {
    "unset": ({}, TO_DO),
    "no file": (
        {"SSL_CERT_FILE": "{folder}/none.pem"},
        "the file that SSL_CERT_FILE names cannot be read: No such file",
    ),
    "no certificate": (
        {"SSL_CERT_FILE": "{folder}/text.pem"},
        "the file that SSL_CERT_FILE names has no certificates in PEM form",
    ),
    "no folder": (
        {"SSL_CERT_DIR": "{folder}/none"},
        "the folder that SSL_CERT_DIR names does not exist",
    ),
    "one folder": ({"SSL_CERT_DIR": f"{{folder}}/none{os.pathsep}{{folder}}"}, TO_DO),
}


@pytest.mark.parametrize("name", AUTHORITIES)
async def test_what_openssl_does_not_find_is_named(ask, authority, monkeypatch, tmp_path, name):
    """OpenSSL ignores a file or folder that does not exist: the error about the certificate says
    so.
    """
    values, words = AUTHORITIES[name]
    (tmp_path / "text.pem").write_text("no certificate")
    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in values.items():
        monkeypatch.setenv(variable, value.format(folder=tmp_path))
    text = await error_of("ours", ask, authority.issue_cert("127.0.0.1"))
    assert re.search(words, text), text
