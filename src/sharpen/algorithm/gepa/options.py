"""The options of `gepa.optimize` that can be given here, by gepa's own names.

What would break a promise of a run (its records, that it can be resumed, that nothing is paid for twice) is refused,
with the reason.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import ConfigError

MINIBATCH_SIZE = 3

_CHOICES = {
    "candidate_selection_strategy": ("pareto", "current_best", "epsilon_greedy", "top_k_pareto"),
    "module_selector": ("round_robin", "all"),
    "acceptance_criterion": ("strict_improvement", "improvement_or_equal"),
    "batch_sampler": ("epoch_shuffled",),
}
_COUNTS = ("reflection_minibatch_size", "max_merge_invocations", "merge_val_overlap_floor")
_FLAGS = ("skip_perfect_score", "use_merge")
# Given to gepa by the search, or not at all.
_OURS_TO_PASS = ("stop_callbacks", "reflection_prompt_template", "skip_perfect_score")
_FIELDS = ("<curr_param>", "<side_info>")

_OURS = "the run writes its own records: use loggers= and run_dir= of the Trainer"
_DATA = "pass the agent and its data sets to Trainer.fit, and the initial prompts as initial_resources="
_ROLLOUTS = "evaluations are rollouts of the agent"
_REFLECTION = "choose the reflecting model with reflection_model= and its client with reflection_client="
_KEPT = "a resumed run could not restore its proposals; use reflection_prompt_template="
REFUSED: Mapping[str, str] = {
    "seed_candidate": _DATA,
    "trainset": _DATA,
    "valset": _DATA,
    "adapter": _ROLLOUTS,
    "task_lm": _ROLLOUTS,
    "evaluator": _ROLLOUTS,
    "reflection_lm": _REFLECTION,
    "reflection_lm_kwargs": f"{_REFLECTION}, and its temperature with reflection_temperature=",
    "reflection_strategy": _KEPT,
    "custom_candidate_proposer": _KEPT,
    "frontier_type": "a rollout has one score, not several objectives, so the only front is that of tasks",
    "max_reflection_cost": "the price of the model is unknown here; limit the search with max_metric_calls=",
    "run_dir": "gepa would write pickled files there and load them again; use run_dir= of the Trainer",
    "use_cloudpickle": "nothing is pickled; a run resumes from its checkpoint and its store",
    "cache_evaluation": "the store keeps every evaluation, so none is paid for twice",
    "raise_on_exception": "errors of gepa are logged, and stop the search if they persist",
    "track_best_outputs": "the store has the trace of every rollout",
    "display_progress_bar": "the run shows its own progress",
    "logger": "messages of gepa go to the log of sharpen at debug level",
    "callbacks": "pass callbacks= to the Trainer",
    "use_wandb": _OURS,
    "wandb_api_key": _OURS,
    "wandb_init_kwargs": _OURS,
    "wandb_attach_existing": _OURS,
    "use_mlflow": _OURS,
    "mlflow_tracking_uri": _OURS,
    "mlflow_experiment_name": _OURS,
    "mlflow_attach_existing": _OURS,
    "tracking_key_prefix": _OURS,
    "val_evaluation_policy": "candidates are compared on all validation tasks; use a smaller val_dataset",
    "run_initial_validation": "gepa always scores the seed prompt first",
    "val_batch_size": "gepa scores every candidate on all validation tasks; use a smaller val_dataset",
}


class GepaOptions:
    """Options of gepa, checked, by name."""

    def __init__(self, **given: Any) -> None:
        _check_choices(given)
        _check_numbers(given)
        _check_template(given["reflection_prompt_template"])
        self._given = given

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    @property
    def stop_callbacks(self) -> list[Any]:
        given = self["stop_callbacks"]
        return [] if given is None else list(given) if isinstance(given, Sequence) else [given]

    def minibatch_size(self, num_train: int) -> int:
        """How many training tasks a reflection is about; 0 where a sampler of the user decides."""
        if self["batch_sampler"] != "epoch_shuffled":
            return 0
        return min(int(self["reflection_minibatch_size"] or MINIBATCH_SIZE), num_train)

    def check_components(self, names: Iterable[str]) -> None:
        """The templates by component are for components that there are."""
        template, known = self["reflection_prompt_template"], list(names)
        for name in template if isinstance(template, Mapping) else ():
            if name not in known:
                names_there = ", ".join(map(repr, known))
                raise ConfigError(f"reflection_prompt_template has {name!r}, but the prompts are {names_there}")

    def for_gepa(self, *, num_train: int, num_val: int) -> dict[str, Any]:
        """For one search. Strategies have a state of their own, which the next search must not inherit."""
        found = {name: copy.deepcopy(value) for name, value in self._given.items() if name not in _OURS_TO_PASS}
        found["reflection_minibatch_size"] = self.minibatch_size(num_train) or None
        # gepa merges nothing where there are fewer validation tasks than this.
        found["merge_val_overlap_floor"] = min(self["merge_val_overlap_floor"], num_val)
        return found


def check_refused(given: Iterable[str]) -> None:
    """Say why an option of gepa, or of other searches, is none here."""
    for name in given:
        if name in REFUSED:
            raise ConfigError(f"GEPA does not accept {name}: {REFUSED[name]}")


def _check_choices(given: Mapping[str, Any]) -> None:
    for name, choices in _CHOICES.items():
        value = given[name]
        if isinstance(value, str) and value not in choices:
            raise ConfigError(f"{name} is {value!r}: use {' or '.join(map(repr, choices))}, or a strategy of gepa")
    if given["batch_sampler"] != "epoch_shuffled" and given["reflection_minibatch_size"] is not None:
        raise ConfigError(
            "reflection_minibatch_size works only with batch_sampler='epoch_shuffled': leave one of them out"
        )


def _check_numbers(given: Mapping[str, Any]) -> None:
    for name in _COUNTS:
        value = given[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name} is {value!r}: use a whole number, 1 or more")
    for name in _FLAGS:
        if not isinstance(given[name], bool):
            raise ConfigError(f"{name} is {given[name]!r}: use True or False")


def _check_template(template: Any) -> None:
    if template is None:
        return
    for name, text in (template if isinstance(template, Mapping) else {"": template}).items():
        where = "reflection_prompt_template" + (f"[{name!r}]" if name else "")
        if not isinstance(text, str):
            raise ConfigError(f"{where} is {type(text).__name__}: use a str, or a dict of str by component")
        missing = [each for each in _FIELDS if each not in text]
        if missing:
            raise ConfigError(
                f"{where} does not contain {' and '.join(missing)}: gepa replaces <curr_param> by the current prompt "
                "and <side_info> by the rollouts"
            )
