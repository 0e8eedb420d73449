"""Traces that somebody else may have written, handed to the library."""

import pytest

from redraft import Task, Trace, refine_sync
from redraft.errors import ConfigError
from redraft.storage import JsonlStore, read_trace


def test_a_trace_names_no_file_to_be_read(tmp_path):
    """What its requirements need is in it; one that names a file is refused before anything is asked."""
    (tmp_path / "schema.json").write_text('{"const": "CANARY"}')
    asked = []
    trace = Trace(Task("x", requirements=[f"json_schema:{tmp_path}/schema.json"]))
    with pytest.raises(ConfigError, match="would read a file"):
        refine_sync(trace, lambda messages: asked.append(messages) or "y")
    assert not asked


def test_a_trace_keeps_what_was_in_the_files_of_its_task(tmp_path):
    """A task of the caller's own may name files; its trace goes on without them."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array"}')
    with JsonlStore(tmp_path / "t.jsonl") as store:
        refine_sync(Task("x", "[1]", requirements=[f"json_schema:{schema}"]), False, store=store)
    schema.unlink()
    again = refine_sync(read_trace(tmp_path / "t.jsonl"), False)
    assert again.score == 1 and again.trace.task.requirements == ('json_schema:{"type":"array"}',)
