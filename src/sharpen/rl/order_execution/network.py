"""`Recurrent`: a network for the full history of an order."""

from typing import Any, Literal, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn

_CELLS: dict[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class Recurrent(nn.Module):
    """Reads the market and the path of the order with a recurrent network each, and the direction with a small one.

    The observations are those of `FullHistoryStateInterpreter`. After "Universal Trading for Order Execution with
    Oracle Policy Distillation"; the direction is an input, so one network both buys and sells.
    """

    def __init__(
        self,
        obs_space: spaces.Dict,
        hidden_dim: int = 64,
        output_dim: int = 32,
        rnn_type: Literal["rnn", "lstm", "gru"] = "gru",
        rnn_num_layers: int = 1,
    ) -> None:
        super().__init__()
        self.output_dim = output_dim
        features = int((obs_space["data_processed"].shape or (0,))[-1])
        cell, sizes = _CELLS[rnn_type], {"num_layers": rnn_num_layers, "batch_first": True}
        self.market_in = nn.Sequential(nn.Linear(features, hidden_dim), nn.ReLU())
        self.market_rnn = cell(hidden_dim, hidden_dim, **sizes)
        self.path_in = nn.Sequential(nn.Linear(2, hidden_dim), nn.ReLU())
        self.path_rnn = cell(hidden_dim, hidden_dim, **sizes)
        self.direction = nn.Sequential(
            nn.Linear(2, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, hidden_dim), nn.ReLU()
        )
        self.out = nn.Sequential(
            nn.Linear(hidden_dim * 3, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, output_dim), nn.ReLU()
        )

    def forward(self, obs: dict[str, Any]) -> Tensor:
        buying_B = obs["acquiring"].long()
        direction_B_2 = torch.stack([buying_B, 1 - buying_B], dim=-1).float()
        parts = [self._market(obs), self._path(obs), self.direction(direction_B_2)]
        return cast(Tensor, self.out(torch.cat(parts, dim=-1)))

    def _market(self, obs: dict[str, Any]) -> Tensor:
        """Return the features of the market up to now; a row of zeros precedes the first tick."""
        tick_B = obs["cur_tick"].long()
        seen = int(tick_B.max())  # later ticks are zeros, which would only take time
        data_B_T = obs["data_processed"][:, :seen].float()
        padded = torch.cat([data_B_T.new_zeros(len(data_B_T), 1, data_B_T.shape[-1]), data_B_T], dim=1)
        return _at(self.market_rnn(self.market_in(padded))[0], tick_B)

    def _path(self, obs: dict[str, Any]) -> Tensor:
        """Return the features of the position so far, as a share of the order, over the share of steps done."""
        position_B_S = obs["position_history"].float() / obs["target"].float().unsqueeze(-1)
        steps_S = torch.arange(position_B_S.shape[-1], device=position_B_S.device)
        time_B_S = steps_S / obs["num_step"].float().unsqueeze(-1)
        path_B_S_2 = torch.stack([position_B_S, time_B_S], dim=-1)
        return _at(self.path_rnn(self.path_in(path_B_S_2))[0], obs["cur_step"].long())


def _at(out_B_T: Tensor, step_B: Tensor) -> Tensor:
    return out_B_T[torch.arange(len(out_B_T), device=out_B_T.device), step_B]
