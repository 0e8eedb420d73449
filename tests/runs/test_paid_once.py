"""What the allocator and the report count as paid, after a run was interrupted once, twice, and
three times.
"""

import asyncio
import json
import random
from contextlib import closing
from dataclasses import replace

import pytest

from redraft import Budget, Task
from redraft.loop.steps import Stop
from redraft.loop.stopping import max_iterations
from redraft.loop.trace import PanelGrader, Trace
from redraft.plans.adaptive import Adaptive
from redraft.plans.quality.priors import Priors
from redraft.plans.quality.simulate import SimulatedTask, simulated_record
from redraft.plans.self_refine import SelfRefine
from redraft.protocols import Reply
from redraft.runs import BatchRun, allocation
from redraft.runs.allocation import SCALE, BudgetAllocator, Decision, DecisionLog
from redraft.storage.journal import Journal
from redraft.usage import Usage


class Hashed:
    """A writer and judge whose answers and costs follow from the words alone. It stops the run at
    some of its calls.
    """

    name, identity, formats = "w", "w", ("text",)

    def __init__(self, stops=()):
        self.spent, self.stops, self.stop = (
            {"calls": 0.0, "tokens": 0.0, "usd": 0.0},
            [*stops],
            None,
        )

    async def complete(self, request):
        await asyncio.sleep(0)
        words = " ".join(str(m["content"]) for m in request.messages)
        dice = random.Random(f"{words} {request.sample_index}")
        read, cost = dice.randrange(1000), dice.randrange(100) / 2**12
        for unit, amount in (("calls", 1), ("tokens", read + 100), ("usd", cost)):
            self.spent[unit] += amount
        if self.stops and self.spent["calls"] == self.stops[0]:
            self.stop(self.stops.pop(0))
        usage = Usage(1, read, 100, cost=cost)
        if words.startswith("Grade this: "):
            quality = float(words.split("quality ")[1].split()[0])
            return Reply(f"{min(1.0, max(0.0, dice.gauss(quality, 0.08))):.3f}", usage)
        row, n = words.split()[1], words.count("quality ")
        return Reply(
            f"row {row} quality {min(0.95, 0.3 + 0.5 * (int(row) % 2) + 0.13 * n):.3f} {dice.random()}",
            usage,
        )


async def judge(text, model):
    return float(await model(f"Grade this: {text}"))


async def runs_until_the_end(folder, budget, stops):
    """Start a run again until it is complete, and check the figures after each start. Return what
    it has spent, its output, and the results in the journal.
    """
    model, usages = Hashed(stops), []
    rows = [{"id": f"r{n}", "prompt": f"row {n} please"} for n in range(10)]
    given = dict(
        min_expected_gain=0.01,
        max_iterations=3,
        max_in_flight=3,
        priors="shipped",
        prices={"w": (0, 10)},
    )
    for starts in range(1, len(stops) + 2):
        run = BatchRun.from_arguments(
            rows, folder / "out.jsonl", model, judge, budget=budget, **given
        )
        model.stop = lambda _, run=run: run.stop()
        report = await run.go()
        usages.append(report.spending.usage)
        with closing(Journal(folder / "out.jsonl.journal", read_only=True)) as journal:
            spent = journal.run("out-jsonl").metadata["spent"]
            results = {info.id: info.result for info, _ in journal.traces("out-jsonl")}
        allocator, need = run._job.budget.allocator, run._job.budget.allocator.estimate.base
        unit = SCALE[allocator.unit]
        figures = {
            "tracker": run._job.session.models.budget_tracker.spent[allocator.unit],
            "journal": spent[allocator.unit],
            "reports": sum(
                {"calls": used.calls, "tokens": used.tokens, "usd": used.cost}[allocator.unit]
                for used in usages
            ),
            "allocator": unit * (allocator.commitment - need * allocator.waiting),
        }
        assert figures == pytest.approx(dict.fromkeys(figures, model.spent[allocator.unit])), starts
        assert (report.stop, model.stops) == (
            "interrupted" if starts <= len(stops) else "",
            [*stops[starts:]],
        )
    columns = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    for unit, name in (("calls", "calls"), ("tokens", "tokens"), ("usd", "cost")):
        assert sum(row[name] for row in columns) == pytest.approx(model.spent[unit])
    return model.spent, columns, results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "stops"),
    [
        (Budget(calls=1000), (9, 20, 33)),
        (Budget(tokens=10**6), (7, 26)),
        (Budget(usd=50), (11, 18, 30)),
    ],
)
async def test_a_resumed_run_counts_what_was_paid_before_once(tmp_path, budget, stops):
    """After each start tracker, journal, allocator and all reports together say exactly what the
    model was paid.

    With a budget of calls, which leaves the price as it is, rows end as without an interruption,
    and after the same decisions.
    """
    resumed = await runs_until_the_end(tmp_path, budget, stops)
    if budget.calls:
        (tmp_path / "whole").mkdir()
        assert await runs_until_the_end(tmp_path / "whole", budget, ()) == resumed


