"""What the tool can be asked: the one table from which its schema, its description and its checks are made."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..training.options import ALGORITHMS
from .parameters import Parameter, defaults_in_words


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
    "A registered name, 'gsm8k' (alias 'math'), or a path inside the base folder: a JSON Lines file, or a folder with "
    "one such file per split."
)
_MODEL = "A folder with a model or adapter, or a .gguf file, inside the base folder; or a model name on the hub."
_WAIT = "false: return a job_id immediately and poll it with status. true: return when the job has finished."
_REWARD_TIMEOUT = _number(
    "reward_timeout_seconds", "Timeout of one call to a reward function, in seconds. Default: no timeout.", above=0
)
_PRECISION = _text(
    "precision",
    "Numeric precision; 'auto' chooses one for the device.",
    default="auto",
    choices=("auto", "fp32", "bf16", "fp16"),
)
_SEED = Parameter("seed", ("integer",), "Seed of all random numbers.", default=42, minimum=0, maximum=2**32 - 1)
_JOB_ID = "Job id returned by train or evaluate, as shown by list."

# -- train -------------------------------------------------------------------------------------------

_TRAIN = (
    _text(
        "algorithm",
        "sft learns from prompts and completions, grpo from a reward, dpo from chosen and rejected answers.",
        is_required=True,
        choices=ALGORITHMS,
    ),
    _text("model_name", f"The model to start from. {_MODEL}", is_required=True),
    _text(
        "dataset",
        "The data set to train on; dpo needs the columns prompt, chosen and rejected. "
        f"{_DATASET} Default: gsm8k, for dpo none.",
    ),
    _text("split", "The split of the data set to train on.", default="train"),
    _count("max_samples", "Maximum number of rows to use, from the start. Default: all."),
    _text("output_dir", _usual("output_dir", "Folder for the trained model, inside the base folder.")),
    _number("num_epochs", _usual("num_epochs", "Number of passes over the data."), above=0, maximum=10_000),
    _count("max_steps", "Number of optimiser steps, used instead of num_epochs."),
    _count("batch_size", _usual("batch_size", "Rows per batch on one device (grpo: prompts).")),
    _count(
        "gradient_accumulation_steps",
        _usual("gradient_accumulation_steps", "Number of batches per optimiser step."),
    ),
    _number("learning_rate", _usual("learning_rate", "Peak learning rate."), above=0, maximum=1),
    _number(
        "warmup",
        _usual(
            "warmup",
            "Length of the learning-rate warmup: a fraction of the run (below 1) or a number of steps (1 or more).",
        ),
        minimum=0,
        maximum=2**31 - 1,
    ),
    _count(
        "max_length",
        _usual("max_length", "Maximum row length in tokens; longer rows are truncated (grpo: skipped). 0: no limit."),
        minimum=0,
    ),
    _count(
        "max_new_tokens",
        _usual("max_new_tokens", "Maximum length of a generated completion, in tokens."),
        needs="eval_reward",
        freely_in=("grpo",),
    ),
    _number(
        "temperature",
        _usual("temperature", "Sampling temperature; 0: always the most likely token."),
        minimum=0,
        maximum=100,
        needs="eval_reward",
        freely_in=("grpo",),
    ),
    _number(
        "top_p",
        _usual("top_p", "Sample from the most likely tokens whose probabilities add up to this value."),
        above=0,
        maximum=1,
        needs="eval_reward",
        freely_in=("grpo",),
    ),
    _count(
        "num_generations",
        _usual("num_generations", "Number of completions per prompt, which are compared with each other."),
        minimum=2,
        algorithms=("grpo",),
    ),
    Parameter(
        "reward",
        ("string", "array"),
        "What scores completions: the name of a registered or created reward, or several, whose values are added. "
        "Default: accuracy.",
        algorithms=("grpo",),
    ),
    replace(_REWARD_TIMEOUT, algorithms=("grpo",)),
    _number("beta", "Weight of staying close to the initial model.", minimum=0, algorithms=("grpo", "dpo")),
    _switch("use_lora", "Train a small adapter instead of all weights.", default=False),
    _count("lora_r", "Rank of the adapter. Default: 16.", needs="use_lora"),
    _number("lora_alpha", "Scale of the adapter, usually twice the rank. Default: 32.", above=0, needs="use_lora"),
    _number("lora_dropout", "Dropout of the adapter. Default: 0.05.", needs="use_lora", minimum=0, below=1),
    Parameter(
        "lora_target_modules",
        ("string", "array"),
        "Modules that get an adapter: minimal (q_proj, v_proj), recommended (also k_proj, o_proj), full (also "
        "gate_proj, up_proj, down_proj), or a list of names. Default: minimal.",
        needs="use_lora",
        choices=("minimal", "recommended", "full"),
    ),
    _PRECISION,
    _switch("gradient_checkpointing", "Recompute activations to save memory. Default: only on a GPU."),
    _text("eval_dataset", f"Data set to evaluate on during training. {_DATASET}"),
    _text("eval_split", "The split of eval_dataset. Default: test.", needs="eval_dataset"),
    _count("eval_max_samples", "Maximum number of rows of eval_dataset to use. Default: all.", needs="eval_dataset"),
    _text(
        "eval_reward",
        "Reward that scores the model's answers to eval_dataset: a registered or created name. grpo uses its own "
        "reward.",
        needs="eval_dataset",
    ),
    _count("eval_steps", "Number of steps between evaluations. Default: after each epoch.", needs="eval_dataset"),
    _count("logging_steps", _usual("logging_steps", "Number of steps between log entries.")),
    _count(
        "save_steps",
        _usual("save_steps", "Number of steps between checkpoints; 0: only at the end."),
        minimum=0,
    ),
    _count("save_total_limit", _usual("save_total_limit", "Number of the newest checkpoints to keep.")),
    _SEED,
    _switch("resume", "Resume from the last checkpoint in output_dir; pass the other keys unchanged.", default=False),
    _switch("wait", _WAIT, default=True),
)

# -- the other actions -------------------------------------------------------------------------------

_LOAD_DATASET = (
    _text("dataset", _DATASET, default="gsm8k"),
    _text("split", "The split to read.", default="train"),
    _text(
        "format",
        "raw: rows as stored. sft, rl: rows as formatted for training.",
        default="raw",
        choices=("raw", "sft", "rl"),
    ),
    _count("max_samples", "Maximum number of rows to read, from the start. Default: all."),
    _count("num_preview", "Number of rows to show.", default=3, minimum=0),
)

_CREATE_REWARD = (
    _text(
        "reward_type",
        "accuracy: 1 for a correct final answer, otherwise 0. length_penalty: its base minus a penalty for long "
        "completions. step: its base plus a bonus for reasoning steps.",
        is_required=True,
        choices=("accuracy", "length_penalty", "step"),
    ),
    _text("name", "Name to use in train and evaluate. Default: the reward_type."),
    _text("base", "Name of the reward to build on, for length_penalty and step. Default: accuracy."),
    _number("tolerance", "accuracy: maximum difference between equal numbers. Default: 0.0001.", minimum=0),
    _count("max_length", "length_penalty: number of characters without a penalty. Default: 1024."),
    _number("penalty_weight", "length_penalty: penalty per additional max_length characters. Default: 0.1.", minimum=0),
    _number("step_bonus", "step: bonus per reasoning step, at most 0.5 in total. Default: 0.1.", minimum=0),
)

_EVALUATE = (
    _text("model_path", f"The model to evaluate. {_MODEL}", is_required=True),
    _text("dataset", _DATASET, default="gsm8k"),
    _text("split", "The split to evaluate on.", default="test"),
    _count("max_samples", "Maximum number of rows to use, from the start. Default: all."),
    Parameter(
        "reward",
        ("string", "array"),
        "What scores completions: the name of a registered or created reward, or several, of which the first decides "
        "what is correct. Default: compare the final answer with that of the row.",
    ),
    _count("max_new_tokens", "Maximum length of a completion, in tokens.", default=512),
    _number(
        "temperature", "Sampling temperature; 0: always the most likely token.", default=0.0, minimum=0, maximum=100
    ),
    _number(
        "top_p",
        "Sample from the most likely tokens whose probabilities add up to this value.",
        default=1.0,
        above=0,
        maximum=1,
    ),
    _count("batch_size", "Number of completions generated at once.", default=8),
    _number("correct_above", "A completion is correct if its reward is above this value.", default=0.5),
    _number("confidence", "Confidence level of the intervals.", default=0.95, above=0, below=1),
    _count("num_examples", "Number of correct and of incorrect answers to show.", default=3, minimum=0),
    _SEED,
    _PRECISION,
    _REWARD_TIMEOUT,
    _switch("wait", _WAIT, default=True),
)

_STATUS = (
    _text("job_id", f"{_JOB_ID} Default: the newest job."),
    _count(
        "log_lines", "Number of lines to show from the end of the log. Default: 0, or 20 for a failed job.", minimum=0
    ),
)

_STOP = (
    _text("job_id", _JOB_ID, is_required=True),
    _number(
        "grace_seconds",
        "Training stops after its current step and writes a checkpoint; if it takes longer than this, it is killed.",
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
    _count("limit", "Maximum number of jobs and models to list, newest first.", default=50),
)

ACTIONS: Mapping[str, Action] = {
    action.name: action
    for action in (
        Action("train", "Fine-tune a language model.", _TRAIN),
        Action("load_dataset", "Show a data set: its size, columns and first rows.", _LOAD_DATASET),
        Action("create_reward", "Create a named reward for train and evaluate.", _CREATE_REWARD),
        Action("evaluate", "Measure how well a model answers a data set.", _EVALUATE),
        Action("status", "Show the progress, metrics and result of a job.", _STATUS),
        Action("stop", "Stop a running job; a training job can be resumed later.", _STOP),
        Action("list", "List jobs, data sets, rewards and models.", _LIST),
    )
}
