"""The figures of a whole run, as tables: by world, over all worlds, the headline and the goals; and
for the documentation.
"""

from __future__ import annotations

import re
from pathlib import Path

from tables import table

from .catalogue import (
    APIECE,
    BARE,
    BEACON,
    BELIEFS,
    BEST,
    BUDGETS,
    DEFAULTS,
    DOUBTED,
    DSPY,
    FOREIGN,
    JUDGE,
    JUDGED,
    KIT,
    LEARNED,
    LEARNED_64,
    OURS,
    PANDORA,
    PLAIN,
    REFINE,
    RELEARNED,
    RIVALS,
    SHARED,
    SHIPPED,
    SINGLE,
    TOGETHER,
    default_after,
)
from .drawing import LINES, Curve, Spot, frontier_svg
from .figures import Figure, at_calls, calls_ratio, lead, mean, single_setting, swept
from .goals import default_point
from .ranks import world_standing
from .tables import COLUMNS, at_each, cells

KNOBBED = (KIT, JUDGE, DSPY, BEST, BEACON, PANDORA)
# rivals that show the writer a bare score, or advice that is not meant for its text
ADVISED = (KIT, DSPY)
AFTER = (default_after(LEARNED_64), default_after(LEARNED))
PICTURED = 6  # worlds in the picture
SHORTLY = {KIT: "executionkit", JUDGE: "OpenJudge", PLAIN: "SelfRefine", OURS: "Adaptive"}
RANKS = [
    "",
    "calls",
    "quality",
    "above refine, default",
    "mean rank",
    "first or within an error",
    "lowest rank",
]
MORE = ["above executionkit", "calls to its quality", "above best of N"]


def figures_of(policies):
    """Compute the figures of a world."""
    kit = single_setting(default_point(policies, KIT))
    calls = kit.summary()["calls"].value
    drafts = at_calls(policies[BEST], calls)
    beliefs = [name for name in (*BELIEFS, FOREIGN, RELEARNED, DOUBTED) if name in policies]
    rivals = [name for name in KNOBBED if name != KIT]
    return {
        "as_they_come": {
            name: single_setting(default_point(policies, name)).summary()
            for name in (*DEFAULTS, *AFTER)
        },
        "at_executionkits_calls": {
            **{name: beside(policies[name], kit, drafts, calls) for name in beliefs},
            **{
                f"{name}, at its best": beside(swept(policies[name]), kit, drafts, calls)
                for name in rivals
            },
        },
        "at_calls": {
            n: {name: mix.summary() for name, mix in at_each(policies, n)} for n in JUDGED
        },
        "one_budget": {n: compare_budgets(policies, n) for n in SHARED},
        "budgets": {
            n: single_setting(point).summary()
            for n, point in zip(BUDGETS, policies[f"{SHIPPED}, {APIECE}"], strict=True)
        },
        "advice": {name: advice(policies, name) for name in ADVISED},
        "headline": headline(policies),
        "frontiers": {
            name: [{"setting": p.setting, **single_setting(p).summary()} for p in policies[name]]
            for name in (*KNOBBED, *BELIEFS)
        },
    }


def beside(points, kit, drafts, calls):
    """Return the figures of a policy at executionkit's calls, beside executionkit and best of N."""
    return {
        **at_calls(points, calls).summary(),
        "lead": lead(points, kit),
        "calls_ratio": calls_ratio(points, kit),
        "above_best_of_n": lead(points, drafts),
    }


def compare_budgets(policies, calls):
    """Return how much better one budget for all tasks is than as many calls for each."""
    apart, shared = (
        next(p for p in policies[f"{SHIPPED}, {kind}"] if p.setting == calls)
        for kind in (APIECE, TOGETHER)
    )
    return Figure(
        *mean([b.quality - a.quality for a, b in zip(apart.plays, shared.plays, strict=True)])
    )


def advice(policies, name):
    """Return the figures of a rival's default where a bare score helps less than advice, and where
    it helps as much.

    `above_refine`: how much better the rival is at the calls of our default.
    """
    ours = single_setting(default_point(policies, REFINE))
    found = {}
    for what, rival in (("as in the world", name), (BARE, f"{name}, {BARE}")):
        point = next(p for p in policies[rival] if p.setting == DEFAULTS[name])
        found[what] = {
            **single_setting(point).summary(),
            "above_refine": lead(policies[rival], ours),
        }
    return found


