"""Walks through a budget beside a model of it: after each step all figures are equal, and the same
calls are sent, wait or are refused.

Calls are made through `meter`, with texts that reserve their grades. A byte of a prompt is one
token, an answer has at most its `max_tokens`, and 20 tokens are enough for most; a token read costs
2 USD and a token written 8, so that sums are exact.
"""

import asyncio
import sys
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import pytest

from fake_clock import FakeClock
from redraft import Budget
from redraft.errors import BudgetExhaustedError, ModelError
from redraft.middleware import BudgetTracker
from redraft.middleware.budget import RESERVATION, BudgetOwner, Reservation
from redraft.middleware.call_costs import LIMITS, CostEstimate, CostEstimator, TokenEstimator
from redraft.middleware.metering import meter, with_cost
from redraft.models.pricing import Price
from redraft.protocols import Reply, Request
from redraft.usage import Usage, unknown_usage

PRICE = Price(2e6, 8e6)
LEAST, EXPECTED = 8, 20
# as LIMITS
CALL, READ, WRITTEN = (
    np.array([1, 0, 0, 0, 0.0]),
    np.array([0, 1, 0, 1, 2.0]),
    np.array([0, 0, 1, 1, 8.0]),
)
NOTHING, UNKNOWN = np.zeros(len(LIMITS)), np.array([1, *[np.nan] * 4])


@dataclass
class Owner:
    """A task, and how many of its steps go on."""

    active_steps: int = 0
    real: BudgetOwner = field(default_factory=BudgetOwner)

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@dataclass(eq=False)
class Text:
    """A text whose grades are reserved with it: so many calls, each with a prompt and a verdict of
    so many tokens.

    `is_given`: it exists already, and its first grade reserves the others. `held` is None before
    and after that.
    """

    owner: Owner
    grades: int
    prompt: int
    verdict: int
    is_given: bool = False
    held: np.ndarray | None = None
    tokens: float = 0.0
    is_pending: bool = True
    is_written: bool = False

    def need(self, tokens):
        """Return the amounts of its grades, if it has so many tokens."""
        shown = 0 if self.is_given else tokens
        return self.grades * (CALL + (self.prompt + shown) * READ + self.verdict * WRITTEN)


@dataclass(eq=False)
class Ask:
    """A call. It takes the reservation of its text, or draws on it, or has nothing to do with a
    text.
    """

    key: tuple[int, int]
    read: float
    most: int
    text: Text | None
    takes: bool
    drawn: np.ndarray | None = None


