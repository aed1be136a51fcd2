"""The critic learns returns."""

from pathlib import Path

import pytest
import torch

from sharpen.errors import InvalidInputError
from sharpen.llm import load_model
from tests.errors import raises
from tests.llm.internals import LocalCritic, LocalOptions, LossSettings, TrainingSample

from .scenes import WAY_NAMES, WAYS, random_samples

LOSS = LossSettings(value_clip=None)


def samples() -> list[TrainingSample]:
    """Returns that follow from the token before."""
    given = random_samples(0)
    for each in given:
        each.returns = [0.0, *(1.0 if token % 2 else -1.0 for token in each.token_ids[:-1])]
        each.values = [0.0] * len(each)
    return given


def test_a_new_critic_says_nothing(model_folder: Path) -> None:
    values = LocalCritic(model_folder, device="cpu").values([[3, 4, 5], [6]])
    assert [each.tolist() for each in values] == [[0, 0, 0], [0]]


@pytest.mark.parametrize("way", WAYS[1:], ids=WAY_NAMES[1:])
def test_a_critic_learns_and_goes_on_from_its_state(model_folder: Path, tmp_path: Path, way: LocalOptions) -> None:
    options: LocalOptions = {"device": "cpu", "learning_rate": 1e-2, **way}
    critic = LocalCritic(model_folder, **options)
    losses = []
    for _ in range(12):
        losses.append(critic.forward_backward(samples(), LOSS)["value_loss"])
        critic.optim_step()
    assert losses[0] == pytest.approx(0.5)
    assert losses[-1] < 0.1
    critic.save(tmp_path)
    other = LocalCritic(model_folder, **options)
    other.load(tmp_path)
    sequences, masks = [x.token_ids for x in samples()], [x.loss_mask for x in samples()]
    for one, two in zip(critic.values(sequences, masks=masks), other.values(sequences, masks=masks), strict=True):
        assert torch.equal(one, two)
    assert critic.num_updates == other.num_updates == 12


def test_the_value_of_a_token_is_read_before_it(model_folder: Path) -> None:
    critic = LocalCritic(model_folder, device="cpu", learning_rate=1e-2)
    critic.forward_backward(samples(), LOSS)
    critic.optim_step()
    one, other = critic.values([[5, 9, 7], [5, 9, 8]])
    assert torch.equal(one, other)
    assert one[2] != 0


def test_values_clip_and_returns_are_needed(model_folder: Path) -> None:
    critic = LocalCritic(model_folder, device="cpu")
    assert "value_clip_share" in critic.forward_backward(samples(), LossSettings())
    with raises(InvalidInputError, 0):
        critic.forward_backward(random_samples(0), LOSS)


def test_the_model_itself_is_not_written_to(model_folder: Path) -> None:
    before = load_model(model_folder, device="cpu").model.state_dict()
    critic = LocalCritic(model_folder, device="cpu", trainable="top:1")
    critic.forward_backward(samples(), LOSS)
    critic.optim_step()
    after = load_model(model_folder, device="cpu").model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
