"""The table of actions in the forms that programs read: JSON schema, and a tool of OpenAI's API."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .actions import ACTIONS, Action
from .parameters import Parameter

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
