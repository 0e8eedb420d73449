"""Probes of an endpoint that may be down, and of models without an endpoint."""

import json

from redraft import ScriptedModel, batch
from redraft.errors import AuthenticationError, ModelTimeoutError


async def test_a_probe_uses_no_answer_of_a_scripted_model(tmp_path):
    """Its next answer goes to the next attempt of the same request, and it gets no other requests
    than those of rows.
    """
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"prompt": "Say it"}) + "\n")
    model = ScriptedModel([ModelTimeoutError("late"), "fine"])
    report = await batch(source, tmp_path / "out.jsonl", model, lambda text: 1.0, max_iterations=0)
    assert (report.rows.done, report.rows.failed) == (1, 0), json.loads(
        (tmp_path / "out.jsonl").read_text()
    )
    assert [messages[-1]["content"] for messages in model.messages] == ["Say it", "Say it"]


async def test_a_forbidden_call_of_a_scripted_model_ends_the_run(tmp_path):
    """No endpoint can say whether only the row was forbidden; the next answer of the script is left
    for a row.
    """
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"prompt": "Say it"}) + "\n")
    model = ScriptedModel([AuthenticationError("status 403", status=403), "fine"])
    report = await batch(source, tmp_path / "out.jsonl", model, lambda text: 1.0, max_iterations=0)
    assert (report.stop, report.rows.done, len(model.messages)) == ("fatal", 0, 1)
