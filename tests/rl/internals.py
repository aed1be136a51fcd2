"""What the tests use of `sharpen.rl` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.rl.env_parts import EnvParts
    from sharpen.rl.episodes_logger import EpisodesLogger
    from sharpen.rl.noise import EpisodeNoise
    from sharpen.rl.order_execution.data import Ticks, open_stock, write_stock
    from sharpen.rl.order_execution.market import FEATURES, log_prices
    from sharpen.rl.order_execution.order import save_orders
    from sharpen.rl.policies import distributions as policies_distributions, losses as policies_losses
    from sharpen.rl.policies.advantages import explained_variance, gae, n_step_returns, next_values
    from sharpen.rl.policies.normaliser import RunningMoments
    from sharpen.rl.policies.replay import transitions
    from sharpen.rl.policies.tianshou import Batch, EpisodeBuffer
    from sharpen.rl.spaces import SpaceCheck
    from sharpen.rl.trees import stack

__getattr__ = imports_on_use(__file__)
