"""Probes of an endpoint that may be down, and models that are none."""

import json

from redraft import ScriptedModel, batch
from redraft.errors import AuthenticationError, ModelTimeoutError


async def test_no_answer_of_a_script_is_spent_on_a_probe(tmp_path):
    """Its next answer is the one to the next try of the same request, and it is asked nothing that no row asks."""
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"prompt": "Say it"}) + "\n")
    model = ScriptedModel([ModelTimeoutError("late"), "fine"])
    report = await batch(source, tmp_path / "out.jsonl", model, lambda text: 1.0, max_iterations=0)
    assert (report.done, report.failed) == (1, 0), json.loads((tmp_path / "out.jsonl").read_text())
    assert [messages[-1]["content"] for messages in model.messages] == ["Say it", "Say it"]


async def test_a_script_that_forbids_ends_the_run(tmp_path):
    """There is no endpoint to ask whether the row alone was forbidden; what the script says next is kept for a row."""
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"prompt": "Say it"}) + "\n")
    model = ScriptedModel([AuthenticationError("status 403", status=403), "fine"])
    report = await batch(source, tmp_path / "out.jsonl", model, lambda text: 1.0, max_iterations=0)
    assert (report.end_reason, report.done, len(model.messages)) == ("fatal", 0, 1)
