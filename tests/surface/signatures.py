"""Public objects as lines of text: classes, functions and constants with their parameters, defaults and types.

A description does not depend on where the code lies, nor on the machine, the Python or the libraries: annotations are
read from the source, of a dotted name only the last part is kept, and what a class inherits from a library is left out.
"""

import ast
import enum
import functools
import inspect
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Set
from types import FunctionType, ModuleType
from typing import Any

OURS = "sharpen"
# Special methods that are part of how an object is used.
SPECIAL = {
    "__aenter__",
    "__aiter__",
    "__await__",
    "__call__",
    "__contains__",
    "__enter__",
    "__getitem__",
    "__iter__",
    "__len__",
    "__next__",
}
_MARKS = {
    inspect.Parameter.POSITIONAL_ONLY: "{}/",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "{}",
    inspect.Parameter.VAR_POSITIONAL: "*args",
    inspect.Parameter.KEYWORD_ONLY: "*",
    inspect.Parameter.VAR_KEYWORD: "**kwargs",
}


def describe(place: str, value: Any, *, public: Mapping[type, str], named: frozenset[str] = frozenset()) -> list[str]:
    """Describe a value that users import as `place`.

    Args:
        public: Public classes and their names. What a class has from one of them is described there.
        named: Attributes that only a method sets, and methods that begin with an underscore, which are public all the
            same. An attribute with the name of a parameter of the constructor is always described.
    """
    if isinstance(value, type):
        return list(_class(place, value, public, named))
    if inspect.isroutine(value):
        return list(_function(place, value, "function"))
    return [f"{place}  {_constant(place, value)}"]


def _constant(place: str, value: Any) -> str:
    if isinstance(value, str | int | float) and not place.endswith("__version__"):
        return f"{type(value).__name__} = {value!r}"
    if typing.get_origin(value) is not None or isinstance(value, typing.TypeVar):
        return f"type {_plain(_text_of_object(value))}"
    return f"a {type(value).__name__}"


# -- classes -------------------------------------------------------------------------------------------------------


def _class(place: str, cls: type, public: Mapping[type, str], named: frozenset[str]) -> Iterator[str]:
    yield f"{place}  class"
    bases = [base for base in cls.__mro__[1:] if base in public]
    yield from (f"{place}  is a {name}" for name in sorted({public[base] for base in bases} | set(_libraries(cls))))
    if issubclass(cls, enum.Enum):
        yield from (f"{place}.{name}  = {each.value!r}" for name, each in sorted(cls.__members__.items()))
    elif typing.is_typeddict(cls):
        fields = _fields(cls)
        yield from (f"{place}[{name!r}]  {fields[name]}" for name in sorted(fields))
        return
    else:
        yield from _constructor(place, cls)
    inherited = {fact for base in bases for fact in _members("", base, named)}
    yield from (f"{place}{fact}" for fact in _members("", cls, named) if fact not in inherited)


def _libraries(cls: type) -> Iterator[str]:
    """The classes of Python and of libraries that this class, or an inner one that it is made of, names as a base."""
    for each in filter(_is_ours, cls.__mro__):
        for base in each.__bases__:
            if not _is_ours(base) and base is not object:
                yield base.__name__


def _constructor(place: str, cls: type) -> Iterator[str]:
    makers = (vars(each).get(name) for each in cls.__mro__ if _is_ours(each) for name in ("__init__", "__new__"))
    if not any(makers) and not hasattr(cls, "__struct_fields__"):
        return
    written = next((maker for maker in (cls.__init__, cls.__new__) if _node(maker)), None)
    types = _parameter_types(written) if written else _fields(cls)
    try:
        parameters = inspect.signature(cls).parameters
    except ValueError:  # the constructor of a library, in C
        return
    yield from _parameters(place, parameters, types, written)


def _members(place: str, cls: type, named: frozenset[str]) -> list[str]:
    found: dict[str, list[str]] = {}
    for each in reversed([base for base in cls.__mro__ if _is_ours(base)]):
        for name in _attributes(each, named | _parameter_types(each.__init__).keys()):
            found.setdefault(name, [f"{place}.{name}  attribute"])
        for name, value in vars(each).items():
            if not name.startswith("_") or name in named or name in SPECIAL:
                found[name] = list(_member(f"{place}.{name}", value, each, _written(cls, name) or value))
    given = set(getattr(cls, "__struct_fields__", ())) | set(getattr(cls, "__dataclass_fields__", ()))
    return [fact for name in sorted(found) if name not in given for fact in found[name]]


