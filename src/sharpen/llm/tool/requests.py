"""A call of the tool, read from JSON and checked against the table of actions.

The table in the forms that programs read stands here, too: JSON schema, and a tool of OpenAI's API.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ...secrets import shown
from ..training.options import ALGORITHMS
from .actions import ACTIONS, Action
from .errors import ParameterError, Problem
from .parameters import Parameter

_LONGEST_TEXT = 1_000_000
_FENCE = "```"


@dataclass(frozen=True)
class Request:
    """An action and the values that were given for it; what was left out is not in `given`."""

    action: Action
    given: Mapping[str, Any]

    def get(self, name: str) -> Any:
        """A value, or the default of the table."""
        parameter = self.action.parameter(name)
        if parameter is None:
            raise KeyError(f"{self.action.name} has no parameter {name!r}")
        return self.given.get(name, parameter.default)


def read_request(parameters: Mapping[str, Any] | str) -> Request:
    """The call that a dict or a JSON text describes; a ParameterError names every key that is refused."""
    values = _values(parameters)
    action = _action(values.pop("action", None))
    problems = list(_problems(action, values))
    if problems:
        raise ParameterError.of_all(problems)
    given = {name: value for name, value in values.items() if value is not None}
    return Request(action, {name: _known(action, name).check(value) for name, value in given.items()})


def _values(parameters: Mapping[str, Any] | str) -> dict[str, Any]:
    if isinstance(parameters, str | bytes | bytearray):
        if len(parameters) > _LONGEST_TEXT:
            raise ParameterError(
                f"the parameters have {len(parameters)} characters, which is too many: pass data as a file"
            )
        try:
            parameters = json.loads(_unfenced(parameters) if isinstance(parameters, str) else parameters)
        except (ValueError, RecursionError) as error:
            raise ParameterError(f"the parameters are not a JSON object: {error}") from error
    if not isinstance(parameters, Mapping):
        raise ParameterError(f'the parameters are {shown(parameters)}: pass an object such as {{"action": "list"}}')
    return {str(name): value for name, value in parameters.items()}


def _unfenced(text: str) -> str:
    """The text within the fence of Markdown that models like to put around JSON."""
    text = text.strip()
    if not (text.startswith(_FENCE) and text.endswith(_FENCE) and len(text) >= 2 * len(_FENCE)):
        return text
    return text[len(_FENCE) : -len(_FENCE)].strip().removeprefix("json")


def _action(name: Any) -> Action:
    actions = ", ".join(ACTIONS)
    if name is None:
        problem = Problem("action", f"action is missing: use one of {actions}")
        raise ParameterError.of_all([problem])
    if not isinstance(name, str) or name not in ACTIONS:
        near = _nearest(name, ACTIONS)
        hint = f". Did you mean {near!r}?" if near else ""
        problem = Problem("action", f"action is {shown(name)}: use one of {actions}{hint}", name, near)
        raise ParameterError.of_all([problem])
    return ACTIONS[name]


def _problems(action: Action, values: Mapping[str, Any]) -> Iterator[Problem]:
    for name, value in values.items():
        parameter = action.parameter(name)
        if parameter is None:
            yield _unknown(action, name, value)
        elif value is not None and (message := _refusal(action, name, value)):
            yield Problem(name, message, value)
    for each in action.parameters:
        if each.is_required and values.get(each.name) is None:
            yield Problem(each.name, f"{each.name} is missing: {action.name} needs {each.expected}")
    yield from _out_of_place(action, values)


def _refusal(action: Action, name: str, value: Any) -> str | None:
    try:
        _known(action, name).check(value)
    except ValueError as error:
        return str(error)
    return None


def _unknown(action: Action, name: str, value: Any) -> Problem:
    known = [each.name for each in action.parameters]
    near = _nearest(name, known)
    others = [each.name for each in ACTIONS.values() if each.parameter(name)]
    if near:
        hint = f"did you mean {near!r}?"
    elif others:
        hint = f"it belongs to {' and '.join(others)}"
    else:
        hint = f"its keys are {', '.join(known)}"
    return Problem(name, f"{action.name} has no key {name!r}: {hint}", value, near)


def _out_of_place(action: Action, values: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys that are known, but would do nothing in this call."""
    algorithm = values.get("algorithm")
    for each in action.parameters:
        value = values.get(each.name)
        if value is None or (algorithm is not None and algorithm not in ALGORITHMS):
            continue
        if each.algorithms and algorithm is not None and algorithm not in each.algorithms:
            only = " and ".join(each.algorithms)
            yield Problem(each.name, f"{each.name} has no effect in {algorithm}, only in {only}: omit it", value)
        elif each.needs and algorithm not in each.freely_in and not values.get(each.needs):
            yield Problem(each.name, f"{each.name} has no effect without {each.needs}: pass both, or omit it", value)


