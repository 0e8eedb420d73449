"""Redraft is under Apache-2.0, so no dependency may have a licence with more conditions.

Allowed are permissive licences, and MPL-2.0, which covers only its own files. GPL, AGPL and LGPL
are not.
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
    "MIT-CMU", "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "ZPL-2.1", "Zlib",
}  # fmt: skip
SAID = {  # values of "License" and of classifiers, from before licence expressions
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
    "Public Domain": "Unlicense",  # no conditions at all: the same in effect
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "new BSD": "BSD-3-Clause",
}
BY_HAND: dict[
    str, str
] = {}  # the licence of a package whose metadata say nothing, and where it is stated
# packages that no test uses, but for one that runs where they are: with their published licences
NOT_INSTALLED = {
    # of the extra `docs`, and of a guide
    "fastapi": "MIT",
    "mkdocs-llmstxt": "ISC",
    "mkdocs-material": "MIT",
    "mkdocstrings-python": "ISC",
    # of the extra `lint`
    "import-linter": "BSD-2-Clause",
    # of the extra `train`
    "peft": "Apache-2.0",
    "torch": "Apache-2.0 AND Apache-2.0 WITH LLVM-exception AND BSD-2-Clause AND BSD-3-Clause AND BSL-1.0 AND MIT",
    "transformers": "Apache-2.0",
    "trl": "Apache-2.0",
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


def canonical_name(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements_for(lines, extras):
    """The requirements among the lines that apply on this machine, with these extras of the
    package.
    """
    for requirement in map(Requirement, lines):
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        ):
            yield requirement


def dependencies():
    """The names of all direct and indirect dependencies of Redraft, with all extras, and what
    requires them.
    """
    extras = PYPROJECT["optional-dependencies"]
    waiting = [
        (r, "redraft")
        for lines in (PYPROJECT["dependencies"], *extras.values())
        for r in requirements_for(lines, ())
    ]
    known = {}
    while waiting:
        requirement, asked_by = waiting.pop()
        name = canonical_name(requirement.name)
        if name == "redraft" or (name in known and requirement.extras <= known[name][1]):
            continue
        known[name] = (
            known.get(name, (asked_by,))[0],
            requirement.extras | known.get(name, (0, set()))[1],
        )
        try:
            needed = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        waiting += [(each, name) for each in requirements_for(needed, known[name][1])]
    return {name: asked_by for name, (asked_by, _) in sorted(known.items())}


def licences(name, metadata):
    """The licences in the metadata of a package: an expression from each field that has one."""
    if name in BY_HAND:
        return [BY_HAND[name]]
    if expression := metadata.get("License-Expression"):
        return [expression]
    classified = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier", [])
        if line.startswith("License")
    ]
    title = metadata.get("License", "").strip().partition("\n")[0]
    if 0 < len(title) <= 40:  # otherwise it is a text without a title
        classified.append(title)
    return [
        SAID.get(licence, licence)
        for licence in classified
        if licence not in {"OSI Approved", "DFSG approved"}
    ]


def is_permissive(expression):
    """Whether allowed licences alone can satisfy an SPDX expression."""
    words = re.sub(r"\bWITH\s+\S+", "", expression, flags=re.IGNORECASE)
    words = re.sub(
        r"[^()\s]+",
        lambda m: m[0].lower() if m[0].upper() in {"AND", "OR"} else str(m[0] in ALLOWED),
        words,
    )
    try:
        return bool(eval(words, {"__builtins__": {}}))
    except SyntaxError:
        return False


def test_every_dependency_is_under_a_permissive_licence():
    """A failure names the package, what requires it and its licence."""
    bad, unseen = {}, set()
    found = dependencies()
    assert {"aiohttp", "datasets", "numpy", "orjson", "ray", "pydantic-core", "tqdm"} <= set(found)
    for name, asked_by in found.items():
        try:
            said = licences(name, distribution(name).metadata)
        except PackageNotFoundError:
            unseen.add(name)
            continue
        if not said or not all(map(is_permissive, said)):
            bad[name] = f"needed by {asked_by}, says {said}"
    assert bad == {}
    assert unseen <= set(NOT_INSTALLED), "not installed here, so their licences were not checked"
    assert all(map(is_permissive, NOT_INSTALLED.values()))


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
        (
            "License: MIT\nClassifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)",
            False,
        ),
        ("Classifier: License :: Other/Proprietary License", False),
        (
            "Classifier: License :: OSI Approved :: GNU Lesser General Public License v2 or later (LGPLv2+)",
            False,
        ),
        ("Summary: a package that says nothing", False),
    ],
)
def test_licences_are_recognised_in_every_metadata_field(tmp_path, monkeypatch, lines, good):
    """A missing licence is not permissive."""
    info = tmp_path / "sample-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: sample\nVersion: 1.0\n{lines}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    said = licences("sample", distribution("sample").metadata)
    assert (bool(said) and all(map(is_permissive, said))) == good