def headline(policies):
    """Return our default's rank among the defaults, with those that are better; and the rivals that
    beat it at its calls by more than two standard errors, each at the best setting of its own knob.
    """
    ours, place = single_setting(default_point(policies, REFINE)), world_standing(policies, REFINE)
    leads = {name: lead(swept(policies[name]), ours) for name in KNOBBED}
    return {
        **{field: ours.summary()[field].value for field in ("calls", "quality")},
        "rank": place.rank,
        "of": 1 + len(RIVALS),
        "ahead": place.ahead,
        "lost_to": {
            name: figure for name, figure in leads.items() if figure.value > 2 * figure.error
        },
        "leads": leads,
    }


def show(found, across, reached):
    """Print all tables."""
    for world, figures in found.items():
        show_world(world, figures)
    show_across(found)
    show_headline(found)
    print("\nall worlds together: the mean of their figures, with the standard error over worlds\n")
    table(RANKS, [[name, *ranked(line)] for name, line in across.rankings.items()])
    print(f"\nwhere our default loses, by more than a standard error: {len(across.losses)}\n")
    for world, place in across.losses.items():
        print(f"{world}: {loss(place)}")
    print()
    rows = [
        [g["goal"], g["world"], g["must_be"], str(g["found"]), "met" if g["met"] else "missed"]
        for g in reached
    ]
    table(["goal", "world", "must be", "found", ""], rows)
    print(f"\n{sum(g['met'] for g in reached)} of {len(reached)} goals met")


def show_world(world, figures):
    """Print the tables of a world."""
    print(f"\n{world}\n")
    table(
        ["as they come", *COLUMNS],
        [[name, *cells(row)] for name, row in figures["as_they_come"].items()],
    )
    calls = figures["as_they_come"][KIT]["calls"].value
    print()
    rows = [
        [name, *cells(row), *more(row)] for name, row in figures["at_executionkits_calls"].items()
    ]
    table([f"at {calls:.1f} calls", *COLUMNS, *MORE], rows)
    for n, lines in figures["at_calls"].items():
        print()
        table([f"at {n} calls", *COLUMNS], [[name, *cells(row)] for name, row in lines.items()])


def more(row):
    ratio = row["calls_ratio"]
    share = "never" if ratio.value is None else f"{ratio.value:.2f} ± {ratio.error:.2f}x"
    return [row["lead"].signed, share, row["above_best_of_n"].signed]


def show_across(found):
    """Print the tables that compare worlds, one line each."""
    print("\nthe same calls for all tasks: quality with one budget above that with equal shares\n")
    rows = [
        [world, *(figures["one_budget"][n].signed for n in SHARED)]
        for world, figures in found.items()
    ]
    table(["", *(f"{n} calls a task" for n in SHARED)], rows)
    print("\nthe shipped plan's quality with a budget of so many calls for each task\n")
    rows = [
        [world, *(f"{figures['budgets'][n]['quality'].value:.3f}" for n in BUDGETS)]
        for world, figures in found.items()
    ]
    table(["", *map(str, BUDGETS)], rows)
    print(
        "\nquality of a rival's default (and at our default's calls above ours): a bare score "
        "helps less than advice; as much\n"
    )
    header = [
        f"{SHORTLY.get(name, name)}, {what}"
        for name in ADVISED
        for what in ("score < advice", "score = advice")
    ]
    cases = [(name, what) for name in ADVISED for what in ("as in the world", BARE)]
    rows = [
        [world, *(advised(figures["advice"][name][what]) for name, what in cases)]
        for world, figures in found.items()
    ]
    table(["", *header], rows)


def advised(row):
    return f"{row['quality'].value:.3f} ({row['above_refine'].signed})"


def show_headline(found):
    """Print where our default stands among the defaults, and where a rival beats it."""
    print(
        "\nour default among the defaults, and at its calls beside rivals at the best setting of "
        "their own knob\n"
    )
    rows = [[world, *beside_rivals(figures["headline"])] for world, figures in found.items()]
    table(["", "calls", "quality", "rank", "better defaults", "we lose here to"], rows)


def beside_rivals(line):
    return [
        f"{line['calls']:.1f}",
        f"{line['quality']:.3f}",
        f"{line['rank']} of {line['of']}",
        signed(line["ahead"]) or "-",
        signed(line["lost_to"]) or "-",
    ]


def signed(leads):
    return ", ".join(
        f"{SHORTLY.get(name, name)} ({figure.signed})" for name, figure in leads.items()
    )


def ranked(line):
    """Return the cells of a default in all worlds."""
    return [
        f"{line.calls.value:.1f}",
        str(line.quality),
        line.above.signed,
        f"{line.rank.value:.1f} ± {line.rank.error:.1f}",
        str(line.first),
        str(line.lowest),
    ]


def loss(place):
    return f"rank {place.rank}, behind {signed(place.ahead)}"


# ---- documentation


