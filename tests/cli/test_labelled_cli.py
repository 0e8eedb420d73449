"""The command line says what stands behind a score: this judge, or people's labels on its
validation card.
"""

import json
from dataclasses import replace

import pytest

from redraft.graders.cards import Card, CardStore, Measure
from redraft.models import connect
from redraft.plans.quality.calibration import Calibration
from redraft.session.options import Options
from redraft.session.session import Session

from .chat_server import writer_and_judge

CALIBRATION = Calibration(
    labels=120,
    clusters=120,
    knots=((0.0, 0.0), (1.0, 0.5)),
    errors=tuple(n / 400 for n in range(-60, 61)),
    label_mean=0.3,
    score_mean=0.6,
    score_sd=0.2,
    bias=0.3,
    error_sd=0.1,
    score_error_sd=0.3,
)


def save_card(folder, model):
    """Save a card of the default judge with this model."""
    session = Session(Options(), connect(model))
    panel, roles = session.common_panel()
    fingerprint = session.fingerprint(roles, panel[0].name)
    headline = Measure("correlation", 0.8, 0.7, 0.9, 120, 0.0)
    card = Card(
        "judge",
        fingerprint,
        "m",
        "2026-05-01",
        "labels",
        "0" * 64,
        "live",
        "score",
        120,
        0,
        headline,
    )
    path = CardStore(folder).card_folder("judge", fingerprint, "labels", "0" * 64) / "card.json"
    path.parent.mkdir(parents=True)
    path.write_text(replace(card, calibration=CALIBRATION).to_json())


@pytest.mark.parametrize("labelled", [False, True])
def test_commands_name_what_stands_behind_the_score(labelled, redraft, serve, tmp_path):
    """`run`, `show` and `batch` show it for people and in JSON; after `run`, `show` needs no
    card.
    """
    server = serve(writer_and_judge(["poor", "good"], [2, 4]))
    if labelled:
        save_card(tmp_path / "cards", server.model)
    basis = "by people's labels (n = 120)" if labelled else "by this judge"
    common = [
        "--model",
        server.model,
        "--cards-dir",
        str(tmp_path / "cards"),
        "--max-iterations",
        "1",
    ]
    trace, out = str(tmp_path / "t.jsonl"), tmp_path / "out.jsonl"
    done = redraft("run", "Say it", *common, "--trace", trace)
    assert done.returncode in {0, 3}
    words = basis if labelled else "the judge said"
    assert words in done.err
    assert ("the card of 'judge'" in done.err) is labelled
    assert words in redraft("show", trace).out
    assert json.loads(redraft("show", trace, "--json").out)["score_basis"] == basis
    (tmp_path / "in.jsonl").write_text('{"prompt": "Say it"}\n')
    report = redraft("batch", str(tmp_path / "in.jsonl"), "-o", str(out), *common)
    assert json.loads(out.read_text())["score_basis"] == basis
    assert basis in report.out + report.err
