"""Further parameters of model calls, such as `reasoning_effort`, which are sent in the body of a
request beside the usual ones.

They come from graders, the command line and files; the nearest wins, name by name
(`merge_parameters`). Here is what they may be, how they are written as text, and the table of
fields that choose the model, the host or the credentials, which the gateway applies, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigError
from . import checks
from .checks import format_value
from .jsontext import nesting_depth, reject_constant, reject_duplicate_keys
from .masking import secrets_in_fields

_ROUTING = (
    "models fallbacks fallback_models route provider providers preset model_list engine "
    "providerOptions allowed_model_region user_config deployment_id specific_deployment "
    "base_model context_window_fallback_dict custom_llm_provider lora_path adapter_id "
    "adapter_source api_base base_url api_version api_type headers extra_headers extra_query "
    "extra_body provider_specific_header kv_transfer_params bootstrap_host bootstrap_port "
    "data_sources api_key api_token organization litellm_credential_name azure_ad_token "
    "client_id client_secret tenant_id region_name vertex_project vertex_location "
    "vertex_credentials langfuse_host aws_access_key_id aws_secret_access_key aws_session_token "
    "aws_session_name aws_profile_name aws_role_name aws_web_identity_token aws_sts_endpoint "
    "aws_region_name aws_bedrock_runtime_endpoint "
)
ROUTING_FIELDS = frozenset(_ROUTING.split())
"""Fields by which routers, proxies and servers let a client choose the model, the host or the
credentials.
"""
SAMPLING = ("temperature", "max_tokens", "seed")
"""Parameters that a request has fields for, so that budgets and the adaptation to an endpoint know
them.
"""
MAX_DEPTH = 20
MAX_CHARS = 20_000  # of all parameters as JSON

_OWN_FIELDS = (
    "messages input system instructions prompt stream stream_options n best_of response_format "
    "logprobs top_logprobs tools tool_choice functions function_call "
)
_ANSWER_LENGTH = "max_completion_tokens max_output_tokens max_new_tokens n_predict num_predict "


def plain_name(name: str) -> str:
    """Return the name of a field as servers find it that regard neither case nor the signs between
    words.
    """
    return name.casefold().replace("_", "").replace("-", "")


def plain_names(names: Iterable[str]) -> Mapping[str, str]:
    """Return names of a table by what `plain_name` makes of them."""
    return {plain_name(name): name for name in names}


_REFUSED = {
    **dict.fromkeys(
        plain_names((*ROUTING_FIELDS, "model", "mcp_servers", "authorization")),
        "no parameter chooses a model, a host, a key or a header",
    ),
    **dict.fromkeys(
        plain_names(_OWN_FIELDS.split()), "it is set for each call and is no parameter"
    ),
    **dict.fromkeys(
        plain_names(_ANSWER_LENGTH.split()),
        "write max_tokens, which is sent under the name that the endpoint takes",
    ),
}


def check_parameters(where: str, value: Any) -> None:
    """Raise ConfigError for anything but a mapping of parameters to values that JSON has; the
    message shows no value.
    """
    expected = 'parameters by name, such as {"reasoning_effort": "low"}'
    checks.require(isinstance(value, Mapping), where, expected, value)
    for name in value:
        _check_name(where, name)
        _check_sampling(where, name, value[name])
    try:
        text = json.dumps(value, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(
            f"{where}: the value of a parameter is one that JSON has: no date, NaN or infinity"
        ) from None
    data = json.loads(text) if len(text) <= MAX_CHARS else None
    if data is None or nesting_depth(data) > MAX_DEPTH:
        raise ConfigError(
            f"{where}: parameters have at most {MAX_CHARS:,} characters and {MAX_DEPTH} levels"
        )
    if any(secrets_in_fields(data)):
        raise ConfigError(
            f"{where}: a parameter holds no key; keys are read from the environment or the "
            "address of the model"
        )


def _check_name(where: str, name: Any) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ConfigError(f"{where}: the name of a parameter is a text, got {format_value(name)}")
    if reason := _REFUSED.get(plain_name(name)):
        raise ConfigError(f"{where}: {format_value(name)}: {reason}")


def _plain(value: Any) -> Any:
    """Return a mapping that is no dict as one, for `json`."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(type(value).__name__)


def _check_sampling(where: str, name: str, value: Any) -> None:
    if name == "temperature":
        checks.number(f"{where}: {name}", value, optional=True)
    elif name in SAMPLING:
        checks.whole_number(
            f"{where}: {name}", value, 1 if name == "max_tokens" else 0, optional=True
        )


def parse_parameter(text: str) -> dict[str, Any]:
    """Return the parameter that "NAME=VALUE" means: dots make nested objects, and what is no JSON
    is a text. Raises ValueError.
    """
    name, sign, value = text.partition("=")
    path = [part.strip() for part in name.split(".")]
    if not sign or not all(path) or len(path) > MAX_DEPTH:
        raise ValueError(
            f"{text[:80]!r} is not NAME=VALUE, such as reasoning_effort=low; dots make nested "
            "objects, as in a.b=1"
        )
    parameter = parse_value(value)
    for part in reversed(path):
        parameter = {part: parameter}
    return dict(parameter)


def parse_value(text: str) -> Any:
    """Return the value of JSON, or the text itself if it is no JSON."""
    try:
        return json.loads(
            text, parse_constant=reject_constant, object_pairs_hook=reject_duplicate_keys
        )
    except (ValueError, RecursionError):
        return text


def merge_parameters(*parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters, given from far to near: of two values of a name the nearer counts.
    Objects are merged name by name.
    """
    result: dict[str, Any] = {}
    for near in parameters:
        for name, value in near.items():
            both = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
            result[name] = merge_parameters(result[name], value) if both else value
    return result


def without_sampling(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters for which a request has no field."""
    return {name: value for name, value in parameters.items() if name not in SAMPLING}
