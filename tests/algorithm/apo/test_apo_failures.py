"""What may fail: critic and editor, their edits, agents and workers."""

import logging
import threading
from typing import Any

import pytest

from sharpen import APO, PromptTemplate
from sharpen.errors import ConfigError, RunError
from tests.algorithm.apo.scenes import (
    CRITIC,
    EDITOR,
    SEED,
    VAL,
    edited,
    good_words,
    make,
    play,
    search,
    template_of,
)
from tests.algorithm.internals import NoAnswerError
from tests.algorithm.prompts.scripted_openai import KEY, Reply, Script, ScriptedOpenAI, text_of
from tests.algorithm.prompts.world import LOST, World
from tests.errors import raises


def first_of(model: str, failing: Reply, *, times: int = 1) -> Script:
    """The first calls of a model fail."""
    left, lock = [times], threading.Lock()

    def reply(request: dict[str, Any]) -> str | Reply:
        with lock:
            if request["model"] == model and left[0] > 0:
                left[0] -= 1
                return failing
        return good_words(request)

    return reply


FAILURES = {
    "timeout": Reply("too late", delay_seconds=60),
    "refusal": Reply(None, refusal="I would rather not"),
    "empty": Reply(""),
    "overloaded": Reply(status=503),
    "rate limit": Reply(status=429),
    "dropped": Reply(is_dropped=True),
    "no JSON": Reply(raw=b"{oops"),
    "cut off": Reply("", finish_reason="length"),
    "filtered": Reply("half", finish_reason="content_filter"),
}


def make_for(kind: str, server: ScriptedOpenAI, **options: Any) -> APO:
    """Impatient where patience is tried, and only there: others must not fail on a busy machine."""
    apo = make(server, **options)
    apo.async_openai_client = server.client(max_retries=0, timeout=1.0 if kind == "timeout" else 30.0)
    return apo


# -- critic and editor -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FAILURES)
async def test_a_critic_that_fails_costs_one_branch_and_not_the_run(kind: str) -> None:
    with ScriptedOpenAI(first_of(CRITIC, FAILURES[kind])) as server:
        apo = make_for(kind, server, beam_width=1, beam_rounds=1, val_batch_size=4)
        world = await search(apo)
    rejected = [each for each in apo.candidates if each.status == "rejected"]
    assert len(rejected) == 1
    assert rejected[0].critique is None
    assert rejected[0].reason is not None
    assert "critic" in rejected[0].reason
    assert rejected[0].cost.rollouts == 3  # its training batch, and no validation
    assert len(apo.candidates) == 3
    assert world.count("train") == 6


@pytest.mark.parametrize("kind", ["refusal", "empty", "timeout"])
async def test_an_edit_without_an_answer_is_asked_for_once_more(kind: str) -> None:
    with ScriptedOpenAI(first_of(EDITOR, FAILURES[kind])) as server:
        apo = make_for(kind, server, beam_width=1, branch_factor=1, beam_rounds=1)
        await search(apo)
    assert server.count(model=EDITOR) == 2
    (made,) = apo.candidates[1:]
    assert made.status != "rejected"
    assert made.reason is None
    assert made.cost.calls == 3  # also what came to nothing


BROKEN = {
    "lost {question}": edited("Answer it briefly."),
    "empty": edited("  \n "),
    "the same as its parent": edited(SEED.template),
    "white space": edited("Answer  {question}.\n"),
}


@pytest.mark.parametrize("words", BROKEN)
async def test_a_broken_edit_is_asked_for_again(words: str) -> None:
    with ScriptedOpenAI(first_of(EDITOR, Reply(BROKEN[words]))) as server:
        apo = make(server, beam_width=1, branch_factor=1, beam_rounds=1)
        await search(apo)
    (made,) = apo.candidates[1:]
    assert server.count(model=EDITOR) == 2
    assert made.status in ("kept", "best")
    assert made.reason is None
    assert made.template.template.startswith("Answer {question}. ")


