"""A whole check, from every workflow through all code that it calls, shortest path first. Each place is reported once."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hourglass._tools.lint import rules
from hourglass._tools.lint.body import Hit, Seen, check_function
from hourglass._tools.lint.catching import Catching
from hourglass._tools.lint.kinds import Durable, Kinds
from hourglass._tools.lint.modules import EVERYTHING, Module, Project, UnreadableFile, allows, python_files
from hourglass._tools.lint.resolving import ValueResolver
from hourglass._tools.lint.sharing import Sharing
from hourglass._tools.lint.statements import Analysis
from hourglass._tools.lint.values import Class, Func

_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Visit:
    """A function to analyse, the call path to it, and the silenced codes and a cached function on the path."""

    function: Func
    path: tuple[rules.CallStep, ...]
    allowed: frozenset[str]
    cached: Func | None
    is_async: bool

    @property
    def key(self) -> tuple[ast.AST, Class | None, frozenset[str], bool, bool]:
        return (
            self.function.node,
            self.function.receiver,
            self.allowed,
            self.cached is not None,
            self.is_async,
        )


def check_paths(paths: Sequence[Path], base: Path) -> rules.CheckReport:
    """Check files, and directories recursively. File names in the report are relative to `base`."""
    roots = [path.resolve() for path in paths if path.is_dir()]
    project = Project(base, roots)
    files = python_files(paths)
    return _Checker(project).check(project.load(files), len(files))


class _Checker:
    def __init__(self, project: Project) -> None:
        self._project = project
        resolver = ValueResolver(project)
        kinds = Kinds(resolver)
        self._analysis = Analysis(
            resolver,
            kinds,
            Durable(resolver, kinds),
            Sharing(resolver, kinds.definitions),
            Catching(resolver, kinds),
        )
        self._todo: deque[_Visit] = deque()
        self._known: set[tuple[ast.AST, Class | None, frozenset[str], bool, bool]] = set()
        self._findings: dict[tuple[str, int, int, str], rules.CheckFinding] = {}

    def check(self, modules: Iterable[Module], files: int) -> rules.CheckReport:
        workflows: set[str] = set()
        for module in modules:
            for root in self._analysis.kinds.roots(module):
                workflows.add(f"{module.shown}:{root.name.partition('.')[0]}")
                function = root.function
                step = rules.CallStep(root.name, function.module.shown, function.node.lineno)
                self._add(_Visit(function, (step,), _NOTHING, None, root.is_async))
        while self._todo:
            self._visit(self._todo.popleft())
        findings = [*self._findings.values(), *map(_broken, self._project.broken)]
        findings.sort(
            key=lambda finding: (finding.place.file, finding.place.line, finding.place.column, finding.code)
        )
        return rules.CheckReport(tuple(findings), files, len(workflows))

    def _add(self, visit: _Visit) -> None:
        if "*" not in visit.allowed and visit.key not in self._known:
            self._known.add(visit.key)
            self._todo.append(visit)

    def _visit(self, visit: _Visit) -> None:
        function = visit.function
        try:
            seen = check_function(
                function, self._analysis, is_root=len(visit.path) == 1, is_async=visit.is_async
            )
        except RecursionError:
            line = function.node.lineno
            reason = f"{function.name} is nested too deeply to be checked"
            self._project.broken.append(UnreadableFile(function.module.shown, line, 1, reason))
            return
        for hit in seen.hits:
            self._report(hit, visit)
        self._report_cached(seen, visit)
        for called, node in seen.calls:
            self._follow(called, node, visit)

    def _follow(self, called: Func, node: ast.AST, visit: _Visit) -> None:
        module = visit.function.module
        step = rules.CallStep(called.name, module.shown, getattr(node, "lineno", 1))
        allowed = visit.allowed | _allowed_at(module, node)
        cached = visit.cached or (called if "cached" in self._analysis.kinds.of(called) else None)
        self._add(_Visit(called, (*visit.path, step), allowed, cached, visit.is_async))

    def _report_cached(self, seen: Seen, visit: _Visit) -> None:
        if seen.issues_commands and visit.cached is not None:
            node = visit.cached.node
            message = f"{visit.cached.name} keeps its results for the whole process, but issues commands"
            mark = node.decorator_list[0] if isinstance(node, ast.FunctionDef) else node
            self._report(Hit(rules.CACHED, visit.cached.module, mark, message), visit)

    def _report(self, hit: Hit, visit: _Visit) -> None:
        allowed = visit.allowed | _allowed_at(hit.module, hit.node)
        if allows(allowed, hit.code):
            return
        path = visit.path
        if hit.via is not None:
            name, node = hit.via
            if allows(_allowed_at(visit.function.module, node), hit.code):
                return
            path = (*path, rules.CallStep(name, visit.function.module.shown, getattr(node, "lineno", 1)))
        finding = _finding(hit, path)
        key = (finding.place.file, finding.place.line, finding.place.column, finding.code)
        self._findings.setdefault(key, finding)


def _allowed_at(module: Module, node: ast.AST) -> frozenset[str]:
    """Return the codes that comments on the lines of a node silence."""
    if not module.allowed:
        return _NOTHING
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    if isinstance(node, ast.FunctionDef | ast.For | ast.While | ast.If | ast.With):
        last = first
    codes = frozenset(code for line in range(first, last + 1) for code in module.allowed.get(line, ()))
    return EVERYTHING if "*" in codes else codes


def _finding(hit: Hit, path: tuple[rules.CallStep, ...]) -> rules.CheckFinding:
    node = hit.node
    line = getattr(node, "lineno", 1)
    end_line = getattr(node, "end_lineno", line) or line
    source = hit.module.lines[line - 1] if line <= len(hit.module.lines) else ""
    place = rules.SourceRange(
        hit.module.shown,
        line,
        _column(source, getattr(node, "col_offset", 0)),
        end_line,
        _column(source, getattr(node, "end_col_offset", 0)) if end_line == line else len(source) + 1,
    )
    return rules.CheckFinding(hit.code, place, hit.message, source, path)


def _column(source: str, offset: int) -> int:
    """Return the column in characters for an offset in bytes, the unit in syntax trees."""
    return len(source.encode()[:offset].decode(errors="ignore")) + 1


def _broken(broken: UnreadableFile) -> rules.CheckFinding:
    place = rules.SourceRange(
        broken.shown, broken.line, max(broken.column, 1), broken.line, max(broken.column, 1) + 1
    )
    return rules.CheckFinding(rules.BROKEN, place, broken.reason, broken.source)
