"""A session with its models, in one call."""

from redraft.session.models import Models
from redraft.session.session import Session


def make_session(options, writer=None, graders=None, judge=None):
    """Return a session with these models, of which nothing is connected yet."""
    return Session(options, Models(options, writer, judge), graders)
