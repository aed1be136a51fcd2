"""Prompt templates: where a search finds its first one, and whether a rewritten one can replace its parent.

Candidates are written by models: one that cannot work is rejected here, before any rollout is spent on it.

An f-string template also has optional fields, in LaTeX and in JSON (`sharpen.types.prompt_template`). The values that
agents give decide whether such a field is a placeholder: it is one if its name is in `given`. A candidate can only use
the fields of its parent. Other optional fields are made text by `as_child`: an agent that formats its prompt with
the whole task would otherwise fill `\\boxed{answer}` with the reference answer.
"""

import inspect
import re
import unicodedata
from collections.abc import Collection, Sequence
from typing import Any

from ...errors import ConfigError, InvalidInputError, MissingExtraError
from ...litagent import FunctionalLitAgent, LitAgent
from ...types import NamedResources, PromptTemplate
from ...types.prompt_template import Field, code_in, parse_fields, with_text_fields

MOST_CHARACTERS = 100_000
MOST_GROWTH = 20

_POML_FIELD = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")
_POML_OWN = re.compile(r"""\bfor\s*=\s*["']\s*(\w+)\s+in\s|<let\b[^>]*\bname\s*=\s*["'](\w+)""")


def placeholders(template: PromptTemplate, given: Collection[str] = ()) -> list[str]:
    """Return the names of the values that the template takes, each once, in the order of the text.

    An optional field of an f-string template counts if its name is in `given`.
    """
    if template.engine == "jinja":
        return _jinja_names(template.template)
    if template.engine == "poml":
        own = {name for pair in _POML_OWN.findall(template.template) for name in pair}
        return _unique([name for name in _POML_FIELD.findall(template.template) if name not in own])
    fields = value_fields(template.template)
    return _unique([field.name for field in fields if not field.is_optional or field.name in given])


def value_fields(text: str) -> list[Field]:
    """Return the fields of an f-string template that are filled if there is a value, optional ones too."""
    return [piece for piece in parse_fields(text) if isinstance(piece, Field) and piece.is_plain]


def optional_names(template: PromptTemplate) -> list[str]:
    """Return the names of the fields that only the values given can tell from text."""
    if template.engine != "f-string":
        return []
    required = placeholders(template)
    return _unique([field.name for field in value_fields(template.template) if field.name not in required])


def as_child(new: PromptTemplate, parent: PromptTemplate) -> PromptTemplate:
    """Return `new` with the optional fields that `parent` does not have as text."""
    if new.engine != "f-string" or parent.engine != "f-string":
        return new
    before = [piece for piece in parse_fields(parent.template) if isinstance(piece, Field)]
    names, texts = {field.name for field in before if field.is_plain}, {field.text for field in before}
    text = with_text_fields(new.template, lambda field: field.name not in names and field.text not in texts)
    return PromptTemplate(text)


def why_unfit(new: PromptTemplate, parent: PromptTemplate, given: Collection[str] = ()) -> str | None:
    """Return why `new`, made by `as_child`, cannot replace `parent`, in words about "it"; None if it can."""
    return _bad_text(new, parent) or _bad_fields(new, parent, given)


def _bad_text(new: PromptTemplate, parent: PromptTemplate) -> str | None:
    if _is_blank(new.template):
        return "it is empty"
    if new.template != new.template.encode("utf-8", "replace").decode():
        return "it contains a lone surrogate, which cannot be encoded as UTF-8"
    if new.engine == parent.engine and new.template == parent.template:
        return "it is the same as its parent"
    if new.engine == parent.engine and new.template.split() == parent.template.split():
        return "it differs from its parent only in white space"
    return _too_long(len(new.template), len(parent.template))


def _too_long(length: int, before: int) -> str | None:
    if length <= max(MOST_CHARACTERS, MOST_GROWTH * before):
        return None
    return f"it is too long: {length:,} characters (its parent has {before:,})"


def _bad_fields(new: PromptTemplate, parent: PromptTemplate, given: Collection[str]) -> str | None:
    before = placeholders(parent, given)
    try:
        after = placeholders(new, before)
    except InvalidInputError as error:
        return f"it does not parse: {error}"
    lost = [_as_written(name, new) for name in before if name not in after]
    if lost:
        return f"it lost {_listed(lost)}"
    if new.engine == "f-string":
        return _unfillable(new, before)
    if new.engine == "poml" and (code := code_in(new.template)) is not None:
        return f"it contains {code}, which would run as code"
    return _without_value(new, after, before)


