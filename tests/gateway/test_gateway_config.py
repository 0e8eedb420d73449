"""The configuration of a gateway: what a file may say, and that nothing in it is ignored or
guessed.
"""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from redraft.errors import ConfigError
from redraft.gateway.config import (
    MODEL_KEYS,
    PROFILE_KEYS,
    PROFILE_SETTINGS,
    GatewayConfig,
    GatewayLimits,
    Profile,
    Retention,
    ServedModel,
    default_config,
    load_config,
    parse_config,
    served_model,
)
from redraft.middleware import Budget

URL = "http://127.0.0.1:8080/v1"
MODEL = f'[models.small]\nurl = "{URL}"\n'
WHOLE = """
[gateway]
host = "0.0.0.0"
port = 9000
folder = "data"
max-concurrent = 8
max_queue = 0
queue-seconds = 2.5
deadline = 60
drain-seconds = 0
max-body-mb = 0.5
allowed-hosts = ["gateway.example.org"]
allowed-origins = ["https://chat.example.org"]
require-keys = true
log-content = true
store = "off"

[models.small]
url = "http://127.0.0.1:8080/v1/"
model = "qwen"
prices = [0.1, 0.4]
timeout = 30

[models.big]
url = "https://models.example.org/v1"
kind = "anthropic"
key-env = "BIG_KEY"
prices = {input = 3, output = 15}

[profiles.fast]
model = "small"
judge = "big"
graders = ["judge", "words:80-200"]
required-graders = ["answered", "words:1-400"]
target-score = 0.8
max_iterations = 1
budget = {usd = 0.01, calls = 6}
draft-prompt = "draft.txt"
maximum = {target-score = 0.95, max-iterations = 2}
refine = "all"
candidates = 3
store = "full"
keep-days = 7
keep-mb = 10
"""


def parse(text, folder=Path("/srv"), **env):
    return parse_config(tomllib.loads(text), folder, env)


def test_a_whole_file(tmp_path):
    """Every key of a file stands in the record, with paths from the file's folder."""
    (tmp_path / "draft.txt").write_text("Answer: {prompt}")
    file = tmp_path / "gateway.toml"
    file.write_text(WHOLE)
    assert load_config(file, {"BIG_KEY": "sk-1"}) == GatewayConfig(
        folder=tmp_path / "data",
        models={
            "small": ServedModel("small", URL, "qwen", prices=(0.1, 0.4), timeout=30),
            "big": ServedModel(
                "big", "https://models.example.org/v1", "big", "anthropic", "BIG_KEY", (3.0, 15.0)
            ),
        },
        profiles={
            "fast": Profile(
                "fast",
                "small",
                "big",
                ("judge", "words:80-200"),
                {
                    "target_score": 0.8,
                    "max_iterations": 1,
                    "budget": Budget(usd=0.01, calls=6),
                    "draft_prompt": tmp_path / "draft.txt",
                },
                {"target_score": 0.95, "max_iterations": 2},
                "all",
                (),
                3,
                Retention("full", 7, 10),
                ("answered", "words:1-400"),
            )
        },
        host="0.0.0.0",
        port=9000,
        limits=GatewayLimits(8, 0, 2.5, 60, 0, 2**19),
        passed_retention=Retention("off"),
        allowed_hosts=("gateway.example.org",),
        allowed_origins=("https://chat.example.org",),
        require_keys=True,
        log_content=True,
    )


def test_texts_that_pass_through():
    """They are read as they are written."""
    assert parse(f"{MODEL}[profiles.p]\npass-through = ['Generate a title']").profiles[
        "p"
    ].pass_through == ("Generate a title",)


