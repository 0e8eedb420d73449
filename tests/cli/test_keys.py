"""`redraft keys`: add, list and revoke, for people and as JSON; keys are shown once."""

import json
import os
import re
from contextlib import closing
from pathlib import Path

import pytest

from redraft.gateway.keys import FILE_NAME, KeyStore
from redraft.usage import Usage


def gateway_folder():
    return Path(os.environ["REDRAFT_HOME"]) / "gateway"


def test_a_key_is_printed_once_and_works(redraft):
    """stdout is the key alone, for scripts; the list shows its name, limits and what it spent,
    never the key.
    """
    added = redraft(
        "keys",
        "add",
        "ci",
        "--usd-per-day",
        "5",
        "--calls-per-day",
        "100",
        "--requests-per-minute",
        "60",
    )
    assert (
        added.returncode == 0
        and "shown only now" in added.err
        and "asks every client for a key" in added.err
    )
    secret = added.out.strip()
    assert secret.startswith("rd-") and len(secret) == 46 and secret not in added.err
    with closing(KeyStore(gateway_folder() / FILE_NAME)) as store:
        caller = store.authenticate({"x-api-key": secret})
        store.reserve(caller, cost=1.0, calls=4).settle(Usage(calls=3, cost=0.25))
    listed = redraft("keys")
    [_, row] = listed.out.splitlines()
    assert (
        "ci" in row
        and "active" in row
        and "0.25 of 5.00" in row
        and "3 of 100" in row
        and secret not in listed.out
    )
    [data] = json.loads(redraft("keys", "list", "--json").out)
    limits = {"usd_per_day": 5.0, "calls_per_day": 100, "requests_per_minute": 60.0}
    assert data["limits"] == {**limits, "usd_per_month": None, "calls_per_month": None}
    assert (
        data["today"]
        == data["this_month"]
        == {
            "requests": 1,
            "charged_usd": 0.25,
            "reserved_usd": 0.0,
            "calls": 3,
            "reserved_calls": 0,
            "calls_of_unknown_cost": 0,
        }
    )
    assert data["last_used_at"] and data["expires_at"] is None and data["state"] == "active"


@pytest.mark.parametrize(
    ("limits", "cost", "shown"),
    [
        (["--usd-per-day", "0.01"], 0.0004, ["0.0004 of 0.01", "1"]),
        (["--usd-per-day", "0.000002"], 0.0000015, ["0.0000015 of 0.000002", "1"]),
        (
            ["--usd-per-day", "1234.5", "--usd-per-month", "20000"],
            1000,
            ["1,000.00 of 1,234.50", "1", "1,000.00 of 20,000.00", "1"],
        ),
        (["--calls-per-month", "3"], 0.25, ["0.25", "1", "0.25", "1 of 3"]),
    ],
)
def test_small_and_large_amounts_are_readable(redraft, limits, cost, shown):
    """The list has as many digits as an amount needs, and columns of the month if a key has a limit
    for it.
    """
    secret = redraft("keys", "add", "ci", *limits).out.strip()
    with closing(KeyStore(gateway_folder() / FILE_NAME)) as store:
        store.reserve(store.authenticate({"x-api-key": secret}), cost=cost, calls=1).settle(
            Usage(calls=1, cost=cost)
        )
    [head, row] = redraft("keys").out.splitlines()
    assert row.split("\t")[3 : 3 + len(shown)] == shown
    assert ("USD this month" in head) is any("month" in word for word in limits)


@pytest.mark.parametrize("width", [40, 80, 120, 240])
def test_the_list_is_readable_on_every_terminal(redraft, monkeypatch, width):
    """Where the columns do not fit, each key has a line for each of them."""
    redraft(
        "keys",
        "add",
        "chat-app",
        "--usd-per-day",
        "5",
        "--usd-per-month",
        "1234.5",
        "--profile",
        "refine/fast",
    )
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    out = re.sub(r"\x1b\[[0-9;]*m", "", redraft("keys").out)
    assert all(
        word in out
        for word in ("chat-app", "active", "0 of 5.00", "0 of 1,234.50", "refine/fast", "never")
    )
    assert ("name" in out.splitlines()[0]) == (width == 240)


def test_a_key_is_revoked_by_name_or_id(redraft):
    """It is refused from then on, and stays in the list."""
    ids = [
        json.loads(redraft("keys", "add", name, "--json", "--expires-in-days", "1").out)["id"]
        for name in ("one", "two")
    ]
    assert redraft("keys", "revoke", "one").returncode == 0
    assert json.loads(redraft("keys", "revoke", ids[1], "--json").out)["state"] == "revoked"
    assert [row["state"] for row in json.loads(redraft("keys", "--json").out)] == ["revoked"] * 2