class Model:
    """What is free is the limit less what is spent, in flight and held. Who waits is served in
    order, those that draw first.
    """

    def __init__(self, limits):
        self.limits, self.spent, self.flight, self.texts = limits, NOTHING, {}, []
        self.drawing, self.queue, self.sent, self.refused, self.is_exhausted = (
            [],
            [],
            {},
            deque(),
            False,
        )

    @property
    def reserved(self):
        return sum(self.flight.values(), NOTHING)

    @property
    def held(self):
        return sum((text.held for text in self.texts if text.held is not None), NOTHING)

    @property
    def will_release(self):
        """Whether a call is in flight, or a task that holds something goes on."""
        waiting = Counter(ask.text.owner for ask in self.drawing + self.queue if ask.text)
        holders = {text.owner for text in self.texts if text.held is not None}
        return bool(self.flight) or any(
            waiting[owner] < max(1, owner.active_steps) for owner in holders
        )

    def refuse(self, ask):
        prompts = ask.read * READ + CALL + (ask.text.need(0) if ask.takes else 0)
        minimum = prompts + min(LEAST, ask.most) * (
            WRITTEN + (ask.text.need(1) - ask.text.need(0) if ask.takes else 0)
        )
        self.is_exhausted |= not any(minimum > self.limits)
        self.refused.append(ask)

    def resolve(self, ask):
        """Send or refuse a call. Return whether it no longer waits."""
        prompts, each, text = CALL + ask.read * READ, WRITTEN, ask.text
        own = (
            text.held / max(1, text.held[0])
            if text and text.held is not None and not ask.takes
            else NOTHING
        )
        if ask.takes:
            prompts, each = prompts + text.need(0), each + text.need(1) - text.need(0)
        spare = self.limits - self.spent - self.reserved - self.held + own - prompts
        rooms = [
            s // e if e else -1
            for s, e, p in zip(spare, each, prompts, strict=True)
            if s < np.inf and (e or (p and s < 0))
        ]
        room, least, expected = (
            min(rooms, default=np.inf),
            min(LEAST, ask.most),
            min(EXPECTED, ask.most),
        )
        if room < expected:
            if any(
                (prompts + least * each > 0) & (self.spent + prompts + least * each > self.limits)
            ):
                self.refuse(ask)
                return True
            if self.will_release or room < least:
                return False
        tokens = (
            expected
            if room == np.inf
            else min(ask.most, room, max(expected, room // (len(self.flight) + 2)))
        )
        self.sent[ask.key] = ask.most if room == np.inf else tokens
        if ask.takes:
            text.held, text.tokens, text.is_pending = text.need(tokens), tokens, False
        elif text and text.held is not None:
            ask.drawn, text.held = own, text.held - own
        self.flight[ask] = CALL + ask.read * READ + tokens * WRITTEN
        return True

    def serve(self):
        while True:
            for ask in list(self.drawing):
                if self.resolve(ask):
                    self.drawing.remove(ask)
            while self.queue and not self.drawing and self.resolve(self.queue[0]):
                del self.queue[0]
            if self.will_release or not (self.drawing or self.queue):
                return
            self.refuse(self.queue.pop(0) if self.queue else self.drawing.pop())

    def ask(self, key, read, most, text):
        if text and text.held is not None and text.held[0] >= 1:  # no more than was held for it
            read = min(read, text.need(text.tokens)[1] / text.grades)
        ask = Ask(key, read, most, text, text is not None and text.is_pending)
        if self.drawing or self.queue or not self.resolve(ask):
            (self.drawing if text and not ask.takes else self.queue).append(ask)
            self.serve()

    def settle(self, ask, used, *, answered):
        """Replace what was reserved by what was used; what is unknown (NaN) counts as it was
        reserved.
        """
        text = ask.text
        if ask.takes and not text.is_given and not answered:
            self.hold(text, NOTHING)
            text.is_pending = True
        elif ask.takes and not text.is_given and not np.isnan(used[2]) and text.held is not None:
            text.tokens = used[2]
            self.hold(text, text.need(used[2]))
        reserved = self.flight.pop(ask)
        self.spent = self.spent + np.where(np.isnan(used), reserved, used)
        if not answered and ask.drawn is not None and text.held is not None:
            left = np.maximum(0, self.limits - self.spent - self.reserved - self.held)
            if left[0] >= ask.drawn[0]:
                text.held = text.held + np.minimum(ask.drawn, left)
        self.serve()

    def cancel(self, ask):
        (self.queue if ask in self.queue else self.drawing).remove(ask)
        self.serve()

    # ---- steps

    def start(self, owner):
        owner.active_steps += 1

    def end(self, owner):
        owner.active_steps -= 1
        self.serve()

    def begin(self, text):
        self.texts.append(text)

    def split(self, text, calls):
        part = replace(text, held=None)
        if text.held is not None:
            part.held = text.held * min(1, calls / max(1, text.held[0]))
            text.held = text.held - part.held
        self.texts.append(part)
        return part

    def close(self, text):
        text.is_pending, text.is_written = False, True

    def hold(self, text, most):
        if text.held is not None:
            text.held = np.minimum(text.held, most) if any(most) else None
            self.serve()

    def release(self, text):
        self.hold(text, NOTHING)


# ---- the budget


class Tokens(TokenEstimator):
    """Counts bytes, and learns nothing."""

    overrun = 1.0

    def tokens(self, size):
        return size.bytes

    def expected_answer_tokens(self, *, schema):
        return EXPECTED

    def update(self, size, usage, *, schema):
        pass

    def note_overrun(self, tokens, max_tokens):
        pass


def by_name(amounts):
    return dict(zip(LIMITS, map(float, amounts), strict=True))


class Real:
    """A budget with the calls that are made: `sent` has their `max_tokens`, `flight` those that
    wait for an answer.
    """

    def __init__(self, limits):
        self.tracker, costs = BudgetTracker(), CostEstimator(PRICE)
        costs.token_estimator = Tokens()
        self.metered = meter(with_cost(self.answer, PRICE), self.tracker, PRICE, costs)
        self.sent, self.flight, self.waiting, self.refused, self.reservations = {}, {}, {}, [], {}
        self.limit(limits)

    def limit(self, limits):
        self.tracker.set_budget(Budget(**limits, min_tokens=LEAST))

    async def answer(self, request):
        key = divmod(request.sample_index, 100)
        self.sent[key] = request.max_tokens
        self.flight[key] = asyncio.get_running_loop().create_future()
        try:
            return await self.flight[key]
        finally:
            del self.flight[key]

    async def ask(self, key, read, most, text):
        """Return how a call ended."""
        token = RESERVATION.set(self.reservations.get(text))
        self.waiting[key] = asyncio.current_task()
        try:
            message = {"role": "user", "content": "x" * read}
            await self.metered(
                Request((message,), max_tokens=most, sample_index=100 * key[0] + key[1])
            )
        except ModelError:
            return "failed"
        except BudgetExhaustedError:
            self.refused.append(key)
            return "refused"
        except asyncio.CancelledError:
            return "cancelled"
        finally:
            del self.waiting[key]
            RESERVATION.reset(token)
        return "answered"

    def start(self, owner):
        owner.real.active_steps += 1

    def end(self, owner):
        self.tracker.end_step(owner.real)

    def begin(self, text):
        def estimate():
            prompts, each = text.need(0), text.need(1) - text.need(0)
            return CostEstimate(by_name(prompts), by_name(each))

        self.reservations[text] = Reservation(
            self.tracker, estimate, text.owner.real, for_text=not text.is_given
        )

    def split(self, text, calls):
        part = replace(text)
        self.reservations[part] = self.tracker.split(self.reservations[text], calls)
        return part

    def close(self, text):
        self.reservations[text].close()

    def release(self, text):
        self.tracker.release(self.reservations[text])


# ---- steps, which yield calls and receive how they end


def single(budget, text, read, most):
    """A call by itself."""
    yield read, most, None


def write(budget, text, read, most):
    """Write a text, with a second try, and keep what is held for its grades."""
    budget.start(text.owner)
    budget.begin(text)
    for _ in range(2):
        if (end := (yield read, most, text)) != "failed":
            break
    budget.close(text)
    if end != "answered":
        budget.release(text)
    budget.end(text.owner)


def grade(budget, text, read, most):
    """Grade a text with three questions, for which one to three calls are taken from what is
    held.
    """
    budget.start(text.owner)
    part = budget.split(text, 1 + most % 3)
    for _ in range(3):
        if (yield read, most, part) in ("refused", "cancelled"):
            break
    budget.release(part)
    budget.end(text.owner)


def grade_given(budget, text, read, most):
    """Grade a text that exists, with all the calls of its grade."""
    budget.start(text.owner)
    budget.begin(text)
    for _ in range(text.grades + 1):
        if (yield read, most, text) in ("refused", "cancelled"):
            break
    budget.close(text)
    budget.release(text)
    budget.end(text.owner)


USED = {  # the usage of an answer as a share of what was reserved
    "nothing": 0.0,
    "less": 0.4,
    "equal": 1.0,
    "more": 1.5,
}


class Walk:
    """Makes the same steps with the model and the budget, and compares them."""

    def __init__(self, limits):
        self.model, self.real = Model(self.vector(limits)), Real(limits)
        self.steps, self.tasks, self.texts, self.number = {}, {}, ([], []), 0
        self.owners, self.seen = [Owner(), Owner()], Counter()

    @staticmethod
    def vector(limits):
        return np.array([limits.get(name, np.inf) for name in LIMITS])

    def step(self, make, text, read, most):
        self.number += 1
        number, (mine, other) = self.number, text or (None, None)
        self.steps[number] = [make(self.model, mine, read, most), -1]
        self.tasks[number] = asyncio.ensure_future(
            self.perform(number, make(self.real, other, read, most))
        )
        self.go_on(number, None)

    def go_on(self, number, end):
        """Let a step of the model go on, until it asks or ends."""
        step = self.steps[number]
        step[1] += 1
        try:
            read, most, text = step[0].send(end)
        except StopIteration:
            del self.steps[number]
        else:
            self.model.ask((number, step[1]), read, most, text)

    async def perform(self, number, step):
        end, n = None, 0
        while True:
            try:
                read, most, text = step.send(end)
            except StopIteration:
                return
            end = await self.real.ask((number, n), read, most, text)
            n += 1

    async def apply(self, kind, which, size, more):
        flight, model, real = list(self.model.flight), self.model, self.real
        waiting = model.drawing + model.queue
        read, most = 5 + 7 * size, (4, 8, 15, 20, 60, 300)[more % 6]
        owner, written = (
            self.owners[which % 2],
            [t for t in zip(*self.texts, strict=True) if t[0].held is not None and t[0].is_written],
        )
        if kind == "single":
            self.step(single, None, read, most)
        elif kind in ("write", "given"):
            texts = [
                Text(owner, 1 + more % 3, 10 + size, 5 + which, is_given=kind == "given")
                for _ in range(2)
            ]
            if kind == "write":
                self.texts[0].append(texts[0])
                self.texts[1].append(texts[1])
            self.step(write if kind == "write" else grade_given, texts, read, most)
        elif kind == "grade" and written:
            self.step(grade, written[which % len(written)], read, most)
        elif kind == "release" and written:
            mine, other = written[which % len(written)]
            model.release(mine)
            real.release(other)
        elif kind == "limit":
            limits = {
                name: float(v) if name == "usd" else int(v)
                for name, v in by_name(model.limits).items()
                if v < np.inf
            }
            limits = {
                name: max(0, amount + (size - 6) * (1 if name == "calls" else 20))
                for name, amount in limits.items()
            }
            model.limits = self.vector(limits)
            model.serve()
            real.limit(limits)
        elif kind == "cancel" and (waiting or flight):
            ask = (waiting + flight)[which % len(waiting + flight)]
            self.tasks[ask.key[0]].cancel()
            if ask in model.flight:
                model.settle(ask, UNKNOWN, answered=False)
            else:
                model.cancel(ask)
            self.go_on(ask.key[0], "cancelled")
        elif kind in (*USED, "unknown", "fails", "is lost") and flight:
            self.settle(flight[which % len(flight)], kind)
        self.seen["is refused"] += len(model.refused)
        while model.refused:
            self.go_on(model.refused.popleft().key[0], "refused")
        await self.compare()

    def settle(self, ask, kind):
        """Answer a call, or let it fail."""
        future = self.real.flight[ask.key]
        if kind in USED:
            reserved = self.model.flight[ask]
            read, written = (int(USED[kind] * reserved[n]) for n in (1, 2))
            future.set_result(Reply("text", Usage(1, read, written, cost=None)))
            used = CALL + read * READ + written * WRITTEN
        elif kind == "unknown":
            future.set_result(Reply("text", unknown_usage()))
            used = UNKNOWN
        else:
            future.set_exception(
                ModelError(
                    "no", usage=unknown_usage() if kind == "is lost" else Usage(1, 3, 0, cost=None)
                )
            )
            used = UNKNOWN if kind == "is lost" else CALL + 3 * READ
        answered = kind in USED or kind == "unknown"
        self.model.settle(ask, used, answered=answered)
        self.go_on(ask.key[0], "answered" if answered else "failed")

    async def compare(self):
        unfinished = [task for task in self.tasks.values() if not task.done()]
        for _ in range(3 + 3 * len(unfinished)):
            await asyncio.sleep(0)
        for task in unfinished:
            if task.done():
                task.result()
        model, tracker = self.model, self.real.tracker
        waiting = {ask.key for ask in model.drawing + model.queue}
        self.seen["waits"] += bool(model.queue)
        self.seen["waits and draws"] += bool(model.drawing)
        self.seen["draws nothing"] += any(
            ask.drawn is not None and not any(ask.drawn) for ask in model.flight
        )
        assert self.real.sent == model.sent
        assert self.real.flight.keys() == {ask.key for ask in model.flight}
        assert self.real.waiting.keys() == waiting | self.real.flight.keys()
        assert len(tracker.waiting_minimums) == len(waiting)
        spent, reserved, held = model.spent, model.reserved, model.held
        for figures, amounts in (
            (tracker.spent, spent),
            (tracker.reserved, reserved),
            (tracker.held_for_grades, held),
            (tracker.spent_and_reserved, spent + reserved),
            (tracker.committed, spent + reserved + held),
            (tracker.left, np.maximum(0, model.limits - spent - reserved)),
        ):
            assert np.allclose(
                [figures.get(name, np.inf) for name in LIMITS], amounts, atol=1e-6
            ), (figures, amounts)
        assert len(tracker.left) > 1 or tracker.is_exhausted == model.is_exhausted


MOST = {"calls": 12, "input_tokens": 500, "output_tokens": 600, "tokens": 900, "usd": 5000}
KINDS = {
    "single": 6,
    "write": 4,
    "given": 2,
    "grade": 4,
    "release": 1,
    "limit": 1,
    "cancel": 1,
    "unknown": 1,
    "fails": 1,
    "is lost": 1,
}
KINDS |= {"nothing": 1, "less": 4, "equal": 2, "more": 1}


@pytest.mark.parametrize(
    "walks", [range(40), pytest.param(range(40, 300), marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_a_budget_does_what_a_simple_model_of_it_does(monkeypatch, walks):
    """Whatever is asked, answered, lost, cancelled, released, raised or lowered, and in whatever
    order.
    """
    monkeypatch.setattr(sys.modules["redraft.middleware.budget"], "IDLE_TIMEOUT", 1e6)

    async def run(chance):
        names = chance.sample(LIMITS, chance.choice((1, 1, 2, 3)))
        walk = Walk({name: chance.randint(MOST[name] // 10, MOST[name]) for name in names})
        for kind in chance.choices(list(KINDS), KINDS.values(), k=60):
            await walk.apply(kind, chance.randrange(8), chance.randrange(13), chance.randrange(8))
        for task in walk.tasks.values():
            task.cancel()
        await asyncio.gather(*walk.tasks.values(), return_exceptions=True)
        return walk.seen

    seen = Counter()
    for seed in walks:
        try:
            seen += asyncio.run(run(Random(seed)))
        except AssertionError as error:
            error.add_note(f"walk {seed}")
            raise
    assert all(
        seen[what] >= len(walks)
        for what in ("waits", "waits and draws", "is refused", "draws nothing")
    )


def test_a_wait_for_a_task_that_does_nothing_is_bounded():
    """After two seconds without a call in flight one call is refused; what fits by then is sent,
    and then none is refused.
    """

    async def run():
        tracker, needs = (
            BudgetTracker(Budget(output_tokens=100)),
            {"grades": 10, "a": 70, "b": 60, "c": 50, "d": 90},
        )
        holder = Reservation(
            tracker, lambda: CostEstimate(by_name(60 * WRITTEN), by_name(NOTHING)), BudgetOwner()
        )
        calls = {}

        def ask(name, reservation=None):
            def need():
                return CostEstimate(by_name(CALL), by_name(WRITTEN), *[needs[name]] * 3)

            calls[name] = asyncio.ensure_future(tracker.reserve(need, reservation))
            return calls[name]

        def ends():
            shown = {True: "refused", False: "sent"}
            return {
                name: shown[call.exception() is not None] if call.done() else "waits"
                for name, call in calls.items()
            }

        tracker.settle(await ask("grades", holder), by_name(NOTHING))
        del calls["grades"]
        for name in "abcd":
            ask(name)
        await asyncio.sleep(1.9)
        assert ends() == {"a": "waits", "b": "waits", "c": "waits", "d": "waits"}
        await asyncio.sleep(0.2)
        assert ends() == {"a": "refused", "b": "waits", "c": "waits", "d": "waits"}
        needs["b"] = 30  # the prompt is found to be shorter than was thought
        await asyncio.sleep(2)
        assert ends() == {"a": "refused", "b": "sent", "c": "waits", "d": "waits"}
        await asyncio.sleep(60)
        assert ends() == {"a": "refused", "b": "sent", "c": "waits", "d": "waits"}
        tracker.settle(calls["b"].result(), by_name(NOTHING))
        await asyncio.sleep(1.9)
        assert ends()["c"] == "waits"
        await asyncio.sleep(0.2)
        assert ends() == {"a": "refused", "b": "sent", "c": "refused", "d": "waits"}
        tracker.release(holder)
        await asyncio.sleep(0)
        assert ends()["d"] == "sent"
        assert str(calls["a"].exception()) == (
            "the budget of 100 output tokens is used up: 0 spent, 60 reserved, "
            "the next step, with the grades of its text, may take 70"
        )

    with asyncio.Runner(loop_factory=FakeClock) as runner:
        runner.run(run())


async def test_a_call_that_is_cancelled_when_it_was_just_granted_takes_nothing():
    """What it was granted goes to the next one."""
    tracker = BudgetTracker(Budget(calls=1))
    calls = [
        asyncio.ensure_future(
            tracker.reserve(lambda: CostEstimate(by_name(CALL), by_name(NOTHING)))
        )
        for _ in range(3)
    ]
    await asyncio.sleep(0)
    tracker.settle(calls[0].result(), by_name(NOTHING))
    calls[1].cancel()
    await asyncio.wait(calls, timeout=60)
    assert (calls[1].cancelled(), calls[2].result().amounts["calls"]) == (True, 1)
    assert (tracker.spent["calls"], tracker.reserved["calls"]) == (0, 1)


GRADES = by_name(2 * CALL + 40 * READ)
ONE = by_name(CALL + 20 * READ)
TWO_LEFT, ONE_LEFT, NONE_LEFT = (by_name(n * (CALL + 20 * READ)) for n in (2, 1, 0))
RETURNS = {  # limits, what is done before a failed call is settled: what is held for grades then
    "a call is left": ({"calls": 4}, None, TWO_LEFT),
    "no call is left": ({"calls": 3}, None, ONE_LEFT),
    "it was released": ({"calls": 4}, "release", NONE_LEFT),
    "a part of the tokens is left": (
        {"input_tokens": 50},
        None,
        {**TWO_LEFT, "input_tokens": 25.0, "tokens": 40.0, "usd": 80.0},
    ),
}


async def test_a_failed_call_gets_back_what_it_drew_as_far_as_it_is_left():
    """Here it used 25 tokens, 5 more than it had drawn."""
    for name, (limits, before, held) in RETURNS.items():
        tracker = BudgetTracker(Budget(**limits))
        grades = Reservation(tracker, lambda: CostEstimate(GRADES, by_name(NOTHING)), BudgetOwner())
        text = await tracker.reserve(lambda: CostEstimate(by_name(CALL), by_name(NOTHING)), grades)
        tracker.settle(text, by_name(CALL))
        grades.close()
        call = await tracker.reserve(lambda: CostEstimate(ONE, by_name(NOTHING)), grades)
        if before == "release":
            tracker.release(grades)
        tracker.settle(call, by_name(CALL + (25 if "input_tokens" in limits else 0) * READ), grades)
        assert tracker.held_for_grades == pytest.approx(held), name


async def test_a_part_of_what_is_held_is_at_most_all_of_it():
    """Whoever takes more calls than are held takes them all."""
    for calls, part, rest in (
        (1, ONE_LEFT, ONE_LEFT),
        (2, TWO_LEFT, NONE_LEFT),
        (5, TWO_LEFT, NONE_LEFT),
    ):
        tracker = BudgetTracker(Budget(calls=9))
        grades = Reservation(tracker, lambda: CostEstimate(GRADES, by_name(NOTHING)), BudgetOwner())
        assert tracker.split(grades, calls) is grades  # nothing is held yet
        await tracker.reserve(lambda: CostEstimate(by_name(CALL), by_name(NOTHING)), grades)
        taken = tracker.split(grades, calls)
        assert (taken.remaining, grades.remaining, tracker.held_for_grades) == (
            part,
            rest,
            TWO_LEFT,
        ), calls
        tracker.release(taken)
        assert tracker.held_for_grades == rest, calls


async def test_a_refusal_names_the_limit_of_which_most_is_missing():
    """A task that holds something and waits for more is refused at once; other limits leave
    enough.
    """
    for limits, named in (
        ({"calls": 10, "output_tokens": 100, "tokens": 1000}, "output_tokens"),
        ({"output_tokens": 1000, "tokens": 110, "calls": 10}, "tokens"),
        ({"tokens": 120, "output_tokens": 100}, "output_tokens"),
        ({"output_tokens": 120, "tokens": 100}, "tokens"),
    ):
        tracker, owner = BudgetTracker(Budget(**limits, min_tokens=1)), BudgetOwner(active_steps=1)
        for text, grades in ((10, 60), (70, 0)):
            held = Reservation(
                tracker,
                lambda grades=grades: CostEstimate(by_name(grades * WRITTEN), by_name(NOTHING)),
                owner,
            )
            need = CostEstimate(by_name(CALL), by_name(WRITTEN), text, text, text)
            try:
                tracker.settle(
                    await tracker.reserve(lambda need=need: need, held), by_name(NOTHING)
                )
            except BudgetExhaustedError as error:
                refused = error
        assert (
            refused.limit,
            "0 spent, 60 reserved" in str(refused),
            "may take 70" in str(refused),
        ) == (named, True, True), limits
