"""Names of activities and converters, by which a child process imports the objects that its parent uses.

A function or converter is sent as `module:qualified.name`. The parent only sends names that its resolver has
found or that the author passed to the worker, and never a type name received from an engine. The function that
the child finds must be decorated.

A script that was started as a program is `__main__` in the parent. The child executes the script's file under
the name `__mp_main__`, as Python's multiprocessing does, so that code below `if __name__ == "__main__":` does
not run in the child.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

from hourglass.activity import ActivityDefinition, activity_definition
from hourglass.converter import Converter, default_converter
from hourglass.errors import DefinitionError, UsageError

MAIN = "__main__"
ALIAS = "__mp_main__"

_loading_main = False


def place_of(definition: ActivityDefinition) -> str:
    """Return `module:qualified.name` of an activity's function. Raise DefinitionError if a child could not find
    the function by this name.
    """
    fn = definition.fn
    module = sys.modules.get(fn.__module__)
    imported = None if module is None else activity_definition(_descend(module, fn.__qualname__))
    if imported is None or imported.fn is not fn:
        raise DefinitionError(
            f"activity {definition.name}: executor='process' imports a function by its name, but "
            f"{fn.__module__}.{fn.__qualname__} is not this activity. Decorate the function where it is defined, and do not "
            "rename it"
        )
    return f"{_module_name(definition.name, fn.__module__)}:{fn.__qualname__}"


def main_script() -> str:
    """Return the path of the script that this process executes, or "" if the process was not started from a
    script.
    """
    main = sys.modules.get(MAIN)
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None:
        return ""
    path = os.path.abspath(file)
    return path if os.path.isfile(path) else ""


def converter_place(converter: Converter) -> str:
    """Return `module:qualified.name` of the converter's class, or "" for the default converter.

    Raise DefinitionError if a child could not create an equal converter.
    """
    cls = type(converter)
    if cls is Converter:
        return ""
    module = sys.modules.get(cls.__module__)
    if vars(converter) or module is None or _descend(module, cls.__qualname__) is not cls:
        raise DefinitionError(
            f"converter {cls.__qualname__}: process activities create their own instance, so the class "
            f"must be at the top level of a module and its objects must have no state"
        )
    return f"{_module_name(f'converter {cls.__qualname__}', cls.__module__)}:{cls.__qualname__}"


def _module_name(subject: str, module: str) -> str:
    if module != MAIN:
        return module
    spec = getattr(sys.modules[MAIN], "__spec__", None)
    if spec is not None and not spec.name.endswith(MAIN):  # python -m package.module
        return str(spec.name)
    if spec is None and main_script():
        return MAIN
    raise DefinitionError(
        f"{subject} is defined in __main__, which has no file that another interpreter can import: move it into a module to "
        "use executor='process'"
    )


def find_activity(place: str, main: str) -> ActivityDefinition:
    """Return the activity with the name that the parent sent."""
    module, _, name = place.partition(":")
    definition = activity_definition(_descend(_imported(module, main), name))
    if definition is None or definition.executor != "process":
        raise DefinitionError(
            f"{place} is not a process activity in the other interpreter: is it defined conditionally?"
        )
    return definition


def find_converter(place: str, main: str) -> Converter:
    """Return a converter of the class with the name that the parent sent."""
    if not place:
        return default_converter
    module, _, name = place.partition(":")
    cls = _descend(_imported(module, main), name)
    if not (isinstance(cls, type) and issubclass(cls, Converter)):
        raise DefinitionError(f"{place} is not a converter in the other interpreter")
    return cls()


def reject_in_script() -> None:
    """Raise UsageError while a child imports the parent's script, which must not start workers in the child."""
    if _loading_main:
        raise UsageError(
            "the interpreter of a process activity imports this script, which starts a worker when it is imported: start "
            'the worker below `if __name__ == "__main__":`'
        )


def _imported(module: str, main: str) -> ModuleType:
    return _load_main(main) if module == MAIN else importlib.import_module(module)


def _load_main(path: str) -> ModuleType:
    global _loading_main
    loaded = sys.modules.get(ALIAS)
    if loaded is not None:
        return loaded
    spec = spec_from_loader(ALIAS, SourceFileLoader(ALIAS, path))
    if spec is None or spec.loader is None:
        raise DefinitionError(f"the script {path} cannot be imported by another interpreter")
    module = module_from_spec(spec)
    former = sys.modules[MAIN]
    # The module is also registered as `__main__`, because code that refers to `__main__` must find the script,
    # as in the parent, and not the child's program.
    sys.modules[ALIAS] = sys.modules[MAIN] = module
    _loading_main = True
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[ALIAS]
        sys.modules[MAIN] = former
        raise
    finally:
        _loading_main = False
    return module


def _descend(module: ModuleType, name: str) -> object:
    value: object = module
    for segment in name.split("."):
        value = getattr(value, segment, None)
    return value
