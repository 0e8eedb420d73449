"""A document of JSON in which one value, wherever it stands, is another: what a file from elsewhere
may hold.
"""

import copy


def places_in(value):
    """Return the containers within a document, each with the key or the index of one of its
    values.
    """
    if not isinstance(value, dict | list):
        return []
    inner = [*value.items()] if isinstance(value, dict) else [*enumerate(value)]
    return [place for key, each in inner for place in ((value, key), *places_in(each))]


def changed_at(document, n, value):
    """Return a document with its n-th value (of those that it has, counted on) replaced by
    another.
    """
    document = copy.deepcopy(document)
    if places := places_in(document):
        container, key = places[n % len(places)]
        container[key] = value
    return document
