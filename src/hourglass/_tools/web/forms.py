"""The conversion of text in a form to the arguments of a workflow, signal or update, and of a definition to the fields of
its form. Pure.

Arguments are entered as JSON. Text that is not JSON is used as a `str`, so that a reader can enter `order-1`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import msgspec

from hourglass._evaluator.definition import workflow_definition


@dataclass(frozen=True)
class FormField:
    """One parameter of a definition."""

    name: str
    type: str
    example: str
    required: bool


@dataclass(frozen=True)
class Form:
    """The parameters of a callable. `fields` is None if they are unknown."""

    name: str
    fields: tuple[FormField, ...] | None
    description: str = ""


def arguments(texts: Sequence[str]) -> list[Any]:
    """Return the values of the arguments, one per field. Empty fields at the end are omitted."""
    entered = list(texts)
    while entered and not entered[-1].strip():
        entered.pop()
    return [value(text) for text in entered]


def value(text: str) -> Any:
    """Return the value of one argument. Raise `ValueError` if the text begins like JSON but is malformed."""
    stripped = text.strip()
    try:
        return json.loads(stripped)
    except ValueError:
        if stripped[:1] in ("{", "[", '"'):
            raise ValueError(f"an argument is not valid JSON: {stripped[:80]}") from None
        return stripped


def form_of(name: str, signature: inspect.Signature | None, description: str = "") -> Form:
    """Return the form of a callable from its signature, without `self`."""
    if signature is None:
        return Form(name, None, description)
    fields = tuple(
        _field(parameter) for parameter in signature.parameters.values() if parameter.name != "self"
    )
    return Form(name, fields, description)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature. Annotations are evaluated to types, if possible."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # e.g. a name imported only for type checkers
        return inspect.signature(function)


def _field(parameter: inspect.Parameter) -> FormField:
    annotation = parameter.annotation
    has_annotation = annotation is not inspect.Parameter.empty
    type_text = (
        ""
        if not has_annotation
        else annotation
        if isinstance(annotation, str)
        else inspect.formatannotation(annotation)
    )
    return FormField(
        parameter.name,
        type_text,
        _example(annotation) if has_annotation else "",
        parameter.default is inspect.Parameter.empty,
    )


_EXAMPLES = {"str": '"text"', "int": "1", "float": "1.5", "bool": "true", "dict": "{}", "list": "[]"}


def _example(annotation: Any) -> str:
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if name in _EXAMPLES:
        return _EXAMPLES[name]
    try:
        schema = msgspec.json.schema(annotation)
    except (TypeError, ValueError, NotImplementedError):
        return ""
    return json.dumps(_schema_example(schema, schema.get("$defs", {}), 4), ensure_ascii=False)


def _schema_example(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> Any:
    if depth == 0:
        return None
    if "$ref" in schema:
        return _schema_example(
            definitions.get(str(schema["$ref"]).rpartition("/")[2], {}), definitions, depth - 1
        )
    if "default" in schema:
        return schema["default"]
    if "enum" in schema:
        return schema["enum"][0]
    for choice in schema.get("anyOf", ())[:1]:
        return _schema_example(choice, definitions, depth - 1)
    match schema.get("type"):
        case "object":
            inner = schema.get("properties", {})
            return {
                name: _schema_example(property_schema, definitions, depth - 1)
                for name, property_schema in inner.items()
            }
        case "array":
            return []
        case "string":
            return "text"
        case "integer":
            return 1
        case "number":
            return 1.5
        case "boolean":
            return True
    return None


def workflows_in(modules: Sequence[ModuleType]) -> dict[str, Form]:
    """Return the workflows that the loaded code defines, with their forms, by type."""
    forms_by_type: dict[str, Form] = {}
    for module in modules:
        for value in vars(module).values():
            definition = workflow_definition(value)
            if definition is not None and not definition.dynamic:
                description = inspect.getdoc(definition.target) or ""
                forms_by_type[definition.name] = form_of(
                    definition.name, _signature(definition.run), description
                )
    return dict(sorted(forms_by_type.items()))


def messages_of(modules: Sequence[ModuleType], workflow_type: str, kind: str) -> dict[str, Form]:
    """Return the signals, queries or updates that the loaded code defines for a workflow type."""
    for module in modules:
        for value in vars(module).values():
            definition = workflow_definition(value)
            if definition is not None and definition.name == workflow_type:
                handlers: Mapping[str | None, Any] = getattr(definition, kind)
                return {
                    name: form_of(name, _signature(handler.fn), handler.description)
                    for name, handler in handlers.items()
                    if name is not None
                }
    return {}
