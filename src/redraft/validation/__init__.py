"""Whether a grader can be trusted: its verdicts beside people's, the measures of both, and the card that says so."""