def test_without_keys_the_list_says_that_the_gateway_is_open(redraft):
    """It makes no file."""
    listed = redraft("keys", "list")
    assert (listed.returncode, listed.out) == (
        0,
        "",
    ) and "serves everyone who reaches it" in listed.err
    assert redraft("keys", "--json").out.strip() == "[]"
    assert not gateway_folder().exists()


def test_the_folder_is_that_of_the_configuration(redraft):
    """--folder names it, --config finds it; the keys of the models need not be set."""
    (redraft.folder / "gateway.toml").write_text(
        '[gateway]\nfolder = "data"\n[models.a]\nurl = "http://127.0.0.1:1/v1"\nmodel = "m"\nkey-env = "NOT_SET_HERE"\n'
        '[models.b]\nmodel = "openai:gpt-4o"\n'
    )
    added = redraft("keys", "add", "ci", "--config", "gateway.toml")
    assert added.returncode == 0, added.err
    assert [
        key["name"] for key in json.loads(redraft("keys", "--folder", "data", "--json").out)
    ] == ["ci"]
    assert repr(str(redraft.folder / "data")) in added.err
    missing = redraft("show", "req-1", "--config", "gateway.toml")
    assert "has no request 'req-1'" in missing.err
    both = redraft("keys", "--folder", "data", "--config", "gateway.toml")
    assert both.returncode == 2 and "give one of them" in both.err


@pytest.mark.parametrize(
    ("pattern", "is_known"),
    [("pass/a", True), ("pass/*", True), ("pass/c", False), ("refine/a", False)],
)
def test_a_profile_that_the_configuration_does_not_have_is_reported(redraft, pattern, is_known):
    """The key is added all the same, because the configuration may change."""
    (redraft.folder / "gateway.toml").write_text(
        '[gateway]\nfolder = "data"\n[models.a]\nmodel = "openai:gpt-4o"\n'
    )
    added = redraft("keys", "add", "ci", "--config", "gateway.toml", "--profile", pattern)
    assert added.returncode == 0 and added.out.startswith("rd-")
    assert (
        f"--profile {pattern}: gateway.toml has no such model; there are pass/a" in added.err
    ) is not is_known


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "rd-AAAA"], "'rd-...'"),
        (["add", "ci", "--usd-per-day", "nan"], "number in [0, "),
        (["add", "ci", "--usd-per-month", "-1"], "x>=0"),
        (["add", "ci", "--calls-per-month", "1.5"], "--calls-per-month"),
        (["add", "ci", "--requests-per-minute", "inf"], "number > 0"),
        (["add", "ci", "--expires-in-days", "0"], "x>0"),
        (["add", "ci", "--requests-per-minute", "0"], "x>0"),
        (["add", "ci", "--profile", "/etc/passwd"], "refine/fast"),
        (["add", "ci", "--metrics-only", "--profile", "pass/*"], "no --profile"),
        (["add", "ci", "--metrics-only", "--usd-per-day", "0"], "no limit"),
        (["add", "ci", "--profile", "/metrics"], "--metrics-only"),
        (["revoke", "nobody"], "unknown key 'nobody'"),
        (["add"], "NAME"),
    ],
)
def test_a_mistake_is_one_line_and_adds_no_key(redraft, words, message):
    """Exit code 2."""
    done = redraft("keys", *words)
    assert done.returncode == 2 and message in done.err and "Traceback" not in done.err
    assert json.loads(redraft("keys", "--json").out) == []


def test_a_key_that_only_scrapes(redraft):
    """The list names the path instead of models."""
    added = redraft("keys", "add", "prometheus", "--metrics-only")
    assert added.returncode == 0 and added.out.startswith("rd-")
    assert "/metrics" in redraft("keys").out
    assert json.loads(redraft("keys", "--json").out)[0]["profiles"] == ["/metrics"]


def test_a_name_that_is_taken_is_refused(redraft):
    """The first key keeps working."""
    redraft("keys", "add", "ci")
    again = redraft("keys", "add", "ci")
    assert again.returncode == 2 and again.out == "" and "revoke it first" in again.err


def test_a_file_that_cannot_be_read_is_named(redraft):
    """Exit code 1."""
    (redraft.folder / FILE_NAME).write_text("no database, but long enough to be one" * 10)
    done = redraft("keys", "--folder", ".")
    assert done.returncode == 1 and FILE_NAME in done.err and "Traceback" not in done.err