@pytest.mark.parametrize("words", ["lost {question}", "the same as its parent", "white space"])
async def test_what_cannot_be_used_is_rejected_before_any_rollout_is_spent_on_it(words: str) -> None:
    with ScriptedOpenAI(first_of(EDITOR, Reply(BROKEN[words]), times=99)) as server:
        apo = make(server, beam_width=1, branch_factor=2, beam_rounds=1, edit_attempts=3)
        world = await search(apo)
    assert server.count(model=EDITOR) == 6
    assert [each.status for each in apo.candidates[1:]] == ["rejected", "rejected"]
    assert all(each.reason and words in each.reason for each in apo.candidates[1:])
    assert all(each.template.template in BROKEN[words] for each in apo.candidates[1:])  # as it was written
    assert all((each.template == SEED) == (words == "the same as its parent") for each in apo.candidates[1:])
    assert {each.prompt for each in world.played} == {SEED.template}
    assert world.count() == len(VAL) + 2 * 3
    assert apo.round == 1
    assert apo.beam == ["v0"]


async def test_a_sibling_s_twin_is_rejected_and_costs_no_validation() -> None:
    def reply(request: dict[str, Any]) -> str:
        return "Say it better." if request["model"] == CRITIC else edited("Better: {question}")

    with ScriptedOpenAI(reply) as server:
        apo = make(server, beam_rounds=1)
        world = await search(apo, World(lambda prompt, task: float("Better" in prompt)))
    assert [each.reason for each in apo.candidates if each.status == "rejected"] == ["the same as v1"] * 3
    assert world.count("val") == 2 * len(VAL)


async def test_a_prompt_that_was_dropped_before_is_not_paid_for_again() -> None:
    def reply(request: dict[str, Any]) -> str:
        """The first round makes a bad one and a good one, the second the bad one again."""
        if request["model"] == CRITIC:
            return "Say it otherwise."
        parent = template_of(text_of(request))
        return edited("Good: {question}" if parent == SEED.template and request["seed"] % 2 else "Bad: {question}")

    with ScriptedOpenAI(reply) as server:
        apo = make(server, beam_width=1, branch_factor=4, beam_rounds=2, val_batch_size=6)
        world = await search(apo, World(lambda prompt, task: float("Good" in prompt and task["number"] % 5 > 0)))
    bad = next(each for each in apo.candidates if "Bad" in each.template.template)
    assert bad.status == "dropped"
    assert [each.reason for each in apo.candidates if each.round == 2] == [f"the same as {bad.version}"] * 4
    met = [each for each in world.played if each.split == "val" and "Bad" in each.prompt]
    assert len(met) == 6  # in the first round


@pytest.mark.parametrize("kind", ["overloaded", "refusal"])
async def test_a_round_without_any_answer_ends_the_run_with_words_and_can_be_resumed(kind: str) -> None:
    is_down = [True]

    def reply(request: dict[str, Any]) -> str | Reply:
        return FAILURES[kind] if is_down[0] and request["model"] == CRITIC else good_words(request)

    world = World(play)
    with ScriptedOpenAI(reply) as server:
        with raises(RunError, 4, "critic"):
            await search(make(server), world)
        paid = world.count()
        assert paid == len(VAL) + 4 * 3
        is_down[0] = False
        again = make(server)
        again.load_state_dict(world.state)
        await search(again, world)
    assert again.round == 2
    assert again.book.best.version != "v0"
    assert again.cost.rollouts == world.count()


