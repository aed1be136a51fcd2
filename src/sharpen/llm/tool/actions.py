"""What the tool can be asked: the one table from which its schema, its description and its checks are made."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .defaults import ALGORITHMS, defaults_in_words
from .parameters import Parameter


@dataclass(frozen=True)
class Action:
    """One thing that the tool does, and the keys that it takes beside `action`."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]

    def parameter(self, name: str) -> Parameter | None:
        return next((each for each in self.parameters if each.name == name), None)


def _text(name: str, description: str, **more: object) -> Parameter:
    return Parameter(name, ("string",), description, **more)  # type: ignore[arg-type]


def _count(name: str, description: str, *, minimum: int = 1, **more: object) -> Parameter:
    return Parameter(name, ("integer",), description, minimum=minimum, maximum=2**31 - 1, **more)  # type: ignore[arg-type]


def _number(name: str, description: str, **more: object) -> Parameter:
    return Parameter(name, ("number",), description, **more)  # type: ignore[arg-type]


def _switch(name: str, description: str, **more: object) -> Parameter:
    return Parameter(name, ("boolean",), description, **more)  # type: ignore[arg-type]


def _usual(name: str, description: str) -> str:
    """A description that ends with the default of each algorithm."""
    return f"{description} {defaults_in_words(name)}".strip()


# -- shared parameters -------------------------------------------------------------------------------

_DATASET = (
    "A registered name; 'gsm8k' (also called 'math'); or the path of a JSON Lines file, or of a folder with one such "
    "file for each split, inside the base folder."
)
_MODEL = "The folder of a model or adapter or a .gguf file inside the base folder, or a name on the hub."
_WAIT = "false: return a job_id at once and ask with status. true: return when the job has ended."
_REWARD_TIMEOUT = _number(
    "reward_timeout_seconds", "The longest time of one call of a reward. Default: no limit.", above=0
)
_PRECISION = _text(
    "precision",
    "The precision of the arithmetic; 'auto' is what suits the device.",
    default="auto",
    choices=("auto", "fp32", "bf16", "fp16"),
)
_SEED = Parameter("seed", ("integer",), "Of everything random.", default=42, minimum=0, maximum=2**32 - 1)
_JOB_ID = "The id that train or evaluate returned, as list shows it."

# -- train -------------------------------------------------------------------------------------------

_TRAIN = (
    _text(
        "algorithm",
        "sft learns from prompts with completions, grpo from a reward, dpo from chosen and rejected answers.",
        is_required=True,
        choices=ALGORITHMS,
    ),
    _text("model_name", f"The model to start from. {_MODEL}", is_required=True),
    _text(
        "dataset",
        f"What to learn from; dpo needs one with prompt, chosen and rejected. {_DATASET} Default: gsm8k, dpo none.",
    ),
    _text("split", "The split of the data set to train on.", default="train"),
    _count("max_samples", "How many rows to use, from the start. Default: all."),
    _text("output_dir", _usual("output_dir", "Where the trained model goes, inside the base folder.")),
    _number("num_epochs", _usual("num_epochs", "How often to go through the data."), above=0, maximum=10_000),
    _count("max_steps", "How many optimiser steps to take; instead of num_epochs."),
    _count("batch_size", _usual("batch_size", "Rows of one step on one device (grpo: prompts).")),
    _count(
        "gradient_accumulation_steps",
        _usual("gradient_accumulation_steps", "How many batches make one step of the optimiser."),
    ),
    _number("learning_rate", _usual("learning_rate", "The highest learning rate."), above=0, maximum=1),
    _number(
        "warmup",
        _usual("warmup", "Until the learning rate is at its highest: a share of the run below 1, or steps from 1 on."),
        minimum=0,
        maximum=2**31 - 1,
    ),
    _count(
        "max_length",
        _usual("max_length", "The longest row, in tokens: longer ones are cut, in grpo left out. 0: no limit."),
        minimum=0,
    ),
    _count(
        "max_new_tokens",
        _usual("max_new_tokens", "The longest completion that the model writes, in tokens."),
        needs="eval_reward",
        freely_in=("grpo",),
    ),
    _number(
        "temperature",
        _usual("temperature", "Of sampling; 0: always the likeliest token."),
        minimum=0,
        maximum=100,
        needs="eval_reward",
        freely_in=("grpo",),
    ),
    _number(
        "top_p",
        _usual("top_p", "Sample from the likeliest tokens with this total share."),
        above=0,
        maximum=1,
        needs="eval_reward",
        freely_in=("grpo",),
    ),
    _count(
        "num_generations",
        _usual("num_generations", "Completions for each prompt, which are compared with each other."),
        minimum=2,
        algorithms=("grpo",),
    ),
    Parameter(
        "reward",
        ("string", "array"),
        "What judges completions: the name of a registered or created reward, or several, whose rewards are added. "
        "Default: accuracy.",
        algorithms=("grpo",),
    ),
    replace(_REWARD_TIMEOUT, algorithms=("grpo",)),
    _number("beta", "How much staying near the model at the start counts.", minimum=0, algorithms=("grpo", "dpo")),
    _switch("use_lora", "Train a small adapter instead of all weights.", default=False),
    _count("lora_r", "The rank of the adapter. Default: 16.", needs="use_lora"),
    _number("lora_alpha", "The scale of the adapter, usually twice the rank. Default: 32.", above=0, needs="use_lora"),
    _number("lora_dropout", "Default: 0.05.", needs="use_lora", minimum=0, below=1),
    Parameter(
        "lora_target_modules",
        ("string", "array"),
        "Which modules get an adapter: minimal (q_proj, v_proj), recommended (also k_proj, o_proj), full (also "
        "gate_proj, up_proj, down_proj), or a list of names. Default: minimal.",
        needs="use_lora",
        choices=("minimal", "recommended", "full"),
    ),
    _PRECISION,
    _switch("gradient_checkpointing", "Save memory at the cost of time. Default: on a GPU only."),
    _text("eval_dataset", f"Evaluate on this during training. {_DATASET}"),
    _text("eval_split", "The split of eval_dataset. Default: test.", needs="eval_dataset"),
    _count("eval_max_samples", "How many rows of eval_dataset to use. Default: all.", needs="eval_dataset"),
    _text(
        "eval_reward",
        "Has the model answer eval_dataset, and judges the answers: a registered or created name. grpo does so with "
        "its own reward.",
        needs="eval_dataset",
    ),
    _count("eval_steps", "Evaluate after every so many steps. Default: after each epoch.", needs="eval_dataset"),
    _count("logging_steps", _usual("logging_steps", "Record metrics after every so many steps.")),
    _count(
        "save_steps",
        _usual("save_steps", "Write a checkpoint after every so many steps; 0: only at the end."),
        minimum=0,
    ),
    _count("save_total_limit", _usual("save_total_limit", "How many checkpoints to keep, the newest.")),
    _SEED,
    _switch("resume", "Go on from the last checkpoint in output_dir; give the other keys as before.", default=False),
    _switch("wait", _WAIT, default=True),
)

