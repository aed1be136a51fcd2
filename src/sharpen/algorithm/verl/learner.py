"""One update of the policy from finished rollouts: credit, mini-batches, losses, new weights.

With one update a step the policy is compared with itself. With several, the log-probabilities of the sampler are the
old ones; they are computed anew only where the sampler was another policy than the one that is trained: older weights,
or a distribution that was cut (`top_p`, `top_k`). Policy and critic are made at the end of this file.
"""

import logging
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...llm.errors import TrainingError
from ...llm.policy.critic import LocalCritic
from ...llm.policy.policy import LocalPolicy
from ...llm.policy.ranks.ranked_policy import RankedPolicy
from ...llm.policy.ranks.sharded_policy import ShardedPolicy
from ...llm.policy.ranks.sharding import Sharding
from ...llm.policy.samples import Sample, TrainingSample
from ...llm.policy.settings import LocalOptions, LossSettings
from .config import ActorConfig, CriticConfig, CriticModelConfig, ModelConfig, VERLConfig
from .credit import Credit, PerToken, assign_credit
from .training_data import CollectedRollout

if TYPE_CHECKING:
    from torch import Tensor

    from ...llm.policy.critic import LocalCritic
    from ...llm.policy.losses import Totals
    from ...llm.policy.policy import LocalPolicy

log = logging.getLogger(__name__)

Metrics = dict[str, float]

NUM_WATCHED = 8  # sequences that tell how far an update moved the policy
MAX_TOKENS_WATCHED = 8192
DIVERGED_NATS = 8.0  # by which an update may move the log-probability of a sampled token on average