def _written(cls: type, name: str) -> Any:
    """The method that a generated one, which forwards to it, has its signature from."""
    methods = (vars(each)[name] for each in cls.__mro__ if _is_ours(each) and name in vars(each))
    return next((each for each in methods if not hasattr(each, "__signature__")), None)


def _member(place: str, value: Any, owner: type, written: Any) -> Iterator[str]:
    if isinstance(value, staticmethod | classmethod):
        yield from _function(place, value.__func__, type(value).__name__, is_bound=isinstance(value, classmethod))
    elif isinstance(value, property | functools.cached_property):
        getter = value.fget if isinstance(value, property) else value.func
        settable = " settable" if isinstance(value, property) and value.fset else ""
        yield f"{place}  property {_returns(getter)}{settable}"
    elif isinstance(value, FunctionType) or hasattr(value, "__wrapped__"):
        yield from _function(place, value, "method", is_bound=True, written=written)
    elif not inspect.ismemberdescriptor(value) and not issubclass(owner, enum.Enum):
        yield f"{place}  attribute"


def _attributes(cls: type, named: Set[str]) -> Iterator[str]:
    """The public attributes that the body of a class declares, and the named ones that its methods set."""
    for node in ast.walk(_class_node(cls) or ast.Module([], [])):
        is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in named
        if is_set and ast.unparse(node.value) == "self" and not node.attr.startswith("_"):
            yield node.attr
    yield from (name for name in _own_fields(cls) if not name.startswith("_"))


# -- functions -----------------------------------------------------------------------------------------------------


def _function(place: str, function: Any, kind: str, *, is_bound: bool = False, written: Any = None) -> Iterator[str]:
    written = written or function
    is_async = inspect.iscoroutinefunction(written) or inspect.isasyncgenfunction(written)
    yield f"{place}  {'async ' * is_async}{kind} {_returns(written)}"
    parameters = dict(inspect.signature(function).parameters)
    if is_bound:
        parameters.pop(next(iter(parameters)))
    yield from _parameters(place, parameters, _parameter_types(written), written)


def _parameters(
    place: str, parameters: Mapping[str, inspect.Parameter], types: Mapping[str, str], written: Any
) -> Iterator[str]:
    keywords: list[str] = []
    for number, (name, parameter) in enumerate(parameters.items(), start=1):
        annotation = types.get(name) or _annotation_of(parameter.annotation)
        text = f"{name}{f': {annotation}' * bool(annotation)}"
        if parameter.default is not inspect.Parameter.empty:
            text += f" = {_value(parameter.default)}"
        line = f"{place}({_MARKS[parameter.kind].format(number)})  {text}"
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            keywords.append(line)
        elif annotation.startswith("Unpack["):
            keywords += [f"{place}(*)  {each}" for each in _unpacked(annotation, written)]
        else:
            yield line
    yield from sorted(keywords)


def _unpacked(annotation: str, written: Any) -> Iterator[str]:
    """The keywords of `**options: Unpack[Options]`."""
    options = inspect.unwrap(written).__globals__[annotation.removeprefix("Unpack[").removesuffix("]")]
    for name, kind in _fields(options).items():
        yield f"{name}: {kind}{' = ...' * (name in options.__optional_keys__)}"


def _returns(function: Any) -> str:
    node = _node(function)
    if node is not None:
        return f"-> {_unparsed(node.returns)}" if node.returns else "-> ?"
    annotation = getattr(inspect.unwrap(function), "__annotations__", {}).get("return", inspect.Parameter.empty)
    return f"-> {_annotation_of(annotation) or '?'}"


def _parameter_types(function: Any) -> dict[str, str]:
    node = _node(function)
    if node is None:
        return {}
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    return {each.arg: _unparsed(each.annotation) for each in every if each and each.annotation}


