"""Artifacts: references to results that are stored elsewhere."""

import json
import pickle
from dataclasses import replace

import pytest

from each_row import each_row
from redraft.errors import StoreError
from redraft.loop.prompts import refinement_messages
from redraft.loop.records import Artifact, Candidate, ToolCall
from redraft.loop.serialize import record_from_json, record_to_json
from redraft.loop.task import Task
from redraft.loop.trace import Trace
from redraft.plans.quality.lineage import observe

DIGEST = "sha256:" + "ab" * 32
TREE = Artifact("git-tree", "file:///repo", "sha1:" + "0" * 40)


@each_row(
    "wrong",
    [
        {"kind": ""},
        {"kind": "Git Tree"},
        {"kind": 3},
        {"uri": " "},
        {"uri": "file:///a\nb"},
        {"uri": None},
        {"digest": "ab" * 32},
        {"digest": "sha256:" + "AB" * 32},
        {"digest": "sha256:ab"},
        {"digest": "md5:" + "ab" * 16},
        {"digest": b"sha1"},
        {"media_type": "png"},
        {"media_type": 1},
        {"metadata": [1]},
        {"metadata": {1: "a"}},
        {"metadata": {"a": float("nan")}},
        {"metadata": {"a": object()}},
        {"metadata": {"a": "x" * 70_000}},
        {"metadata": {"a": (1, 2)}},
    ],
)
def test_invalid_fields_are_rejected(wrong):
    """A constructor raises ValueError, and reading a file raises StoreError."""
    given = {"kind": "file", "uri": "a.txt", "digest": DIGEST} | wrong
    with pytest.raises(ValueError, match="artifact"):
        Artifact(**given)
    if not any(isinstance(v, bytes) or "object" in repr(v) for v in wrong.values()) and wrong.get(
        "metadata"
    ) not in (
        {1: "a"},
        {"a": (1, 2)},
    ):
        with pytest.raises(StoreError):
            record_from_json(
                json.dumps({"kind": "candidate", "id": 0, "text": "", "artifact": given})
            )


def test_artifact_round_trips():
    """An artifact survives JSON and pickle with any JSON metadata, and does not share the mapping
    it was given.
    """
    metadata = {"n": [1, 2**70, None, {"deep": "\ud800"}]}
    artifact = Artifact("image", "https://x.test/a.png", DIGEST, "image/png; q=1", metadata)
    metadata["n"] = []
    candidate = Candidate(3, "", 1, artifact=artifact)
    assert artifact.metadata["n"]
    assert (
        record_from_json(record_to_json(candidate))
        == candidate
        == pickle.loads(pickle.dumps(candidate))
    )
    assert hash(candidate) == hash(pickle.loads(pickle.dumps(candidate)))


CALL = ToolCall("f", "{}", "1")


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (Candidate(1, "a", 0, artifact=TREE), True),
        (
            Candidate(
                1, "a", 0, artifact=replace(TREE, uri="file:///moved", metadata={"note": "moved"})
            ),
            True,
        ),
        (Candidate(1, "b", 0, artifact=TREE), False),
        (Candidate(1, "a", 0), False),
        (Candidate(1, "a", 0, artifact=replace(TREE, digest=DIGEST)), False),
        (Candidate(1, "a", 0, artifact=replace(TREE, kind="file")), False),
        (Candidate(1, "a", 0, tool_calls=(CALL,), artifact=TREE), False),
    ],
)
def test_equality_uses_text_calls_and_artifact(other, same):
    """Two candidates are equal by kind and digest wherever the artifact is stored, in the posterior
    as in the trace.
    """
    trace = Trace(Task("q"), records=(Candidate(0, "a", artifact=TREE), other))
    assert trace.is_unchanged(other) is same
    assert (len(observe(trace).shape.nodes) == 1) is same


def test_refiner_sees_only_the_text():
    """An artifact changes no prompt."""
    bare = Trace(Task("q"), records=(Candidate(0, "a"),))
    full = Trace(Task("q"), records=(Candidate(0, "a", artifact=TREE),))
    assert refinement_messages(full, full.candidates[0]) == refinement_messages(
        bare, bare.candidates[0]
    )