@each_row(
    ("text", "message"),
    [
        ("", "there is no model"),
        ("[gatway]\n", "unknown key 'gatway'; did you mean 'gateway'"),
        (f"{MODEL}[gateway]\nprt = 1", "gateway.prt: unknown key 'prt'; did you mean 'port'"),
        (f"{MODEL}[gateway]\nhost = ' '", "gateway.host must be text that is not blank"),
        (f"{MODEL}[gateway]\nmax-queue = 1\nmax_queue = 2", "gateway.max-queue is given twice"),
        (
            f"{MODEL}[gateway]\nport = 70000",
            "gateway.port must be a whole number from 0 to 65,535, got 70000",
        ),
        (f"{MODEL}[gateway]\nport = true", "gateway.port must be a whole number"),
        (f"{MODEL}[gateway]\ndeadline = '60'", "gateway.deadline must be a number > 0, got '60'"),
        (
            f"{MODEL}[gateway]\nstore = 'all'",
            "gateway.store must be one of off, metadata, full, got 'all'",
        ),
        (f"{MODEL}[gateway]\nrequire-keys = 1", "gateway.require-keys must be True or False"),
        (f"{MODEL}[gateway]\nkeys = ['sk-abc']", "gateway.keys is not allowed in a file"),
        ("gateway = 3\nmodels = {a = {url = 'http://h/v1'}}", "gateway must be a table, got 3"),
        ("models = 3", "models must be tables such as [models.small]"),
        ("[models.'a/b']\nurl = 'http://h'", "[models.a/b]: a name consists of"),
        ("[models.a]\nkind = 'openai'", "models.a needs url"),
        ("[models.a]\nurl = 'ftp://h'", "models.a.url: a base URL is http(s)"),
        ("[models.a]\nurl = 'https://me:pa@h/v1'", "models.a.url must not contain a user or a key"),
        (
            "[models.a]\nurl = 'https://h/v1?api_key=abcdefgh'",
            "models.a.url must not contain a user or a key",
        ),
        (
            "[models.a]\nurl = 'http://h'\napi-key = 'sk-abc'",
            "models.a.api-key is not allowed in a file: key-env names",
        ),
        (
            "[models.a]\nurl = 'http://h'\nkey-env = 'sk-proj-abc'",
            "models.a.key-env must be the name of an environment variable",
        ),
        (
            "[models.a]\nurl = 'http://h'\nkey-env = 'AIzaabcdefgh12'",
            "models.a.key-env must be the name of an environment variable",
        ),
        (
            "[models.a]\nurl = 'http://h'\nkey-env = 'MISSING'",
            "models.a.key-env: the environment variable MISSING is not set",
        ),
        ("[models.a]\nurl = 'http://h'\nprices = [1]", "models.a.prices must be USD per million"),
        (
            "[models.a]\nurl = 'http://h'\nprices = [-1, 2]",
            "models.a.prices must be USD per million",
        ),
        ("[models.a]\nmodel = 'qwen'", "models.a.model must be openai:NAME"),
        (
            "[models.a]\nmodel = 'openai:gpt-4o-mini'",
            "models.a.key-env: the environment variable OPENAI_API_KEY is not set",
        ),
        (
            f"{MODEL}[profiles.p]\nmodel = 'smal'",
            "profiles.p.model: unknown model 'smal'; did you mean 'small'",
        ),
        ("[profiles.p]\ntarget-score = 1", "profiles.p.model is missing"),
        (
            f"{MODEL}[profiles.p]\njudge = 'http://u:p@h/v1#x'",
            "profiles.p.judge must not contain a user or a key",
        ),
        (
            f"{MODEL}[profiles.p]\ngraders = ['clarty']",
            "profiles.p.graders: unknown grader 'clarty'; did you mean 'clarity'",
        ),
        (
            f"{MODEL}[profiles.p]\ngraders = ['graders.py:mine']",
            "profiles.p.graders: unknown grader",
        ),
        (f"{MODEL}[profiles.p]\ngraders = []", "profiles.p.graders must be a list of names"),
        (
            f"{MODEL}[profiles.p]\nrequired-graders = ['clarty']",
            "profiles.p.required-graders: unknown grader 'clarty'",
        ),
        (
            f"{MODEL}[profiles.p]\nrequired-graders = ['judge']\npass-through = ['x']",
            "profiles.p.required-graders and pass-through exclude each other",
        ),
        (
            f"{MODEL}[profiles.p]\nrequired-graders = ['judge']\nrefine = 'none'",
            "profiles.p.required-graders and refine = 'none' exclude each other",
        ),
        (
            f"{MODEL}[profiles.p]\ntarget-scor = 1",
            "profiles.p.target-scor: unknown key 'target-scor'; did you mean 'target-score'",
        ),
        (
            f"{MODEL}[profiles.p]\ntarget-score = 2",
            "profiles.p: target_score must be a number in [0, 1], got 2",
        ),
        (
            f"{MODEL}[profiles.p]\nmaximum = {{target-score = 2}}",
            "profiles.p.maximum.target-score must be a number in [0, 1]",
        ),
        (
            f"{MODEL}[profiles.p]\nmaximum = {{patience = 2}}",
            "profiles.p.maximum.patience: unknown key",
        ),
        (f"{MODEL}[profiles.p]\nbudget = 3", "profiles.p.budget must be a table"),
        (f"{MODEL}[profiles.p]\nbudget = {{euro = 3}}", "profiles.p.budget.euro: unknown key"),
        (f"{MODEL}[profiles.p]\nsandbox = 'unsafe'", "profiles.p.sandbox must not be unsafe"),
        (f"{MODEL}[profiles.p]\non-record = 'x'", "profiles.p.on-record: unknown key"),
        (f"{MODEL}[profiles.p]\ncache = {{}}", "profiles.p.cache: unknown key"),
        (f"{MODEL}[profiles.p]\neditor = 'mine'", "profiles.p.editor must be true or false"),
        (
            f"{MODEL}[profiles.p]\ndraft-prompt = 'missing.txt'",
            "profiles.p: draft_prompt: '/srv/missing.txt' cannot be read",
        ),
        (
            f"{MODEL}[profiles.p]\ncandidates = 0",
            "profiles.p.candidates must be a whole number from 1 to 16",
        ),
        (f"{MODEL}[profiles.p]\nstore = true", "profiles.p.store must be one of"),
    ],
)
def test_a_mistake_is_named(text, message):
    """An error names the key, the value and what is allowed. Values that may be keys are not
    shown.
    """
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert "sk-" not in str(caught.value)
    assert "abcdefgh" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path):
    """The error names the file, and the place of a mistake in its form."""
    with pytest.raises(
        ConfigError, match=r"missing\.toml cannot be read as a configuration: No such file"
    ):
        load_config(tmp_path / "missing.toml", {})
    broken = tmp_path / "broken.toml"
    broken.write_text("[models]\na = b")
    with pytest.raises(
        ConfigError, match=r"broken\.toml cannot be read as a configuration: .*line 2"
    ):
        load_config(broken, {})
    broken.write_text("[gateway]\nport = -1")
    with pytest.raises(ConfigError, match=r"broken\.toml: "):
        load_config(broken, {})


