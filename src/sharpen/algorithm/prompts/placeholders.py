"""The places for values in a prompt, and whether a rewritten prompt still has what its parent had.

Candidates are written by models: one that cannot work is refused here, before any rollout is spent on it.
"""

import re
import unicodedata
from collections.abc import Sequence

from ...errors import InvalidInputError, MissingExtraError
from ...types import PromptTemplate
from ...types.poml import code_in
from ...types.template_fields import Field, parse_fields

MOST_CHARACTERS = 100_000
MOST_GROWTH = 20

_POML_FIELD = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")
_POML_OWN = re.compile(r"""\bfor\s*=\s*["']\s*(\w+)\s+in\s|<let\b[^>]*\bname\s*=\s*["'](\w+)""")


def placeholders(template: PromptTemplate) -> list[str]:
    """The names of the values that the template takes, each once, in the order of the text."""
    if template.engine == "jinja":
        return _jinja_names(template.template)
    if template.engine == "poml":
        own = {name for pair in _POML_OWN.findall(template.template) for name in pair}
        return _unique([name for name in _POML_FIELD.findall(template.template) if name not in own])
    return _unique([field.name for field in value_fields(template.template)])


def value_fields(text: str) -> list[Field]:
    """The fields of an f-string template that values take the place of. What LaTeX explains is hardly one of them."""
    fields = [piece for piece in parse_fields(text) if isinstance(piece, Field)]
    return [field for field in fields if field.is_plain and not field.is_argument]


def why_unfit(new: PromptTemplate, parent: PromptTemplate) -> str | None:
    """Why `new` cannot take the place of `parent`, in words about "it"; None where it can."""
    return _bad_text(new, parent) or _bad_fields(new, parent)


def _bad_text(new: PromptTemplate, parent: PromptTemplate) -> str | None:
    if _is_blank(new.template):
        return "it is empty"
    if new.template != new.template.encode("utf-8", "replace").decode():
        return "it holds half a character (a lone surrogate), which cannot be written as UTF-8"
    if new.engine == parent.engine and new.template == parent.template:
        return "it is the same as its parent"
    if new.engine == parent.engine and new.template.split() == parent.template.split():
        return "it is the same as its parent but for white space"
    return _too_long(len(new.template), len(parent.template))


def _too_long(length: int, before: int) -> str | None:
    if length <= max(MOST_CHARACTERS, MOST_GROWTH * before):
        return None
    return f"it is too long: {length:,} characters, and its parent has {before:,}"


def _bad_fields(new: PromptTemplate, parent: PromptTemplate) -> str | None:
    before = placeholders(parent)
    try:
        after = placeholders(new)
    except InvalidInputError as error:
        return f"it does not parse: {error}"
    lost = [_as_written(name, new) for name in before if name not in after]
    if lost:
        return f"it lost {_listed(lost)}"
    if new.engine == "f-string":
        return _unfillable(new, before)
    if new.engine == "poml" and (code := code_in(new.template)) is not None:
        return f"it has {code}, which would run as code"
    return _without_value(new, after, before)


def _unfillable(new: PromptTemplate, names: Sequence[str]) -> str | None:
    """Why filling it is an error, so that every rollout would fail: `{question.text}`, or a value that is not given."""
    fields = [piece for piece in parse_fields(new.template) if isinstance(piece, Field)]
    needed = [field for field in fields if not field.is_optional or field.name in names]
    bent = next((field for field in needed if not field.is_plain), None)
    if bent is not None:
        return f"it uses {bent.text}, but only plain fields such as {{{bent.name}}} are filled"
    return _without_value(new, [field.name for field in needed], names)


def _without_value(new: PromptTemplate, names: Sequence[str], known: Sequence[str]) -> str | None:
    unknown = [_as_written(name, new) for name in _unique(names) if name not in known]
    if not unknown:
        return None
    had = _listed([_as_written(name, new) for name in known]) if known else "none"
    return f"it uses {_listed(unknown)}, which gets no value: the places of its parent are {had}"


def _jinja_names(text: str) -> list[str]:
    try:
        from jinja2 import TemplateError, meta, nodes
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingExtraError.of("jinja2", extra="prompts", feature='PromptTemplate with engine="jinja"') from None
    # Not optimised: a sum such as 9**9**9 in a template is not worked out here.
    environment = ImmutableSandboxedEnvironment(optimized=False)
    try:
        tree = environment.parse(text)
        undeclared = meta.find_undeclared_variables(tree)
    except (TemplateError, RecursionError) as error:
        raise InvalidInputError(f"the Jinja template is wrong: {error}") from error
    taken = undeclared - environment.globals.keys()
    return _unique([node.name for node in tree.find_all(nodes.Name) if node.name in taken])


def _is_blank(text: str) -> bool:
    """Whether there is nothing to see: white space, controls and characters without a shape."""
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf") for char in text)


def _as_written(name: str, template: PromptTemplate) -> str:
    return f"{{{name}}}" if template.engine == "f-string" else f"{{{{{name}}}}}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _unique(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))