def _value(value: Any) -> str:
    """A default as it would be written."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type) or inspect.isroutine(value):
        return str(value.__name__)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_value(key)}: {_value(each)}' for key, each in value.items())}}}"
    if type(value) in (list, tuple, set, frozenset):
        return f"{type(value).__name__}({', '.join(_value(each) for each in value)})"
    text = repr(value)
    return f"a {type(value).__name__}" if re.search(r"\bat 0x|\n", text) else text


# -- the source ----------------------------------------------------------------------------------------------------

_Def = ast.FunctionDef | ast.AsyncFunctionDef


def _is_ours(cls: type) -> bool:
    return cls.__module__.split(".")[0] == OURS


@functools.cache
def _definitions(file: str) -> tuple[dict[int, _Def], dict[str, ast.ClassDef]]:
    """Functions by the line they begin in, decorators included, and classes by their qualified name."""
    functions: dict[int, _Def] = {}
    classes: dict[str, ast.ClassDef] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _Def):
                functions[min([child.lineno, *(each.lineno for each in child.decorator_list)])] = child
                visit(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.ClassDef):
                classes[prefix + child.name] = child
                visit(child, f"{prefix}{child.name}.")
            else:
                visit(child, prefix)

    with open(file, encoding="utf-8") as source:
        visit(ast.parse(source.read()), "")
    return functions, classes


def _node(function: Any) -> _Def | None:
    """Where a function of ours is written; None for one that was made."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or f"/{OURS}/" not in code.co_filename:
        return None
    return _definitions(code.co_filename)[0].get(code.co_firstlineno)


def _class_node(cls: type) -> ast.ClassDef | None:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return _definitions(file)[1].get(cls.__qualname__) if file else None


def _own_fields(cls: type) -> dict[str, str]:
    body = getattr(_class_node(cls), "body", [])
    return {
        each.target.id: _unparsed(each.annotation)
        for each in body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def _fields(cls: type) -> dict[str, str]:
    """Annotations of the body of a class and of those that it inherits from."""
    bases = [*cls.__mro__, *getattr(cls, "__orig_bases__", ())]  # a TypedDict has its bases only there
    found: dict[str, str] = {}
    for each in reversed(bases):
        if isinstance(each, type) and _is_ours(each):
            found |= _own_fields(each)
    return found


# -- annotations ---------------------------------------------------------------------------------------------------


def _annotation_of(annotation: Any) -> str:
    return "" if annotation is inspect.Parameter.empty else _plain(_text_of_object(annotation))


def _text_of_object(value: Any) -> str:
    return value if isinstance(value, str) else inspect.formatannotation(value)


def _plain(text: str) -> str:
    try:
        return _unparsed(ast.parse(text, mode="eval").body)
    except SyntaxError:
        return re.sub(r"\b(?:\w+\.)+", "", text)


def _unparsed(node: ast.expr) -> str:
    return ast.unparse(_Plain().visit(node))


class _Plain(ast.NodeTransformer):
    """One spelling for each type: `Optional[a.b.C]` and `"C | None"` are `C | None`."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Name(node.attr)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(None) if node.id == "NoneType" else ast.Name(node.id)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        return self.visit(node.operand)  # ~T, +T_co: how a TypeVar is printed

    def visit_Call(self, node: ast.Call) -> ast.expr:
        return self.visit(node.args[0])  # ForwardRef('C')

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        name = getattr(node.value, "attr", getattr(node.value, "id", ""))
        if name == "Literal":
            return ast.Subscript(ast.Name(name), node.slice)
        if name == "Annotated":
            return self.visit(node.slice.elts[0])  # type: ignore[attr-defined]
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        parts = [self.visit(each) for each in parts]
        if name in ("Optional", "Union"):
            parts += [ast.Constant(None)] * (name == "Optional")
            return functools.reduce(lambda left, right: ast.BinOp(left, ast.BitOr(), right), parts)
        inner = parts[0] if len(parts) == 1 else ast.Tuple(parts)
        return ast.Subscript(self.visit(node.value), inner)


def without_module(value: Any, name: str) -> Any:
    """A function that has the name of its module, whichever of the two an import has left there."""
    return getattr(value, name, value) if isinstance(value, ModuleType) else value
