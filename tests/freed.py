"""What is left in memory of work that has ended."""

import gc
import types
from collections import Counter
from contextlib import contextmanager


def _name(found):
    """Return the name of an object that only our work can have left; None for any other."""
    kind = type(found)
    if kind.__module__.startswith("redraft."):
        return f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(
        found,
        types.FunctionType | types.CoroutineType | types.GeneratorType | types.AsyncGeneratorType,
    ):
        code = found.__code__ if isinstance(found, types.FunctionType) else _code(found)
        return f"{kind.__name__} {code.co_qualname}" if "/redraft/" in code.co_filename else None
    return (
        f"frame {found.f_code.co_qualname}"
        if isinstance(found, types.FrameType) and "/redraft/" in found.f_code.co_filename
        else None
    )


def _code(found):
    return next(
        getattr(found, name) for name in ("cr_code", "gi_code", "ag_code") if hasattr(found, name)
    )


@contextmanager
def no_collection():
    """Leave cycles of objects in memory for the duration of the block. What was there before is not
    looked at, also afterwards.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def objects_in_cycles():
    """Return the names of our objects that only a search for cycles frees, with their numbers. It
    frees them.
    """
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return Counter(filter(None, map(_name, gc.garbage)))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()


def objects_of(*kinds):
    """Return the names of all objects of these classes, with their numbers."""
    return Counter(type(found).__name__ for found in gc.get_objects() if isinstance(found, kinds))
