"""What a user sets, calls and overrides."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from openai import OpenAI

from sharpen import APO, PromptTemplate
from sharpen.errors import ConfigError, InvalidInputError, RunError
from tests.algorithm.apo.scenes import CRITIC, EDITOR, SEED, TRAIN, VAL, edited, good_words, make, play, search
from tests.algorithm.internals import RolloutResultForAPO, VersionedPromptTemplate
from tests.algorithm.prompts.scripted_openai import Reply, ScriptedOpenAI
from tests.algorithm.prompts.world import LOST, World
from tests.errors import raises

NOW = VersionedPromptTemplate("v0", SEED, 0.5)
RESULTS: list[RolloutResultForAPO] = [
    {"status": "succeeded", "final_reward": number + 0.125, "spans": [], "messages": []} for number in range(10)
]


# -- settings ----------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_document() -> None:
    apo = APO()
    assert (apo.gradient_model, apo.apply_edit_model) == ("gpt-5-mini", "gpt-4.1-mini")
    assert (apo.beam_width, apo.branch_factor, apo.beam_rounds) == (4, 4, 3)
    assert (apo.gradient_batch_size, apo.val_batch_size, apo.diversity_temperature) == (4, 16, 1.0)
    assert (apo.rollout_batch_timeout, apo.run_initial_validation) == (3600.0, True)
    assert (apo.patience, apo.promotion) == (None, "interval")


def test_two_settings_have_another_name() -> None:
    apo = APO(max_iterations=5, temperature=0.25)
    assert (apo.beam_rounds, apo.diversity_temperature) == (5, 0.25)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"beam_rounds": 3, "max_iterations": 3}, ("max_iterations", "beam_rounds")),
        ({"diversity_temperature": 1.0, "temperature": 1.0}, ("temperature", "diversity_temperature")),
    ],
)
def test_both_names_of_a_setting_are_an_error_even_with_its_default(given: Any, named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        APO(**given)


BAD: dict[str, tuple[Any, ...]] = {
    "gradient_model": ("", "  ", None, 5),
    "apply_edit_model": ("", None),
    "diversity_temperature": (-0.1, 2.5, float("nan"), "warm", True, None),
    "temperature": (-1, "warm"),
    "gradient_batch_size": (0, -1, 1.5, "4", True),
    "val_batch_size": (0, 2.5, "16"),
    "beam_width": (0, "2"),
    "branch_factor": (0, 1.5),
    "beam_rounds": (0, 2.5, "3", True),
    "max_iterations": (0, 2.5),
    "rollout_batch_timeout": (0, -1.0, float("nan"), "soon", None),
    "patience": (0, -1, 1.5),
    "promotion": ("always", None, 1),
    "max_concurrent_calls": (0, 1.5),
    "edit_attempts": (0,),
    "train_split": (0, 1, -1, "half", float("nan")),
    "seed": ("seven", 1.5, True),
    "max_response_tokens": (0,),
    "critique_prompts": ([], "one text", ["{prompt} alone"], [Path("nowhere.txt")]),
    "edit_prompts": ([], ["{prompt} alone"], ["{critique} {rollouts} {prompt}"]),
    "async_openai_client": ("sk-secret", object()),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_an_error_that_names_the_setting(name: str, value: Any) -> None:
    name_told = {"max_iterations": "beam_rounds", "temperature": "diversity_temperature"}.get(name, name)
    with raises(ConfigError, name_told):
        APO(**{name: value})


def test_a_client_that_is_not_async_is_an_error_at_once() -> None:
    with raises(ConfigError, "OpenAI", "openai.AsyncOpenAI"):
        APO(OpenAI(api_key="none"))  # type: ignore[arg-type]


async def test_without_client_key_and_gateway_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    world = World(play)
    with raises(ConfigError, "OPENAI_API_KEY", "async_openai_client="):
        await search(APO(), world)
    assert world.played == []


async def test_a_key_in_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedOpenAI(good_words) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-from-the-environment")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        apo = APO(gradient_model=CRITIC, apply_edit_model=EDITOR, beam_width=1, branch_factor=1, beam_rounds=1)
        await search(apo)
    assert {each.key for each in server.requests} == {"sk-from-the-environment"}


async def test_the_temperature_is_that_of_the_calls() -> None:
    with ScriptedOpenAI(good_words) as server:
        await search(make(server, beam_width=1, branch_factor=1, beam_rounds=1, temperature=0.25))
    assert {each.body["temperature"] for each in server.requests} == {0.25}


# -- parts that can be called ------------------------------------------------------------------------


async def test_a_gradient_is_the_critics_words_about_at_most_a_batch_of_results() -> None:
    with ScriptedOpenAI("Too short.") as server:
        apo = make(server, gradient_batch_size=3)
        assert await apo.compute_textual_gradient(NOW, RESULTS, prefix="mine") == "Too short."
    (asked,) = server.requests
    assert asked.model == CRITIC
    assert asked.text.count(".125") == 3


async def test_what_is_asked_outside_of_a_run_is_asked_every_time() -> None:
    """There a prefix is a name for the log and nothing else."""
    with ScriptedOpenAI(good_words) as server:
        apo = make(server)
        for text in ("One {question}", "Two {question}"):
            current = VersionedPromptTemplate("v1", PromptTemplate(text))
            new = await apo.textual_gradient_and_apply_edit(current, RESULTS[:2], prefix="[round 1]")
            assert new is not None
            assert new.startswith(text)
    assert len(server.requests) == 4


async def test_a_gradient_without_an_answer_is_none_and_so_is_its_edit() -> None:
    with ScriptedOpenAI(Reply(None, refusal="no")) as server:
        apo = make(server)
        assert await apo.compute_textual_gradient(NOW, RESULTS) is None
        assert await apo.textual_gradient_and_apply_edit(NOW, RESULTS) is None
    assert server.count(model=EDITOR) == 0


async def test_a_gradient_needs_results() -> None:
    with ScriptedOpenAI("x") as server, pytest.raises(InvalidInputError):
        await make(server).compute_textual_gradient(NOW, [])


async def test_prompts_are_evaluated_only_within_a_run() -> None:
    with ScriptedOpenAI("x") as server, raises(ConfigError, "Trainer.fit"):
        await make(server).evaluate_prompt_on_batch(NOW, "prompt", VAL, "val")


def test_there_is_no_best_prompt_before_a_run() -> None:
    with pytest.raises(ConfigError):
        APO().get_best_prompt()


def test_the_seed_can_be_asked_for_before_a_run() -> None:
    apo = APO()
    apo.set_initial_resources({"mine": SEED})
    assert apo.get_seed_prompt_template() == ("mine", SEED)


def test_it_travels_without_what_belongs_to_its_process() -> None:
    apo = APO(seed=3, beam_rounds=2)
    again = cloudpickle.loads(cloudpickle.dumps(apo))
    assert (again.beam_rounds, again.state_dict()) == (2, {})


# -- within a run ------------------------------------------------------------------------------------


class Own(APO):
    """A search of a user's own, from the public parts."""

    async def search(self) -> None:
        self.found = await self.steps()

    async def steps(self) -> Any:
        raise NotImplementedError