@pytest.mark.parametrize(("status", "named"), [(401, ()), (404, ("critic",)), (403, ())])
async def test_a_failure_that_will_not_pass_ends_the_run_at_once_and_says_what_to_do(
    status: int, named: tuple[object, ...]
) -> None:
    def reply(request: dict[str, Any]) -> Reply:
        return Reply(status=status, error=f"wrong key {KEY}")

    with ScriptedOpenAI(reply) as server:
        world = World(play)
        with raises(RunError, *named) as caught:
            await search(make(server, max_concurrent_calls=1), world)
        assert not isinstance(caught.value, NoAnswerError)
        assert KEY not in str(caught.value)
        assert len(server.requests) <= 2  # one may be on its way already; the other branches ask no more
    latest = await world.store.get_latest_resources()
    assert latest is not None
    assert latest.resources == {"prompt": SEED}


@pytest.mark.parametrize("text", ["Reason: {reasoning}. {question}", "{question:.50}", "{question} {question.text}"])
async def test_a_candidate_that_cannot_be_filled_in_is_discarded_before_any_rollout(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    def inventive(request: dict[str, Any]) -> str:
        return "Say more." if request["model"] == CRITIC else edited(text)

    with ScriptedOpenAI(inventive) as server, caplog.at_level(logging.INFO, logger="sharpen"):
        apo = make(server, beam_rounds=1)
        world = await search(apo)
    assert {each.prompt for each in world.played} == {SEED.template}
    rejected = [each for each in apo.candidates if each.status == "rejected"]
    assert [each.template.template for each in rejected] == [text] * 4
    for each in rejected:
        assert each.reason is not None
        assert each.reason in caplog.text


async def test_a_critic_without_an_answer_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    refusing = first_of(CRITIC, Reply(None, refusal="I would rather not"))
    with ScriptedOpenAI(refusing) as server, caplog.at_level(logging.INFO, logger="sharpen"):
        await search(make(server, beam_width=1, beam_rounds=1, val_batch_size=4))
    told = [record for record in caplog.records if "I would rather not" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]


# -- before anything is paid for ---------------------------------------------------------------------


async def test_a_wrong_key_is_found_before_any_rollout() -> None:
    world = World(play)
    with ScriptedOpenAI(good_words, listing=Reply(status=401, error=f"wrong key {KEY}")) as server:
        with raises(RunError, 401):
            await search(make(server), world)
        assert server.count() == world.count() == 0


async def test_a_critic_that_is_gone_is_found_before_any_rollout() -> None:
    world = World(play)
    with ScriptedOpenAI(good_words) as server:
        apo = make(server)
    with raises(RunError, "critic", "127.0.0.1"):
        await search(apo, world)
    assert world.count() == 0


async def test_a_wrong_name_of_a_model_is_told_before_any_rollout(caplog: pytest.LogCaptureFixture) -> None:
    listing = ScriptedOpenAI(good_words, models=("critic", "edit-or"))
    with listing as server, caplog.at_level(logging.INFO, logger="sharpen"):
        await search(make(server, beam_width=1, branch_factor=1, beam_rounds=1, val_batch_size=4))
    lines = [record.getMessage() for record in caplog.records]
    told = [number for number, line in enumerate(lines) if "'editor'" in line and "edit-or" in line]
    assert len(told) == 1
    assert told[0] < next(number for number, line in enumerate(lines) if "seed prompt" in line)


async def test_a_search_that_is_done_needs_no_critic_any_more() -> None:
    options: dict[str, Any] = {"beam_width": 1, "branch_factor": 1, "beam_rounds": 1, "val_batch_size": 4}
    world = World(play)
    with ScriptedOpenAI(good_words) as server:
        await search(make(server, **options), world)
        again = make(server, **options)
    again.load_state_dict(world.state)
    await search(again, world)
    assert again.round == 1


async def test_calls_run_side_by_side_up_to_the_limit() -> None:
    gate = threading.Barrier(3, timeout=20)

    def reply(request: dict[str, Any]) -> str | Reply:
        if request["model"] == CRITIC:
            gate.wait()  # nobody gets on before three are there
        return good_words(request)

    with ScriptedOpenAI(reply) as server:
        apo = make(server, beam_width=3, branch_factor=2, beam_rounds=1, max_concurrent_calls=3)
        await search(apo)
    assert server.most_at_once == 3


async def test_a_slow_branch_holds_back_no_other() -> None:
    """A candidate meets its first validation tasks while another is still made."""
    is_met, first = threading.Event(), threading.Lock()

    def reply(request: dict[str, Any]) -> str | Reply:
        if request["model"] == CRITIC and first.acquire(blocking=False):
            assert is_met.wait(20)
        return good_words(request)

    def watched(prompt: str, task: dict[str, int]) -> float:
        if prompt != SEED.template:
            is_met.set()
        return play(prompt, task)

    with ScriptedOpenAI(reply) as server:
        apo = make(server, beam_rounds=1)
        apo.async_openai_client = server.client(max_retries=0, timeout=30)
        await search(apo, World(watched))
    assert all(each.critique for each in apo.candidates[1:])


# -- agents ------------------------------------------------------------------------------------------


async def test_rollouts_that_failed_by_the_agents_fault_count_as_zero() -> None:
    def failing(prompt: str, task: dict[str, int]) -> float:
        if task["number"] < 5:
            raise ArithmeticError("divided by nothing")
        return 1.0

    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_width=1, branch_factor=1, beam_rounds=1, val_batch_size=4)
        await search(apo, World(failing))
    seed = apo.book.seed.score
    assert seed is not None
    assert (seed.mean, seed.count) == (15 / 20, 20)


