"""What the tests use of `sharpen.rl` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.rl.env_wrapper import EnvParts
    from sharpen.rl.order_execution.data import Ticks, open_stock, write_stock
    from sharpen.rl.order_execution.market import FEATURES, log_prices
    from sharpen.rl.order_execution.order import save_orders
    from sharpen.rl.policies.adapters import Batch, EpisodeBuffer
    from sharpen.rl.policies.dqn import double_q_target
    from sharpen.rl.policies.ppo import (
        RunningMoments,
        categorical,
        clipped_surrogate,
        clipped_value_loss,
        explained_variance,
        gae,
        gaussian,
        next_values,
        normalised,
    )
    from sharpen.rl.policies.replay import n_step_returns, transitions
    from sharpen.rl.policies.sac import soft_q_target, squashed_gaussian
    from sharpen.rl.seed import EpisodeNoise
    from sharpen.rl.spaces import SpaceCheck
    from sharpen.rl.trees import stack
    from sharpen.rl.writers import EpisodesLogger

__getattr__ = imports_on_use(__file__)
