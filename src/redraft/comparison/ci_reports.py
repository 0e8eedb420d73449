"""The report of a gate for continuous integration: JUnit XML, and a summary in Markdown.

Names come from files and are hostile: they can end no element, table or line.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias
from xml.etree import ElementTree as ET

from ..base.text import escape_cell, markdown_table
from .report import ComparisonReport, format_interval, format_signed

OnUndecided: TypeAlias = Literal["pass", "fail"]
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MAX_LINE = 2000


def gate_passes(report: ComparisonReport, undecided: OnUndecided = "fail") -> bool:
    """Return whether the gate passes: B is not worse, or that is undecided and `undecided` is
    "pass".
    """
    return report.gate == "not worse" or (report.gate == "undecided" and undecided == "pass")


def junit_xml(
    report: ComparisonReport, undecided: OnUndecided = "fail", *, seconds: float = 0.0
) -> str:
    """Return the gate as JUnit XML with one test case: it failed if the gate does, and was skipped
    if undecided and let pass.
    """
    passes = gate_passes(report, undecided)
    skipped = passes and report.gate != "not worse"
    counts = {
        "tests": "1",
        "failures": str(int(not passes)),
        "errors": "0",
        "skipped": str(int(skipped)),
        "time": f"{seconds:.3f}",
    }
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": "redraft gate", **counts})
    properties = ET.SubElement(suite, "properties")
    for key, value in _figures(report).items():
        ET.SubElement(properties, "property", {"name": key, "value": value})
    name = _xml_text(f"{report.b} is not worse than {report.a}")
    case = ET.SubElement(
        suite, "testcase", {"classname": "redraft.gate", "name": name, "time": f"{seconds:.3f}"}
    )
    if not passes:
        ET.SubElement(
            case, "failure", {"message": _xml_text(report.gate_line()), "type": report.gate}
        )
    elif skipped:
        ET.SubElement(case, "skipped", {"message": _xml_text(report.gate_line())})
    ET.SubElement(case, "system-out").text = _xml_text("\n".join(report.summary()), limit=20_000)
    ET.indent(suites)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"
    )


def markdown_summary(report: ComparisonReport, undecided: OnUndecided = "fail") -> str:
    """Return the gate in Markdown: the verdict, the figures, and the slices; for the summary of a
    job or a comment.
    """
    state = "passed" if gate_passes(report, undecided) else "failed"
    if report.gate == "undecided":
        state = f"undecided (counts as {state})"
    d = report.difference
    rows = [
        ("all rows", d),
        *(
            (f"{column}: {name}", found)
            for column, by in report.slices.items()
            for name, found in by.items()
        ),
    ]
    header = (
        escape_cell(report.score_name),
        "A",
        "B",
        "difference",
        f"{100 * report.level:g}% interval",
        "rows",
        "B is" if report.evidence == "scores" else "by scores, B is",
    )
    table = [
        (
            name,
            f"{x.mean_a:.3f}",
            f"{x.mean_b:.3f}",
            format_signed(x.value),
            format_interval(x.interval),
            f"{x.rows:,}",
            x.verdict,
        )
        for name, x in rows
    ]
    lines = [
        f"### Redraft gate {state}",
        "",
        escape_cell(report.gate_line(), MAX_LINE),
        "",
        f"Evidence: {report.evidence}",
        "",
        *markdown_table(header, table),
        "",
        *(f"- {escape_cell(line, MAX_LINE)}" for line in report.summary()),
    ]
    return "\n".join([*lines, ""])


def _figures(report: ComparisonReport) -> dict[str, str]:
    low, high = report.interval or (None, None)
    values = {
        "verdict": report.verdict,
        "gate": report.gate,
        "evidence": report.evidence,
        "difference": report.value,
        "low": low,
        "high": high,
        "margin": report.margin,
        "rows": report.difference.rows,
    }
    return {
        name: "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in values.items()
    }


def _xml_text(text: str, limit: int = 1000) -> str:
    """Return a text that XML can hold; ElementTree escapes its special characters."""
    return NOT_XML.sub("\ufffd", text)[:limit]