def test_a_profile_of_the_only_model():
    """With one model a profile need not name it."""
    assert parse(f"{MODEL}[profiles.fast]").profiles == {"fast": Profile("fast", "small")}


def test_what_is_kept_is_the_default_of_profiles():
    """An operator who keeps nothing of requests says so once; a profile may say otherwise."""
    config = parse(
        f"{MODEL}[gateway]\nstore = 'off'\nkeep-days = 3\n[profiles.a]\n[profiles.b]\nstore = 'full'"
    )
    kept = [config.passed_retention, *(profile.retention for profile in config.profiles.values())]
    assert kept == [Retention("off", 3), Retention("off", 3), Retention("full", 3)]


@pytest.mark.parametrize(
    ("name", "env", "expected"),
    [
        (f"{URL}#qwen", {}, ServedModel("a", URL, "qwen")),
        ("http://127.0.0.1:8080#qwen", {}, ServedModel("a", URL, "qwen")),
        ("ollama:llama3.2", {}, ServedModel("a", "http://127.0.0.1:11434/v1", "llama3.2")),
        (
            "openai:gpt-4o",
            {},
            ServedModel("a", "https://api.openai.com/v1", "gpt-4o", key_env="OPENAI_API_KEY"),
        ),
        ("openai:x", {"OPENAI_BASE_URL": URL}, ServedModel("a", URL, "x")),
        (
            "anthropic:claude",
            {},
            ServedModel(
                "a", "https://api.anthropic.com/v1", "claude", "anthropic", "ANTHROPIC_API_KEY"
            ),
        ),
    ],
)
def test_a_model_by_its_name(name, env, expected):
    """A name that `connect` takes stands for an address, a protocol and the variable with its
    key.
    """
    assert served_model("a", name, env) == expected


@pytest.mark.parametrize(
    "name", ["gpt-4o", "openai:", "local:a.gguf", URL, "http://me:secret@h/v1#x"]
)
def test_a_name_without_an_address(name):
    """A name that has no address to which requests can be passed is refused; a password in it is
    not shown.
    """
    with pytest.raises(ConfigError) as caught:
        served_model("a", name, {})
    assert "secret" not in str(caught.value)


def test_one_model_without_a_file(tmp_path, monkeypatch):
    """A name is enough: refine/default and pass/default, with their data in the user's folder."""
    monkeypatch.setenv("REDRAFT_HOME", str(tmp_path))
    config = default_config(f"{URL}#qwen", {}, judge="ollama:judge")
    assert (config.models, config.profiles) == (
        {"default": ServedModel("default", URL, "qwen")},
        {"default": Profile("default", "default", "ollama:judge")},
    )
    assert config.folder == tmp_path / "gateway"
    assert default_config(f"{URL}#qwen", {}, folder=tmp_path) == replace(
        config, folder=tmp_path, profiles={"default": Profile("default", "default")}
    )


VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
PROFILE = st.dictionaries(st.sampled_from([*PROFILE_KEYS, *PROFILE_SETTINGS]), VALUES, max_size=4)


@given(st.dictionaries(st.sampled_from(list(MODEL_KEYS)), VALUES, max_size=4), PROFILE)
def test_every_table_is_read_or_refused(model, profile):
    """No TOML makes reading a configuration fail in another way than with a ConfigError."""
    table = {"models": {"small": {"url": URL, **model}}, "profiles": {"fast": profile}}
    try:
        config = parse_config(table, Path("/srv"), {})
    except ConfigError as error:
        assert "small" in str(error) or "fast" in str(error)
    else:
        assert config.profiles["fast"].name == "fast"
