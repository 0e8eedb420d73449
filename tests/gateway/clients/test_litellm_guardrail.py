"""A real LiteLLM proxy with Redraft as its guardrail. `pip install 'litellm[proxy]'` in an
environment of its own, and put its `litellm` on the PATH.
"""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

import vendors
from require import require_program

from .gateway_process import serving
from .scripted_upstream import ScriptedUpstream

BAD, GOOD = "Too short.", "Six words make this text good."
MASTER_KEY = "sk-test-0f7b2c9d81e64a5390b1c7d2"
START_SECONDS = 240
PROFILES = """
[profiles.fast]
store = "full"
model = "scripted"
judge = "none"
required-graders = ["words:6-"]
max-iterations = 1
retries = 0
"""
CONFIG = """
model_list:
  - model_name: tiny
    litellm_params: {{model: openai/tiny, api_base: "{model}", api_key: none}}
guardrails:
  - guardrail_name: redraft
    litellm_params:
      guardrail: generic_guardrail_api
      mode: [pre_call, post_call]
      api_base: "{gateway}"
      api_key: "{key}"
      default_on: true
      streaming_end_of_stream_only: true
      streaming_transform_mode: incremental_diff
      additional_provider_specific_params: {{profile: fast}}
general_settings:
  master_key: {master}
"""


def answer(body):
    """Return a bad answer to the user, and a good one to a refinement, which shows the bad one."""
    return GOOD if BAD in json.dumps(body["messages"]) else BAD


@contextmanager
def proxy(folder, config):
    """Run a LiteLLM proxy; yields its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "litellm.yaml").write_text(config)
    command = [require_program("litellm"), "--config", str(folder / "litellm.yaml")]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with (folder / "litellm.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_alive(process, url)
        yield f"{url}/v1"
    finally:
        process.kill()
        process.wait()


def wait_until_alive(process, url):
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(f"{url}/health/liveliness", timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
        else:
            return
    raise AssertionError("the LiteLLM proxy does not answer; litellm.log says why")


@pytest.mark.slow
def test_a_litellm_proxy(tmp_path):
    """A client of the proxy gets the repaired text, whole and as a stream, and an error for a text
    that cannot be repaired; the gateway knows the conversation.
    """
    require_program("litellm")
    upstream = ScriptedUpstream(answer)
    models = f'[models.scripted]\nurl = "{upstream.url}"\nmodel = "scripted"\n'
    messages = [{"role": "user", "content": "What is a hash table?"}]
    with serving(tmp_path, models, PROFILES) as gateway:
        key = gateway.add_key("litellm", "--profile", "refine/fast")
        config = CONFIG.format(model=upstream.url, gateway=gateway.root, key=key, master=MASTER_KEY)
        with proxy(tmp_path, config) as url:
            client = vendors.openai.OpenAI(base_url=url, api_key=MASTER_KEY, max_retries=0)
            whole = client.chat.completions.create(model="tiny", messages=messages)
            assert whole.choices[0].message.content == GOOD
            repair = json.dumps(upstream.bodies[-1]["messages"])
            assert "What is a hash table?" in repair and BAD in repair
            stream = client.chat.completions.create(model="tiny", messages=messages, stream=True)
            text = "".join(
                chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices
            )
            assert text == GOOD
            upstream.answer = lambda body: BAD
            with pytest.raises(vendors.openai.APIStatusError, match="words:6-"):
                client.chat.completions.create(model="tiny", messages=messages)
        logged = gateway.logged_requests("/beta/litellm_basic_guardrail_api")
        assert {line["key"] for line in logged} == {"litellm"}
    upstream.close()
