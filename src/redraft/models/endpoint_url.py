"""Base URLs of endpoints: parsing, the key in them, URLs below them, and redaction.

A base URL is `http(s)://[USER:KEY@]HOST[:PORT][/PATH][?QUERY]`. The key is sent to that host only;
the query is part of every request. Both count as secret: only the scheme, the host, the port and
the path are shown.
"""

from __future__ import annotations

import os
import re
import warnings
from hashlib import sha256
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ..base.masking import is_secret
from ..base.text import shorten
from ..errors import ConfigError, ModelError, ModelUnavailableError
from .http_client import REFUSED_USAGE, proxy_for
from .http_requests import InvalidRequestError, ascii_host, port_of

CHAT_PATH = "/chat/completions"
_BARE_IPV6 = re.compile(r"\[?[0-9a-fA-F.]*:[0-9a-fA-F.]*:")
_LOCAL_NAMES = (".localhost", ".local", ".lan", ".home.arpa", ".internal", ".test")


def parse_base_url(base_url: str) -> tuple[SplitResult, str | None]:
    """Return a base URL without its user info, and the key in it. Raises ConfigError for anything
    else.
    """
    try:
        parts = urlsplit(base_url.strip())
        host = parts.hostname
        if parts.netloc and parts.scheme in {"http", "https"}:
            ascii_host(host or "")
            port_of(parts)
    except InvalidRequestError as error:
        raise ConfigError(
            f"a base URL is http(s)://host:port/v1, and of {redacted_url(base_url)!r}: {error}"
        ) from None
    except ValueError:
        raise ConfigError(f"a base URL is http(s)://host:port/v1: {_url_fault(base_url)}") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise ConfigError(f"a base URL is http(s)://host:port/v1, got {redacted_url(base_url)!r}")
    path = parts.path.rstrip("/").removesuffix(CHAT_PATH)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2].lower(), path=path, fragment="")
    return bare, unquote(parts.password or parts.username or "") or None


def check_proxy(proxy: str | None, url: str = "") -> None:
    """Raise ConfigError if this is no URL of a proxy; of "env", the proxy that the environment
    names for a URL is checked.

    The message does not show it, because it may contain a password.
    """
    if proxy and proxy != "env" and not _is_proxy(proxy):
        raise ConfigError(
            'a proxy (REDRAFT_PROXY, proxy=) is http(s)://[USER:PASSWORD@]HOST:PORT or "env"; '
            "this one cannot be read"
        )
    if proxy == "env" and url and (named := proxy_for("env", url)) and not _is_proxy(named):
        name = proxy_variable(url)
        raise ConfigError(
            f"the proxy in {name} cannot be read: write {name}=http(s)://[USER:PASSWORD@]HOST:PORT"
        )


def _is_proxy(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy)
        return bool(ascii_host(parts.hostname or "") and port_of(parts))
    except (InvalidRequestError, KeyError, ValueError):
        return False


def proxy_variable(url: str) -> str:
    """Return the name of the environment variable with the proxy for a URL, as it is written
    there.
    """
    name = f"{urlsplit(url).scheme}_proxy"
    return name if os.environ.get(name) else name.upper()


def unused_proxy(url: str) -> str:
    """Return the name of the environment variable with a proxy that REDRAFT_PROXY=env would use for
    a URL; "" if there is none.
    """
    is_public = not is_private_host(urlsplit(url).hostname or "")
    return proxy_variable(url) if is_public and proxy_for("env", url) else ""


def _url_fault(url: str) -> str:
    """Return what is wrong with the host or the port of a URL. After an @, any part may belong to a
    password.
    """
    if "@" in url:
        return "this one cannot be read"
    place = redacted_url(url).partition("://")[2].partition("/")[0]
    if _BARE_IPV6.match(place) and not re.match(r"\[[^\]]*\](:|$)", place):
        return f"an IPv6 address stands in brackets, as in http://[::1]:8080/v1, got {place!r}"
    port = re.search(r":([^:\]/]*)$", place)
    if port and not (port[1].isascii() and port[1].isdigit() and 0 < int(port[1][:6]) < 1 << 16):
        return f"its port {port[1]!r} must be a number from 1 to 65535"
    host = place if "[" in place or not port else place.removesuffix(port[0])
    return f"its host {host!r} cannot be read" if host else f"{redacted_url(url)!r} names no host"


