"""The signature of a msgspec struct, for the API reference: its fields, as `__init__` takes them.

The reference is read from the sources and never imported, and the reader of sources knows dataclasses only.
"""

from typing import Any

import griffe


class Structs(griffe.Extension):
    """Gives every struct the `__init__` that msgspec gives it."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for class_ in _classes(pkg):
            if "__init__" not in class_.members and _is_struct(class_):
                class_.set_member("__init__", _init(class_))


def _classes(scope: griffe.Module | griffe.Class) -> list[griffe.Class]:
    found = []
    for member in scope.members.values():
        if isinstance(member, griffe.Module | griffe.Class):
            found += [member] if isinstance(member, griffe.Class) else []
            found += _classes(member)
    return found


def _line(class_: griffe.Class) -> list[griffe.Class]:
    """The class after those it stands on, as far as they are ours."""
    try:
        return [*reversed(class_.mro()), class_]
    except ValueError:
        return [class_]


def _is_struct(class_: griffe.Class) -> bool:
    return any("Struct" in str(base) for each in _line(class_) for base in each.bases)


def _fields(class_: griffe.Class) -> list[griffe.Parameter]:
    is_keyword = str(class_.keywords.get("kw_only")) == "True"
    kind = griffe.ParameterKind.keyword_only if is_keyword else griffe.ParameterKind.positional_or_keyword
    return [
        griffe.Parameter(name, annotation=member.annotation, kind=kind, default=member.value)
        for name, member in class_.members.items()
        if isinstance(member, griffe.Attribute) and member.annotation is not None and _is_field(member)
    ]


def _is_field(member: griffe.Attribute) -> bool:
    is_class_variable = "class-attribute" in member.labels and "instance-attribute" not in member.labels
    return "property" not in member.labels and not is_class_variable


def _init(class_: griffe.Class) -> griffe.Function:
    given = {field.name: field for each in _line(class_) for field in _fields(each)}
    fields = sorted(given.values(), key=lambda field: field.kind is griffe.ParameterKind.keyword_only)
    itself = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    return griffe.Function(
        "__init__", lineno=0, endlineno=0, parent=class_, parameters=griffe.Parameters(itself, *fields)
    )