class Groups:
    """The groups of a batch of rollouts, and what they hold: also those without spread, which give no gradient but are
    part of what a mean is taken over."""

    def __init__(self, rollouts: Sequence[CollectedRollout]) -> None:
        self._lengths: dict[str, list[int]] = {}
        for rollout in rollouts:
            if rollout.counts:
                lengths = self._lengths.setdefault(rollout.group, [])
                lengths += [sample.num_trained for sample in rollout.samples if sample.num_trained]

    def __len__(self) -> int:
        return len(self._lengths)

    def split(self, size: int, random_of_epoch: random.Random) -> Iterator[frozenset[str]]:
        """Mini-batches of up to `size` groups, as equal as they can be, in a random order where there are several."""
        names, count = list(self._lengths), -(-len(self._lengths) // size)
        if count > 1:
            random_of_epoch.shuffle(names)
        for number in range(count):
            yield frozenset(names[number * len(names) // count : (number + 1) * len(names) // count])

    def totals(self, names: frozenset[str], *, width: int) -> "Totals":
        from ...llm.policy.losses import Totals

        lengths = [length for name in names for length in self._lengths[name]]
        return Totals(tokens=sum(lengths), sequences=len(lengths), width=width)


class Learner:
    """Holds what learns. `corrects` says whether sampler and trainer are told apart."""

    def __init__(
        self,
        config: VERLConfig,
        policy: "LocalPolicy",
        critic: "LocalCritic | None",
        *,
        seed: int,
        spell: Callable[[str], str] = str,
    ) -> None:
        self._lr = spell("actor_rollout_ref.actor.optim.lr")
        self._config, self.policy, self.critic = config, policy, critic
        self._seed = seed
        self.corrects = _corrects(config)
        self.trained: frozenset[str] = frozenset()
        """The rollouts that the last update was made from."""

    def learn(self, rollouts: Sequence[CollectedRollout], *, step: int) -> Metrics:
        """Update the weights. Without anything to learn from they stay as they are."""
        began = time.perf_counter()
        self.notice_cuts(rollouts)
        groups = Groups(rollouts)
        is_on_policy = self._is_on_policy(len(groups))
        credit = self._credit(rollouts, is_on_policy=is_on_policy)
        self.trained = frozenset(source.rollout_id for source in credit.sources)
        prepared = time.perf_counter()
        metrics = dict(credit.metrics)
        if self.critic is not None:
            metrics |= self._train_critic(groups, credit, step=step)
        metrics |= self._train(groups, credit, step=step, is_on_policy=is_on_policy)
        trained = time.perf_counter()
        metrics |= {"seconds/prepare": prepared - began, "seconds/train": trained - prepared}
        return metrics

    def notice_cuts(self, rollouts: Sequence[CollectedRollout]) -> None:
        """Agents may cut the distribution by themselves (`top_p`, `top_k`): then the sampler is another policy."""
        is_auto = self._config.algorithm.importance_correction == "auto"
        if is_auto and not self.corrects and any(rollout.is_cut for rollout in rollouts):
            log.info("agents set their own top_p or top_k; from now on the loss corrects for it")
            self.corrects = True

    # -- what is learned -----------------------------------------------------------------------------

    def _credit(self, rollouts: Sequence[CollectedRollout], *, is_on_policy: bool) -> Credit:
        algorithm, actor = self._config.algorithm, self._config.actor
        sequences = [sample for rollout in rollouts if not rollout.is_lost for sample in rollout.samples]
        default = self._config.rollout.temperature
        temperatures = [each or default for rollout in rollouts if not rollout.is_lost for each in rollout.temperatures]
        ref = self._logprobs(sequences, temperatures, reference=True) if self._needs_reference else None
        needs_old = self.corrects and not is_on_policy
        old = self._logprobs(sequences, temperatures, reference=False) if needs_old else None
        return assign_credit(
            rollouts,
            estimator=algorithm.adv_estimator,
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            norm_by_std=algorithm.norm_adv_by_std_in_grpo,
            kl_in_reward_coef=algorithm.kl_ctrl.kl_coef if algorithm.use_kl_in_reward else 0.0,
            kl_kind=algorithm.kl_penalty,
            ref_logprobs=ref,
            old_logprobs=old,
            values=None if self.critic is None else self._values(sequences),
            temperature=default,
            keeps_flat_groups=actor.use_kl_loss or actor.entropy_coeff != 0,
        )

    def _values(self, samples: Sequence[Sample]) -> PerToken:
        assert self.critic is not None
        rows = self.critic.values(
            [sample.token_ids for sample in samples], masks=[sample.loss_mask for sample in samples]
        )
        return [row.tolist() for row in rows]

    @property
    def _needs_reference(self) -> bool:
        return self._config.actor.use_kl_loss or self._config.algorithm.use_kl_in_reward

    def _logprobs(self, samples: Sequence[Sample], temperatures: Sequence[float], *, reference: bool) -> PerToken:
        """Of every sampled token, at the temperature at which it was sampled; 0 elsewhere."""
        rows = self.policy.logprobs(
            [sample.token_ids for sample in samples],
            masks=[sample.loss_mask for sample in samples],
            temperature=temperatures,
            reference=reference,
        )
        return [row.tolist() for row in rows]

    # -- updates -------------------------------------------------------------------------------------

    def _train(self, groups: "Groups", credit: Credit, *, step: int, is_on_policy: bool) -> Metrics:
        parts: list[Metrics] = []
        loss = self._loss_settings(is_on_policy=is_on_policy)
        for samples, totals in self._mini_batches(groups, credit, self._config.actor, step=step):
            metrics = self.policy.forward_backward(samples, loss, totals=totals)
            metrics |= self.policy.optim_step()
            self._check_finite(metrics, step=step)
            parts.append(metrics)
        found = _merged(parts)
        found["updates"] = float(len(parts))
        if parts:
            found["update_nats"] = self._moved(credit.samples)
            self._check_moved(found["update_nats"], step=step)
        return found

    def _train_critic(self, groups: "Groups", credit: Credit, *, step: int) -> Metrics:
        assert self.critic is not None
        critic, parts = self._config.critic, []
        loss = LossSettings(aggregation=critic.loss_agg_mode, width=self._width, value_clip=critic.cliprange_value)
        for samples, totals in self._mini_batches(groups, credit, critic, step=step):
            metrics = self.critic.forward_backward(samples, loss, totals=totals)
            metrics |= self.critic.optim_step()
            self._check_finite(metrics, step=step)
            parts.append(metrics)
        return {f"critic/{name}": value for name, value in _merged(parts).items()}

    def _mini_batches(
        self, groups: "Groups", credit: Credit, part: ActorConfig | CriticConfig, *, step: int
    ) -> Iterator[tuple[list[TrainingSample], "Totals"]]:
        """What is trained of each mini-batch that has anything, and the totals of all of it."""
        for epoch in range(part.ppo_epochs):
            random_of_epoch = random.Random(f"{self._seed}-{step}-{epoch}")
            for names in groups.split(part.ppo_mini_batch_size, random_of_epoch):
                chosen = zip(credit.samples, credit.sources, strict=True)
                samples = [sample for sample, source in chosen if source.group in names]
                if any(sample.num_trained for sample in samples):
                    yield samples, groups.totals(names, width=self._width)

    @property
    def _width(self) -> int:
        return self._config.data.max_response_length

    def _is_on_policy(self, num_groups: int) -> bool:
        """With one update a step, the policy that is trained is the one that it is compared with. What older weights
        sampled is so only where the correction makes up for them."""
        actor = self._config.actor
        is_single = actor.ppo_epochs == 1 and num_groups <= actor.ppo_mini_batch_size
        return is_single and (self.corrects or self._config.algorithm.max_staleness == 0)

    def _loss_settings(self, *, is_on_policy: bool) -> LossSettings:
        algorithm, actor = self._config.algorithm, self._config.actor
        return LossSettings(
            clip_low=actor.clip_ratio_low,
            clip_high=actor.clip_ratio_high,
            dual_clip=actor.clip_ratio_c,
            aggregation=actor.loss_agg_mode,
            width=self._width,
            kl_coef=actor.kl_loss_coef if actor.use_kl_loss else 0.0,
            kl_kind=actor.kl_loss_type,
            entropy_coef=actor.entropy_coeff,
            importance_cap=algorithm.importance_cap if self.corrects else None,
            importance_mode=algorithm.importance_mode,
            is_on_policy=is_on_policy,
        )

    # -- divergence ----------------------------------------------------------------------------------

    def _moved(self, samples: Sequence[TrainingSample]) -> float:
        """By how many nats the update moved the log-probabilities of sampled tokens, on average of a few sequences."""
        watched = _watched(samples)
        rows = self.policy.logprobs(
            [sample.token_ids for sample in watched],
            masks=[sample.loss_mask for sample in watched],
            temperature=[sample.temperature for sample in watched],
        )
        pairs = zip(rows, watched, strict=True)
        return _distance([(row, sample.old_logprobs, sample.loss_mask) for row, sample in pairs]) or 0.0

    def _check_moved(self, nats: float, *, step: int) -> None:
        if self._config.trainer.stop_when_diverged and not nats <= DIVERGED_NATS:
            raise TrainingError(
                f"the update of step {step + 1} moved the log-probability of sampled tokens by {nats:.3g} nats on "
                f"average: the run has diverged. Lower {self._lr}, which is {self._config.actor.optim.lr:g}, and "
                "resume from the last checkpoint or start again; trainer.stop_when_diverged=False continues regardless"
            )

    def _check_finite(self, metrics: Metrics, *, step: int) -> None:
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise TrainingError(
                    f"{name} is {value} in step {step + 1}: the run has diverged. Lower {self._lr}, and resume from "
                    "the last checkpoint or start again"
                )


def mismatch(policy: "LocalPolicy", rollouts: Sequence[CollectedRollout], *, temperature: float) -> float | None:
    """How far sampler and trainer disagree about sampled tokens, in nats on average; None without any."""
    first = [(each.samples[0], each.temperatures[0] or temperature) for each in rollouts if each.samples]
    rows = policy.logprobs(
        [sample.token_ids for sample, _ in first],
        masks=[sample.loss_mask for sample, _ in first],
        temperature=[own for _, own in first],
    )
    return _distance([(row, sample.logprobs, sample.loss_mask) for row, (sample, _) in zip(rows, first, strict=True)])


def _distance(rows: "Sequence[tuple[Tensor, Sequence[float], Sequence[bool]]]") -> float | None:
    """The mean distance of log-probabilities, computed now and known before, where a mask is set; None without any."""
    found = [
        abs(value - before)
        for now, known, mask in rows
        for value, before, counts in zip(now.tolist(), known, mask, strict=True)
        if counts
    ]
    return sum(found) / len(found) if found else None


def _corrects(config: VERLConfig) -> bool:
    wanted: Any = config.algorithm.importance_correction
    if wanted != "auto":
        return bool(wanted)
    is_another = config.rollout.name in {"vllm", "openai"}
    return is_another or config.algorithm.max_staleness > 0 or config.rollout.top_p < 1 or config.rollout.top_k > 0


def _watched(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """A few trained sequences, spread over the batch, the shortest of them where all are long."""
    trained = [sample for sample in samples if sample.num_trained]
    spread = trained[:: max(1, len(trained) // NUM_WATCHED)][:NUM_WATCHED]
    kept: list[TrainingSample] = []
    for sample in sorted(spread, key=len):
        if kept and sum(map(len, kept)) + len(sample) > MAX_TOKENS_WATCHED:
            break
        kept.append(sample)
    return kept


def _merged(parts: Sequence[Metrics]) -> Metrics:
    """The mean over updates, and the greatest of what is a maximum."""
    found: Metrics = {}
    for name in {name: None for part in parts for name in part}:
        values = [part[name] for part in parts if name in part]
        found[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
    return found


# -- policy and critic, made as the settings say ------------------------------------------------------


def make_policy(config: VERLConfig, *, total_steps: int, devices: Sequence[str] | None = None) -> LocalPolicy:
    """On `devices`; None: on as many GPUs as the settings say."""
    model, rollout = config.model, config.rollout
    engine = {"max_batch": rollout.max_num_seqs, "seed": rollout.seed}
    options: LocalOptions = {
        "trainable": model.trainable,
        "lora_rank": model.lora_rank,
        "lora_alpha": model.lora_alpha,
        "target_modules": model.target_modules,
        "keeps_reference": config.actor.use_kl_loss or config.algorithm.use_kl_in_reward,
        "engine_options": {name: value for name, value in engine.items() if value is not None},
        **_shared(config, config.actor, model, total_steps=total_steps),  # type: ignore[typeddict-item]
    }
    devices = gpus(config.trainer.n_gpus_per_node) if devices is None else devices
    if len(devices) < 2:
        return LocalPolicy(model.path, **options)
    if config.actor.strategy == "copies":
        return RankedPolicy(model.path, devices=devices, **options)
    wanted = config.actor.fsdp_config
    sharding = Sharding(offloads=wanted.param_offload, reshards_after_forward=wanted.reshard_after_forward)
    return ShardedPolicy(model.path, devices=devices, sharding=sharding, **options)


def gpus(wanted: int | None) -> list[str]:
    """The devices that train together; none where the best device here does it alone."""
    if wanted is None or wanted == 1:
        return []
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        log.info("trainer.n_gpus_per_node is %d, but this machine has no GPU; using one process", wanted)
        return []
    if wanted > count:
        log.warning("trainer.n_gpus_per_node is %d, but this machine has %d; using those", wanted, count)
    return [f"cuda:{number}" for number in range(min(wanted, count))] if count > 1 else []


def make_critic(config: VERLConfig, *, total_steps: int) -> LocalCritic | None:
    if config.algorithm.adv_estimator != "gae":
        return None
    model = config.critic.model
    return LocalCritic(
        model.path,
        trainable=model.trainable,
        lora_rank=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=model.target_modules,
        **_shared(config, config.critic, model, total_steps=total_steps),
    )


def _shared(
    config: VERLConfig, part: ActorConfig | CriticConfig, model: ModelConfig | CriticModelConfig, *, total_steps: int
) -> dict[str, Any]:
    """What actor and critic both take. A token budget is for batches of any number of sequences."""
    updates = max(1, total_steps * num_updates(config, part))
    return {
        "precision": None if config.model.precision == "auto" else config.model.precision,
        "gradient_checkpointing": model.enable_gradient_checkpointing,
        "packs": model.use_remove_padding,
        "micro_batch_size": None if part.use_dynamic_bsz else part.ppo_micro_batch_size_per_gpu,
        "token_budget": _token_budget(config, part),
        "learning_rate": part.optim.lr,
        "weight_decay": part.optim.weight_decay,
        "betas": part.optim.betas,
        "grad_clip": part.grad_clip,
        "lr_scheduler": part.optim.lr_scheduler,
        "warmup_steps": part.optim.warmup_steps(updates),
        "total_steps": updates,
        "seed": config.trainer.seed,
        "attn_implementation": config.model.attn_implementation,
        "trust_remote_code": model.trust_remote_code,
    }


def _token_budget(config: VERLConfig, part: ActorConfig | CriticConfig) -> int | None:
    """The one that was asked for; None leaves it to the device."""
    sections = ["actor_rollout_ref.actor", *(["critic"] if isinstance(part, CriticConfig) else [])]
    is_given = any(config.origin(f"{section}.ppo_max_token_len_per_gpu") == "given" for section in sections)
    return part.ppo_max_token_len_per_gpu if part.use_dynamic_bsz and is_given else None


def num_updates(config: VERLConfig, part: ActorConfig | CriticConfig) -> int:
    """Updates of a full step."""
    return math.ceil(config.data.train_batch_size / part.ppo_mini_batch_size) * part.ppo_epochs
