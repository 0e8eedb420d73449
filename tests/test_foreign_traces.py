"""Traces from other sources, passed to the library."""

import pytest

from redraft import Task, Trace, refine_sync
from redraft.errors import ConfigError
from redraft.storage import JsonlStore, read_trace


def test_a_trace_that_names_a_file_is_refused(tmp_path):
    """A trace has the content that its requirements need; the error comes before any call."""
    (tmp_path / "schema.json").write_text('{"const": "CANARY"}')
    asked = []
    trace = Trace(Task("x", requirements=[f"json_schema:{tmp_path}/schema.json"]))
    with pytest.raises(ConfigError, match="would read a file"):
        refine_sync(trace, lambda messages: asked.append(messages) or "y")
    assert not asked


def test_a_trace_has_the_content_of_its_tasks_files(tmp_path):
    """A caller's task may name files; its trace can be resumed without them."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array"}')
    with JsonlStore(tmp_path / "t.jsonl") as store:
        refine_sync(Task("x", "[1]", requirements=[f"json_schema:{schema}"]), False, store=store)
    schema.unlink()
    again = refine_sync(read_trace(tmp_path / "t.jsonl"), False)
    assert again.score == 1 and again.trace.task.requirements == ('json_schema:{"type":"array"}',)
