"""The options of components in a run's config: what differs between two runs can be told, and no secret is."""

import json
from typing import Any

from sharpen import APO, GRPO, InMemoryLightningStore, RunFolder, Trainer, rollout
from tests.trainer.internals import options_of


def test_an_algorithm_tells_what_it_was_given() -> None:
    assert options_of(GRPO(model="m", learning_rate=3e-4)) != options_of(GRPO(model="m", learning_rate=1e-4))
    assert options_of(APO(beam_width=7))["beam_width"] == 7


def test_defaults_of_classes_of_their_own_are_plain_numbers() -> None:
    told = options_of(APO())
    assert [type(told[name]) for name in ("beam_rounds", "diversity_temperature")] == [int, float]


def test_no_secret_is_told_and_nothing_that_is_no_plain_value() -> None:
    class Part:
        def __init__(self, api_key: str, headers: dict[str, str], extra: dict[str, Any], made: object) -> None:
            self.api_key, self.headers, self.extra, self.made = api_key, headers, extra, made

    part = Part("sk-1", {"x": "sk-2"}, {"token": "sk-3", "size": [1, 2], "thing": object()}, object())
    assert options_of(part) == {"api_key": "***", "headers": "***", "extra": {"token": "***", "size": [1, 2]}}


def test_no_secret_inside_of_a_text_is_told() -> None:
    class Part:
        def __init__(self, url: str, extra: dict[str, str], note: str) -> None:
            self.url, self.extra, self.note = url, extra, note

    part = Part("https://me:hush@host/x?api_key=hush&a=1", {"X-Auth": "Bearer hush"}, "token=hush" + "." * 3000)
    told = options_of(part)
    assert "hush" not in str(told)
    assert told["url"] == "https://***@host/x?api_key=***&a=1"


def test_tokens_that_are_counted_are_told() -> None:
    class Part:
        def __init__(self, max_tokens: int) -> None:
            self.max_tokens = max_tokens

    assert options_of(Part(77)) == {"max_tokens": 77}
    assert '"ppo_max_token_len_per_gpu": 16384' in json.dumps(options_of(GRPO(model="m")))


def test_the_config_of_a_run_holds_them(tmp_path: Any) -> None:
    @rollout
    def agent(task: Any) -> float:
        return 1.0

    store = InMemoryLightningStore()
    result = Trainer(strategy="shm", store=store, run_dir=tmp_path / "run", n_runners=3).dev(agent, ["a task"])
    assert result.run_dir is not None
    config = RunFolder.open(result.run_dir).read_config()
    assert config["components"]["strategy"]["options"]["n_runners"] == 3