async def run_own(kind: type[Own], world: World) -> Any:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, kind)
        await search(apo, world)
    return apo.found  # type: ignore[attr-defined]


async def test_a_prompt_is_evaluated_on_a_batch_and_paid_for_once() -> None:
    world = World(play)

    class Twice(Own):
        async def steps(self) -> Any:
            name, template = self.get_seed_prompt_template()
            prompt = VersionedPromptTemplate("v9", PromptTemplate(template.template + " briefly exactly"))
            first = await self.evaluate_prompt_on_batch(prompt, name, VAL[:10], "val", prefix="[a]")
            paid = world.count()
            second = await self.evaluate_prompt_on_batch(prompt, name, VAL[:10], "val", prefix="[b]")
            assert world.count() == paid == 10
            await self.evaluate_prompt_on_batch(prompt, name, TRAIN[:2], "train", prefix="[a] once/more")
            await self.evaluate_prompt_on_batch(prompt, name, TRAIN[:2], "train", prefix="[a] once/more")
            await self.evaluate_prompt_on_batch(prompt, name, TRAIN[:2], "train", prefix="[b]")
            assert world.count("train") == 4
            self.add_to_book(prompt)
            await self.evaluate("v9", self.val_items)  # the search knows what was paid for here
            assert world.count("val") == 20
            return first, second

        def add_to_book(self, prompt: VersionedPromptTemplate) -> None:
            from tests.algorithm.internals import Candidate

            self.add(Candidate(prompt.version, {"prompt": prompt.prompt_template}))

    (results, score), (_, again) = await run_own(Twice, world)
    assert score == again == pytest.approx(0.4)
    assert [each["final_reward"] for each in results] == [1.0] * 4 + [0.0] * 6
    assert {each["status"] for each in results} == {"succeeded"}
    assert all(each["spans"] for each in results)


async def test_the_same_task_twice_in_a_batch_is_two_rollouts() -> None:
    world = World(lambda prompt, task: 1.0)

    class Doubled(Own):
        async def steps(self) -> Any:
            return await self.evaluate_prompt_on_batch(NOW, "prompt", ["task", "task", {1: {2}}, object()], "val")

    results, score = await run_own(Doubled, world)
    assert len(results) == world.count() == 4
    assert score == 1.0


async def test_a_lost_rollout_is_among_the_results_and_marked() -> None:
    class Evaluating(Own):
        async def steps(self) -> Any:
            return await self.evaluate_prompt_on_batch(NOW, "prompt", VAL[:3], "val")

    def play_lost(prompt: str, task: dict[str, int]) -> Any:
        return LOST if task["number"] == 1 else 1.0

    results, score = await run_own(Evaluating, World(play_lost))
    assert [each["is_lost"] for each in results] == [False, True, False]
    assert score == 1.0
    with raises(RunError, "v0"):
        await run_own(Evaluating, World(lambda prompt, task: LOST))


