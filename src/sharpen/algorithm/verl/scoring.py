"""Rewards from a reward model, for rollouts that ended well and emitted none.

A reward model is a transformers model for sequence classification with one label: it reads a conversation, written with
its own chat template, and its one number is the reward. Weights are read from safetensors only.
"""

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...adapter.messages import OpenAIMessages, TraceToMessages
from ...errors import text_of
from ...llm.errors import ModelError, RewardError
from ...llm.models.hub import hub_folder, turn_telemetry_off
from ...llm.models.loading import check_packages, choose_device, choose_precision, model_lock, torch_dtype
from ...llm.models.source import find_model
from ...types import Span
from .training_data import CollectedRollout

log = logging.getLogger(__name__)

Conversation = OpenAIMessages
MAX_BATCH_TOKENS = 16384


def conversation_of(spans: Sequence[Span], *, adapter: TraceToMessages | None = None) -> Conversation | None:
    """The conversation that a rollout ended with: what its last call was asked, and the answer to it."""
    found = (adapter or TraceToMessages()).adapt(spans)
    return found[-1] if found else None


class RewardModel:
    """Scores conversations. `max_batch_tokens` bounds what is computed at once."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: str | None = None,
        precision: str | None = None,
        allow_download: bool = True,
        trust_remote_code: bool = False,
        max_batch_tokens: int = MAX_BATCH_TOKENS,
    ) -> None:
        check_packages()
        self.name = os.fspath(path)
        self.device = choose_device(device)
        dtype = torch_dtype(choose_precision(precision, self.device))
        folder = _folder(self.name, allow_download=allow_download, trust_remote_code=trust_remote_code)
        model, self._tokenizer = _load(self.name, folder, dtype, trust_remote_code=trust_remote_code)
        self._model = model.to(self.device).eval()
        self._has_padding = model.config.get_text_config().pad_token_id is not None
        self._max_batch_tokens = max_batch_tokens

    def rate(
        self, rollouts: Sequence[CollectedRollout], conversations: Mapping[str, Conversation | None]
    ) -> list[CollectedRollout]:
        """The same rollouts; those that ended well without a reward have the score of their conversation.

        `conversations` are named by rollout id. A rollout whose conversation was not recorded stays without a reward.
        """
        wanted = {
            each.rollout_id: conversation
            for each in rollouts
            if each.is_unrewarded and (conversation := conversations.get(each.rollout_id)) is not None
        }
        scores = dict(zip(wanted, self.scores(list(wanted.values())), strict=True))
        return [
            each if each.rollout_id not in scores else each.with_reward(scores[each.rollout_id]) for each in rollouts
        ]

    def scores(self, conversations: Sequence[Conversation]) -> list[float]:
        """The score of each conversation."""
        rows = [self._written(number, each) for number, each in enumerate(conversations)]
        scores = [math.nan] * len(rows)
        for batch in _batches(rows, self._max_batch_tokens):
            for number, score in zip(batch, self._scores([rows[number] for number in batch]), strict=True):
                if not math.isfinite(score):
                    raise RewardError.of(self.name, f"the score is {score}", row=number, unit="conversation")
                scores[number] = score
        return scores

    def _written(self, number: int, conversation: Conversation) -> list[int]:
        """A conversation in tokens. Of one that is longer than the model reads, its end."""
        try:
            text = self._tokenizer.apply_chat_template(
                conversation["messages"], tools=conversation.get("tools"), tokenize=False
            )
        except Exception as error:  # a template is a program of somebody else's
            problem = f"the chat template cannot render the conversation: {text_of(error)}"
            raise RewardError.of(self.name, problem, row=number, unit="conversation") from error
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        window = getattr(self._model.config.get_text_config(), "max_position_embeddings", None) or len(ids)
        if len(ids) > window:
            log.warning("scoring a conversation of %d tokens by its last %d, the most that fit", len(ids), window)
        return ids[-window:]

    def _scores(self, rows: Sequence[Sequence[int]]) -> list[float]:
        import torch

        ids_BT, mask_BT = self._padded(rows)
        with torch.inference_mode():
            logits_B1 = self._model(input_ids=ids_BT, attention_mask=mask_BT).logits
        found: list[float] = logits_B1[:, 0].float().tolist()
        return found

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        """Filled up on the right. The model reads the score at the last token that is no padding."""
        import torch

        config = self._model.config.get_text_config()
        if not self._has_padding:  # then with a token that stands nowhere else
            used = set().union(*rows)
            config.pad_token_id = next(each for each in range(config.vocab_size) if each not in used)
        longest = max(map(len, rows))
        ids_BT = torch.tensor([[*row, *[config.pad_token_id] * (longest - len(row))] for row in rows])
        mask_BT = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        return ids_BT.to(self.device), mask_BT.to(self.device)


def _batches(rows: Sequence[Sequence[int]], max_tokens: int) -> Iterator[list[int]]:
    """Places of rows that are scored together: of like length, and with padding no more than so many tokens."""
    batch: list[int] = []
    for place in sorted(range(len(rows)), key=lambda place: len(rows[place])):
        if batch and (len(batch) + 1) * len(rows[place]) > max_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


# -- loading -----------------------------------------------------------------------------------------


def _folder(name: str, *, allow_download: bool, trust_remote_code: bool) -> Path:
    source = find_model(name)
    if source.kind == "hub":
        return hub_folder(name, allow_download=allow_download, trust_remote_code=trust_remote_code)
    if source.kind != "folder" or source.path is None:
        raise ModelError(f"the reward model {name!r} is a {source.kind}: use the folder or the name of a full model")
    return source.path


def _load(name: str, folder: Path, dtype: Any, *, trust_remote_code: bool) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    turn_telemetry_off()
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    with model_lock():
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), **options)
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                str(folder), dtype=dtype, use_safetensors=True, output_loading_info=True, **options
            )
        except (OSError, ValueError, RuntimeError, LookupError, TypeError, ImportError) as error:
            reason = " ".join(text_of(error).split())[:400]
            raise ModelError(f"the reward model {name!r} cannot be loaded: {reason}") from error
    model, info = loaded
    _check(name, model, tokenizer, info["missing_keys"])
    return model, tokenizer


def _check(name: str, model: Any, tokenizer: Any, missing: Iterable[str]) -> None:
    if absent := sorted(missing):
        raise ModelError(
            f"the reward model {name!r} lacks {len(absent)} of its weights, such as {absent[0]!r}, which would be "
            "random: use a model trained to score (sequence classification with one label)"
        )
    if model.config.num_labels != 1:
        raise ModelError(f"the reward model {name!r} has {model.config.num_labels} labels: use one with a single label")
    if tokenizer.chat_template is None:
        raise ModelError(f"the reward model {name!r} has no chat template, so conversations cannot be rendered for it")
