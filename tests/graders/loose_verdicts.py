"""Verdicts in loose forms that can mean one thing only: numbers and words in quotes, flat criteria,
other keys, comments.
"""

import json

KEYS = [
    str,
    str,
    str,
    str.upper,
    str.title,
    lambda key: f"**{key}**",
    lambda key: f"`{key}`",
    lambda key: f"**{key.title()}:**",
]
NUMBERS = ["{}", "{}", "{}.0", '"{}"', '"{}.0"', '" {} "', "{}.00"]
TRUTH = {
    True: ["true", "true", "True", "TRUE", '"true"', '"True"'],
    False: ["false", "false", "False", '"false"', '" FALSE"'],
    None: ["null", "None"],
}
WORDS = [str, str, str.upper, str.title, lambda word: f"**{word}**", lambda word: f" {word} "]
BEYOND = {
    "confidence": 0.75,
    "sure": True,
    "notes": None,
    "model": "m-1",
    "parts": [1, {"deep": False}],
    "total": 12,
}
COMMENTS = [" // mostly right\n", " // it's so, really\n", " # as asked\n", " /* mostly right */ "]


class Raw(str):
    """A value as it is written, which may be no JSON."""


def number(value, rng):
    """Return a number of a verdict, perhaps with .0 or in quotes."""
    if isinstance(value, float):
        return rng.choice([value, str(value)])
    return Raw(rng.choice(NUMBERS).replace("{}", str(value)))


def loosened(verdict, rng):
    """Return a verdict of any judge in a loose form, and what it says of `done`: True, False or
    None.
    """
    loose = {key: _part(key, value, rng) for key, value in verdict.items()}
    done = verdict.get("done")
    if "done" in loose and rng.random() < 0.2:
        del loose["done"]
        done = None
    for key in ("reason", "why"):
        if key in loose and (choice := rng.random()) < 0.3:
            loose[key] = ["", None, "  "][int(choice * 10)]
    if isinstance(loose.get("criteria"), dict):
        loose["criteria"] = _criteria(loose["criteria"], rng)
        if isinstance(loose["criteria"], dict) and rng.random() < 0.2:
            loose |= loose.pop("criteria")
    for key in rng.sample(list(BEYOND), rng.choice([0, 0, 1, 2])):
        loose[key] = BEYOND[key]
    if "q1" in loose and rng.random() < 0.2:
        loose["q4"] = "yes"
    return _with_keys(loose, rng), done


def _part(key, value, rng):
    match key:
        case "criteria" if isinstance(value, dict):
            return {
                name: _row(row, "score", number(row["score"], rng), rng)
                for name, row in value.items()
            }
        case "q1" | "q2" | "q3":
            return _row(value, "answer", rng.choice(WORDS)(value["answer"]), rng)
        case "score":
            return number(value, rng)
        case "verdict":
            inner = {
                k: rng.choice(WORDS)(v) if k == "winner" else _part(k, v, rng)
                for k, v in value.items()
            }
            return _with_keys(inner, rng)
        case "winner":
            return rng.choice(WORDS)(value)
        case "ranking" | "order":
            return [number(n, rng) for n in value]
        case "ties" | "equal":
            return rng.choice([[], None, [[1, 1]], [["2"]]])
        case "change" if isinstance(value, list):
            return rng.choice([value, value[0]])
        case "done":
            return Raw(rng.choice(TRUTH[value]))
    return value


def _row(row, key, value, rng):
    """Return the verdict on a criterion: alone, or with what goes with it."""
    if rng.random() < 0.3:
        return value
    row = {**row, key: value}
    for other in [k for k in row if k != key and rng.random() < 0.2]:
        row[other] = rng.choice([None, ["one", "two"], ""])
    return _with_keys(row, rng)


def _criteria(rows, rng):
    if rng.random() < 0.3:
        rows = {**rows, "tone": rng.choice([3, "good", {"score": 1}])}
    if rng.random() < 0.6:
        return _with_keys(rows, rng)
    key = rng.choice(["name", "criterion", ""])
    listed = []
    for name, row in _with_keys(rows, rng).items():
        if key and isinstance(row, dict):
            listed.append({key: name, **row})
        else:
            listed.append({name: row} if not key else {key: name, "score": row})
    rng.shuffle(listed)
    return listed


def _with_keys(data, rng):
    return {rng.choice(KEYS)(key): value for key, value in data.items()}


def written(value, rng, level=0):
    """Return a value as a text: JSON, perhaps with Python's words, comments and line breaks."""
    if isinstance(value, Raw):
        return str(value)
    if value is None or isinstance(value, bool):
        return (
            rng.choice(TRUTH[value][: 1 if value is None else 2])
            if rng.random() < 0.5
            else str(value)
        )
    if not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if isinstance(value, list):
        return "[" + ", ".join(written(item, rng, level + 1) for item in value) + "]"
    members = [
        f"{json.dumps(key, ensure_ascii=False)}: {written(item, rng, level + 1)}"
        for key, item in value.items()
    ]
    text = ""
    for n, member in enumerate(members):
        comma = "," * (n + 1 < len(members))
        comment = rng.choice(COMMENTS) if rng.random() < 0.1 else " "
        text += rng.choice([f"{member}{comma}{comment}", f"{member}{comment}{comma}"]) + rng.choice(
            ["", "\n" + "  " * level]
        )
    return "{" + text.rstrip(" ") + "}"
