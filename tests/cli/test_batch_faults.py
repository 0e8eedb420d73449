"""Batches whose rows, endpoints, files and arguments fail: what becomes of them, and what is said."""

import json
import time

import pytest

from redraft import batch
from redraft.runs import Limits

from .chat_server import verdict


def table(path, prompts):
    path.write_text("".join(json.dumps({"id": f"r{i}", "prompt": prompt}) + "\n" for i, prompt in enumerate(prompts)))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def is_probe(messages):
    return messages[-1]["content"] == "Hi"


def good(text):
    """A grader without a model, content with every answer."""
    return 1.0


class Server:
    """What an endpoint says: `fails` to prompts with "poison" in them, to everything while it is `down`, and else an answer."""

    def __init__(self, fails=None, down_from=None, down=None):
        self.fails, self.down_from, self.down = fails, down_from, down

    def __call__(self, messages, n):
        if self.down_from is not None and n >= self.down_from:
            return self.down
        if "poison" in messages[-1]["content"]:
            return self.fails() if callable(self.fails) else self.fails
        return "fine"


async def run(folder, server, prompts, *, outage=30.0, timeout=0.3, start=4, **more):
    """A batch without judges; its report, its rows, and the seconds it took."""
    began = time.monotonic()
    source = table(folder / "in.jsonl", prompts)
    limits = Limits(outage=outage, start=start)
    report = await batch(source, folder / "out.jsonl", server.model, good, timeout=timeout, limits=limits, max_iterations=0, **more)
    return report, read(folder / "out.jsonl"), time.monotonic() - began


@pytest.mark.parametrize(
    ("good_rows", "poison"), [(20, 1), (20, 3), (0, 1), (0, 3), (5, 6)], ids=["last", "last three", "alone", "three alone", "many"]
)
async def test_rows_that_are_never_answered_fail_and_the_run_goes_on(tmp_path, serve, good_rows, poison):
    """Although nobody else is asked any more, it is no outage: the endpoint answers a short question, and the run ends by itself."""
    server = serve(Server(fails=None))
    report, rows, seconds = await run(
        tmp_path, server, [f"say {i}" for i in range(good_rows)] + [f"poison {i}" for i in range(poison)]
    )
    assert (report.ended, report.done, report.failed) == ("", good_rows, poison)
    errors = [row["error"] for row in rows[good_rows:]]
    assert all(error.startswith("ModelTimeoutError: ") for error in errors)
    assert all("while the endpoint answered others" in error for error in errors)
    assert seconds < 25
    asked = [messages for messages in server.asked if "poison" in messages[-1]["content"]]
    assert len(asked) <= 10 * poison


@pytest.mark.parametrize(
    "fails", [500, b'{"choices": []}', b"<html>no</html>", b'{"choi', b"null"], ids=["500", "empty", "page", "cut", "null"]
)
async def test_a_bad_body_is_asked_for_as_often_as_a_500(tmp_path, serve, fails):
    """Four times with three retries; what that took is unknown, where nothing said it. The next row is not touched by it."""
    server = serve(Server(fails=fails))
    report, rows, _ = await run(tmp_path, server, ["poison", "say 1"], retries=3)
    assert [row["best"] for row in rows] == [None, "fine"]
    assert sum("poison" in messages[-1]["content"] for messages in server.asked) == 4
    assert (report.done, report.failed, report.usage.calls) == (1, 1, 5)
    assert report.usage.tokens == (15 if fails == 500 else None)


async def test_a_bad_body_that_does_not_stay_costs_no_row(tmp_path, serve):
    """Three bad bodies, then an answer."""
    bodies = [b'{"choices": []}', b"<html>no</html>", b"null", "fine"]
    server = serve(Server(fails=lambda: bodies.pop(0)))
    report, rows, _ = await run(tmp_path, server, ["poison"])
    assert (report.done, rows[0]["best"]) == (1, "fine")


@pytest.mark.parametrize("down", [None, 503], ids=["silent", "503"])
@pytest.mark.parametrize("last", ["say", "poison"])
async def test_an_outage_at_the_end_parks_the_rows_that_are_left(tmp_path, serve, down, last):
    """No row fails by it, poisonous or not: the run ends after `outage` seconds, and the same call goes on."""
    server = serve(Server(fails=None, down_from=6, down=down))
    prompts = [*(f"say {i}" for i in range(6)), *(f"{last} and {i}" for i in range(8 if down else 2))]
    report, _, _ = await run(tmp_path, server, prompts, outage=1.5)
    assert (report.ended, report.failed, report.resumable) == ("outage", 0, True)
    kept = report.done
    assert kept <= 6
    server.answer.down_from, server.answer.fails = None, 400 if down else None
    report, rows, _ = await run(tmp_path, server, prompts, timeout=0.1)
    assert (report.ended, report.kept, len(rows)) == ("", kept, len(prompts))
    assert (report.done, report.failed) == ((len(rows), 0) if last == "say" else (6, len(rows) - 6))


async def test_an_outage_in_the_middle_with_poison_is_waited_for(tmp_path, serve):
    """The endpoint is away for a while: everybody waits, and afterwards only the poisonous rows fail."""
    server = serve(Server(fails=None, down_from=8, down=503))
    stay, back = server.answer, []

    def answer(messages, n):
        if n >= 8:
            back.append(time.monotonic() + 2)
        if back and time.monotonic() > back[0]:
            stay.down_from = None
        return stay(messages, n)

    server.answer = answer
    prompts = [f"{'poison' if i % 10 == 3 else 'say'} {i}" for i in range(30)]
    report, rows, _ = await run(tmp_path, server, prompts)
    assert report.ended == ""
    assert [row["id"] for row in rows if row["error"]] == ["r3", "r13", "r23"]


async def test_a_slow_endpoint_finds_its_pace_before_a_row_fails(tmp_path, serve):
    """One that answers three calls within the timeout is asked by fewer and fewer, and answers everybody in the end."""

    def slow(messages, n):
        time.sleep(0.1)  # noqa: ASYNC251  (the whole server: it has one thread)
        return "fine"

    report, _, _ = await run(tmp_path, serve(slow), [f"say {i}" for i in range(16)], timeout=0.4, start=16)
    assert (report.ended, report.done, report.failed) == ("", 16, 0)


async def test_one_endpoint_of_two_that_is_down_parks_the_run(tmp_path, serve):
    """What the other wrote is kept, no row fails, and the run goes on when both are there."""
    writer, judge = serve(Server()), serve(lambda messages, n: 503)
    source = table(tmp_path / "in.jsonl", [f"say {i}" for i in range(12)])
    limits = Limits(outage=1.0, start=8)
    given = (source, tmp_path / "out.jsonl", writer.model, None, judge.model)
    report = await batch(*given, limits=limits, max_iterations=0)
    assert (report.ended, report.failed) == ("outage", 0)
    judge.answer = lambda messages, n: verdict(5)
    report = await batch(*given, limits=limits, max_iterations=0)
    assert (report.ended, report.done, report.failed, writer.calls) == ("", 12, 0, 12)