def markdown(found, across, tasks):
    """Yield the lines of the tables of the documentation, a row for each world."""
    yield (
        "True quality of the answer, and calls in parentheses, of each tool with its default "
        f"settings ({tasks} tasks a world):"
    )
    yield ""
    defaults = {
        SINGLE: "single draft",
        DSPY: DSPY,
        JUDGE: JUDGE,
        KIT: KIT,
        BEST: "best of 4",
        REFINE: "Redraft `refine`",
    }
    defaults[default_after(LEARNED)] = "`refine`, learned in 256 rows"
    rows = (
        [world, *(brief(figures["as_they_come"][name]) for name in defaults)]
        for world, figures in found.items()
    )
    yield from lines(["defaults", *defaults.values()], rows)
    yield ""
    yield (
        "At the calls of that default of `refine`: how much better each rival is (minus: worse) at "
        "the best setting of its own knob"
    )
    yield "for at most so many calls, chosen with the true quality in hand:"
    yield ""
    header = ["at our calls", "calls", "our quality", *(SHORTLY.get(n, n) for n in KNOBBED)]
    yield from lines(header, ([world, *at_ours(f["headline"])] for world, f in found.items()))
    yield ""
    yield (
        "What the defaults report: the reported score minus the true one; the share of targets "
        "truly reached that is claimed"
    )
    yield (
        "(recall); the share of claims that is false; and how many intervals have the true "
        "quality (`refine` after 256 rows):"
    )
    yield ""
    header = [
        "",
        "executionkit",
        "its recall",
        "its false claims",
        "`refine`",
        "after 256 rows",
        "recall",
        "false claims",
        "covered",
    ]
    yield from lines(
        header, ([world, *honesty(figures["as_they_come"])] for world, figures in found.items())
    )
    yield ""
    yield (
        f"All {len(found)} worlds together: means with standard errors over worlds, the difference "
        "to `refine` paired by world, the mean rank"
    )
    yield (
        "among six defaults (what was learned takes the place of `refine`, its tuition charged), "
        "in how many worlds a default is first"
    )
    yield "or within a standard error of the first, and its lowest rank:"
    yield ""
    yield from lines(RANKS, ([name, *ranked(line)] for name, line in across.rankings.items()))
    yield ""
    yield (
        f"In {len(across.losses)} of {len(found)} worlds the default of `refine` is more than a "
        "standard error below the first (how much better, paired by task):"
    )
    yield ""
    yield from (f"- *{world}*: {loss(place)}" for world, place in across.losses.items())


def at_ours(line):
    leads = (line["leads"][name].signed for name in KNOBBED)
    return [f"{line['calls']:.1f}", f"{line['quality']:.3f}", *leads]


def lines(header, rows):
    """Yield a table in Markdown."""
    yield f"| {' | '.join(header)} |"
    yield "|---" * len(header) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def honesty(rows):
    kit, ours, learned = rows[KIT], rows[REFINE], rows[default_after(LEARNED)]
    return [
        kit["reported_minus_latent"].signed,
        percent(kit["recall"]),
        percent(kit["false_claims"]),
        ours["reported_minus_latent"].signed,
        learned["reported_minus_latent"].signed,
        percent(learned["recall"]),
        percent(learned["false_claims"]),
        percent(learned["coverage"]),
    ]


def percent(figure):
    return "-" if figure.value is None else f"{figure.value:.0%}"


def brief(row):
    return "-" if row is None else f"{row['quality'].value:.3f} ({row['calls'].value:.1f})"


def draw(points):
    """Draw the points of the first worlds."""
    worlds = []
    for world, policies in list(points.items())[:PICTURED]:
        curves = [
            Curve(
                name, [(p.calls, p.quality) for p in sorted(policies[name], key=lambda p: p.calls)]
            )
            for name in LINES
        ]
        lone = {
            name: default_point(policies, name) for name in (SINGLE, KIT, JUDGE, DSPY, PLAIN, OURS)
        }
        spots = [
            Spot(SHORTLY.get(name, name), p.calls, p.quality, name in (PLAIN, OURS))
            for name, p in lone.items()
        ]
        worlds.append((world, curves, spots))
    return frontier_svg(worlds)


def write_docs(folder, points, found, across, tasks):
    """Write the picture, and the tables between their marks in adaptive.md."""
    page = Path(folder, "adaptive.md")
    Path(folder, "frontier.svg").write_text(draw(points))
    text = page.read_text() if page.exists() else "<!-- policies -->\n<!-- /policies -->\n"
    between = (
        "<!-- policies -->\n" + "\n".join(markdown(found, across, tasks)) + "\n<!-- /policies -->"
    )
    page.write_text(
        re.sub(
            "<!-- policies -->.*?<!-- /policies -->",
            lambda _: between,
            text,
            count=1,
            flags=re.DOTALL,
        )
    )
