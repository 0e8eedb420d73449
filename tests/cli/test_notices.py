"""Notices of a batch, one line each, for people and for programs."""

import json
import re

import pytest

from .chat_server import writer_and_judge


@pytest.fixture
def arguments(redraft, serve):
    """The arguments of a batch that takes settings from a file."""
    (redraft.folder / "in.jsonl").write_text('{"prompt": "p"}\n')
    (redraft.folder / "redraft.toml").write_text('target-score = 0.5\nrequire = ["words:1-9"]\n')
    return "batch", "in.jsonl", "-o", "out.jsonl", "--model", serve(writer_and_judge(["fine"], [5])).model


def test_the_source_of_settings_is_a_notice(redraft, arguments):
    """In JSON it has the event of a notice, not of a warning."""
    done = redraft(*arguments)
    assert done.returncode == 0, done.err
    (said,) = [event for event in map(json.loads, done.err.splitlines()) if "settings from" in event.get("message", "")]
    assert said["event"] == "notice"


def test_a_notice_has_a_line_of_its_own_in_the_live_view(redraft, arguments):
    """It begins on a cleared line, not behind the text of the view."""
    shown, _, code = redraft.in_terminal(*arguments)
    assert code == 0, shown
    before = shown.partition(b"redraft: settings from")[0]
    assert re.search(rb"(\x1b\[2K|\n)$", before), before[-200:]
    after = shown.partition(b"redraft: settings from")[2]
    assert re.match(rb"[^\x1b]*\r\n", after), after[:200]
