"""Base URLs of endpoints: reading one, the key in it, the URLs below it, and how one is shown.

A base URL is `http(s)://[USER:KEY@]HOST[:PORT][/PATH][?QUERY]`. The key is sent to that host only; the query goes with every
request. Both are secret, whatever is in them: what is shown is the scheme, the host, the port and the path.
"""

from __future__ import annotations

import re
import warnings
from hashlib import sha256
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ..errors import ConfigError, ModelError, ModelUnavailableError
from ..masking import is_secret
from .http_client import REFUSED_USAGE
from .openai_responses import shorten

CHAT_PATH = "/chat/completions"
_LOCAL_NAMES = (".localhost", ".local", ".lan", ".home.arpa", ".internal", ".test")


def parse_base_url(base_url: str) -> tuple[SplitResult, str | None]:
    """A base URL without its user info, and the key that stood there. Raises ConfigError for what is no such URL."""
    try:
        parts = urlsplit(base_url.strip())
        host, _ = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError:
        raise ConfigError(f"a base URL is http(s)://host:port/v1: {_unreadable_part(base_url)} cannot be read") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise ConfigError(f"a base URL is http(s)://host:port/v1, got {redacted_url(base_url)!r}")
    path = parts.path.rstrip("/").removesuffix(CHAT_PATH)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2].lower(), path=path, fragment="")
    return bare, unquote(parts.password or parts.username or "") or None


def check_proxy(proxy: str | None) -> None:
    """Raises ConfigError for what is no URL of a proxy; it is not shown, for a password may stand anywhere in it."""
    try:
        at = urlsplit(proxy or "")
        is_url = at.scheme in {"http", "https"} and bool(at.hostname) and (at.port or 1) > 0
    except ValueError:
        is_url = False
    if proxy and proxy != "env" and not is_url:
        raise ConfigError(
            'a proxy (REDRAFT_PROXY, proxy=) is http(s)://[USER:PASSWORD@]HOST:PORT or "env"; this one cannot be read'
        )


def _unreadable_part(url: str) -> str:
    """What in a URL could not be read: the port, if it is that. Where there is an @ anything may be a part of a password."""
    if "@" in url:
        return "this one"
    port = re.search(r":([^:\]/]*)$", redacted_url(url).partition("://")[2].partition("/")[0])
    if port and not (port[1].isascii() and port[1].isdigit() and int(port[1][:6]) < 1 << 16):
        return f"its port {port[1]!r}, which must be a number up to 65535,"
    return "this one"


def join_url(base: SplitResult, path: str, query: str = "") -> str:
    """The URL of a path below a base URL; the base's query is kept, before one of its own."""
    return base._replace(path=base.path + path, query="&".join(filter(None, (base.query, query)))).geturl()


def with_version(url: str) -> str:
    """A base URL; one that names a host alone means `/v1` there."""
    parts = urlsplit(url.strip())
    return url if parts.path.strip("/") else parts._replace(path="/v1").geturl()


def query_fingerprint(base: SplitResult) -> str:
    """What tells endpoints apart that differ in their query only: a short hash of what in it is no secret; "" for none."""
    open_to_see = [pair for pair in parse_qsl(base.query) if not is_secret(*pair)]
    return f"?{sha256(repr(open_to_see).encode()).hexdigest()[:8]}" if open_to_see else ""


def redirect_error(status: int, location: str) -> ModelError:
    """The error for a redirect."""
    why = "redirects are not followed, so that a key stays where it belongs"
    return ModelUnavailableError(f"status {status} sends us to {redacted_url(location)}: {why}", status=status, usage=REFUSED_USAGE)


def redacted_url(url: str) -> str:
    """A URL as it may be shown anywhere: scheme, host, port and path, on one line; no user info, no query, no fragment."""
    scheme, slashes, rest = url.partition("://")
    rest = re.split(r"[?#]", rest)[0]
    host, slash, path = rest.partition("/")
    shown = f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}" if slashes else re.split(r"[?#]", url.rpartition("@")[2])[0]
    return shorten(f"{scheme}{slashes}..." if "@" in shown else shown, 200)  # (what stands before an @ may be a password)


def path_hint(url: str, suffix: str = CHAT_PATH) -> str:
    """What to say where a server has not what was asked for: the path, and the base URL to try where that lacks a version."""
    path = urlsplit(url).path
    if re.search(r"/v[0-9]", path):
        return f" (asked for {path})"
    base = redacted_url(url).removesuffix(suffix).rstrip("/")
    return f" (asked for {path}; OpenAI-compatible servers mostly answer under /v1: try {base}/v1)"


def redacted_model_name(spec: str) -> str:
    """The name of a model, or of anything that may hold an address, as it may be shown and kept: without the secrets in it.

    `embedding:http://u:pw@host/v1?key=K#m` becomes `embedding:http://host/v1#m`.
    """
    before, slashes, rest = spec.partition("://")
    if not slashes:
        return spec
    address, mark, name = rest.partition("#")
    return f"{before}{redacted_url(f'://{address}')}{mark}{name.partition('?')[0]}"


def clean_key(key: str | None) -> str | None:
    """A key without the white space that files leave around it. Raises ConfigError for what no header can carry."""
    key = (key or "").strip()
    if not key.isascii() or not key.isprintable():
        raise ConfigError("the API key has characters in it that no key has (it is not shown here)")
    return key or None


def warn_plain_http(base_url: SplitResult) -> None:
    """Warn, once for each host, of a key that goes over the internet without encryption."""
    if base_url.scheme == "http" and not is_private_host(base_url.hostname or ""):
        warnings.warn(
            f"a key is sent to {base_url.netloc} over plain http, where anybody on the way can read it: use https", stacklevel=3
        )


def is_private_host(host: str) -> bool:
    """Whether a host is this machine or on a private network, as far as its name or number says: nothing is looked up.

    Nearby are loopback, private and link-local addresses, names without a dot (as containers have), and names that end in
    .localhost, .local, .lan, .home.arpa, .internal or .test.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return "." not in host.rstrip(".") or host.rstrip(".").endswith(_LOCAL_NAMES)
    return address.is_loopback or address.is_private or address.is_link_local