def _unfillable(new: PromptTemplate, names: Sequence[str]) -> str | None:
    """Why filling it is an error, so that every rollout would fail: `{question.text}`, or a value that is not given."""
    fields = [piece for piece in parse_fields(new.template) if isinstance(piece, Field)]
    needed = [field for field in fields if not field.is_optional or field.name in names]
    bent = next((field for field in needed if not field.is_plain), None)
    if bent is not None:
        return f"it uses {bent.text}, but only plain fields such as {{{bent.name}}} can be filled"
    return _without_value(new, [field.name for field in needed], names)


def _without_value(new: PromptTemplate, names: Sequence[str], known: Sequence[str]) -> str | None:
    unknown = [_as_written(name, new) for name in _unique(names) if name not in known]
    if not unknown:
        return None
    had = _listed([_as_written(name, new) for name in known]) if known else "none"
    return f"it uses {_listed(unknown)}, which gets no value: the fields of its parent are {had}"


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
        raise InvalidInputError(f"the Jinja template is invalid: {error}") from error
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


# -- where a search begins -------------------------------------------------------------------------


PROMPT_NAME = "prompt_template"
_WAYS = (
    "add a PromptTemplate to initial_resources of the Trainer, set the attribute prompt_template of the agent "
    "(a PromptTemplate or a str), or give the parameter prompt_template of the agent's function a default"
)


def seed_prompts(
    resources: NamedResources | None,
    agent_prompt: PromptTemplate | None,
    *,
    name: str | None,
    many: bool = False,
) -> dict[str, PromptTemplate]:
    """The prompts to improve, by the names of their resources. Only with `many` may there be several."""
    given = resources or {}
    found = {key: each for key, each in given.items() if isinstance(each, PromptTemplate)}
    if name is not None and name in found:
        found = {name: found[name]}
    elif name is not None and (found or name in given):
        raise ConfigError(
            f"resource_name is {name!r}, which is not a PromptTemplate: the resources are {_shown(given)}"
        )
    elif not found and agent_prompt is not None:
        found = {name or _free_name(given): agent_prompt}
    if not found:
        raise ConfigError(f"there is no prompt to start with: {_WAYS}")
    if len(found) > 1 and not many:
        raise ConfigError(
            f"the resources contain several prompts, {', '.join(map(repr, found))}: choose the one to improve with "
            "resource_name="
        )
    return _checked(found)


def prompt_of_agent(agent: LitAgent[Any]) -> PromptTemplate | None:
    """The agent's attribute `prompt_template`, or the default of the parameter of that name of its function."""
    own = _as_template(getattr(agent, PROMPT_NAME, None))
    if own is not None or not isinstance(agent, FunctionalLitAgent):
        return own
    parameter = inspect.signature(agent.function).parameters.get(PROMPT_NAME)
    return None if parameter is None else _as_template(parameter.default)


def takes_prompt(agent: LitAgent[Any]) -> bool:
    """Whether an agent can see a prompt: a function asks for it by name, or for all resources; a class gets them."""
    if not isinstance(agent, FunctionalLitAgent):
        return True
    return bool({PROMPT_NAME, "resources"} & inspect.signature(agent.function).parameters.keys())


def _as_template(value: object) -> PromptTemplate | None:
    if isinstance(value, str):
        return PromptTemplate(str(value))
    return value if isinstance(value, PromptTemplate) else None


def _free_name(resources: NamedResources) -> str:
    if PROMPT_NAME in resources:
        kind = type(resources[PROMPT_NAME]).__name__
        raise ConfigError(
            f"the resource {PROMPT_NAME!r} is of type {kind}, but the agent's own prompt has that name: rename the "
            "resource, or choose a name for the prompt with resource_name="
        )
    return PROMPT_NAME


def _checked(prompts: dict[str, PromptTemplate]) -> dict[str, PromptTemplate]:
    for name, prompt in prompts.items():
        if prompt.allows_code:
            raise ConfigError(
                f"the prompt {name!r} allows code, but prompts that a model writes must not run code: pass it without "
                "allows_code, or choose the prompt to improve with resource_name="
            )
        if prompt.template != prompt.template.encode("utf-8", "replace").decode():
            raise ConfigError(f"the prompt {name!r} contains a lone surrogate: write it as valid UTF-8 text")
    return prompts


def _shown(resources: NamedResources) -> str:
    return ", ".join(f"{name!r} ({type(each).__name__})" for name, each in resources.items())