def join_url(base: SplitResult, path: str, query: str = "") -> str:
    """Return the URL of a path below a base URL, with the query of the base URL before its own."""
    return base._replace(
        path=base.path + path, query="&".join(filter(None, (base.query, query)))
    ).geturl()


def with_version(url: str) -> str:
    """Return a base URL, with `/v1` added if it has no path."""
    parts = urlsplit(url.strip())
    return url if parts.path.strip("/") else parts._replace(path="/v1").geturl()


def query_fingerprint(base: SplitResult) -> str:
    """Return a short hash of the parts of a query that are not secret, to distinguish endpoints; ""
    if there are none.
    """
    public = [pair for pair in parse_qsl(base.query) if not is_secret(*pair)]
    return f"?{sha256(repr(public).encode()).hexdigest()[:8]}" if public else ""


def redirect_error(status: int, location: str) -> ModelError:
    """Return the error for a redirect."""
    reason = "redirects are not followed, so that the key reaches no other host"
    message = f"status {status} redirects to {redacted_url(location)}: {reason}"
    return ModelUnavailableError(message, status=status, usage=REFUSED_USAGE)


def redacted_url(url: str) -> str:
    """Return the scheme, host, port and path of a URL on one line, without user info, query and
    fragment.
    """
    scheme, slashes, rest = url.partition("://")
    rest = re.split(r"[?#]", rest)[0]
    host, slash, path = rest.partition("/")
    shown = (
        f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"
        if slashes
        else re.split(r"[?#]", url.rpartition("@")[2])[0]
    )
    # a part before an @ may be a password
    return shorten(f"{scheme}{slashes}..." if "@" in shown else shown, 200)


def path_hint(url: str, suffix: str = CHAT_PATH) -> str:
    """Return a hint for a 404: the path of the request, and the base URL to try if it has no
    version.
    """
    path = urlsplit(url).path
    if re.search(r"/v[0-9]", path):
        return f" (asked for {path})"
    base = redacted_url(url).removesuffix(suffix).rstrip("/")
    return f" (asked for {path}; OpenAI-compatible servers mostly answer under /v1: try {base}/v1)"


def redacted_model_name(spec: str) -> str:
    """Return a name that may contain an address, such as a model's, without secrets.

    `embedding:http://u:pw@host/v1?key=K#m` becomes `embedding:http://host/v1#m`.
    """
    prefix, slashes, rest = spec.partition("://")
    if not slashes:
        return spec
    address, hash_sign, name = rest.partition("#")
    return f"{prefix}{redacted_url(f'://{address}')}{hash_sign}{name.partition('?')[0]}"


def clean_key(key: str | None) -> str | None:
    """Return a key without white space around it. Raises ConfigError if it has characters that a
    header cannot contain.
    """
    key = (key or "").strip()
    if not key.isascii() or not key.isprintable():
        raise ConfigError("the API key has characters that no key has (it is not shown here)")
    return key or None


def warn_plain_http(base_url: SplitResult) -> None:
    """Warn, once for each host, if a key is sent over the internet without encryption."""
    if base_url.scheme == "http" and not is_private_host(base_url.hostname or ""):
        warnings.warn(
            f"a key is sent to {base_url.netloc} over plain http, where it can be intercepted: "
            "use https",
            stacklevel=3,
        )


def is_private_host(host: str) -> bool:
    """Whether a host is this machine or on a private network, judged by its name or address without
    a DNS query.

    Private are loopback, private and link-local addresses, names without a dot (as containers
    have), and names that end in .localhost, .local, .lan, .home.arpa, .internal or .test.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return "." not in host.rstrip(".") or host.rstrip(".").endswith(_LOCAL_NAMES)
    return address.is_loopback or address.is_private or address.is_link_local
