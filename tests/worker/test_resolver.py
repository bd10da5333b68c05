"""The resolver: it finds workflows and activities in lists, objects and modules, and imports nothing else."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from hourglass import activity
from hourglass._worker.resolver import Resolver
from hourglass.errors import DefinitionError, UnknownTypeError

from .scripted import workflow


@activity.defn
def charge() -> None: ...


@workflow
def checkout() -> None: ...


class Payments:
    @activity.defn
    def refund(self) -> str:
        return "refunded"

    @activity.defn(name="Void")
    def void(self) -> None: ...


PACKAGE = {
    "__init__.py": """
        from os import system
        import os
        from hourglass import activity

        @activity.defn
        def top() -> str: return "top"

        def undecorated() -> str: return "no"
    """,
    "orders/__init__.py": "",
    "orders/work.py": """
        import subprocess
        from hourglass import activity
        from hourglass._evaluator.definition import define_function
        from outsider import foreign

        @activity.defn
        def deep() -> str: return "deep"

        def checkout() -> None: ...
        checkout.__hourglass_workflow__ = define_function(checkout, None, ())

        class Desk:
            @activity.defn
            def serve(self) -> None: ...

        class Static:
            @staticmethod
            @activity.defn
            def helper() -> str: return "helper"

        class Proxy:
            def __getattr__(self, name): raise RuntimeError("outside of a request")
        proxy = Proxy()
    """,
    "_private.py": """
        import marks
        marks.imported.append("app._private")
        from hourglass import activity

        @activity.defn
        def hidden() -> str: return "hidden"
    """,
    "broken.py": "raise ImportError('this one is broken')",
    "__main__.py": "import marks; marks.imported.append('app.__main__')",
}
OUTSIDE = {
    "marks.py": "imported = []",
    "outsider.py": """
        from hourglass import activity

        @activity.defn
        def foreign() -> None: ...
    """,
    "evil.py": "import marks; marks.imported.append('evil')",
    "appendix.py": "import marks; marks.imported.append('appendix')",
}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package `app` and modules beside it. Returns the imported modules among those that must not be imported."""
    for name, text in {**{f"app/{name}": text for name, text in PACKAGE.items()}, **OUTSIDE}.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield lambda: sys.modules["marks"].imported if "marks" in sys.modules else []
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("app", "marks", "outsider", "evil", "appendix"):
            del sys.modules[name]


def test_resolver_finds_listed_definitions_by_type_name():
    resolver = Resolver(workflows=[checkout], activities=[charge])
    assert resolver.workflow("checkout").name == "checkout"
    assert resolver.activity("charge").name == "charge"
    assert resolver.known_activity("charge") is resolver.activity("charge")
    assert resolver.known_activity("other") is None


def test_instance_in_the_activities_list_registers_its_decorated_methods():
    payments = Payments()
    assert Resolver(activities=[payments]).activity("refund").fn() == "refunded"
    assert Resolver(activities=[payments]).activity("Void").name == "Void"
    assert Resolver(activities=[payments.refund]).known_activity("Void") is None


def test_object_in_the_activities_list_provides_activities_by_a_hook_method():
    class Bridge:
        def __hourglass_activities__(self):
            return [brought]

    @activity.defn
    def brought() -> None: ...

    assert Resolver(activities=[Bridge()]).activity("brought").name == "brought"
    module = ModuleType("with_a_bridge")
    module.bridge = Bridge()
    assert Resolver(modules=[module]).activity("brought").name == "brought"


def test_activity_method_without_an_instance_is_rejected():
    with pytest.raises(DefinitionError, match=r"needs an instance: pass Payments\(…\)"):
        Resolver(activities=[Payments.refund])


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"workflows": [len]}, "not decorated with @workflow.defn"),
        ({"activities": [len]}, "neither decorated"),
        ({"activities": [Payments]}, "is a class: pass an instance"),
        ({"activities": [object()]}, "an object of type builtins.object"),
        ({"activities": charge}, "must be a list"),
        ({"modules": "app"}, "must be a list, not str"),
        ({"modules": ["no_such_module_anywhere"]}, "was not found"),
    ],
)
def test_undecorated_or_misplaced_object_is_rejected(lists, message):
    with pytest.raises(DefinitionError, match=message):
        Resolver(**lists)


def test_duplicate_activity_names_are_rejected():
    @activity.defn(name="charge")
    def other() -> None: ...

    with pytest.raises(
        DefinitionError, match=r"(?s)'charge'.*charge .*test_resolver.py.*other .*test_resolver.py"
    ):
        Resolver(activities=[charge, other])
    Resolver(activities=[charge, charge], workflows=[checkout, checkout])
    payments = Payments()
    Resolver(activities=[payments, payments.refund])
    with pytest.raises(DefinitionError, match="'refund'"):
        Resolver(activities=[Payments(), Payments()])


