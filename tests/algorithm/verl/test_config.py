import json
import pickle
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from sharpen.errors import ConfigError
from tests.algorithm.internals import KEYS, OTHER_NAMES, VERLConfig, read_config
from tests.errors import raises

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"


# -- what is read ------------------------------------------------------------------------------------


def test_without_a_config_the_defaults_are_those_of_the_table() -> None:
    config = read_config()
    assert config == read_config({})
    assert config.algorithm.adv_estimator == "grpo"
    assert config.data.train_batch_size == 32
    assert config.rollout.n == 4
    assert config.rollout.val_kwargs.temperature == 0.0
    assert config.actor.optim.lr == 1e-6
    assert config.actor.optim.betas == (0.9, 0.999)
    assert config.actor.use_dynamic_bsz
    assert config.model.trainable is None
    assert config.trainer.logger == ["console"]


def test_nested_and_dotted_names_mix() -> None:
    config = read_config({"data": {"train_batch_size": 8}, f"{ACTOR}.optim.lr": 1e-4, ACTOR: {"optim.weight_decay": 0}})
    assert config.data.train_batch_size == 8
    assert config.actor.optim.lr == 1e-4
    assert config.actor.optim.weight_decay == 0.0


def test_a_key_that_is_given_twice_must_have_one_value() -> None:
    assert read_config({"data": {"train_batch_size": 8}, "data.train_batch_size": 8}).data.train_batch_size == 8
    with raises(ConfigError, "data.train_batch_size", 8, 9):
        read_config({"data": {"train_batch_size": 8}, "data.train_batch_size": 9})


def test_another_name_of_a_key_sets_it_and_may_not_contradict_it() -> None:
    config = read_config({ROLLOUT: {"response_length": 64}})
    assert config.data.max_response_length == 64
    assert config.origin(f"{ROLLOUT}.response_length") == config.origin("data.max_response_length") == "given"
    with raises(ConfigError, "data.max_response_length"):
        read_config({ROLLOUT: {"response_length": 64}, "data.max_response_length": 65})


@pytest.mark.parametrize("value", ["1e-5", 1e-5, "0.00001"])
def test_numbers_may_be_text(value: Any) -> None:
    assert read_config({f"{ACTOR}.optim.lr": value}).actor.optim.lr == 1e-5


@pytest.mark.parametrize("value", ["16", 16.0, "1.6e1", 16])
def test_whole_numbers_may_be_written_in_other_ways(value: Any) -> None:
    found = read_config({"data.train_batch_size": value}).data.train_batch_size
    assert found == 16
    assert isinstance(found, int)


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("False", False), (True, True)])
def test_truth_may_be_text(value: Any, expected: bool) -> None:
    assert read_config({"data.shuffle": value}).data.shuffle is expected


def test_an_empty_key_has_its_default_unless_none_means_something() -> None:
    config = read_config(
        {"data": {"train_batch_size": None, "seed": None}, ACTOR: {"clip_ratio_c": None}, "critic": None}
    )
    assert config.data.train_batch_size == 32
    assert config.actor.clip_ratio_c is None
    assert config.origin("data.train_batch_size") == "default"