async def test_the_critic_is_told_why_a_rollout_failed() -> None:
    def failing(prompt: str, task: dict[str, int]) -> float:
        if task["number"] >= 100:
            raise ArithmeticError("divided by nothing")
        return 1.0

    with ScriptedOpenAI(good_words) as server:
        await search(make(server, beam_width=1, branch_factor=1, beam_rounds=1, val_batch_size=4), World(failing))
    assert server.count(model=CRITIC, containing="ArithmeticError: divided by nothing") == 1


@pytest.mark.parametrize("is_validated", [True, False])
async def test_an_agent_that_gives_no_reward_at_all_is_an_error(is_validated: bool) -> None:
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, run_initial_validation=is_validated, beam_rounds=1)
        with raises(ConfigError, "emit_reward"):
            await search(apo, World(lambda prompt, task: None))
        if is_validated:
            assert server.requests == []


async def test_rewards_that_are_missing_here_and_there_count_as_zero_and_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def forgetful(prompt: str, task: dict[str, int]) -> float | None:
        return None if task["number"] < 5 else 1.0

    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_width=1, branch_factor=1, beam_rounds=1, val_batch_size=4)
        with caplog.at_level(logging.WARNING, logger="sharpen"):
            await search(apo, World(forgetful))
    seed = apo.book.seed.score
    assert seed is not None
    assert (seed.mean, seed.count) == (15 / 20, 20)
    assert sum("without a reward" in message for message in caplog.messages) >= 5


# -- infrastructure ----------------------------------------------------------------------------------


async def test_a_lost_rollout_is_asked_for_again_and_then_counts(caplog: pytest.LogCaptureFixture) -> None:
    lost: set[tuple[str, int]] = set()

    def once_lost(prompt: str, task: dict[str, int]) -> Any:
        place = (prompt, task["number"])
        if task["number"] in (3, 103) and place not in lost:
            lost.add(place)
            return LOST
        return play(prompt, task)

    with ScriptedOpenAI(good_words) as server:
        apo, sound = make(server, beam_rounds=1), make(server, beam_rounds=1)
        with caplog.at_level(logging.WARNING, logger="sharpen"):
            world = await search(apo, World(once_lost))
        await search(sound)
    assert any("was lost" in message and "worker-0" in message for message in caplog.messages)
    assert [each.score for each in apo.candidates] == [each.score for each in sound.candidates]
    assert apo.cost.rollouts == world.count() == sound.cost.rollouts + len(lost)