# -- the other actions -------------------------------------------------------------------------------

_LOAD_DATASET = (
    _text("dataset", _DATASET, default="gsm8k"),
    _text("split", "The split to read.", default="train"),
    _text(
        "format",
        "raw: rows as they are stored. sft, rl: rows as training sees them.",
        default="raw",
        choices=("raw", "sft", "rl"),
    ),
    _count("max_samples", "How many rows to read, from the start. Default: all."),
    _count("num_preview", "How many rows to show.", default=3, minimum=0),
)

_CREATE_REWARD = (
    _text(
        "reward_type",
        "accuracy: 1 for a right final answer, else 0. length_penalty: less than its base for long completions. "
        "step: more than its base for steps of reasoning.",
        is_required=True,
        choices=("accuracy", "length_penalty", "step"),
    ),
    _text("name", "Under which train and evaluate find it. Default: the reward_type."),
    _text("base", "The reward to build on, by name; for length_penalty and step. Default: accuracy."),
    _number("tolerance", "accuracy: by how much numbers may differ. Default: 0.0001.", minimum=0),
    _count("max_length", "length_penalty: characters without a penalty. Default: 1024."),
    _number("penalty_weight", "length_penalty: taken for every max_length characters more. Default: 0.1.", minimum=0),
    _number("step_bonus", "step: given for every step of reasoning, 0.5 in all. Default: 0.1.", minimum=0),
)

_EVALUATE = (
    _text("model_path", f"The model to evaluate. {_MODEL}", is_required=True),
    _text("dataset", _DATASET, default="gsm8k"),
    _text("split", "The split to evaluate on.", default="test"),
    _count("max_samples", "How many rows to use, from the start. Default: all."),
    Parameter(
        "reward",
        ("string", "array"),
        "What judges completions: the name of a registered or created reward, or several, of which the first decides "
        "what is right. Default: the final answer must be that of the row.",
    ),
    _count("max_new_tokens", "The longest completion, in tokens.", default=512),
    _number("temperature", "0: always the likeliest token.", default=0.0, minimum=0, maximum=100),
    _number("top_p", "Sample from the likeliest tokens with this total share.", default=1.0, above=0, maximum=1),
    _count("batch_size", "How many completions are written at once.", default=8),
    _number("correct_above", "A completion is right when its reward is above this.", default=0.5),
    _number("confidence", "Of the intervals.", default=0.95, above=0, below=1),
    _count("num_examples", "How many right and how many wrong answers to show.", default=3, minimum=0),
    _SEED,
    _PRECISION,
    _REWARD_TIMEOUT,
    _switch("wait", _WAIT, default=True),
)

_STATUS = (
    _text("job_id", f"{_JOB_ID} Default: the newest job."),
    _count("log_lines", "How many last lines of the log to show. Default: 0, for a job that failed 20.", minimum=0),
)

_STOP = (
    _text("job_id", _JOB_ID, is_required=True),
    _number(
        "grace_seconds",
        "Training stops after its step and writes a checkpoint; after this time it is killed.",
        default=30.0,
        minimum=0,
        maximum=86_400,
    ),
)

_LIST = (
    _text(
        "kind",
        "What to list.",
        default="all",
        choices=("all", "jobs", "datasets", "rewards", "models"),
    ),
    _count("limit", "How many jobs and models to list at most, the newest first.", default=50),
)

ACTIONS: Mapping[str, Action] = {
    action.name: action
    for action in (
        Action("train", "Fine-tune a language model.", _TRAIN),
        Action("load_dataset", "Look at a data set: its size, columns and first rows.", _LOAD_DATASET),
        Action("create_reward", "Make a reward and keep it under a name, for train and evaluate.", _CREATE_REWARD),
        Action("evaluate", "Measure how well a model answers a data set.", _EVALUATE),
        Action("status", "Progress, metrics and result of a job.", _STATUS),
        Action("stop", "Stop a running job; a training can be resumed later.", _STOP),
        Action("list", "List jobs, data sets, rewards and models.", _LIST),
    )
}
