"""Requests made up from the gateway's OpenAPI document, right and wrong ones: none gets a 500, and
every error has its form.
"""

import json
import urllib.error
import urllib.request
from contextlib import nullcontext, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from redraft.gateway.openapi import openapi_document

from .clients.gateway_process import serving
from .clients.scripted_upstream import ScriptedUpstream

MODELS = ["refine/fast", "pass/scripted"]
PROFILES = '[profiles.fast]\nmodel = "scripted"\ngraders = ["words:3-"]\nmax-iterations = 1\ndeadline = 5.0\n'
DOCUMENT = openapi_document(MODELS)
OPERATIONS = [
    (method.upper(), path)
    for path, methods in DOCUMENT["paths"].items()
    for method in methods
    if method != "parameters"
]
EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
MODEL_ERRORS = {502, 504}  # the model gave no answer in the form that the request demands


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    upstream = ScriptedUpstream(lambda body: "An answer of at least six words.")
    models = f'[models.scripted]\nurl = "{upstream.url}"\nmodel = "scripted"\n'
    with serving(tmp_path_factory.mktemp("made_up"), models, PROFILES) as running:
        yield running
    upstream.close()


def check(gateway, case):
    """Send a request and check its reply."""
    reply = case.call(base_url=gateway.root, timeout=30)
    assert reply.status_code < 500 or reply.status_code in MODEL_ERRORS, (
        reply.status_code,
        reply.text[:500],
    )
    if reply.status_code >= 400 and case.path.startswith("/v1/"):
        assert reply.json()["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["allowed", "wrong"])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_request_gets_a_500(gateway, method, path, mode):
    """What the document allows, and what it does not, gets an answer or an error that says what is
    wrong.
    """
    import schemathesis  # it takes long, and each process that runs tests reads this file

    made = (
        schemathesis.GenerationMode.POSITIVE
        if mode == "allowed"
        else schemathesis.GenerationMode.NEGATIVE
    )

    @EXAMPLES
    @given(schemathesis.openapi.from_dict(DOCUMENT)[path][method].as_strategy(generation_mode=made))
    def send(case):
        check(gateway, case)

    # nothing can be wrong with some requests
    with suppress(Unsatisfiable) if mode == "wrong" else nullcontext():
        send()
    assert gateway.process.poll() is None
    assert "Traceback" not in gateway.log.read_text()


HOSTILE = {
    "nothing": b"",
    "no object": b"[]",
    "not UTF-8": b'{"model": "\xff\xfe"}',
    "a lone surrogate": rb'{"model": "pass/scripted", "messages": [{"role": "user", "content": "\ud800"}]}',
    "not a number": b'{"model": "pass/scripted", "temperature": NaN, "messages": [{"role": "user", "content": "hi"}]}',
    "a large number": b'{"model": "pass/scripted", "seed": 1'
    + b"0" * 5000
    + b', "messages": [{"role": "user", "content": "hi"}]}',
    "deep lists": b'{"model": "refine/fast", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"model": "pass/scripted", "x": '
    + b'{"a":' * 5000
    + b"1"
    + b"}" * 5000
    + b"}",
    "a name twice": b'{"model": "refine/fast", "model": "pass/scripted", "messages": [{"role": "user", "content": "hi"}]}',
    "a null byte": rb'{"model": "refine/fast", "messages": [{"role": "user", "content": "a\u0000b"}]}',
    "many messages": b'{"model": "refine/fast", "messages": ['
    + b'{"role":"user","content":"a"},' * 20_000
    + b"{}]}",
}


@pytest.mark.slow(but_each=4)
@pytest.mark.parametrize(
    "path", ["chat/completions", "responses", "messages", "messages/count_tokens"]
)
@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_no_body_gets_a_500(gateway, path, body):
    """Bodies that no schema describes get an answer or an error in its form, and the gateway goes
    on.
    """
    request = urllib.request.Request(
        f"{gateway.url}/{path}", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            assert reply.status == 200
    except urllib.error.HTTPError as error:
        with error:
            assert error.code < 500 or error.code in MODEL_ERRORS, error.read()[:500]
            assert json.loads(error.read())["error"]["message"]
    assert gateway.get("/readyz")
    assert "Traceback" not in gateway.log.read_text()
