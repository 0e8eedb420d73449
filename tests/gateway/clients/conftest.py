"""Gateways for tests of clients: one before a real llama.cpp server, one before a scripted
endpoint.
"""

from dataclasses import dataclass

import pytest

from .gateway_process import GatewayProcess, serving
from .scripted_upstream import ScriptedUpstream

REAL_PROFILES = """
[profiles.fast]
store = "full"
model = "tiny"
graders = ["words:3-400"]
max-iterations = 1
"""
SCRIPTED_PROFILES = """
[profiles.fast]
store = "full"
model = "scripted"
graders = ["words:6-"]
max-iterations = 2
retries = 0

[profiles.slow]
model = "scripted"
graders = ["words:6-"]
deadline = 3.0
retries = 0
"""


@pytest.fixture(scope="session")
def real_gateway(plain_server, tmp_path_factory):
    """A gateway before a real llama.cpp server, with `refine/fast` and `pass/tiny`."""
    url, _, model = plain_server.partition("#")
    models = f'[models.tiny]\nurl = "{url}"\nmodel = "{model}"\n'
    with serving(tmp_path_factory.mktemp("real"), models, REAL_PROFILES) as gateway:
        yield gateway


@dataclass
class Scripted:
    """A gateway and the scripted endpoint behind it."""

    gateway: GatewayProcess
    upstream: ScriptedUpstream


@pytest.fixture(scope="session")
def scripted_session(tmp_path_factory):
    upstream = ScriptedUpstream(lambda body: "unset")
    models = f'[models.scripted]\nurl = "{upstream.url}"\nmodel = "scripted"\n'
    with serving(tmp_path_factory.mktemp("scripted"), models, SCRIPTED_PROFILES) as gateway:
        yield Scripted(gateway, upstream)
    upstream.close()


@pytest.fixture
def scripted(scripted_session):
    """A gateway before a scripted endpoint; what it was asked so far is forgotten."""
    scripted_session.upstream.reset(lambda body: "unset")
    return scripted_session