async def test_what_stays_lost_is_told_and_left_out_of_scores_and_pairs(caplog: pytest.LogCaptureFixture) -> None:
    def bad_task(prompt: str, task: dict[str, int]) -> Any:
        return LOST if task["number"] in (3, 103) else play(prompt, task)

    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=1)
        with caplog.at_level(logging.WARNING, logger="sharpen"):
            world = await search(apo, World(bad_task))
    assert apo.book.seed.score is not None
    assert apo.book.seed.score.count == len(VAL) - 1
    assert apo.book.best.version != "v0"
    assert apo.book.best.score is not None
    assert apo.book.best.score.count == len(VAL) - 1
    told = [message for message in caplog.messages if "-again2" in message]  # the last try of each
    assert len(told) == len(set(told))
    places = {text.split(" ")[1].removesuffix("-again2").rsplit("-", 1)[1] for text in told}
    assert {place.split("_")[0] for place in places} == {"val3", "train3"}
    assert any("val3" in text for text in told)
    assert any("train" in text for text in told)
    tried = [each for each in world.played if each.prompt == SEED.template and each.task["number"] == 3]
    assert len(tried) == 3
    # The critic judges the prompt by what the prompt did.
    assert server.count(model=CRITIC, containing="not heard of") == 0
    assert apo.board.metrics()["lost"] == 1


async def test_a_branch_whose_training_rollouts_are_all_lost_gives_no_candidate() -> None:
    with ScriptedOpenAI(good_words) as server:
        world = World(lambda prompt, task: LOST if task["number"] in (100, 101) else play(prompt, task))
        apo = make(server, beam_rounds=1, gradient_batch_size=1)
        await search(apo, world)
    branches = [each for each in world.played if each.split == "train" and each.task["number"] in (100, 101)]
    rejected = [each for each in apo.candidates if each.reason and "was lost" in each.reason]
    assert len({each.rollout_id.split("-again")[0] for each in branches}) == len(rejected)


async def test_when_all_is_lost_the_run_ends_and_can_go_on_later() -> None:
    is_down = [True]
    world = World(lambda prompt, task: LOST if is_down[0] else play(prompt, task))
    with ScriptedOpenAI(good_words) as server:
        with raises(RunError, "worker-0"):
            await search(make(server, beam_rounds=1), world)
        assert world.count() == 3 * len(VAL)
        is_down[0] = False
        again = make(server, beam_rounds=1)
        again.load_state_dict(world.state)
        await search(again, world)
    assert again.book.seed.score is not None
    assert again.book.seed.score.count == len(VAL)
    assert again.cost.rollouts == world.count()


async def test_a_rollout_that_does_not_end_in_time_is_cancelled_and_told(caplog: pytest.LogCaptureFixture) -> None:
    world = World(play)
    with ScriptedOpenAI(good_words) as server:
        apo = make(server, beam_rounds=1, rollout_batch_timeout=0.05)
        apo.set_store(world.store)
        apo.set_initial_resources({"prompt": SEED})
        with raises(RunError, 0.05, "rollout_batch_timeout"):
            await apo.run(VAL[:2], VAL[:3])  # nobody works
    found = await world.store.query_rollouts()
    assert [each.status for each in found.items] == ["cancelled"] * 3
    assert caplog.text.count("rollout_batch_timeout") >= 3


async def test_an_engine_that_does_not_parse_its_new_template_rejects_it() -> None:
    with ScriptedOpenAI(first_of(EDITOR, Reply(edited("Answer {{ question")))) as server:
        apo = make(server, beam_width=1, branch_factor=1, beam_rounds=1, edit_attempts=1)
        await search(apo, resources={"prompt": PromptTemplate("Answer {{ question }}.", "jinja")})
    (made,) = apo.candidates[1:]
    assert made.status == "rejected"
    assert made.reason is not None
    assert "does not parse" in made.reason
