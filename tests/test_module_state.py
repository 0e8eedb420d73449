"""State that all threads share: each module-level variable that functions change is listed here,
with what makes that safe.

Caches are `functools.cache`, `lru_cache` or `BoundedCache`, which are safe in threads.
"""

import ast
from pathlib import Path

import redraft

PACKAGE = Path(redraft.__file__).parent
MUTATORS = {
    *(
        "add",
        "append",
        "clear",
        "discard",
        "extend",
        "insert",
        "move_to_end",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "setdefault",
    ),
    *("update", "__setitem__"),
}
SAFE = {
    "cli/output.py _waits_until": "single operations; a wait that is shown twice is one too many",
    "workers/pool.py _executor": "under a lock",
    "workers/pool.py _idle": "single operations; a worker that another thread took is looked for again",
    "workers/pool.py _workers": "under a lock",
    "graders/computed/base.py _used_packages": "single operations; a package twice is one",
    "middleware/prompt_cuts.py _warned_of": "single operations; a warning twice is one too many",
    "middleware/shortage.py _retries": "single operations",
    "models/llama_cpp.py _inherited_servers": "in a forked child, which has one thread",
    "models/llama_cpp.py _models": "single operations",
    "requirements/spec.py _registered": "single operations; its length is the key of what is made of it",
    "storage/secure_files.py _process_files": "single operations",
    "base/sync.py _child_resets": "single operations, in the main thread or a forked child",
    "base/sync.py _greenlet_loops": "greenlets change only where one waits, and it is filled before",
    "telemetry/recorder.py _RECORDER": "under a lock",
    "base/threads.py _idle_threads": "single operations; a thread that is no longer there gets its job",
    "base/threads.py _submitted": "single operations",
    "base/threads.py _thread_limits": "single operations",
}


def module_names(tree):
    """Return the names that a module assigns, but for its caches."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            made = node.value.func if isinstance(node.value, ast.Call) else None
            if not (isinstance(made, ast.Name) and made.id == "BoundedCache"):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def changed_names(function):
    """Return the names whose values a function changes: by a method, an item, `del`, or
    `global`.
    """
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            yield from node.names
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr in MUTATORS
        ) or (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and not isinstance(node.ctx, ast.Load)
        ):
            yield node.value.id
        elif (
            isinstance(node, ast.AugAssign)
            and isinstance(node.target, ast.Attribute)
            and isinstance(node.target.value, ast.Name)
        ):
            yield node.target.value.id


def parameters(function):
    """Return the names that are a function's own."""
    own = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    declared = {
        name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names
    }
    stored = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return own | (stored - declared)


def shared_state():
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = set(module_names(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                if changed := set(changed_names(node)) & names:
                    yield from (
                        f"{path.relative_to(PACKAGE).as_posix()} {name}"
                        for name in changed - parameters(node)
                    )
        for node in tree.body:  # what runs at a fork or at the end, given as a method
            if isinstance(node, ast.If | ast.Expr):
                yield from (
                    f"{path.relative_to(PACKAGE).as_posix()} {name}"
                    for name in set(changed_names(node)) & names
                )


def test_state_that_threads_share_is_known():
    """A new module-level variable that a function changes needs a lock, a cache, or a reason
    here.
    """
    assert sorted(set(shared_state())) == sorted(SAFE)
