"""Colours and fonts of the pictures, as CSS: light, dark and paper. Okabe and Ito's colours, which the colour-blind tell apart.

Colour never stands alone: what failed is also hatched and crossed, what waits is thin, messages are diamonds.
"""

from __future__ import annotations

LIGHT = {
    "paper": "#ffffff",
    "ink": "#1b2430",
    "muted": "#566273",
    "grid": "#e4e8ee",
    "band": "#f2f4f7",
    "run": "#3d4a5c",
    "activity": "#0072b2",
    "local": "#4ba3d9",
    "timer": "#b47b00",
    "child": "#9a4f87",
    "message": "#00855f",
    "cancelled": "#6b7684",
    "bad": "#c44f00",
    "good": "#00734f",
    "pale": "#fbe9dd",
}
DARK = {
    "paper": "#11161d",
    "ink": "#e6ebf1",
    "muted": "#9aa7b5",
    "grid": "#242d38",
    "band": "#1a212a",
    "run": "#b9c4d0",
    "activity": "#56b4e9",
    "local": "#a9dbf7",
    "timer": "#e69f00",
    "child": "#d38bb4",
    "message": "#2cc295",
    "cancelled": "#8f9baa",
    "bad": "#ff8a4a",
    "good": "#35c996",
    "pale": "#3a2418",
}

SANS = "'Inter','Segoe UI',Roboto,'Helvetica Neue',Arial,'Liberation Sans',sans-serif"
MONO = "ui-monospace,'SF Mono',Menlo,'Cascadia Mono',Consolas,'Liberation Mono','DejaVu Sans Mono',monospace"


def _variables(colours: dict[str, str]) -> str:
    return ";".join(f"--{name}:{value}" for name, value in colours.items())


def variables() -> str:
    """The colours by name, for what carries the class `hg`."""
    return (
        f".hg{{{_variables(LIGHT)};color-scheme:light dark}}"
        f"@media (prefers-color-scheme:dark){{.hg{{{_variables(DARK)}}}}}"
        f"@media print{{.hg{{{_variables(LIGHT)};color-scheme:light;"
        "-webkit-print-color-adjust:exact;print-color-adjust:exact}}"
    )


def picture() -> str:
    """The style of everything in a picture."""
    kinds = "".join(
        f".hg .{kind}{{--kind:var(--{kind})}}"
        for kind in ("run", "activity", "local", "timer", "child", "message", "cancelled", "bad")
    )
    return (
        kinds + f".hg text{{font-family:{SANS};fill:var(--ink)}}"
        f".hg .mono{{font-family:{MONO}}}"
        ".hg .muted{fill:var(--muted);font-weight:400}.hg text.strong{font-weight:600}"
        ".hg text.bad{fill:var(--bad)}.hg text.good{fill:var(--good)}"
        ".hg .paper{fill:var(--paper)}.hg .band{fill:var(--band)}"
        ".hg .grid{stroke:var(--grid);stroke-width:1}"
        ".hg .tear{stroke:var(--muted);stroke-width:1;stroke-dasharray:2 3;fill:none}"
        ".hg .bar{fill:var(--kind)}.hg .bar.queued{fill-opacity:.38}.hg .bar.backoff{fill-opacity:.55}"
        ".hg .mark{fill:var(--kind);stroke:none}"
        ".hg .line{stroke:var(--kind);stroke-width:1.6;fill:none;stroke-linecap:round}"
        ".hg .cross{stroke:var(--paper);stroke-width:1.8;stroke-linecap:round}"
        ".hg .hit{fill:transparent}.hg .row:hover .hit{fill:var(--ink);fill-opacity:.05}"
    )