class Foreign:
    """A mapping of a package that does not say that it is one."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    def keys(self) -> Iterator[str]:
        return iter(self._content)

    def __getitem__(self, key: str) -> Any:
        return self._content[key]


@pytest.mark.parametrize("kind", [UserDict, Foreign])
def test_mappings_of_other_packages_are_taken(kind: Any) -> None:
    config = read_config(kind({"data": kind({"train_batch_size": 8}), ROLLOUT: kind({"n": 2})}))
    assert (config.data.train_batch_size, config.rollout.n) == (8, 2)


def test_a_config_is_read_as_itself() -> None:
    config = read_config({"data.train_batch_size": 8})
    assert read_config(config) is config


def test_values_of_another_key_are_followed_in_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "there")
    config = read_config(
        {
            "trainer.default_local_dir": "${oc.env:WHERE}/${trainer.experiment_name}-${data.train_batch_size}",
            "trainer.experiment_name": "mine",
            "data.max_prompt_length": "${data.max_response_length}",
            "critic.ppo_epochs": "${oc.select:.missing,3}",
        }
    )
    assert config.trainer.default_local_dir == "there/mine-32"
    assert config.data.max_prompt_length == 2048
    assert config.critic.ppo_epochs == 3


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"data.train_batch_size": "${data.train_batch_size}"}, "data.train_batch_size"),
        ({"data.train_batch_size": "${data.nowhere}"}, "data.nowhere"),
        ({"trainer.default_local_dir": "x/${oc.select:data.nowhere}"}, "data.nowhere"),
    ],
)
def test_a_reference_that_leads_nowhere_is_an_error(config: dict[str, Any], named: str) -> None:
    with raises(ConfigError, named):
        read_config(config)


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data.train_batch_size", 0),
        ("data.train_batch_size", 1.5),
        ("data.train_batch_size", True),
        ("data.train_batch_size", "many"),
        ("data.shuffle", 1),
        (f"{ACTOR}.optim.lr", 0),
        (f"{ACTOR}.optim.lr", float("nan")),
        (f"{ACTOR}.optim.lr", "inf"),
        (f"{ACTOR}.optim.betas", [0.9]),
        (f"{ACTOR}.optim.betas", "0.9,0.999"),
        (f"{ACTOR}.clip_ratio_low", 1.5),
        (f"{ACTOR}.loss_agg_mode", "mean"),
        (f"{ACTOR}.kl_loss_type", "abs"),
        (f"{ROLLOUT}.temperature", 0),
        (f"{ROLLOUT}.top_p", 0),
        (f"{ROLLOUT}.name", "sglang"),
        ("actor_rollout_ref.model.trainable", "top:0"),
        ("actor_rollout_ref.model.trainable", "some"),
        ("actor_rollout_ref.model.path", ""),
        ("actor_rollout_ref.model.target_modules", []),
        ("algorithm.importance_correction", "always"),
        ("algorithm.importance_cap", 0.5),
        ("trainer.preflight", "loose"),
        ("trainer.test_freq", -2),
        ("trainer.seed", -1),
        ("trainer.logger", 3),
        ("data.apply_chat_template_kwargs", "thinking"),
        ("data.apply_chat_template_kwargs", {"kind": object()}),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_key(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config({name: value})
    assert str(caught.value).startswith(f"{name} is ")
    assert ": use " in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("rollout.n", f"{ROLLOUT}.n"),
        ("data.batch_size", "data.train_batch_size"),
        (f"{ACTOR}.ppo_minibatch_size", f"{ACTOR}.ppo_mini_batch_size"),
        ("trainer.total_epoch", "trainer.total_epochs"),
        ("trainer.project", "trainer.project_name"),
        ("lr", f"{ACTOR}.optim.lr"),
        ("data.train_batch_size.here", "data.train_batch_size"),
    ],
)
def test_an_unknown_key_is_an_error_with_the_nearest_name(name: str, nearest: str) -> None:
    with raises(ConfigError, name, nearest):
        read_config({name: 1})


def test_a_key_like_no_other_leads_to_the_page_of_keys() -> None:
    with raises(ConfigError, "verl-keys.md"):
        read_config({"zebra.stripes": 1})


@pytest.mark.parametrize("config", [3, ["data"], {1: 2}, {"": 1}, {"data": {None: 1}}, {"data": 5}])
def test_what_is_no_config_is_refused(config: Any) -> None:
    with pytest.raises(ConfigError):
        read_config(config)


def test_a_config_that_contains_itself_is_refused() -> None:
    config: dict[str, Any] = {}
    config["data"] = config
    with pytest.raises(ConfigError):
        read_config(config)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_config(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("data: [", encoding="utf-8")
    with pytest.raises(ConfigError):
        read_config(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1", encoding="utf-8")
    with pytest.raises(ConfigError):
        read_config(tmp_path / "list.yaml")


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("", encoding="utf-8")
    assert read_config(tmp_path / "empty.yaml") == read_config()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("algorithm.kl_ctrl.type", "adaptive"),
        ("algorithm.filter_groups.enable", True),
        (f"{ACTOR}.policy_loss.loss_mode", "gspo"),
        (f"{ROLLOUT}.do_sample", False),
        ("actor_rollout_ref.model.lora.rank", 8),
        ("trainer.critic_warmup", 5),
    ],
)
def test_a_key_that_would_change_what_is_learned_is_never_passed_over(name: str, value: Any) -> None:
    with raises(ConfigError, name):
        read_config({name: value})
    assert read_config({name: None}) == read_config()


# -- what is said ------------------------------------------------------------------------------------


def test_keys_without_a_meaning_are_listed_in_one_line_with_the_reason() -> None:
    line = read_config(
        {
            "trainer": {"nnodes": 2, "project_name": "x"},
            "data.train_files": "a.parquet",
            ACTOR: {"ulysses_sequence_parallel_size": 2},
        }
    ).ignored
    assert line is not None
    assert line.startswith("4 keys of the config ")
    assert "trainer.nnodes (one process on one machine" in line
    assert "data.train_files (data sets " in line


def test_a_config_of_keys_that_act_says_nothing() -> None:
    config = read_config({"data.train_batch_size": 8, f"{ROLLOUT}.n": 2})
    assert (config.doubts, config.ignored) == ((), None)


# -- the whole ---------------------------------------------------------------------------------------


def test_the_whole_config_is_plain_json_in_the_shape_that_is_read() -> None:
    config = read_config({"data.train_batch_size": 8, ACTOR: {"clip_ratio_high": 0.28, "grad_clip": None}})
    whole = config.as_dict()
    assert json.loads(json.dumps(whole)) == whole
    assert whole["actor_rollout_ref"]["actor"]["clip_ratio_high"] == 0.28
    again = read_config(whole)
    assert again.as_dict() == whole
    assert again.origin("data.shuffle") == "given"


def test_origin_tells_what_was_given() -> None:
    config = read_config({"data.train_batch_size": 32})
    assert config.origin("data.train_batch_size") == "given"
    assert config.origin("data.max_prompt_length") == "default"
    with raises(ConfigError, "data.train_batch_size"):
        config.origin("data.train_batchsize")


def test_a_config_travels_between_processes_and_cannot_be_changed() -> None:
    config = read_config({"data.train_batch_size": 8})
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(AttributeError):
        config.data.train_batch_size = 9  # type: ignore[misc]


def test_no_two_configs_share_what_can_be_changed() -> None:
    read_config().trainer.logger.append("wandb")
    read_config().data.apply_chat_template_kwargs["x"] = 1
    assert read_config().trainer.logger == ["console"]
    assert read_config().data.apply_chat_template_kwargs == {}


# -- any mapping -------------------------------------------------------------------------------------

NAMES = st.sampled_from([*KEYS, *OTHER_NAMES, "data", "actor_rollout_ref", "trainer.nnodes", "critic.model"]) | st.text(
    max_size=8
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["1e-6", "true", "auto", "grpo", "top:3", "lora", "${data.seed}", "${.n}", "???", b"x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(NAMES, VALUES, max_size=4))
@example({"actor_rollout_ref.model.path": "a" * 5000})
@example({"trainer.default_local_dir": "~\0"})
def test_any_mapping_gives_a_config_or_a_config_error(config: dict[str, Any]) -> None:
    try:
        found = read_config(config)
    except ConfigError:
        return
    assert isinstance(found, VERLConfig)
    assert read_config(found.as_dict()).as_dict() == found.as_dict()


@pytest.mark.parametrize(
    "name", ["data.train_batch_size", f"{ACTOR}.optim.lr", "trainer.seed", "actor_rollout_ref.model.path"]
)
def test_a_number_too_long_to_write_is_refused_in_words(name: str) -> None:
    with raises(ConfigError, name):
        read_config({name: -(10**5000)})
