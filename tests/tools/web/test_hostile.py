"""Hostile text in ids, inputs, memos and failures: the web UI escapes it on every page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from tests.tools.web.pages import workflow_page

from hourglass import Client
from hourglass.errors import WorkflowFailedError

HOSTILE = (
    "<script>window.hit=1</script>",
    "</script><script>window.hit=1</script>",
    "<img src=x onerror=window.hit=1>",
    "<svg onload=window.hit=1>",
    "<svg><script>window.hit=1</script></svg>",
    "<svg><animate onbegin=window.hit=1 attributeName=x dur=1s>",
    '"><script>window.hit=1</script>',
    "'><script>window.hit=1</script>",
    '" onmouseover="window.hit=1',
    "' onfocus='window.hit=1' autofocus='",
    "javascript:window.hit=1",
    "data:text/html,<script>window.hit=1</script>",
    "<a href=javascript:window.hit=1>x</a>",
    "<iframe src=javascript:window.hit=1>",
    "<iframe srcdoc='<script>parent.hit=1</script>'>",
    "<object data=javascript:window.hit=1>",
    "<embed src=javascript:window.hit=1>",
    "<math><mi xlink:href=javascript:window.hit=1>",
    "<body onload=window.hit=1>",
    "<base href=//evil.example>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<link rel=stylesheet href=//evil.example>",
    "<style>*{display:none}</style>",
    "<form action=//evil.example><input name=token>",
    "<input autofocus onfocus=window.hit=1>",
    "<details open ontoggle=window.hit=1>",
    "<textarea></textarea><script>window.hit=1</script>",
    "</textarea><script>window.hit=1</script>",
    "</title><script>window.hit=1</script>",
    "</pre><script>window.hit=1</script>",
    "<!--<script>window.hit=1</script>-->",
    "--><script>window.hit=1</script>",
    "<![CDATA[<script>]]>",
    "{{7*7}}",
    "{% raw %}{{ view }}{% endraw %}",
    "{{ ''.__class__.__mro__ }}",
    "${7*7}",
    "#{7*7}",
    "%s%s%n",
    "%0d%0aSet-Cookie:x=1",
    "a\r\nSet-Cookie: hit=1",
    "a\nb\tc",
    "\x00null",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\u202eevil\u202c",
    "\u2066hidden\u2069",
    "\u200bzero\u200d",
    "\ufeffbom",
    "\U000e0041tag",
    "&lt;script&gt;",
    "&#60;script&#62;",
    "&quot;&apos;",
    "../../etc/passwd",
    "..%2f..%2f",
    ".",
    "..",
    "/static/page.js?x",
    "?page=<x>",
    "#fragment",
    "a/b/c",
    "100%",
    "x" * 900,
    "ñ漢字🙂",
    "'; DROP TABLE runs; --",
    "\\'\\\"",
    "`backticks`",
    "<x" * 100,
)


class _PageParser(HTMLParser):
    """Collects a page's tags, scripts, event handlers and addresses, as a browser would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[dict[str, str | None]] = []
        self.handlers: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "script":
            self.scripts.append(dict(attrs))
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.handlers.append(f"{tag} {name}")
            if name in ("href", "src", "action", "data-fetch", "data-live"):
                self.addresses.append(value or "")


def _check(text: str) -> None:
    found = _PageParser()
    found.feed(text)
    assert found.scripts == [{"src": "/static/page.js", "defer": None}]
    assert found.handlers == []
    assert not found.tags & {"iframe", "object", "embed", "base", "math", "img", "style"}
    assert [
        each for each in found.addresses if not re.match(r"[/#]|/static/", each) or each.startswith("//")
    ] == []
    assert "49" not in re.findall(r">\s*(49)\s*<", text)
    assert not re.search("[\x00\x1b\u202e\u2066\U000e0041]", text)


@pytest.fixture
def hostile_runs(client: Client) -> list[str]:
    """One run for each text, in its id, input, memo and failure."""
    ids = []
    for text in HOSTILE:
        name = text.replace("\x00", "")[:900]
        with pytest.raises(WorkflowFailedError):
            client.execute_workflow("fails", text, id=name, memo={"note": text, text[:50]: 1})
        ids.append(name)
    return ids


def test_hostile_text_is_escaped_on_all_pages(web: httpx.Client, hostile_runs: list[str]) -> None:
    _check(web.get("/workflows").text)
    for name in hostile_runs:
        answer = web.get(workflow_page(name))
        assert answer.status_code == 200, name
        _check(answer.text)
        path = answer.url.raw_path.decode().partition("?")[0]
        for part in ("history", "moments", "why", "reset?event=3"):
            shown = web.get(f"{path}/{part}")
            assert shown.status_code == 200, (name, part)
            if part != "why":
                _check(shown.text)


def test_hostile_text_is_escaped_in_search_fields(web: httpx.Client) -> None:
    for text in HOSTILE:
        for field in ("id", "type", "query", "since", "until", "within", "status", "page"):
            if field == "page":
                continue
            _check(web.get("/workflows", params={field: text}).text)


def test_hostile_text_is_escaped_in_notices(web: httpx.Client, client: Client) -> None:
    """Anyone can write a URL with a notice."""
    client.start_workflow("stuck", "x", id="one")
    path = web.get("/workflows/one").url.path
    for text in HOSTILE:
        _check(web.get(path, params={"notice": text, "error": text}).text)


def test_hostile_text_runs_no_script_in_a_browser(page: Any, address: str, hostile_runs: list[str]) -> None:
    page.goto(f"{address}/workflows")
    page.wait_for_selector("table.list tbody tr")
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    links = page.eval_on_selector_all("td.id a", "each => each.map(a => a.href)")
    for link in links[:12]:
        page.goto(link)
        page.wait_for_selector(".why .diagnosis")
        assert page.evaluate("window.hit") is None
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.url.startswith(address)
