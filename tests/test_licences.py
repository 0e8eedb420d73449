"""Redraft is under Apache-2.0, and so must be usable whatever it needs: no dependency is under a licence that asks for more.

Allowed are permissive licences, and MPL-2.0, which asks for the source of its own files only. GPL, AGPL and LGPL are not.
"""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PYPROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "HPND", "ISC", "MIT", "MIT-0",
    "MIT-CMU", "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib",
}  # fmt: skip
SAID = {  # what stands in "License", and in classifiers, before there were expressions
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD 2-Clause License": "BSD-2-Clause",
    "Apache 2": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache Software License 2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "new BSD": "BSD-3-Clause",
}
BY_HAND: dict[str, str] = {}  # the licence of a package whose metadata say nothing, and where it stands
NOT_INSTALLED = {  # packages that no test uses, but for one that runs where they are: their licences as they publish them
    # of the extra `docs`, and of a guide
    "fastapi": "MIT",
    "mkdocs-llmstxt": "ISC",
    "mkdocs-material": "MIT",
    "mkdocstrings-python": "ISC",
    # of the extra `release`
    "build": "MIT",
    "twine": "Apache-2.0",
    # of the extra `providers`
    "anthropic": "MIT",
    "boto3": "Apache-2.0",
    "cohere": "MIT",
    "google-genai": "Apache-2.0",
    "groq": "Apache-2.0",
    "mistralai": "Apache-2.0",
    "xai-sdk": "Apache-2.0",
}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(lines, extras):
    """The requirements among the lines that hold on this machine, with these extras of the package that has them."""
    for requirement in map(Requirement, lines):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def dependencies():
    """The names of all that Redraft needs directly or through others, in all its extras, with who asked for it."""
    extras = PYPROJECT["optional-dependencies"]
    waiting = [(r, "redraft") for lines in (PYPROJECT["dependencies"], *extras.values()) for r in wanted(lines, ())]
    known = {}
    while waiting:
        requirement, asked_by = waiting.pop()
        name = normal(requirement.name)
        if name == "redraft" or (name in known and requirement.extras <= known[name][1]):
            continue
        known[name] = (known.get(name, (asked_by,))[0], requirement.extras | known.get(name, (0, set()))[1])
        try:
            needed = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        waiting += [(each, name) for each in wanted(needed, known[name][1])]
    return {name: asked_by for name, (asked_by, _) in sorted(known.items())}


def licences(name, metadata):
    """What its metadata say that a package is under: expressions, in each place where there is one."""
    if name in BY_HAND:
        return [BY_HAND[name]]
    if expression := metadata.get("License-Expression"):
        return [expression]
    classified = [line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier", []) if line.startswith("License")]
    title = metadata.get("License", "").strip().partition("\n")[0]
    if 0 < len(title) <= 40:  # else it is a text without a title
        classified.append(title)
    return [SAID.get(licence, licence) for licence in classified if licence not in {"OSI Approved", "DFSG approved"}]


def permissive(expression):
    """Whether an SPDX expression can be met under allowed licences alone."""
    words = re.sub(r"\bWITH\s+\S+", "", expression, flags=re.IGNORECASE)
    words = re.sub(r"[^()\s]+", lambda m: m[0].lower() if m[0].upper() in {"AND", "OR"} else str(m[0] in ALLOWED), words)
    try:
        return bool(eval(words, {"__builtins__": {}}))
    except SyntaxError:
        return False


def test_every_dependency_is_under_a_permissive_licence():
    """By name, with who needs it and what it says of itself."""
    bad, unseen = {}, set()
    found = dependencies()
    assert {"aiohttp", "datasets", "numpy", "orjson", "ray", "pydantic-core", "tqdm"} <= set(found)
    for name, asked_by in found.items():
        try:
            said = licences(name, distribution(name).metadata)
        except PackageNotFoundError:
            unseen.add(name)
            continue
        if not said or not all(map(permissive, said)):
            bad[name] = f"needed by {asked_by}, says {said}"
    assert bad == {}
    assert unseen <= set(NOT_INSTALLED), "not installed here, so nobody looked at their licences"
    assert all(map(permissive, NOT_INSTALLED.values()))


@pytest.mark.parametrize(
    ("lines", "good"),
    [
        ("License-Expression: MIT", True),
        ("License-Expression: MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("License-Expression: GPL-3.0-or-later OR MIT", True),
        ("License-Expression: Apache-2.0 WITH LLVM-exception", True),
        ("License-Expression: GPL-3.0-or-later", False),
        ("License-Expression: MIT AND GPL-2.0-only", False),
        ("License-Expression: AGPL-3.0-only", False),
        ("License: LGPL-2.1-or-later", False),
        ("License: GNU General Public License\n        any version", False),
        ("License: BSD\nClassifier: License :: OSI Approved :: BSD License", True),
        ("License: MIT\nClassifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)", False),
        ("Classifier: License :: Other/Proprietary License", False),
        ("Classifier: License :: OSI Approved :: GNU Lesser General Public License v2 or later (LGPLv2+)", False),
        ("Summary: a package that says nothing", False),
    ],
)
def test_what_counts_as_permissive(tmp_path, monkeypatch, lines, good):
    """A licence that asks for more is seen wherever it is declared; silence is no permission."""
    info = tmp_path / "sample-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: sample\nVersion: 1.0\n{lines}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    said = licences("sample", distribution("sample").metadata)
    assert (bool(said) and all(map(permissive, said))) == good
