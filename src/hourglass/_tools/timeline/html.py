"""A story rendered as a page: self-contained, without scripts or external resources, for light and dark screens and for
print.

The picture is divided into panels of a fixed number of rows, each with its axis, so that no row is cut at a page break and
the axis stays close. After the picture come the failures, the waits and a table of all rows, for readers who cannot see the
picture.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from hourglass._tools.timeline import captions, svg
from hourglass._tools.timeline.axis import fold
from hourglass._tools.timeline.spans import Fault, Outcome, Story
from hourglass._tools.timeline.text import duration

ROWS = 26
"""The number of rows in a panel, which fits an A4 page in landscape format."""

_STYLE = f"""
body{{margin:0;background:var(--paper);color:var(--ink);font:14px/1.5 {svg.SANS}}}
main{{max-width:1320px;margin:0 auto;padding:32px 24px 48px}}
header{{display:flex;flex-wrap:wrap;gap:4px 16px;align-items:baseline;margin:0 24px 4px}}
h1{{font-size:22px;font-weight:600;margin:0;overflow-wrap:anywhere}}
h2{{font-size:15px;font-weight:600;margin:28px 0 6px}}
.id,code,td.mono,pre{{font-family:{svg.MONO};font-size:12.5px;overflow-wrap:anywhere}}
.id{{color:var(--muted)}}
.status{{margin-left:auto;font-weight:600;padding:1px 12px;border-radius:99px;border:1.5px solid currentColor}}
.status.bad{{color:var(--bad)}}.status.good{{color:var(--good)}}.status.open{{color:var(--activity)}}.status.other{{color:var(--muted)}}
.facts{{margin:0 24px 14px;padding:0;list-style:none;display:flex;flex-wrap:wrap;gap:0 20px;color:var(--muted);font-size:13px}}
section{{margin:0 24px}}
figure{{overflow-x:auto}}svg.hg{{display:block;width:100%;min-width:800px;height:auto}}
table{{border-collapse:collapse;font-size:13px;max-width:100%}}
th{{text-align:left;font-weight:600;color:var(--muted)}}
th,td{{padding:2px 20px 2px 0;vertical-align:top;border-bottom:1px solid var(--grid)}}
td.n{{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}}
.chain{{margin:0;padding:8px 14px;border-left:4px solid var(--bad);background:var(--pale);list-style:none}}
.chain li+li{{margin-top:4px}}.chain li+li::before{{content:"because of ";color:var(--muted)}}
.chain .type{{font-weight:600;color:var(--bad)}}.chain .place{{color:var(--muted)}}
details{{margin:28px 24px 0}}summary{{cursor:pointer;color:var(--muted)}}
td.bad{{color:var(--bad);font-weight:600}}
@media print{{
@page{{size:A4 landscape;margin:10mm}}
main{{max-width:none;padding:0}}header,.facts,section{{margin-left:0;margin-right:0}}
figure{{overflow:visible}}svg.hg{{min-width:0}}svg.hg,.chain,tr{{break-inside:avoid}}details{{display:none}}h2{{break-after:avoid}}
}}
"""

_STATUS = {Outcome.DONE: "good", Outcome.OPEN: "open"}


def draw(story: Story, *, limit: int = svg.LIMIT) -> str:
    """Return a story as an HTML page."""
    title = f"{story.workflow_type} {story.workflow_id}".strip()
    waited = (
        f'<td class="n">{escape(long)}</td><td>{escape(what)}</td>' for long, what in captions.waited(story)
    )
    values = (f'<th>{escape(what)}</th><td class="mono">{escape(value)}</td>' for what, value in story.shown)
    body = (
        f"{_header(story)}"
        f"<figure style='margin:0'>{''.join(svg.panels(story, ROWS, limit=limit))}</figure>"
        f"{_faults(story.faults)}{_list('Waits for', story.waiting_for)}{_rows('Waited for', waited)}"
        f"{_rows('Values', values)}{_table(fold(story, limit))}"
    )
    style = f"{svg.variables()}{svg.dark()}{_STYLE}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f'<body class="hg"><main>{body}</main></body></html>\n'
    )


def _header(story: Story) -> str:
    style = "bad" if story.outcome.bad else _STATUS.get(story.outcome, "other")
    facts = [*captions.facts(story), *(f"{what} {value}" for what, value in story.links)]
    if story.run_id:
        facts.append(f"run {story.run_id}")
    items = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return (
        f'<header><h1>{escape(story.workflow_type)}</h1><span class="id">{escape(story.workflow_id)}</span>'
        f'<span class="status {style}">{escape(captions.status(story))}</span></header>'
        f'<ul class="facts">{items}</ul>'
    )


def _faults(faults: tuple[Fault, ...]) -> str:
    if not faults:
        return ""
    items = []
    for fault in faults:
        place = f' <span class="place">{escape(fault.place)}</span>' if fault.place else ""
        message = f": {escape(fault.message)}" if fault.message else ""
        items.append(f'<li><span class="type">{escape(fault.type)}</span>{message}{place}</li>')
    return f'<section><h2>Failure</h2><ol class="chain">{"".join(items)}</ol></section>'


def _list(head: str, entries: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(entry)}</li>" for entry in entries)
    return f"<section><h2>{head}</h2><ul>{items}</ul></section>" if items else ""


def _rows(head: str, rows: Iterable[str]) -> str:
    joined = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<section><h2>{head}</h2><table>{joined}</table></section>" if joined else ""


def _table(story: Story) -> str:
    rows = []
    for span in story.spans:
        bad = ' class="bad"' if span.outcome.bad else ""
        details = "; ".join(
            item
            for item in (
                captions.counted(span),
                span.note,
                captions.reason(span),
                *map(": ".join, span.shown),
            )
            if item
        )
        rows.append(
            f'<tr><td class="n">{escape(duration(span.start - story.start))}</td>'
            f'<td class="n">{escape(captions.length(span, story))}</td><td>{captions.KINDS[span.kind]}</td>'
            f'<td class="mono">{escape(span.name)}</td><td{bad}>{captions.outcome(span.outcome)}</td>'
            f"<td>{escape(details)}</td></tr>"
        )
    head = "".join(f"<th>{item}</th>" for item in ("at", "took", "what", "name", "ended", ""))
    return (
        f"<details><summary>All {len(story.spans)} rows as a table</summary>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></details>"
    )