def test_unknown_workflow_type_error_suggests_a_registered_name():
    resolver = Resolver(workflows=[checkout], activities=[charge])
    with pytest.raises(UnknownTypeError) as caught:
        resolver.workflow("chekout")
    text = str(caught.value)
    assert "workflow type 'chekout' is not registered" in text
    assert "did you mean 'checkout'?" in text
    assert "workflows=[…]" in text
    with pytest.raises(UnknownTypeError, match="registered workflows: none"):
        Resolver(activities=[charge]).workflow("x")
    with pytest.raises(UnknownTypeError) as caught:
        resolver.workflow("x" * 100_000)
    assert len(str(caught.value)) < 1000


def test_submodules_are_imported_to_find_a_missing_name(app):
    resolver = Resolver(modules=["app"])
    assert resolver.known_activity("top") is not None
    assert resolver.known_activity("deep") is None
    assert "app.orders.work" not in sys.modules
    assert resolver.activity("deep").fn() == "deep"
    assert resolver.workflow("checkout").name == "checkout"
    with pytest.raises(UnknownTypeError, match=r"could not be imported: app\.broken"):
        resolver.activity("nowhere")
    assert "app.__main__" not in app()


def test_private_modules_are_not_imported_to_find_a_name(app):
    resolver = Resolver(modules=["app"])
    with pytest.raises(UnknownTypeError, match=r"private modules are not searched: app\._private"):
        resolver.activity("hidden")
    assert app() == []
    assert "app._private" not in sys.modules
    importlib.import_module("app._private")
    assert Resolver(modules=["app"]).activity("hidden").fn() == "hidden"


def test_activity_method_found_in_a_module_needs_an_instance(app):
    with pytest.raises(
        UnknownTypeError, match=r"a method of app\.orders\.work\.Desk: pass an instance to the worker"
    ):
        Resolver(modules=["app"]).activity("serve")


def test_duplicate_activity_names_in_modules_are_rejected(app, tmp_path):
    twin = "from hourglass import activity\n@activity.defn(name='deep')\ndef twin() -> None: ...\n"
    (tmp_path / "app" / "twin.py").write_text(twin)
    resolver = Resolver(modules=["app"])
    with pytest.raises(DefinitionError, match=r"'deep': .*work\.deep.*twin\.twin"):
        resolver.activity("deep")
    assert resolver.known_activity("deep") is None
    assert resolver.activity("top").fn() == "top"
    with pytest.raises(DefinitionError, match="'deep'"):
        Resolver(modules=["app.orders.work", "app.twin"])


def test_dotted_name_resolves_to_a_decorated_object_under_a_root(app):
    resolver = Resolver(modules=["app"])
    assert resolver.activity("app.orders.work.deep").fn() == "deep"
    assert "app.broken" not in sys.modules
    assert app() == []
    assert resolver.workflow("app.orders.work.checkout").name == "checkout"
    assert resolver.activity("app.top").fn() == "top"


def test_activities_imported_from_other_packages_are_ignored(app):
    resolver = Resolver(modules=["app"])
    for name in ("foreign", "app.orders.work.foreign"):
        with pytest.raises(UnknownTypeError):
            resolver.activity(name)


@pytest.mark.parametrize(
    "name",
    [
        "evil.run",
        "appendix.run",
        "app.undecorated",
        "app.os.system",
        "app.system",
        "app.orders.work.subprocess.run",
        "app._private.hidden",
        "app.__main__.x",
        "app.__builtins__.eval",
        "app.orders.work.Desk.serve",
        "app.orders.work.Desk.__init__",
        "app..top",
        ".app.top",
        "app.top.",
        "app",
        "",
        "app/orders/work.deep",
        "app.orders.work.proxy.deep",
        "\x00",
        "app." * 200 + "x",
    ],
)
def test_dotted_names_outside_the_roots_or_undecorated_are_unknown(app, name):
    resolver = Resolver(modules=["app"])
    with pytest.raises(UnknownTypeError):
        resolver.activity(name)
    assert not {"evil", "appendix"} & set(sys.modules)
    assert app() == []


def test_dotted_name_imports_nothing_without_roots(app):
    with pytest.raises(UnknownTypeError):
        Resolver(activities=[charge]).activity("evil.run")
    assert app() == []
    assert "evil" not in sys.modules
