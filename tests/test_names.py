"""Names: no class name twice, no bare participle, no metaphor, no module named as a public
function.
"""

import ast
import re
from collections import defaultdict
from functools import cache
from inspect import isfunction
from pathlib import Path

import redraft

SOURCE = Path(redraft.__file__).parent
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

IRREGULAR = set(
    "begun bound bought broken brought built burnt caught chosen come cut done drawn driven fallen fed felt forgotten fought found "
    "frozen given gone grown heard held hidden hit hung hurt kept known laid left lent let lit lost made meant met paid put ran "
    "read risen run said seen sent set shown shut sold sought spent split spoken spread stood struck sung sunk swept sworn swung "
    "taken taught thought thrown told torn understood undone won worn woven written came went sat stuck stung bent dealt drunk "
    "eaten forgiven led learnt overtaken overcome proven ridden rung shaken slept slid stolen swayed swollen unheard unmet woken".split()
)
NO_PARTICIPLE = set(
    "bleed breed embed exceed feed need proceed seed shed speed sped succeed weed wed zed".split()
)
# Verbs and nouns that look like a participle: `read`, `run`, `put`, `set`, `cut`, `split`,
# `spread`, `let`, `left` (a side).
SAME_AS_VERB = set("cut feed hit let put read run set shut split spread come left".split())
# Adjectives of properties that say what is so, and standard terms.
ADJECTIVES = set(
    "allowed blocked cached closed converged deprecated done exhausted expired failed finished fixed graded hidden known lossless passed "
    "refused resumable shared skipped trusted truncated unknown unsupported".split()
)
METAPHORS = set(
    "afar album belief bill cast crew desk desks door duel duels errand errands exhibit exhibits hire juror jurors ladder kin lesson lessons "
    "market markets pupil pupils purse purses rung rungs school schooling seat seated seats shelf shelves story toll tolls twin twins waved waves wave".split()
)
METAPHORS_ALONE = set(
    "apart alike hand hands lane lanes lead leads line lines look looks lowered stage stages tab tabs".split()
)
EXCEPTIONS = {
    "_Line": "a line of a text file",
    "_done": "an adjective, as in the rule `done`",
    "_line": "a line of an event stream",
    "computed": "a package: graders that compute, without a model, as `redraft graders` calls them",
    "committed": "the standard term for what is spent or reserved of a budget",
    "done": "public: a stop rule that is read aloud, target(0.9) | done | patience(2)",
    "lines": "the lines of a text",
    "parsed": "public: the value of an answer, as other clients of structured output name it",
    "weighted": "public: a grader with its weight, as in weighted(judge, 2)",
}
"""Names that may stay, each with the reason."""


def words_of(name):
    return [word.lower() for part in name.split("_") for word in WORD.findall(part)]


def is_participle(word):
    if word in NO_PARTICIPLE or word in SAME_AS_VERB:
        return False
    return word in IRREGULAR or (len(word) > 3 and word.endswith("ed"))


def fault_of(name, *, is_property=False):
    """Return what is wrong with a name, or ""."""
    if name.startswith("__") or name in EXCEPTIONS:
        return ""
    words = words_of(name)
    if banned := METAPHORS.intersection(words):
        return f"metaphor {', '.join(sorted(banned))!r}"
    if len(words) != 1:
        return ""
    if words[0] in METAPHORS_ALONE:
        return "metaphor"
    if is_participle(words[0]) and not (is_property and words[0] in ADJECTIVES):
        return "bare participle"
    return ""


def modules():
    return sorted(path for path in SOURCE.rglob("*.py"))


@cache
def definitions(path):
    """Every class, function and method of a module with the functions inside them: (node, whether
    it is a property).
    """
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            found.append((node, False))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
            found.append((node, bool(decorators & {"property", "cached_property"})))
    return found


# Wire models have the names of the vendors' types, and the neutral form between the protocols those
# of what it describes.
OWN_NAMES = ("gateway/protocols/", "gateway/neutral.py")


def test_no_class_name_twice():
    """A class is found by its name alone, but for what one protocol or the neutral form calls it."""
    places = defaultdict(list)
    for path in modules():
        if str(path.relative_to(SOURCE)).startswith(OWN_NAMES):
            continue
        for node, _ in definitions(path):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_participle_and_no_metaphor():
    """Classes are nouns, functions imperative verbs or noun phrases."""
    faults = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}: {fault}"
        for path in modules()
        for node, is_property in definitions(path)
        if (fault := fault_of(node.name, is_property=is_property))
    ]
    faults += [
        f"{path.relative_to(SOURCE)}: {fault}"
        for path in modules()
        if (
            path.stem != "__init__" and (fault := fault_of(path.stem)) and "participle" not in fault
        )
        or (path.name == "__init__.py" and (fault := fault_of(path.parent.name)))
    ]
    assert faults == [], "\n" + "\n".join(faults)


def test_no_module_is_named_as_a_public_function():
    """Importing the package `redraft.batch` would hide the function `redraft.batch`."""
    functions = {name for name in redraft.__all__ if isfunction(getattr(redraft, name))}
    assert functions
    children = {
        path.stem
        for path in SOURCE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert not functions & children
