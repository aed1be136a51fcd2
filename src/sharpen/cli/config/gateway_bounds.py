"""Upper limits for the calls and the cost of a run, from the limits and prices of its gateway.

A bound applies to calls through the gateway. If the algorithm calls models that the gateway does not list, or no limit
is set, there is no bound, and the plan says so.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec

from ...algorithm.bounds import UpperBound, least, product, sum_of

if TYPE_CHECKING:
    from ...llm_proxy.budgets.budget import Limits
    from .train_config import TrainConfig


class RunBound(msgspec.Struct, frozen=True):
    """The upper limits of a run. None is unknown, and `because` says why."""

    rollouts: int | None
    attempts: int | None
    calls: int | None
    cost: float | None
    """US dollars."""
    because: tuple[str, ...] = ()


def run_bound(config: "TrainConfig", bound: UpperBound, *, max_attempts: int, most_attempts: int | None) -> RunBound:
    """Return the bound of a run, from that of its algorithm, the retries of rollouts and the limits of the gateway."""
    limits = _limits(config)
    listed = _listed(config, bound)
    attempts = least(product(bound.rollouts, max_attempts), most_attempts)
    because = [*bound.because, f"a rollout has at most {max_attempts} attempts (rollout_config.max_attempts)"]
    if most_attempts is not None:
        because.append(f"the runners make at most {most_attempts:,} attempts (n_runners x max_rollouts)")
    calls, why_calls = _calls(bound, limits, is_listed=listed)
    cost, why_cost = _cost(config, bound, limits, is_listed=listed)
    return RunBound(bound.rollouts, attempts, calls, cost, (*because, *why_calls, *why_cost))


def _limits(config: "TrainConfig") -> "Limits":
    from ...llm_proxy.budgets.budget import Limits

    proxy = config.values.get("llm_proxy")
    with config.locating():
        return Limits.of(proxy.get("limits") if isinstance(proxy, Mapping) else None)


def _listed(config: "TrainConfig", bound: UpperBound) -> bool:
    """Whether the gateway lists the models that the algorithm calls, so that its limits apply to them too."""
    proxy = config.values.get("llm_proxy")
    entries = proxy.get("model_list") or () if isinstance(proxy, Mapping) else ()
    names = [str(entry.get("model_name")) for entry in entries if isinstance(entry, Mapping)]
    return all(any(fnmatchcase(model, name) for name in names) for model in bound.own_models)


def _calls(bound: UpperBound, limits: "Limits", *, is_listed: bool) -> tuple[int | None, list[str]]:
    of_agents = least(product(bound.rollouts, limits.rollout_calls), limits.run_calls)
    told = ["counted are calls through the gateway and calls of the algorithm"]
    if limits.run_calls is not None:
        told.append(f"the gateway allows {limits.run_calls:,} calls per run (limits.run_calls)")
    if limits.rollout_calls is not None:
        told.append(f"the gateway allows {limits.rollout_calls:,} calls per rollout (limits.rollout_calls)")
    if of_agents is None:
        told.append(
            "the number of calls per agent is unknown: set rollout_calls or run_calls in llm_proxy.limits to limit it"
        )
    if bound.own_calls:
        told.append(f"the algorithm itself makes at most {bound.own_calls:,} calls")
    elif bound.own_calls is None:
        told.append("the number of calls of the algorithm itself is unknown")
    return least(sum_of((of_agents, bound.own_calls)), limits.run_calls if is_listed else None), told


def _cost(
    config: "TrainConfig", bound: UpperBound, limits: "Limits", *, is_listed: bool
) -> tuple[float | None, list[str]]:
    if bound.own_calls != 0 and not is_listed:
        names = ", ".join(bound.own_models) or "other models"
        return None, [f"the cost is unknown: the algorithm calls {names}, which the gateway does not list"]
    if limits.run_cost is not None:
        return limits.run_cost, [f"the gateway stops the run's calls at ${limits.run_cost:g} (limits.run_cost)"]
    if limits.rollout_cost is not None and bound.rollouts is not None and bound.own_calls == 0:
        told = f"the gateway stops the calls of a rollout at ${limits.rollout_cost:g} (limits.rollout_cost)"
        return bound.rollouts * limits.rollout_cost, [told]
    if limits.run_tokens is None:
        return None, ["the cost is unknown: set run_cost in llm_proxy.limits to limit it"]
    prices = _prices(config)
    if prices is None:
        return None, ["the cost is unknown: a model of the gateway has no known price (llm_proxy.prices)"]
    told = f"{limits.run_tokens:,} tokens (limits.run_tokens) at up to ${prices:g} per million"
    return limits.run_tokens * prices / 1e6, [told]


def _prices(config: "TrainConfig") -> float | None:
    """Return the highest price per million tokens of the models that the gateway lists; None if one has no price."""
    from ...llm_proxy.budgets.prices import Prices

    proxy: Any = config.values["llm_proxy"]
    prices = Prices(proxy.get("prices") or {})
    found = []
    for entry in proxy.get("model_list") or ():
        own = [entry.get("input_cost_per_token"), entry.get("output_cost_per_token")]
        if None not in own:
            found.append(max(own) * 1e6)
            continue
        price = prices.of(entry.get("model"), entry.get("model_name"))
        if price is None:
            return None
        found.append(max(price.input, price.output))
    return max(found, default=None)
