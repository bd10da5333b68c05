"""How a function, or a converter, of the parent process is found again in a child: by module and qualified name.

The parent names only what its resolver has found, or what its author gave to the worker; the type name that
came over the wire names nothing here. What the child finds must be decorated.

A script that was started as a program is `__main__` in the parent. The child runs its file under the name
`__mp_main__`, as Python's own multiprocessing does, so that what stands below `if __name__ == "__main__":`
does not run there.
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


# --- in the parent ---------------------------------------------------------------------------------------------------


def place_of(definition: ActivityDefinition) -> str:
    """`module:qualified.name` of an activity's function; DefinitionError if a child could not find it."""
    fn = definition.fn
    module = sys.modules.get(fn.__module__)
    found = None if module is None else _descend(module, fn.__qualname__)
    known = activity_definition(found)
    if known is None or known.fn is not fn:
        raise DefinitionError(
            f"activity {definition.name}: executor='process' finds a function by its name, but "
            f"{fn.__module__}.{fn.__qualname__} is not this activity. Decorate it where it is defined, and keep its name"
        )
    return f"{_module_name(definition.name, fn.__module__)}:{fn.__qualname__}"


def main_script() -> str:
    """The file of the program that runs here; empty if it is not one."""
    main = sys.modules.get(MAIN)
    file = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None:
        return ""
    path = os.path.abspath(file)
    return path if os.path.isfile(path) else ""


def converter_place(converter: Converter) -> str:
    """Where a child finds the converter's class; empty for the default. DefinitionError if it cannot."""
    cls = type(converter)
    if cls is Converter:
        return ""
    module = sys.modules.get(cls.__module__)
    if vars(converter) or module is None or _descend(module, cls.__qualname__) is not cls:
        raise DefinitionError(
            f"converter {cls.__qualname__}: process activities make one of their own, so its class must stand in a module "
            f"and its objects must hold nothing"
        )
    return f"{_module_name(f'converter {cls.__qualname__}', cls.__module__)}:{cls.__qualname__}"


def _module_name(what: str, module: str) -> str:
    if module != MAIN:
        return module
    spec = getattr(sys.modules[MAIN], "__spec__", None)
    if spec is not None and not spec.name.endswith(MAIN):  # python -m package.module
        return str(spec.name)
    if spec is None and main_script():
        return MAIN
    raise DefinitionError(
        f"{what} is defined in what runs as __main__ and has no file that another interpreter can import: for "
        f"executor='process' put it into a module"
    )


# --- in the child ----------------------------------------------------------------------------------------------------


def find_activity(place: str, main: str) -> ActivityDefinition:
    """The activity at a place that the parent named."""
    module, _, name = place.partition(":")
    definition = activity_definition(_descend(_imported(module, main), name))
    if definition is None or definition.executor != "process":
        raise DefinitionError(
            f"{place} is no process activity in the other interpreter: is it defined under a condition?"
        )
    return definition


def find_converter(place: str, main: str) -> Converter:
    """A converter of the class that the parent named."""
    if not place:
        return default_converter
    module, _, name = place.partition(":")
    cls = _descend(_imported(module, main), name)
    if not (isinstance(cls, type) and issubclass(cls, Converter)):
        raise DefinitionError(f"{place} is no converter in the other interpreter")
    return cls()


def refuse_in_script() -> None:
    """Raise if a child runs the parent's script just now: it must not start workers of its own."""
    if _loading_main:
        raise UsageError(
            "a process activity's interpreter imports this script to find the activity, and the script starts a worker as "
            'it is imported: put that below `if __name__ == "__main__":`'
        )


def _imported(module: str, main: str) -> ModuleType:
    return _load_main(main) if module == MAIN else importlib.import_module(module)


def _load_main(path: str) -> ModuleType:
    global _loading_main
    known = sys.modules.get(ALIAS)
    if known is not None:
        return known
    spec = spec_from_loader(ALIAS, SourceFileLoader(ALIAS, path))
    if spec is None or spec.loader is None:
        raise DefinitionError(f"the script {path} cannot be imported by another interpreter")
    module = module_from_spec(spec)
    former = sys.modules[MAIN]
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
    found: object = module
    for segment in name.split("."):
        found = getattr(found, segment, None)
    return found
