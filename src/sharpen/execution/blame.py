"""What in a component cannot be pickled, in words: the thing that the user wrote, and the innermost reason.

Functions, classes and our own objects are looked through, since the user did not write "the attribute `__wrapped__`";
whatever else a global, a variable or an attribute holds is named as a whole.
"""

import dis
import types
from collections.abc import Callable, Iterator
from typing import Any

DEPTH = 6  # how deep a culprit is looked for
Failure = Callable[[object], Exception | None]
Named = tuple[str, object]


def in_words(thing: object, failure_of: Failure) -> str | None:
    """The global, variable, attribute or item that cannot be pickled; None where it is the thing as a whole."""
    chain = list(_chain(thing, failure_of))
    if not chain:
        return None
    named = [each for each in chain if not _is_looked_through(each[1])]
    outer, inner = (named or chain)[0], chain[-1]
    error = failure_of(inner[1])
    reason = reason_of(error) if error is not None else ""
    if inner is not outer:
        reason = f"{inner[0]} is {_a(inner[1])}: {reason}"
    return f"{outer[0]} is {_a(outer[1])}, which cannot be pickled ({reason})"


def reason_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _chain(thing: object, failure_of: Failure) -> Iterator[Named]:
    """From the outside to the inside, what fails and holds what fails next."""
    for _ in range(DEPTH):
        found = next((each for each in _inside(thing) if failure_of(each[1]) is not None), None)
        if found is None:
            return
        yield found
        thing = found[1]


def _is_looked_through(value: object) -> bool:
    if isinstance(value, types.FunctionType | types.MethodType | type):
        return True
    return type(value).__module__.split(".")[0] == __name__.split(".")[0]


def _a(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name.lstrip("_")[:1].lower() in "aeiou" else f"a {name}"


def _inside(thing: object) -> Iterator[Named]:
    if isinstance(thing, types.MethodType):
        yield from _inside(thing.__self__)
        thing = thing.__func__
    if isinstance(thing, types.FunctionType):
        yield from _inside_function(thing)
    elif isinstance(thing, dict):
        yield from ((f"the entry {name!r}", value) for name, value in thing.items())
    elif isinstance(thing, list | tuple | set):
        yield from ((f"the item {number}", value) for number, value in enumerate(thing))
    elif isinstance(thing, type):
        yield from ((f"the attribute {name!r} of {thing.__name__}", value) for name, value in _members(thing))
    else:
        yield from ((f"the attribute {name!r} of {type(thing).__name__}", value) for name, value in _state(thing))
        if type(thing).__module__ == "__main__":
            yield f"the class {type(thing).__name__}", type(thing)


def _state(thing: object) -> list[tuple[str, object]]:
    """The attributes that travel: not what the object leaves out by itself, and none where it says how it travels."""
    kind: Any = type(thing)
    if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        return []
    try:
        state = thing.__getstate__()
    except Exception:  # noqa: BLE001 - then the object itself is to blame, with this very error
        return []
    parts = state if isinstance(state, tuple) else (state,)
    return [each for part in parts if isinstance(part, dict) for each in part.items()]


def _inside_function(function: types.FunctionType) -> Iterator[Named]:
    code, name = function.__code__, function.__name__
    for used in sorted(_globals_used(code)):
        if used in function.__globals__:
            yield f"the global {used!r} used by {name!r}", function.__globals__[used]
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"the variable {variable!r} used by {name!r}", cell.cell_contents
        except ValueError:
            continue  # not filled yet
    defaults = function.__defaults__ or ()
    by_position = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    for parameter, value in [*zip(by_position, defaults, strict=True), *(function.__kwdefaults__ or {}).items()]:
        yield f"the default of {parameter!r} in {name!r}", value


def _globals_used(code: types.CodeType) -> set[str]:
    own = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return own.union(*map(_globals_used, inner))


def _members(kind: type) -> list[tuple[str, object]]:
    return [(name, value) for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")]
