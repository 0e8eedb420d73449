"""Measure what a gateway adds to the model behind it: Redraft's `pass/`, litellm's proxy and
optillm, side by side.

    python bench/gateway.py [-n 400] [--litellm PYTHON] [--optillm PYTHON] [--streams 500] [--soak
    SECONDS] [--json FILE] python bench/gateway.py --before CHECKOUT [-n 400] [--in-flight 32]
    [--pairs 5] [--json FILE]

All of them stand in front of one model on the loopback interface (bench/gateways/upstream.py),
which is asked directly as well. Requests to them are interleaved. PYTHON is the interpreter of an
environment with `litellm[proxy]`, or `optillm`. `--soak` runs mixed load with faults instead
(bench/gateways/soak.py). `--before` compares the CPU time of this gateway with that of the one in
the folder CHECKOUT, in pairs in turn; with `--litellm` or `--optillm` it is measured beside them.
The exit code is 1 if a goal is not met.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import uvloop

from gateways import processes
from gateways.load import Connection, many, post
from gateways.upstream import WORDS
from tables import table, write

ADDED_MS, OF_LITELLM, FLAT_MB, MORE_CPU = 1.0, 1 / 3, 16.0, 1.05
OURS, REFINED, THEIRS = "redraft pass/", "redraft refine/", "litellm proxy"
ANSWER = re.compile(rf"Answer \d+: (?:{WORDS}){{8}}")
PROMPT = "What do the notes say about the river, and who wrote them? " * 16
STREAM_LATENCY, STREAM_INTERVAL = "0.1", "0.1"


@contextmanager
def gateways(given, folder, source):
    """Run every gateway that is asked for; yield them after the upstream itself."""
    folder.mkdir()
    with ExitStack() as stack:
        found = [source, stack.enter_context(processes.redraft(folder, source))]
        if given.before:
            (folder / "before").mkdir()
            earlier = {"name": "redraft before", "tree": given.before}
            found.append(
                stack.enter_context(processes.redraft(folder / "before", source, **earlier))
            )
        if given.litellm:
            found.append(stack.enter_context(processes.litellm(given.litellm, folder, source)))
        if given.optillm:
            found.append(stack.enter_context(processes.optillm(given.optillm, folder, source)))
        yield found


def request_to(gateway, *, stream, model=None):
    body = {
        "model": model or gateway.model,
        "messages": [{"role": "user", "content": PROMPT}],
        "temperature": 0.5,
    }
    body |= {"stream": True} if stream else {}
    return post(
        gateway.host,
        gateway.port,
        "/v1/chat/completions",
        body,
        Authorization=f"Bearer {gateway.key}",
    )


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def check(gateway, replies):
    """End the benchmark unless every reply is good: a gateway that fails is not fast."""
    if bad := [reply for reply in replies if not reply.is_good]:
        sys.exit(
            f"{gateway.name}: {len(bad)} of {len(replies)} requests failed, with {bad[0].status}: "
            f"{bad[0].body[:500]!r}"
        )


# ---- one at a time


async def one_at_a_time(found, n, *, stream):
    """Send each gateway `n` requests, in turn; return the milliseconds that each adds to the
    upstream's in the same turn.

    Those of a stream are until its first content.
    """
    connections = [Connection(gateway.host, gateway.port) for gateway in found]
    requests = [request_to(gateway, stream=stream) for gateway in found]
    replies = {gateway.name: [] for gateway in found}
    for turn in range(-10, n):
        for place in range(len(found)):
            which = (place + turn) % len(found)
            reply = await connections[which].ask(requests[which])
            check(found[which], [reply])
            if turn >= 0:
                replies[found[which].name].append(1000 * (reply.first if stream else reply.seconds))
    for connection in connections:
        connection.close()
    return added_in_turn(replies, found[0].name)


def added_in_turn(milliseconds, base):
    added = {
        name: [own - direct for own, direct in zip(each, milliseconds[base], strict=True)]
        for name, each in milliseconds.items()
    }
    shown = {name: each if name != base else milliseconds[base] for name, each in added.items()}
    return {
        name: {"median": median(each), "p99": percentile(each, 0.99)}
        for name, each in shown.items()
    }


# ---- many at a time


async def many_at_a_time(found, n, in_flight, rounds):
    """Return the milliseconds that each adds with `in_flight` requests at a time, its CPU time for
    a request, and its speed.
    """
    runs = {gateway.name: [] for gateway in found}
    for gateway in found:
        check(
            gateway,
            await many(
                gateway.host,
                gateway.port,
                request_to(gateway, stream=False),
                in_flight * 2,
                in_flight,
            ),
        )
    for turn in range(rounds):
        for place in range(len(found)):
            gateway = found[(place + turn) % len(found)]
            runs[gateway.name].append(await one_round(gateway, n, in_flight))
    return {
        name: many_summary(own, runs[found[0].name], is_base=name == found[0].name)
        for name, own in runs.items()
    }


async def one_round(gateway, n, in_flight):
    before, began = gateway.usage(), perf_counter()
    replies = await many(
        gateway.host, gateway.port, request_to(gateway, stream=False), n, in_flight
    )
    seconds, after = perf_counter() - began, gateway.usage()
    check(gateway, replies)
    milliseconds = [1000 * reply.seconds for reply in replies]
    return {
        "median": median(milliseconds),
        "p99": percentile(milliseconds, 0.99),
        "per_s": n / seconds,
        "cpu_ms": 1000 * (after["cpu_s"] - before["cpu_s"]) / n if after else None,
    }


def many_summary(own, base, *, is_base):
    less = [dict.fromkeys(("median", "p99"), 0.0)] * len(own) if is_base else base
    return {
        "median": median(o["median"] - b["median"] for o, b in zip(own, less, strict=True)),
        "p99": median(o["p99"] - b["p99"] for o, b in zip(own, less, strict=True)),
        "per_s": median(o["per_s"] for o in own),
        "cpu_ms": median(o["cpu_ms"] for o in own) if own[0]["cpu_ms"] is not None else None,
    }


# ---- streams


async def streams(gateway, n, waves, model=None):
    """Open `n` streams at once, `waves` times; return the errors, which are also wrong texts, and
    the memory after each wave.
    """
    request = request_to(gateway, stream=True, model=model)
    errors, first, longest = 0, [], 0.0
    used = [gateway.usage()]
    for _ in range(waves):
        replies = await many(gateway.host, gateway.port, request, n, n)
        errors += sum(not (reply.is_good and ANSWER.fullmatch(reply.text)) for reply in replies)
        first += [1000 * reply.first for reply in replies if reply.first is not None]
        longest = max(longest, *(reply.seconds for reply in replies))
        await asyncio.sleep(0.5)
        used.append(gateway.usage())
    known = used[0] is not None
    return {
        "streams": n * waves,
        "errors": errors,
        "first_ms": median(first) if first else None,
        "longest_s": longest,
        "mb": [each["mb"] for each in used] if known else None,
        "descriptors": [each["descriptors"] for each in used] if known else None,
        "cpu_ms": 1000 * (used[-1]["cpu_s"] - used[0]["cpu_s"]) / (n * waves) if known else None,
    }


# ---- another checkout

COMPARED = {  # by name: whether it is a stream, and the model
    "pass/": (False, "pass/loopback"),
    "pass/, stream": (True, "pass/loopback"),
    "refine/": (False, "refine/plain"),
}


async def compare(given, folder):
    """Return the CPU time of a request to the gateway of each checkout, by kind of request: one
    value for each pair.
    """
    with ExitStack() as stack:
        source = stack.enter_context(processes.upstream())
        both = []
        for name, tree in (("before", given.before), ("now", Path(__file__).parents[1])):
            (folder / name).mkdir()
            both.append(
                stack.enter_context(processes.redraft(folder / name, source, name=name, tree=tree))
            )
        if both[0].usage() is None:
            sys.exit("--before needs /proc, for the CPU time of the gateways")
        cpu = {kind: {gateway.name: [] for gateway in both} for kind in COMPARED}
        for pair in range(-1, given.pairs):  # the first is a warm-up
            for kind, (stream, model) in COMPARED.items():
                for gateway in both if pair % 2 else both[::-1]:
                    request, began = (
                        request_to(gateway, stream=stream, model=model),
                        gateway.usage()["cpu_s"],
                    )
                    check(
                        gateway,
                        await many(gateway.host, gateway.port, request, given.n, given.in_flight),
                    )
                    if pair >= 0:
                        cpu[kind][gateway.name].append(
                            1000 * (gateway.usage()["cpu_s"] - began) / given.n
                        )
    return cpu


def compared(cpu):
    """Return the median ratio of each kind of request."""
    return {
        kind: median(now / before for before, now in zip(each["before"], each["now"], strict=True))
        for kind, each in cpu.items()
    }


def show_compared(cpu):
    rows = [
        [kind, f"{median(each['before']):.3f}", f"{median(each['now']):.3f}", f"{ratio:.3f}"]
        for (kind, each), ratio in zip(cpu.items(), compared(cpu).values(), strict=True)
    ]
    table(["CPU ms of a request", "before", "now", "median ratio"], rows)
    print()


def compared_goals(cpu):
    return [
        (
            f"{kind} takes at most {MORE_CPU:g} of the CPU time before: {ratio:.3f}",
            ratio <= MORE_CPU,
        )
        for kind, ratio in compared(cpu).items()
    ]


# ---- what is shown


def latency_rows(results, found):
    rows = []
    for gateway in found:
        one, stream, load = (results[name][gateway.name] for name in ("one", "stream", "load"))
        cpu = "-" if load["cpu_ms"] is None else f"{load['cpu_ms']:.2f}"
        milliseconds = [each[name] for each in (one, stream, load) for name in ("median", "p99")]
        rows.append(
            [gateway.name, *(f"{ms:.2f}" for ms in milliseconds), f"{load['per_s']:.0f}", cpu]
        )
    return rows


def stream_rows(results):
    rows = []
    for name, each in results["streams"].items():
        mb = ["-"] * 3 if each["mb"] is None else [f"{each['mb'][n]:.0f}" for n in (0, 1, -1)]
        first = "-" if each["first_ms"] is None else f"{each['first_ms']:.0f}"
        cpu = "-" if each["cpu_ms"] is None else f"{each['cpu_ms']:.1f}"
        rows.append(
            [
                name,
                str(each["streams"]),
                str(each["errors"]),
                first,
                f"{each['longest_s']:.1f}",
                *mb,
                cpu,
            ]
        )
    return rows


def goals(results):
    """Return what was to be reached: a sentence with the figure, and whether it is met; None if
    that is not known.
    """
    ours = results["one"][OURS]["median"]
    found = [(f"pass/ adds at most {ADDED_MS:g} ms in the median: {ours:.2f} ms", ours <= ADDED_MS)]
    if THEIRS in results["one"]:
        theirs = results["one"][THEIRS]["median"]
        text = (
            f"less than a third of what litellm's proxy adds: {ours:.2f} of {theirs:.2f} ms, "
            f"{ours / theirs:.2f}"
        )
        found.append((text, ours < OF_LITELLM * theirs))
    else:
        found.append(
            ("less than a third of what litellm's proxy adds: not measured without --litellm", None)
        )
    for name in (OURS, REFINED):
        held = results["streams"][name]
        text = f"{held['streams']} streams of {name} without an error: {held['errors']} errors"
        found.append((text, held["errors"] == 0))
        if held["mb"]:
            grown = held["mb"][-1] - held["mb"][1]
            text = f"memory is flat after the first wave: {grown:+.1f} MB, at most {FLAT_MB:g}"
            found.append((text, grown <= FLAT_MB))
    return found


def show(results, found, given):
    print(
        f"{given.n} requests each, in turn; 1 KB asked, 0.7 KB answered after 10 ms. Milliseconds "
        "added to the upstream's own:\n"
    )
    header = [
        "",
        "median",
        "p99",
        "stream median",
        "p99",
        f"{given.in_flight} at once median",
        "p99",
        "requests/s",
        "CPU ms",
    ]
    table(header, latency_rows(results, found))
    print(
        f"\n{given.streams} streams at once, in {given.waves} waves; each begins after 0.1 s and "
        "has 16 pieces, 0.1 s apart (refine/ asks the model for no stream):\n"
    )
    header = [
        "",
        "streams",
        "errors",
        "first ms",
        "longest s",
        "MB before",
        "after one",
        "after all",
        "CPU ms",
    ]
    table(header, stream_rows(results))
    print()


def verdict(met):
    return {True: "met", False: "not met", None: "unknown"}[met]


async def measure(given, folder):
    with processes.upstream() as source, gateways(given, folder / "latency", source) as found:
        results = {
            "one": await one_at_a_time(found, given.n, stream=False),
            "stream": await one_at_a_time(found, given.n, stream=True),
            "load": await many_at_a_time(found, given.n, given.in_flight, given.rounds),
        }
    options = "--latency", STREAM_LATENCY, "--interval", STREAM_INTERVAL
    with (
        processes.upstream(*options) as source,
        gateways(given, folder / "streams", source) as found,
    ):
        results["streams"] = {
            gateway.name: await streams(gateway, given.streams, given.waves) for gateway in found
        }
        results["streams"][REFINED] = await streams(
            found[1], given.streams, given.waves, "refine/plain"
        )
    show(results, found, given)
    return results


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "-n",
        type=int,
        default=400,
        help="requests to each, one at a time; and in each round with many at a time",
    )
    parser.add_argument("--in-flight", type=int, default=32, help="requests at a time")
    parser.add_argument("--rounds", type=int, default=3, help="rounds with many requests at a time")
    parser.add_argument("--streams", type=int, default=500, help="streams at a time")
    parser.add_argument(
        "--waves", type=int, default=4, help="how often that many streams are opened"
    )
    parser.add_argument(
        "--litellm", metavar="PYTHON", help="interpreter of an environment with litellm[proxy]"
    )
    parser.add_argument(
        "--optillm", metavar="PYTHON", help="interpreter of an environment with optillm"
    )
    parser.add_argument(
        "--soak",
        type=float,
        metavar="SECONDS",
        help="mixed load with faults for that long, and nothing else",
    )
    parser.add_argument(
        "--before",
        metavar="CHECKOUT",
        type=Path,
        help="compare with the gateway in this folder; alone, or beside --litellm and --optillm",
    )
    parser.add_argument("--pairs", type=int, default=5, help="pairs of rounds with --before")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args()
    if (
        min(given.n, given.in_flight, given.rounds, given.streams, given.pairs) < 1
        or given.waves < 2
    ):
        parser.error(
            "-n, --in-flight, --rounds, --streams and --pairs must be at least 1, --waves at "
            "least 2"
        )
    if given.before and not (given.before / "src" / "redraft").is_dir():
        parser.error(f"--before: {given.before} is no checkout: it has no src/redraft")
    return given


def main():
    given = arguments()
    with TemporaryDirectory() as folder:
        if given.soak:
            from gateways import soak

            results = uvloop.run(soak.run(given.soak, Path(folder)))
            found = soak.goals(results)
        elif given.before and not (given.litellm or given.optillm):
            results = uvloop.run(compare(given, Path(folder)))
            show_compared(results)
            found = compared_goals(results)
        else:
            results = uvloop.run(measure(given, Path(folder)))
            found = goals(results)
    for text, met in found:
        print(f"goal: {text}: {verdict(met)}")
    write(given.json, {**results, "goals": [{"goal": text, "met": met} for text, met in found]})
    if any(met is False for _, met in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
