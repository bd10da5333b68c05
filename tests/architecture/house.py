"""Measures of the source: how easily a newcomer finds the way through it. No test fails because of them.

    make house                                    # this tree, with a workflow on a real dev server
    python -m tests.architecture.house            # without the server
    python -m tests.architecture.house --list     # with the places behind the counts

Read them with common sense: a number that is reached by moving lines elsewhere is not reached.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from . import faces, internals, prose, source

SMALL, FILE, CLASS, FUNCTION = 150, 600, 400, 60
COMPLEXITY = 120
KEPT = {
    "_worker/lanes/passed_handlers.py": "reads sources and tracebacks without any run, and is tested alone",
    "_worker/tree/subsystem.py": "the supervision tree as one expression, which readers look for",
    "_history/events.py": "a table of data: each kind of event once",
    "errors.py": "a table of data: every exception once, with their tree at its head",
    "worker/_worker.py": "`Worker.__init__` is a table of its options, each with its type and default",
    "_tools/cli/schedules.py": "`create` is a table of the options of a schedule, each with its help",
    "_tools/cli/ui.py": "`ui` is a table of its options, each with its help",
    "_tools/lint/resolving.py": "`ValueResolver` has one method for each kind of expression in Python",
}
"""Files that a measure counts and that are accepted, each with the reason."""
UNREACHED = {
    "lines (wanted: at most 112,000) and lines that README's program loads (wanted: at most 68,000)": (
        "the checks of the file's identity, of ownership and of every listening server, results that are kept until they are "
        "durable, and the program's own event loop in `aio` came after these figures were set"
    ),
    "files opened by one workflow (wanted: at most 65 embedded, 45 on Temporal)": (
        "files that held unrelated code were divided, so the same calls now pass through more files with one purpose each"
    ),
    "class names with more than one meaning": (
        "the names of `aio` are temporalio's, on purpose. `Event` is asyncio's term in workflows and Temporal's in the engine; "
        "`TimerFired` is an event of the history and the evaluator's event made from it"
    ),
}
"""Measures that have not reached their target, each with the reason."""
AIO = ("aio/", "_evaluator/awaited.py")
VAGUE = re.compile(r"\b(somebody|nobody|whoever|everybody)\b", re.IGNORECASE)
BANNER = re.compile(r"^\s*# ?(-{3,}|={3,})", re.MULTILINE)
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.comprehension,
    ast.match_case,
)


def code_lines() -> int:
    """Count the lines of the source that are neither blank, nor comments, nor docstrings."""
    total = 0
    for module in source.modules():
        documented = source.lines_within(module, _is_docstring)
        for number, line in enumerate(module.path.read_text().splitlines(), 1):
            total += bool(line.strip()) and not line.lstrip().startswith("#") and number not in documented
    return total


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def small_modules() -> list[str]:
    """List the small modules that only one module imports, one of the same package."""
    importers = defaultdict(set)
    for imported in source.imports():
        importers[imported.target].add(imported.importer.name)
    return [
        module.place
        for module in source.modules()
        if module.lines < SMALL
        and not module.path.stem.startswith("__")
        and len(importers[module.name]) == 1
        and next(iter(importers[module.name])).rpartition(".")[0] == module.name.rpartition(".")[0]
    ]


def ambiguous() -> dict[str, list[str]]:
    """Return the class names that more than one module defines, with those modules."""
    places = defaultdict(list)
    for module in source.modules():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module.place)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def mirrored(twice: dict[str, list[str]]) -> list[str]:
    """List the ambiguous names that `aio` shares with temporalio on purpose."""
    return [name for name, places in twice.items() if any(place.startswith(AIO) for place in places)]


def vague() -> Counter[str]:
    """Count the words for unnamed persons, by file."""
    return Counter({module.place: len(VAGUE.findall(module.path.read_text())) for module in source.modules()})


def unmapped() -> dict[str, list[str]]:
    """Return the packages whose docstring does not name all of their modules, with the missing ones."""
    missing = {}
    for module in source.modules():
        if module.path.name != "__init__.py" or module.name == "hourglass":
            continue
        here = {path.stem for path in module.path.parent.glob("*.py")} - {"__init__", "__main__"}
        here |= {path.parent.name for path in module.path.parent.glob("*/__init__.py")}
        named = set(re.findall(r"\w+", ast.get_docstring(module.tree) or ""))
        if here - named:
            missing[module.place] = sorted(here - named)
    return missing


def large() -> Iterator[str]:
    """Yield the files, classes and functions that are over their limit of lines."""
    for module in source.modules():
        if module.lines > FILE:
            yield f"{module.place}: {module.lines} lines"
        for node in module.nodes:
            limit = (
                CLASS if isinstance(node, ast.ClassDef) else FUNCTION if source.is_function(node) else None
            )
            if limit and isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > limit:
                    yield f"{module.place}:{node.lineno} {node.name}: {lines} lines"


def banners() -> Counter[str]:
    """Count the comments that divide a file into sections, by file."""
    return Counter({module.place: len(BANNER.findall(module.text)) for module in source.modules()})


def handle_interfaces() -> list[str]:
    """List the protocols through which a worker uses a handle."""
    tree = source.module("_contract/handle.py").tree
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
    ]


def complexity(node: ast.AST) -> int:
    """Return the cyclomatic complexity of all functions below a node: one per function, and one per branch."""
    total = 0
    for part in ast.walk(node):
        total += source.is_function(part) or isinstance(part, BRANCHES)
        total += len(part.values) - 1 if isinstance(part, ast.BoolOp) else 0
        total += len(part.ifs) if isinstance(part, ast.comprehension) else 0
    return total


def classes_over_limits() -> Iterator[str]:
    """Yield the classes over the limit of lines or of complexity."""
    for module in source.modules():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                lines, branches = (node.end_lineno or node.lineno) - node.lineno + 1, complexity(node)
                if lines > CLASS or branches > COMPLEXITY:
                    yield f"{module.place}:{node.lineno} {node.name}: {lines} lines, complexity {branches}"


README_PROGRAM = """
import pathlib, sys
{program}
here = pathlib.Path(sys.modules["hourglass"].__file__).parent
files = [pathlib.Path(module.__file__) for module in list(sys.modules.values()) if getattr(module, "__file__", None)]
found = {{file for file in files if file.suffix == ".py" and file.is_relative_to(here)}}
print(sum(len(file.read_text().splitlines()) for file in found), len(found), file=sys.stderr)
"""


def loaded_by_readme() -> str:
    """Count our lines and files that README's program loads until it prints its result."""
    program = re.search(r"```python\n(.*?)```", (source.ROOT / "README.md").read_text(), re.DOTALL)
    assert program is not None, "README.md has no program in Python"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shop.py"
        code = program[1].replace("workflow.sleep(5)", "workflow.sleep(0.01)")
        file.write_text(README_PROGRAM.format(program=code))
        command = [sys.executable, str(file)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    lines, files = map(int, done.stderr.split()[-2:])
    return f"{lines:,} in {files} files"


def walk(*options: str) -> str:
    """Trace one workflow with one activity, and return the summary."""
    command = [sys.executable, "-m", "tests.architecture.trace", *options]
    found = subprocess.run(command, cwd=source.ROOT, capture_output=True, text=True, check=True)
    return found.stdout.splitlines()[0]


def own_imports() -> int:
    """Count the statements that import our own modules."""
    ours = [imported for imported in source.imports() if source.top(imported.target) == "hourglass"]
    return len({(imported.importer.place, imported.line) for imported in ours})


def packages() -> list[Path]:
    """List all packages below the root package."""
    return [path.parent for path in source.PACKAGE.glob("*/**/__init__.py")]


def main() -> None:
    """Print the figures, and on request the places behind them."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.architecture.house", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--temporal", action="store_true", help="trace a workflow on a real dev server too")
    parser.add_argument("--list", action="store_true", help="name the places behind the counts")
    options = parser.parse_args()
    files, lines, code = len(source.modules()), sum(module.lines for module in source.modules()), code_lines()
    small, twice, words, blank, heavy = small_modules(), ambiguous(), vague(), unmapped(), list(large())
    divided, classes = banners(), list(classes_over_limits())
    deep, tests, deep_by_folder = internals.count()
    rows = [
        ("files / lines / code lines", f"{files} / {lines:,} / {code:,}"),
        ("lines of these that `make faces` writes", f"{faces.made_lines():,}"),
        ("files per 1,000 lines", f"{files / lines * 1000:.1f}"),
        (f"modules under {SMALL} lines with a single importer of their own package", str(len(small))),
        ("one workflow with one activity, embedded", walk()),
        *([("the same on Temporal", walk("--temporal"))] if options.temporal else []),
        ("lines that README's program loads", loaded_by_readme()),
        ("banners", str(divided.total())),
        ("interfaces of a handle", f"{len(handle_interfaces())}: {', '.join(handle_interfaces())}"),
        (f"classes over {CLASS} lines or with a complexity over {COMPLEXITY}", str(len(classes))),
        ("test functions that touch deep internals", f"{deep} of {tests} ({deep / tests:.0%})"),
        ("own imports per 100 code lines", f"{own_imports() / code * 100:.1f}"),
        (
            "class names with more than one meaning",
            f"{len(twice)}, {len(mirrored(twice))} of them `aio`'s, which are temporalio's",
        ),
        ("somebody, nobody, whoever, everybody", str(words.total())),
        ("packages with an incomplete map", f"{len(blank)} of {len(packages())}"),
        (f"functions over {FUNCTION}, classes over {CLASS}, files over {FILE} lines", str(len(heavy))),
        ("files that a measure counts and that stay for a reason (`--list`)", str(len(KEPT))),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {value}")
    print(f"\nProse, by package: habits per 1,000 words, odd names per 1,000 lines\n{'':14}{prose.HEAD}")
    for name, counts in prose.by_package(source.modules()).items():
        print(f"{name:14}{counts}")
    if options.list:
        for title, found in [
            ("Small modules with a single importer", small),
            (
                "Class names with more than one meaning",
                [f"{name}: {', '.join(where)}" for name, where in twice.items()],
            ),
            ("Unnamed persons", [f"{place}: {count}" for place, count in words.most_common() if count]),
            (
                "Packages with an incomplete map",
                [f"{place}: {', '.join(names)}" for place, names in blank.items()],
            ),
            ("Over a limit of lines", heavy),
            ("Classes over a limit", classes),
            ("Banners", [f"{place}: {count}" for place, count in divided.most_common() if count]),
            ("Tests of deep internals", [f"{folder}: {count}" for folder, count in deep_by_folder.items()]),
            ("Counted, and kept for a reason", [f"{place}: {reason}" for place, reason in KEPT.items()]),
            (
                "Targets that are not reached",
                [f"{measure}: {reason}" for measure, reason in UNREACHED.items()],
            ),
        ]:
            print(f"\n{title}\n" + "\n".join(f"  {line}" for line in found))


if __name__ == "__main__":
    main()
