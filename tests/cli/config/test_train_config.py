"""Reading a configuration: values and where they came from, references, overrides, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from sharpen import APO, LLM, Baseline, PromptTemplate
from sharpen.errors import ConfigError, MissingExtraError, SharpenError
from tests.algorithm.internals import stages_of
from tests.cli.internals import load_config, make_plan
from tests.cli.projects import CONFIG, write
from tests.errors import raises


def kind_of(path: Path, *overrides: str, key: tuple[str | int, ...]) -> str:
    return load_config(path, overrides).origin(key).kind


# -- what it gives -----------------------------------------------------------------------------------


def test_a_configuration_gives_agent_tasks_and_trainer(tmp_path: Path) -> None:
    config = load_config(write(tmp_path))
    train, val = config.datasets()
    assert config.agent().__name__ == "plain"
    assert (train, val) == ([{"n": 1}, {"n": 2}], [{"n": 3}, {"n": 4}, {"n": 5}])
    trainer = config.trainer(n_runners=1, seed=3)
    assert isinstance(trainer.algorithm, Baseline)
    assert (trainer.seed, type(trainer.strategy).__name__) == (3, "SharedMemoryExecutionStrategy")


def test_agents_are_found_by_file_by_module_and_by_spec(tmp_path: Path) -> None:
    classes = """
        from sharpen import LitAgent
        class Own(LitAgent):
            def __init__(self, bonus=0.0):
                super().__init__()
                self.bonus = bonus
            def rollout(self, task, resources, rollout):
                return self.bonus
    """
    path = write(tmp_path, "agent: own:Own\n", own__py=classes)
    assert load_config(path).agent().bonus == 0.0  # type: ignore[attr-defined]
    spec = 'agent={type: "own.py:Own", bonus: 2.5}'
    assert load_config(path, [spec]).agent().bonus == 2.5  # type: ignore[attr-defined]
    with raises(ConfigError, "bonsu", "bonus"):
        load_config(path, ['agent={type: "own.py:Own", bonsu: 2.5}'])


def test_two_projects_with_files_of_one_name_get_each_their_own(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a"), write(tmp_path / "b")
    (tmp_path / "b" / "agent.py").write_text("def plain(task):\n    return 2.0\n")
    assert load_config(first).agent()({"n": 1}) == 1.0  # type: ignore[operator]
    assert load_config(second).agent()({"n": 1}) == 2.0  # type: ignore[operator]


def test_a_list_of_algorithms_is_a_sequence(tmp_path: Path) -> None:
    config = load_config(write(tmp_path), ["algorithm=[Baseline, {type: Baseline, n_epochs: 2}]"])
    assert [stage.n_epochs for stage in stages_of(config.trainer().algorithm)] == [1, 2]  # type: ignore[attr-defined]


def test_specs_inside_arguments_are_built(tmp_path: Path) -> None:
    parts = """
        from sharpen import Baseline
        class Part:
            def __init__(self, size=1):
                self.size = size
        class Own(Baseline):
            def __init__(self, part):
                super().__init__()
                self.part = part
    """
    path = write(tmp_path, 'algorithm: {type: "own.py:Own", part: {type: "own.py:Part", size: 3}}', own__py=parts)
    assert load_config(path).trainer().algorithm.part.size == 3  # type: ignore[union-attr]
    misspelt = write(tmp_path, 'algorithm: {type: "own.py:Own", part: {type: "own.py:Part", sise: 3}}')
    with raises(ConfigError, "config.yaml:1", "sise"):
        load_config(misspelt)


def test_resources_are_prompts_and_models_and_keys_stay_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    path = write(
        tmp_path,
        """
        initial_resources:
          one: {type: PromptTemplate, template: "Say {n}"}
          two: {type: PromptTemplate, template_file: prompt.txt}
          three: plain text
          llm: {type: LLM, endpoint: http://localhost/v1, model: small, api_key: "${MY_KEY}"}
        """,
        prompt__txt="From a file",
    )
    found = load_config(path).trainer().initial_resources
    assert found == {
        "one": PromptTemplate("Say {n}"),
        "two": PromptTemplate("From a file"),
        "three": PromptTemplate("plain text"),
        "llm": LLM("http://localhost/v1", "small", api_key="env:MY_KEY"),
    }


# -- data --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tasks.jsonl", '{"n": "1"}\n\n{"n": "2"}\n'),
        ("tasks.json", '[{"n": "1"}, {"n": "2"}]'),
        ("tasks.csv", "n\n1\n2\n"),
    ],
)
def test_tasks_come_from_files_beside_the_configuration(tmp_path: Path, name: str, text: str) -> None:
    path = write(tmp_path, f"train_dataset: {name}\nval_dataset: {{file: {name}, limit: 1}}\n")
    (tmp_path / name).write_text(text)
    assert load_config(path).datasets() == ([{"n": "1"}, {"n": "2"}], [{"n": "1"}])


def test_tasks_come_from_parquet_and_from_functions(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    path = write(tmp_path, "train_dataset: tasks.parquet\nval_dataset: {file: 'agent.py:tasks', limit: 3}\n")
    parquet.write_table(pyarrow.table({"n": [1, 2]}), tmp_path / "tasks.parquet")
    assert load_config(path).datasets() == ([{"n": 1}, {"n": 2}], [{"n": 0}, {"n": 1}, {"n": 2}])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("tasks.jsonl", ("config.yaml:1:1", "train_dataset", "tasks.jsonl")),
        ("tasks.txt", (".jsonl", ".json", ".csv", ".parquet")),
        ("3", ("train_dataset", 3)),
        ("{file: a.jsonl, limt: 3}", ("train_dataset", "limt", "limit")),
        ("{limit: 3}", ("file", "type")),
        ("{file: a.jsonl, limit: 0}", (0, 1)),
    ],
)
def test_data_that_cannot_be_is_refused_when_the_configuration_is_read(
    tmp_path: Path, given: str, named: tuple[object, ...]
) -> None:
    with raises(ConfigError, *named):
        load_config(write(tmp_path, f"train_dataset: {given}\n"))


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.jsonl", '{"n": 1}\nnope\n', (2,)),
        ("a.json", '{"n": 1}', ()),
        ("a.csv", "n,m\n1\n", (2,)),
        ("a.jsonl", "", ()),
    ],
)
def test_a_damaged_data_file_is_told_with_its_place(
    tmp_path: Path, name: str, text: str, named: tuple[object, ...]
) -> None:
    path = write(tmp_path, f"train_dataset: {name}\n")
    (tmp_path / name).write_text(text)
    with raises(ConfigError, "config.yaml:1", *named):
        load_config(path).datasets()


# -- where values came from --------------------------------------------------------------------------


def test_each_value_is_of_the_file_an_override_the_environment_or_a_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHS", "4")
    path = write(tmp_path, "agent: agent.py:plain\nalgorithm:\n  type: Baseline\n  n_epochs: ${EPOCHS}\n")
    config = load_config(path, ["n_runners=2", "strategy=shm"])
    assert config.values["algorithm"]["n_epochs"] == 4  # read as YAML, not as a text
    values = {each.key: (each.value, each.kind, each.source) for each in make_plan(config).values}
    assert values["algorithm.type"] == ("Baseline", "file", "config.yaml:3")
    assert values["algorithm.n_epochs"] == (4, "environment", "config.yaml:4 (${EPOCHS})")
    assert values["n_runners"] == (2, "override", "override n_runners")
    assert values["algorithm.train_split"] == (0.5, "default", "default")


def test_references_have_defaults_and_can_be_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    path = write(
        tmp_path,
        """
        n_runners: ${NOT_SET:-3}
        name: "a-${NOT_SET:-b}"
        algorithm: {type: APO, gradient_model: "$${not a reference}", resource_name: "${NOT_SET:-7}"}
        """,
    )
    values = load_config(path).values
    assert (values["n_runners"], values["name"]) == (3, "a-b")
    assert values["algorithm"]["gradient_model"] == "${not a reference}"
    assert values["algorithm"]["resource_name"] == "7"  # in quotes it stays a text
    with raises(ConfigError, "config.yaml:1:1", "n_runners", "${NOT_SET}"):
        load_config(write(tmp_path, "n_runners: ${NOT_SET}\n"))


def test_secrets_are_in_no_plan_no_kept_file_and_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "hush-hush-hush")
    path = write(
        tmp_path,
        """
        agent: agent.py:plain
        strategy: shm
        algorithm: {type: APO, gradient_model: "${SERVICE_TOKEN}"}
        llm_proxy: {model_list: [{model_name: m, api_key: literal-key-text}], token: "${SERVICE_TOKEN}"}
        """,
    )
    config = load_config(path)
    plan = str(make_plan(config).values)
    kept = json.dumps(config.resolved())
    assert "hush" not in plan
    assert "literal-key-text" not in plan
    assert "${SERVICE_TOKEN}" in plan
    assert "hush" not in kept
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["algorithm.beam_rounds=0", "n_runners=${SERVICE_TOKEN}"]).trainer()
    assert "hush" not in str(caught.value)


def test_overrides_reach_into_lists_and_make_dicts_of_names(tmp_path: Path) -> None:
    path = write(tmp_path, "callbacks: [{type: EarlyStopping, patience: 1}]\nalgorithm: Baseline\n")
    overrides = [
        "callbacks.0.patience=3",
        "callbacks.1=MetricsWriter",
        "algorithm.n_epochs=2",
        "rollout_config.max_attempts=5",
    ]
    values = load_config(path, overrides).values
    assert values["callbacks"] == [{"type": "EarlyStopping", "patience": 3}, "MetricsWriter"]
    assert values["algorithm"] == {"type": "Baseline", "n_epochs": 2}
    assert values["rollout_config"] == {"max_attempts": 5}
    assert kind_of(path, *overrides, key=("algorithm", "type")) == "file"


def test_an_override_of_the_type_gives_another_algorithm(tmp_path: Path) -> None:
    assert isinstance(load_config(write(tmp_path), ["algorithm=APO"]).trainer().algorithm, APO)
    with raises(ConfigError, "config.yaml:5", "APO", "span_verbosity"):
        load_config(write(tmp_path), ["algorithm.type=APO"])


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("n_runners", ("key=value",)),
        ("a..b=3", ()),
        ("n_runner=3", ("n_runner", "n_runners")),
        ("algorithm.n_epocs=3", ("Baseline", "n_epocs", "n_epochs")),
        ("train_dataset.7.n=3", (2, 0, 7)),
        ("name=[1", ("name",)),
    ],
)
def test_an_override_that_cannot_be_is_told(tmp_path: Path, override: str, named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        load_config(write(tmp_path), [override])


def test_an_override_given_twice_is_refused(tmp_path: Path) -> None:
    with raises(ConfigError, "n_runners"):
        load_config(write(tmp_path), ["n_runners=1", "n_runners=2"])


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("algoritm: Baseline", ("config.yaml:1:1", "algoritm", "algorithm")),
        ("a: 1\na: 2", ("config.yaml:2:1", "a", 1)),
        ("- a\n- b", ("key: value",)),
        ("kind: simulater", ("config.yaml:1:1", "simulater", "simulator")),
        ("algorithm: Baselin", ("Baselin",)),
        ("algorithm: {typ: Baseline}", ("type",)),
        ("algorithm: 3", (3,)),
        ("store: [memory]", ()),
        (
            "algorithm: {type: GRPO, model: x, group_sizee: 3}",
            ("GRPO", "group_sizee", "group_size"),
        ),
        ("algorithm: {type: APO, sed: 3}", ("APO", "sed", "seed")),
        ("llm_proxy: {model_lst: []}", ("LLMProxy", "model_lst", "model_list")),
        ("callbacks:\n- {type: EarlyStopping, patienc: 3}", ("config.yaml:2", "EarlyStopping", "patienc")),
        ("rollout_config: {max_attempt: 3}", ("rollout_config", "max_attempt", "max_attempts")),
        ("initial_resources: {p: {type: Prompt}}", ("Prompt",)),
        ("initial_resources: {p: {type: PromptTemplate, template_file: x.txt}}", ()),
        ("initial_resources: {p: {type: LLM, endpoint: x}}", ("initial_resources.p",)),
        ("agent: agent", ("agent", "file.py:name")),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_the_nearest_name(
    tmp_path: Path, text: str, named: tuple[object, ...]
) -> None:
    with raises(ConfigError, *named):
        load_config(write(tmp_path, text + "\n"))


def test_a_misspelt_key_of_verl_is_told_with_its_own_line(tmp_path: Path) -> None:
    text = "algorithm:\n  type: VERL\n  config:\n    actor_rollout_ref:\n      actor:\n        clip_ratoi: 0.2\n"
    with raises(ConfigError, "config.yaml:6:9", "VERL", "clip_ratio"):
        load_config(write(tmp_path, text))


def test_references_of_verl_are_left_to_it(tmp_path: Path) -> None:
    text = """
    algorithm:
      type: VERL
      config: {data.max_prompt_length: 99, actor_rollout_ref.rollout.prompt_length: "${data.max_prompt_length}"}
    """
    algorithm: Any = load_config(write(tmp_path, text)).trainer().algorithm
    assert algorithm.settings.data.max_prompt_length == 99


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        ("agent.py:plian", ("agent.py", "plian", "plain")),
        ("agnt.py:plain", ("agnt.py", "agent.py")),
        ("no_such_module_here:x", ("no_such_module_here",)),
        ("json.py:x", ()),
    ],
)
def test_an_agent_that_is_not_there_is_told_with_the_nearest_name(
    tmp_path: Path, agent: str, named: tuple[object, ...]
) -> None:
    with raises(ConfigError, *named):
        load_config(write(tmp_path, f"agent: {agent}\n")).agent()


def test_a_value_that_a_part_refuses_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "strategy: shm\nalgorithm:\n  type: APO\n  beam_rounds: 0\n")
    with raises(ConfigError, "config.yaml:4:3", "beam_rounds", 0):
        load_config(path).trainer()
    with raises(ConfigError, "n_runners", "four"):
        load_config(path, ["algorithm=Baseline", "n_runners=four"]).trainer()


def test_a_gateway_that_cannot_be_is_told_before_a_run_begins(tmp_path: Path) -> None:
    path = write(tmp_path, "strategy: shm\nllm_proxy:\n  limits: {run_cst: 3}\n")
    with raises(ConfigError, "config.yaml:3:3", "run_cst"):
        load_config(path).trainer()


def test_a_missing_file_and_a_folder_without_a_configuration_are_told(tmp_path: Path) -> None:
    with raises(ConfigError, "nope.yaml"):
        load_config(tmp_path / "nope.yaml")
    with raises(ConfigError, "config.yaml"):
        load_config(tmp_path)


def test_a_configuration_of_another_kind_is_not_taken_for_agents(tmp_path: Path) -> None:
    config = load_config(
        write(tmp_path, "kind: simulator\nvessel: own.py:make\n", own__py="def make():\n    return 1\n")
    )
    with raises(ConfigError, "simulator", "agents"):
        config.trainer()


# -- a kept configuration ----------------------------------------------------------------------------


def test_a_kept_configuration_reads_as_the_same_from_another_folder(tmp_path: Path) -> None:
    import yaml

    config = load_config(write(tmp_path / "project", CONFIG), ["algorithm.n_epochs=2", "train_dataset=agent.py:tasks"])
    kept = tmp_path / "run" / "train.yaml"
    kept.parent.mkdir()
    kept.write_text(yaml.safe_dump(config.resolved()))
    again = load_config(kept)
    assert again.folder == config.folder
    assert again.values["algorithm"]["n_epochs"] == 2
    assert len(again.datasets()[0]) == 10  # type: ignore[arg-type]
    assert again.agent().__name__ == "plain"


def test_a_missing_package_is_told_with_its_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    path = write(tmp_path, "train_dataset: a.parquet\n")
    (tmp_path / "a.parquet").touch()
    with raises(MissingExtraError, "sharpen[parquet]"):
        load_config(path).datasets()


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("strategy.n_runners=x", ("strategy.n_runners", "n_runners", "x")),
        ("strategy.server_port=x", ("strategy.server_port", "server_port", "x")),
        ("port=abc", ()),
        ("port=7.5", ()),
    ],
)
def test_an_error_points_at_the_value_it_speaks_of(tmp_path: Path, override: str, named: tuple[object, ...]) -> None:
    path = write(tmp_path, "agent: agent.py:plain\ntrain_dataset: [1]\nalgorithm: Baseline\nn_runners: 2\n")
    overrides = [override] if override.startswith("port") else ["strategy.type=cs", override]
    with raises(ConfigError, *named):
        load_config(path, overrides).trainer()


@pytest.mark.parametrize(
    "message", ["speed_limit is 3", "cannot use speed_limit=3", "3 is too low for 'speed_limit' and for max_speed"]
)
def test_an_error_points_at_the_setting_that_it_names_anywhere(tmp_path: Path, message: str) -> None:
    code = f"""
from sharpen import Algorithm
from sharpen.errors import ConfigError

class Mine(Algorithm):
    def __init__(self, speed_limit, max_speed):
        raise ConfigError({message!r})
"""
    text = "strategy: shm\nalgorithm:\n  type: own.py:Mine\n  max_speed: 5\n  speed_limit: 3\n"
    path = write(tmp_path, text, own__py=code)
    with raises(ConfigError, "config.yaml:5:3", message):
        load_config(path).trainer()


def test_an_error_that_begins_with_a_number_points_at_no_task(tmp_path: Path) -> None:
    path = write(tmp_path, "train_dataset: [a, b, {n: 1}]\nagent: odd.py:agent\n", odd__py="agent = 2\n")
    with raises(SharpenError, "config.yaml:2:1", 2):
        load_config(path).agent()
