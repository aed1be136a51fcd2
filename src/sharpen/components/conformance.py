"""Whether an object can stand in for a class: it is an instance, or it has every public method that the class has."""

from types import FunctionType


def is_instance(component: object, expected: type) -> bool:
    """`isinstance`, where a protocol that refuses the question has no instances."""
    if getattr(expected, "_is_protocol", False) and not getattr(expected, "_is_runtime_protocol", False):
        return False
    return isinstance(component, expected)


def has_methods_of(component: object, expected: type) -> bool:
    """Whether every public method is there; a class without methods has no stand-ins."""
    return bool(_methods(expected)) and not missing_methods(component, expected)


def missing_methods(component: object, expected: type) -> list[str]:
    """The public methods of the class that the object does not have."""
    return [name for name in _methods(expected) if not callable(getattr(component, name, None))]


def _methods(expected: type) -> list[str]:
    declared: dict[str, object] = {}
    for each in reversed(expected.__mro__[:-1]):
        declared.update(vars(each))
    kinds = (FunctionType, classmethod, staticmethod)
    return [name for name, value in declared.items() if isinstance(value, kinds) and not name.startswith("_")]