PLAN = Adaptive(SelfRefine(max_iterations(4)), max_attempts=4, min_expected_gain=0.002)
ROWS, BUDGET = 7, 40


class Interrupted:
    """Rows that proceed one step at a time, in turn, three at a time. At each interruption all that
    is left of the run are the traces, the logs of finished rows, and what was spent; a new
    allocator and new accounts continue from these.
    """

    def __init__(self):
        dice = random.Random(7)
        self.worlds = [
            SimulatedTask(Priors(draft_mean=0.9 if i % 2 else 0.4, draft_mean_sd=0.05), dice)
            for i in range(ROWS)
        ]
        self.traces, self.spent, self.finished = {}, 0.0, []
        self.restart()

    def restart(self):
        spent = lambda: {"calls": self.spent}
        ended = len(self.finished)
        self.allocator = BudgetAllocator(
            PLAN, "calls", lambda: BUDGET - self.spent, spent, ROWS - ended
        )
        for data in self.finished:
            self.allocator.add_finished(DecisionLog.from_data(json.loads(json.dumps(data))))
        self.accounts = {i: self.allocator.start_row() for i in self.traces}
        for i, account in self.accounts.items():
            self.traces[i] = self.traces[i].for_new_run()
            account.resume(PLAN, self.traces[i])
        self.decide()

    def decide(self):
        """Let each open row decide by the present price."""
        for i in sorted(self.accounts) * 2:
            self.accounts[i].next_steps(PLAN, self.traces[i])

    def step(self, i):
        """Take the next step of a row; return whether it has ended."""
        if i not in self.traces:
            self.traces[i], self.accounts[i] = (
                Trace(Task("t"), (PanelGrader("judge"),)),
                self.allocator.start_row(),
            )
        (step, *_) = self.traces[i].missing(self.accounts[i].next_steps(PLAN, self.traces[i]))
        record = step if isinstance(step, Stop) else simulated_record(self.worlds[i], step)
        if not isinstance(step, Stop):
            calls = 2 if record.slot[0] == "candidate" else 1
            record = replace(record, usage=Usage(calls, 10, 10, cost=0.0))
            self.spent += calls
        self.traces[i] += record
        if isinstance(step, Stop):
            account = self.accounts.pop(i)
            account.finish(self.traces.pop(i))
            self.finished.append(account.log.as_data())
        return isinstance(step, Stop)

    def figures(self):
        """What the allocator says once each row has decided by the present price, and what rows
        need by their own expectations.
        """
        allocator = self.allocator
        self.decide()
        needs = [
            (account.log.committed if account.log.decisions else allocator.estimate.base)
            - sum(record.usage.calls for record in self.traces[i].records)
            for i, account in self.accounts.items()
        ]
        expected = self.spent + sum(needs) + allocator.waiting * allocator.estimate.base
        return allocator.commitment, expected, allocator.price.price, allocator.waiting


def course_of(interruptions):
    """The figures after each step of a run."""
    run, going, waiting, figures = Interrupted(), [0, 1, 2], [*range(3, ROWS)], []
    for n in range(1000):
        if n in interruptions:
            run.restart()
        i = going.pop(0)
        if run.step(i):
            going += waiting[:1]
            del waiting[:1]
        else:
            going.append(i)
        figures.append(run.figures())
        if not going:
            return figures
    raise AssertionError("it does not end")


def test_the_price_does_not_depend_on_interruptions(monkeypatch):
    """After each step it is that of a run without one, and so is what rows need; a row never needs
    what it has spent before.
    """
    simulated = [
        DecisionLog(
            "calls", 3.0, [Decision(rate, 3.0), Decision(rate / 2, 3.0), Decision(0.0, 0.0)]
        )
        for rate in (0.02, 0.2)
    ]
    monkeypatch.setattr(allocation, "simulated_logs", lambda *_, **__: simulated)
    whole = course_of(())
    assert len({price for _, _, price, _ in whole}) > 5
    for interruptions in ((9,), (4, 21), (7, 8, 24), (3, 14, 15)):
        course = course_of(interruptions)
        assert len(course) == len(whole)
        for n, (found, expected) in enumerate(zip(course, whole, strict=True)):
            assert found[0] == pytest.approx(found[1]), (interruptions, n)
            assert found == pytest.approx(expected), (interruptions, n)