def _known(action: Action, name: str) -> Any:
    parameter = action.parameter(name)
    assert parameter is not None
    return parameter


def _nearest(name: Any, known: Any) -> str | None:
    found = get_close_matches(str(name).casefold().replace("-", "_"), list(known), 1, cutoff=0.7)
    return found[0] if found else None


# -- the forms that programs read ---------------------------------------------------------------------


_ACTION = "The action to run. "


@dataclass(frozen=True)
class ToolParameter:
    """One key that can be passed, with the actions that take it."""

    name: str
    type: str
    description: str
    required: bool
    default: Any
    choices: tuple[str, ...]
    actions: tuple[str, ...]


def tool_parameters() -> list[ToolParameter]:
    """Every key of every action; one that several actions take in the same way stands there once."""
    names = {"action": ToolParameter("action", "string", _action_words(), True, None, tuple(ACTIONS), tuple(ACTIONS))}
    found = list(names.values())
    for parameter, actions in _by_parameter():
        kind = " | ".join(parameter.kinds)
        found.append(
            ToolParameter(
                parameter.name,
                kind,
                parameter.words,
                parameter.is_required,
                parameter.default,
                parameter.choices,
                actions,
            )
        )
    return found


def tool_schema() -> dict[str, Any]:
    """The JSON schema of a call: one form for each action."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "RLTrainingTool call",
        "type": "object",
        "required": ["action"],
        "oneOf": [_form(action) for action in ACTIONS.values()],
    }


def action_schema(action: Action) -> dict[str, Any]:
    """The JSON schema of the keys of one action."""
    return {
        "type": "object",
        "properties": {each.name: each.schema() for each in action.parameters},
        "required": [each.name for each in action.parameters if each.is_required],
        "additionalProperties": False,
    }


def flat_schema() -> dict[str, Any]:
    """One object with the keys of all actions: APIs of models take no alternatives at the top of a schema."""
    properties: dict[str, Any] = {
        "action": {"type": "string", "enum": [*ACTIONS], "description": _action_words()},
    }
    for name in dict.fromkeys(parameter.name for parameter, _ in _by_parameter()):
        forms = [(each, actions) for each, actions in _by_parameter() if each.name == name]
        properties[name] = _joined(forms)
    return {"type": "object", "properties": properties, "required": ["action"], "additionalProperties": False}


def _form(action: Action) -> dict[str, Any]:
    form = action_schema(action)
    chosen = {"const": action.name, "description": action.description}
    return form | {
        "title": action.name,
        "properties": {"action": chosen, **form["properties"]},
        "required": ["action", *form["required"]],
    }


def _joined(forms: list[tuple[Parameter, tuple[str, ...]]]) -> dict[str, Any]:
    """A key as all its actions take it together; what differs between them is left to the description."""
    schemas = [parameter.schema() for parameter, _ in forms]
    shared = {name: value for name, value in schemas[0].items() if all(each.get(name) == value for each in schemas)}
    kinds = dict.fromkeys(kind for each in schemas for kind in _listed(each["type"]))
    words = [f"{', '.join(actions)}: {_with_default(each)}" for each, actions in forms]
    return shared | {"type": [*dict.fromkeys([*kinds, "null"])], "description": " · ".join(words)} | _choices(schemas)


def _choices(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    if not all("enum" in each for each in schemas):
        return {}
    return {"enum": [*dict.fromkeys([*(value for each in schemas for value in each["enum"]), None])]}


def _with_default(parameter: Parameter) -> str:
    required = " Required." if parameter.is_required else ""
    return parameter.words + required + ("" if parameter.default is None else f" Default: {parameter.default}.")


def _listed(kind: str | list[str]) -> list[str]:
    return [kind] if isinstance(kind, str) else kind


def _by_parameter() -> Iterable[tuple[Parameter, tuple[str, ...]]]:
    """Each different parameter, with the actions that take it."""
    found: dict[Parameter, tuple[str, ...]] = {}
    for action in ACTIONS.values():
        for parameter in action.parameters:
            found[parameter] = (*found.get(parameter, ()), action.name)
    return found.items()


def _action_words() -> str:
    return _ACTION + " ".join(f"{each.name}: {each.description}" for each in ACTIONS.values())