async def test_an_empty_batch_is_an_error() -> None:
    class Evaluating(Own):
        async def steps(self) -> Any:
            return await self.evaluate_prompt_on_batch(NOW, "prompt", [], "val")

    with pytest.raises(InvalidInputError):
        await run_own(Evaluating, World(play))


# -- overriding --------------------------------------------------------------------------------------


async def test_a_subclass_may_say_where_it_begins() -> None:
    class Mine(APO):
        def get_seed_prompt_template(self) -> tuple[str, PromptTemplate]:
            return "mine", PromptTemplate("Mine: {question}")

    with ScriptedOpenAI(good_words) as server:
        apo = make(server, Mine, beam_rounds=1)
        world = await search(apo, resources=None)
    assert apo.candidates[0].prompts == {"mine": PromptTemplate("Mine: {question}")}
    assert all("mine" in each.resources for each in world.played)


async def test_a_subclass_may_criticise_without_a_model_and_need_not_pass_the_prefix_on() -> None:
    class Mine(APO):
        async def compute_textual_gradient(
            self, current_prompt: Any, rollout_results: Sequence[Any], *, prefix: str | None = None
        ) -> str | None:
            seen.append(len(rollout_results))
            return "It lacks the word: twice"

        async def textual_gradient_and_apply_edit(
            self, current_prompt: Any, rollout: Sequence[Any], *, prefix: str | None = None
        ) -> str | None:
            return await super().textual_gradient_and_apply_edit(current_prompt, rollout)

    seen: list[int] = []
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, Mine, beam_rounds=1)
        await search(apo)
    assert seen == [3] * 4
    assert server.count(model=CRITIC) == 0
    assert apo.get_best_prompt().template == "Answer {question}. twice"
    assert apo.candidates[1].cost.calls == 1  # it is still counted where it belongs


async def test_two_critiques_in_one_branch_are_two_answers() -> None:
    class Mine(APO):
        async def textual_gradient_and_apply_edit(
            self, current_prompt: Any, rollout: Sequence[Any], *, prefix: str | None = None
        ) -> str | None:
            for each in rollout[:2]:
                await self.compute_textual_gradient(current_prompt, [each], prefix=prefix)
            return f"{current_prompt.prompt_template.template} briefly"

    with ScriptedOpenAI(good_words) as server:
        apo = make(server, Mine, beam_width=1, branch_factor=1, beam_rounds=1)
        await search(apo)
    assert server.count(model=CRITIC) == 2
    assert apo.candidates[1].cost.calls == 2


@pytest.mark.parametrize(("text", "reason"), [(None, "no new prompt was created"), ("lost", "it lost {question}")])
async def test_what_a_subclass_makes_is_checked_before_any_rollout_is_spent(text: str | None, reason: str) -> None:
    class Mine(APO):
        async def textual_gradient_and_apply_edit(
            self, current_prompt: Any, rollout: Sequence[Any], *, prefix: str | None = None
        ) -> str | None:
            return text

    with ScriptedOpenAI(good_words) as server:
        apo = make(server, Mine, beam_rounds=1)
        world = await search(apo)
    assert [(each.status, each.reason) for each in apo.candidates[1:]] == [("rejected", reason)] * 4
    assert {each.prompt for each in world.played} == {SEED.template}


async def test_a_subclass_may_change_what_the_critic_is_shown() -> None:
    class Mine(APO):
        async def get_rollout_results(
            self, rollouts: Sequence[Any], *, prefix: str | None = None
        ) -> list[RolloutResultForAPO]:
            found = await super().get_rollout_results(rollouts, prefix=prefix)
            return [{**each, "error": "shown by me"} for each in found]  # type: ignore[typeddict-item]

        async def evaluate_prompt_on_batch(self, *args: Any, **kwargs: Any) -> Any:
            results, score = await super().evaluate_prompt_on_batch(*args, **kwargs)
            modes.append(args[3])
            return results[:1], score

    modes: list[str] = []
    with ScriptedOpenAI(good_words) as server:
        await search(make(server, Mine, beam_rounds=1))
    assert modes == ["train"] * 4
    for each in server.requests:
        if each.model == CRITIC:
            assert each.text.count("shown by me") == 1


async def test_own_words_for_critic_and_editor_replace_ours(tmp_path: Path) -> None:
    path = tmp_path / "edit.txt"
    path.write_text("Rewrite <template>\n{prompt}\n</template> by {critique}, keep {placeholders}")
    with ScriptedOpenAI(
        lambda request: "Better." if request["model"] == CRITIC else edited("New {question}")
    ) as server:
        apo = make(server, beam_rounds=1, critique_prompts=["Judge {prompt} by {rollouts}"], edit_prompts=[path])
        await search(apo)
    assert server.count(model=CRITIC, containing="Judge Answer {question}. by") == 4
    assert server.count(model=EDITOR, containing="by Better., keep {question}") == 4
