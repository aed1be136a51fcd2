"""Triplets: which calls count, in which order, and with which reward."""

import pickle

import pytest
from hypothesis import given, strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sharpen.adapter import (
    Adapter,
    LlmProxyTraceToTriplet,
    OtelTraceAdapter,
    RewardMatchPolicy,
    TraceAdapter,
    TracerTraceToTriplet,
    TraceToTriplet,
)
from sharpen.errors import ConfigError
from sharpen.semconv import PRIMARY_REWARD_VALUE, SHARPEN_LLM_CALL
from tests.adapter.internals import for_models
from tests.errors import raises

from .traces import gateway, llm, operation, reward, scoring, span


def calls(spans, **options):
    """The ids of the calls and their rewards, as one reads a trace."""
    return [(t.metadata["span_id"], t.reward) for t in TracerTraceToTriplet(**options).adapt(spans)]


def names(spans, **options):
    return [name for name, _ in calls(spans, **options)]


# -- the contract of adapters ------------------------------------------------------------------------


def test_an_adapter_of_ones_own_needs_only_adapt():
    class Length(TraceAdapter[int]):
        def adapt(self, source):
            return len(source)

    assert Length()([span("a"), span("b")]) == Length().adapt([span("a"), span("b")]) == 2


def test_the_bases_cannot_be_used_as_they_are():
    for base in (Adapter, TraceAdapter, OtelTraceAdapter):
        with pytest.raises(TypeError):
            base()


def test_the_shorter_name_is_the_same_adapter():
    assert TraceToTriplet is TracerTraceToTriplet


def test_an_adapter_travels():
    adapter = pickle.loads(pickle.dumps(TracerTraceToTriplet(agent_match="writer", reward_match="first_sibling")))
    assert adapter.agent_match == "writer"
    assert adapter.reward_match == "first_sibling"


def test_spans_of_the_opentelemetry_sdk_are_taken_too():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    with (
        tracer.start_as_current_span("agent", attributes={"gen_ai.agent.name": "writer"}),
        tracer.start_as_current_span("chat m", attributes={"gen_ai.operation.name": "chat", "prompt_token_ids": [1]}),
    ):
        pass
    tracer.start_span("score", attributes={PRIMARY_REWARD_VALUE: 0.5}).end()
    [triplet] = TracerTraceToTriplet()(exporter.get_finished_spans())
    assert (triplet.prompt, triplet.reward, triplet.metadata["agent_name"]) == ({"token_ids": [1]}, 0.5, "writer")


# -- what a triplet holds ----------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["sharpen__llm__", ""])
def test_token_ids_and_log_probabilities_come_from_the_trace(prefix):
    recorded = {"prompt_token_ids": [1, 2], "response_token_ids": [3], "response_logprobs": [-0.25]}
    call = llm("call", 1.0, response_id="resp-1", said="hi", **{prefix + key: value for key, value in recorded.items()})
    [triplet] = TracerTraceToTriplet().adapt([call])
    assert triplet.prompt == {"token_ids": [1, 2]}
    assert triplet.response == {"token_ids": [3], "logprobs": [-0.25]}
    assert triplet.metadata == {"response_id": "resp-1", "agent_name": None, "span_id": "call"}


def test_token_ids_written_as_json_and_for_several_choices_are_read():
    [triplet] = TracerTraceToTriplet().adapt(
        [llm("call", 1.0, prompt_token_ids="[1, 2]", response_token_ids="[[3, 4], [5]]")]
    )
    assert (triplet.prompt["token_ids"], triplet.response["token_ids"]) == ([1, 2], [3, 4])


def test_choices_after_the_first_are_told_with_what_is_known_of_each():
    call = llm(
        "call",
        1.0,
        prompt_token_ids=[1],
        response_token_ids="[[3, 4], [5], []]",
        response_logprobs="[[-1.0, -2.0], [-3.0], []]",
        sharpen__llm__weights_versions='[["7", "7"], ["8"], []]',
        gen_ai__response__finish_reasons=["stop", "length", "stop"],
    )
    [triplet] = TracerTraceToTriplet().adapt([call])
    assert triplet.response == {"token_ids": [3, 4], "logprobs": [-1.0, -2.0]}
    assert triplet.metadata["further_choices"] == [
        {"token_ids": [5], "logprobs": [-3.0], "weights_versions": ["8"], "finish_reason": "length"},
        {"token_ids": [], "logprobs": [], "finish_reason": "stop"},
    ]


def test_log_probabilities_that_do_not_fit_the_choices_are_nobodys():
    call = llm(
        "call", 1.0, prompt_token_ids=[1], response_token_ids="[[3], [4], [5]]", response_logprobs="[[-1], [-2]]"
    )
    [triplet] = TracerTraceToTriplet().adapt([call])
    assert [each["logprobs"] for each in triplet.metadata["further_choices"]] == [[], []]


def test_choices_of_completions_that_did_not_all_come_may_be_of_other_prompts():
    ids = ([1], "[[3], [4]]")
    told = {"gen_ai__operation__name": "text_completion", "gen_ai__request__choice__count": 2}
    whole = gateway("whole", 1.0, 2.0, ids, **told)
    cut = gateway("cut", 3.0, 4.0, ids, **told, sharpen__llm__is_complete=False)
    one, other = TracerTraceToTriplet().adapt([whole, cut])
    assert len(one.metadata["further_choices"]) == 1
    assert other.metadata["num_untrained_choices"] == 1


def test_without_token_ids_the_messages_stand_in():
    [triplet] = TracerTraceToTriplet().adapt([llm("call", 1.0, said="hi")])
    assert triplet.prompt == {"token_ids": [], "messages": [{"role": "user", "content": "hi"}]}
    assert triplet.response == {"token_ids": [], "messages": [{"role": "assistant", "content": "HI"}]}


def test_a_call_whose_content_was_not_recorded_still_counts():
    [triplet] = TracerTraceToTriplet().adapt([llm("call", 1.0, 2.0), reward(1.0, 3.0)])
    assert (triplet.prompt, triplet.response, triplet.reward) == ({"token_ids": []}, {"token_ids": []}, 1.0)


def test_a_broken_attribute_costs_no_more_than_itself(caplog):
    broken = llm("call", 1.0, gen_ai__input__messages='[{"role": "us', prompt_token_ids="[1, 2")
    [triplet] = TracerTraceToTriplet().adapt([broken])
    assert triplet.prompt == {"token_ids": []}
    assert "gen_ai.input.messages of span call" in caplog.text


# -- which spans are calls ---------------------------------------------------------------------------


@pytest.mark.parametrize("operation_name", ["chat", "text_completion", "generate_content"])
def test_a_call_is_known_by_its_genai_operation(operation_name):
    assert names([span("anything", 1.0, gen_ai__operation__name=operation_name)]) == ["anything"]


def test_a_call_is_known_by_the_older_span_name():
    assert names([span("openai.chat.completion", 1.0), span("openai.chat.completions.create", 2.0)]) == [
        "openai.chat.completion",
        "openai.chat.completions.create",
    ]


def test_other_spans_are_no_calls():
    others = [span("embeddings", 1.0, gen_ai__operation__name="embeddings"), span("openaiXchatXcompletion", 2.0)]
    tool = span("execute_tool search", 3.0, gen_ai__operation__name="execute_tool")
    assert names([*others, tool, span("odd", 4.0, gen_ai__operation__name=["chat"]), reward(1.0, 5.0)]) == []


def test_a_pattern_replaces_both_rules():
    spans = [llm("call", 1.0), span("openai.chat.completion", 2.0), span("my.llm/generate", 3.0)]
    assert names(spans, llm_call_match=r"my\.llm") == ["my.llm/generate"]


def test_a_failed_call_gives_no_triplet_and_takes_no_reward():
    spans = [llm("good", 1.0, 2.0), llm("bad", 3.0, 4.0, error=True), reward(1.0, 5.0)]
    assert calls(spans) == [("good", 1.0)]


def test_a_call_that_broke_off_after_its_response_began_counts():
    assert names([llm("cut", 1.0, 2.0, error=True, response_id="r"), llm("said", 3.0, error=True, said="x")]) == [
        "cut",
        "said",
    ]


@pytest.mark.parametrize("option", ["llm_call_match", "agent_match"])
@pytest.mark.parametrize("pattern", ["(", 3])
def test_a_wrong_pattern_is_refused_by_name(option, pattern):
    with raises(ConfigError, option):
        TracerTraceToTriplet(**{option: pattern})


# -- one call seen several times ---------------------------------------------------------------------


def test_two_instrumentations_of_one_call_make_one_triplet():
    spans = [
        llm("outer", 1.0, 3.0, response_id="resp-1", said="hi"),
        llm("inner", 1.5, 2.5, parent="outer", response_id="resp-1", prompt_token_ids=[1]),
        llm("next", 4.0, 5.0, response_id="resp-2"),
    ]
    triplets = TracerTraceToTriplet().adapt(spans)
    assert [t.metadata["span_id"] for t in triplets] == ["outer", "next"]
    assert triplets[0].prompt == {"token_ids": [1]}


def test_calls_inside_each_other_with_responses_of_their_own_all_count():
    spans = [llm("a", 1.0, 9.0, response_id="1"), llm("b", 2.0, 3.0, parent="a", response_id="2")]
    assert names(spans) == ["a", "b"]
    assert names([llm("a", 1.0, 9.0), llm("b", 2.0, 3.0, parent="a")]) == ["a", "b"]


def test_what_the_gateway_saw_completes_the_agents_own_span():
    spans = [
        operation("writer", 0.0, 9.0),
        llm("call", 1.0, 3.0, parent="writer", response_id="resp-1"),
        gateway("seen", 1.1, 2.9, ([1, 2], [3]), gen_ai__response__id="resp-1"),
        reward(0.5, 4.0),
    ]
    for adapter in (TracerTraceToTriplet(agent_match="writer"), LlmProxyTraceToTriplet(agent_match="writer")):
        [triplet] = adapter.adapt(spans)
        assert (triplet.prompt["token_ids"], triplet.response["token_ids"]) == ([1, 2], [3])
        assert triplet.metadata == {"response_id": "resp-1", "agent_name": "writer", "span_id": "call"}
        assert triplet.reward == 0.5


def test_the_gateway_is_paired_also_when_its_clock_is_wrong():
    spans = [
        llm("call", 100.0, 101.0, response_id="r"),
        gateway("seen", 1.0, 2.0, ([1], [2]), gen_ai__response__id="r"),
    ]
    [triplet] = TracerTraceToTriplet().adapt(spans)
    assert triplet.metadata["span_id"] == "call"
    assert triplet.response == {"token_ids": [2]}


def test_a_gateway_span_below_the_agents_own_needs_no_response_id():
    spans = [llm("call", 1.0, 3.0), gateway("seen", 1.1, 2.9, ([1], [2]), parent="call")]
    [triplet] = TracerTraceToTriplet().adapt(spans)
    assert (triplet.metadata["span_id"], triplet.prompt) == ("call", {"token_ids": [1]})


def test_a_server_that_gives_every_response_the_same_id_hides_no_call():
    seen = [gateway(f"g{n}", n, n + 0.5, ([n], [n]), gen_ai__response__id="same") for n in range(3)]
    own = [llm(f"c{n}", n, n + 0.5, response_id="same") for n in range(3)]
    triplets = TracerTraceToTriplet().adapt([*seen, *own])
    assert [(t.metadata["span_id"], t.prompt["token_ids"]) for t in triplets] == [("c0", [0]), ("c1", [1]), ("c2", [2])]


# -- whose calls -------------------------------------------------------------------------------------

TEAM = [
    span("invoke_agent boss", 0.0, 20.0, id="boss", gen_ai__agent__name="boss"),
    llm("plan", 1.0, 2.0, parent="boss"),
    operation("writer", 3.0, 9.0, parent="boss"),
    llm("draft", 4.0, 5.0, parent="writer"),
    span("step", 6.0, 9.0, parent="writer"),
    llm("polish", 7.0, 8.0, parent="step"),
    span("critic", 10.0, 12.0, parent="boss"),
    llm("review", 10.5, 11.0, parent="critic"),
    llm("alone", 30.0, 31.0, gen_ai__agent__name="loner"),
]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("writer", ["draft", "polish"]),
        ("critic", ["review"]),
        ("^boss$", ["plan", "draft", "polish", "review"]),
        ("writer|critic", ["draft", "polish", "review"]),
        ("loner", ["alone"]),
        ("nobody", []),
        (None, ["plan", "draft", "polish", "review", "alone"]),
    ],
)
def test_only_the_calls_of_the_named_agent_count(pattern, expected):
    assert names(TEAM, agent_match=pattern) == expected


def test_the_metadata_name_the_agent():
    def agents(**options):
        triplets = TracerTraceToTriplet(**options).adapt(TEAM)
        return {t.metadata["span_id"]: t.metadata["agent_name"] for t in triplets}

    assert agents() == {"plan": "boss", "draft": "boss", "polish": "boss", "review": "boss", "alone": "loner"}
    assert agents(agent_match="writer|critic") == {"draft": "writer", "polish": "writer", "review": "critic"}


def test_the_name_of_a_call_itself_is_no_agent():
    assert names([llm("call", 1.0)], agent_match="chat small") == []


def test_a_call_that_lost_its_parent_is_found_below_its_agent_by_repair():
    spans = [operation("writer", 0.0, 5.0), llm("lost", 1.0, 2.0, parent="gone"), llm("beside", 3.0, 4.0)]
    assert names(spans, agent_match="writer") == ["lost", "beside"]
    assert names(spans, agent_match="writer", repair_hierarchy=False) == []


def test_agents_that_run_side_by_side_keep_their_calls():
    spans = [
        operation("left", 0.0, 10.0),
        operation("right", 1.0, 9.0),
        llm("l", 2.0, 3.0, parent="left"),
        llm("r", 2.5, 3.5, parent="right"),
    ]
    assert names(spans, agent_match="left") == ["l"]
    assert names(spans, agent_match="right") == ["r"]


# -- calls made to find a reward ---------------------------------------------------------------------

JUDGED = [
    llm("answer", 1.0, 2.0),
    scoring("judge", 3.0, 6.0, 0.5),
    span("ask", 3.5, 5.5, parent="judge"),
    llm("verdict", 4.0, 5.0, parent="ask"),
]


def test_calls_of_a_scoring_function_are_left_out():
    assert calls(JUDGED) == [("answer", 0.5)]
    assert calls([*JUDGED[:3], llm("verdict", 4.0, 5.0, parent="gone")]) == [("answer", 0.5)]


def test_calls_of_a_scoring_function_can_be_kept():
    assert calls(JUDGED, exclude_llm_call_in_reward=False) == [("answer", 0.5), ("verdict", None)]


def test_what_runs_beside_a_scoring_function_is_not_left_out():
    assert names([*JUDGED, llm("next", 3.2, 4.2)]) == ["answer", "next"]


# -- rewards -----------------------------------------------------------------------------------------


def test_each_call_gets_the_reward_that_follows_it():
    spans = [llm("a", 1.0, 2.0), reward(0.1, 3.0), llm("b", 4.0, 5.0), reward(0.2, 6.0), llm("c", 7.0, 8.0)]
    assert calls(spans) == [("a", 0.1), ("b", 0.2), ("c", None)]


def test_a_reward_goes_to_the_last_call_before_it_only():
    assert calls([llm("a", 1.0, 2.0), llm("b", 3.0, 4.0), reward(1.0, 5.0)]) == [("a", None), ("b", 1.0)]


def test_a_call_keeps_the_first_of_several_rewards():
    spans = [llm("a", 1.0, 2.0), llm("b", 3.0, 4.0), reward(0.1, 5.0), reward(0.9, 6.0)]
    assert calls(spans) == [("a", None), ("b", 0.1)]


def test_a_reward_before_every_call_is_nobodys():
    assert calls([reward(1.0, 0.5), llm("a", 1.0, 2.0)]) == [("a", None)]


def test_a_reward_is_not_for_a_call_that_still_runs():
    spans = [llm("slow", 1.0, 10.0), llm("fast", 2.0, 3.0), reward(0.5, 4.0), reward(0.7, 11.0)]
    assert calls(spans) == [("slow", 0.7), ("fast", 0.5)]


def test_parallel_calls_are_ordered_by_their_start():
    assert names([llm("b", 2.0, 3.0), llm("a", 1.0, 9.0), llm("c", 2.5, 2.6)]) == ["a", "b", "c"]


def test_without_times_the_sequence_ids_pair_calls_and_rewards():
    spans = [reward(0.2, number=4), llm("b", number=3), reward(0.1, number=2), llm("a", number=1)]
    assert calls(spans) == [("a", 0.1), ("b", 0.2)]


def test_at_equal_times_the_order_decides():
    spans = [reward(0.1, 1.0, number=1), llm("a", 1.0, number=2), reward(0.2, 1.0, number=3), llm("b", 1.0, number=4)]
    assert calls(spans) == [("a", 0.2), ("b", None)]


def test_a_call_that_carries_its_own_reward_keeps_it():
    own = llm("b", 3.0, 4.0)
    own.attributes[PRIMARY_REWARD_VALUE] = 0.9
    assert calls([llm("a", 1.0, 2.0), own, reward(0.1, 5.0)]) == [("a", None), ("b", 0.9)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1.0", None])
def test_what_is_no_number_is_no_reward(value):
    assert calls([llm("a", 1.0, 2.0), reward(value, 3.0), reward(0.5, 4.0)]) == [("a", 0.5)]


def test_only_calls_that_count_are_rewarded():
    spans = [*TEAM[:8], reward(1.0, 13.0, parent="boss")]
    assert calls(spans, agent_match="writer") == [("draft", None), ("polish", 1.0)]


def test_a_reward_of_the_next_attempt_is_not_for_a_call_of_the_last():
    spans = [llm("crashed", 1.0, 2.0), llm("retried", 4.0, 5.0, attempt="at-2"), reward(1.0, 3.0, attempt="at-2")]
    assert calls(spans) == [("crashed", None), ("retried", None)]


def test_siblings_pair_with_the_first_reward_beside_them():
    spans = [
        operation("first", 0.0, 5.0),
        llm("a", 1.0, 2.0, parent="first"),
        operation("second", 5.5, 9.0),
        llm("b", 6.0, 7.0, parent="second"),
        reward(0.2, 8.0, parent="second"),
        reward(0.3, 8.5, parent="second"),
        reward(0.1, 8.8, parent="first"),
        reward(0.9, 10.0),
    ]
    assert calls(spans, reward_match="first_sibling") == [("a", 0.1), ("b", 0.2)]
    assert calls(spans, reward_match="first_occurrence") == [("a", None), ("b", 0.2)]


def test_a_sibling_reward_comes_after_its_call():
    spans = [reward(0.1, 0.5), llm("a", 1.0, 2.0), llm("b", 3.0, 4.0), reward(0.2, 5.0)]
    assert calls(spans, reward_match=RewardMatchPolicy.FIRST_SIBLING) == [("a", None), ("b", 0.2)]


def test_parallel_agents_with_rewards_of_their_own_pair_by_sibling():
    spans = []
    for name, at in (("left", 0.0), ("right", 0.1)):
        spans += [
            operation(name, at, at + 9.0),
            llm(f"{name}-call", at + 1.0, at + 2.0, parent=name),
            reward(len(name), at + 3.0, parent=name),
        ]
    assert calls(spans, reward_match="first_sibling") == [("left-call", 4.0), ("right-call", 5.0)]


def test_another_way_of_matching_is_refused():
    with raises(ConfigError, "reward_match", "last", "first_occurrence", "first_sibling"):
        TracerTraceToTriplet(reward_match="last")


# -- the gateway's own spans -------------------------------------------------------------------------


def test_the_gateways_spans_alone_make_triplets():
    spans = [
        gateway("g1", 1.0, 2.0, ([1], [2]), gen_ai__response__id="resp-1"),
        reward(0.5, 3.0),
        gateway("g2", 4.0, 5.0, ([1, 2, 3], [4]), gen_ai__response__id="resp-2"),
        reward(1.0, 6.0),
    ]
    triplets = LlmProxyTraceToTriplet().adapt(spans)
    assert [(t.prompt["token_ids"], t.response["token_ids"], t.reward) for t in triplets] == [
        ([1], [2], 0.5),
        ([1, 2, 3], [4], 1.0),
    ]
    assert [t.metadata["response_id"] for t in triplets] == ["resp-1", "resp-2"]


def test_embeddings_behind_the_gateway_are_no_triplets():
    embedded = span(SHARPEN_LLM_CALL, 1.0, 2.0, gen_ai__operation__name="embeddings", gen_ai__response__id="r")
    assert LlmProxyTraceToTriplet()([embedded]) == []
    assert TracerTraceToTriplet()([embedded]) == []


def test_a_stream_that_was_cut_before_its_first_word_is_no_triplet():
    cut = {"error": True, "response_id": "r", "sharpen__llm__is_complete": False}
    begun = llm("begun", 3.0, 4.0, said="hi", **cut)
    assert names([llm("cut", 1.0, 2.0, **cut), begun]) == ["begun"]


def test_the_metadata_tell_the_weights_that_sampled():
    [one, other] = LlmProxyTraceToTriplet()(
        [gateway("a", 1.0, 2.0, ([1], [2]), sharpen__llm__weights_version="007"), gateway("b", 3.0, 4.0, ([1], [2]))]
    )
    assert one.metadata["weights_version"] == "007"
    assert "weights_version" not in other.metadata


def test_metadata_tell_how_it_was_sampled_where_that_was_recorded():
    sampled = gateway(
        "a",
        1.0,
        2.0,
        ([1], [2, 3]),
        sharpen__llm__weights_version="7",
        sharpen__llm__weights_versions=["7", "8"],
        gen_ai__response__finish_reasons=["length"],
        gen_ai__request__temperature=0.0,
        gen_ai__request__top_p=0.5,
    )
    several = gateway("b", 3.0, 4.0, ([1], [2]), sharpen__llm__weights_versions='[["7", "8"], ["7", "7"]]')
    one, other = LlmProxyTraceToTriplet().adapt([sampled, several])
    told = {name: value for name, value in one.metadata.items() if name not in ("response_id", "agent_name", "span_id")}
    assert told == {
        "weights_version": "7",
        "weights_versions": ["7", "8"],
        "finish_reason": "length",
        "temperature": 0.0,
        "top_p": 0.5,
    }
    assert other.metadata["weights_versions"] == ["7", "8"]
    assert not {"finish_reason", "temperature", "top_p", "weights_version"} & other.metadata.keys()


def test_calls_that_the_gateway_did_not_see_are_not_its_triplets():
    spans = [llm("elsewhere", 1.0, 2.0), gateway("g", 3.0, 4.0, ([1], [2])), span("any", 5.0, response_token_ids=[3])]
    assert [t.metadata["span_id"] for t in LlmProxyTraceToTriplet().adapt(spans)] == ["g", "any"]


@pytest.mark.parametrize("adapter", [TracerTraceToTriplet(), LlmProxyTraceToTriplet()])
def test_a_reward_after_another_models_call_is_for_the_call_of_ours_before_it(adapter):
    def asked(id, start, model):
        return gateway(id, start, start + 1, ([1], [2]), gen_ai__request__model=model)

    spans = [asked("p1", 1.0, "policy"), asked("j1", 3.0, "judge"), reward(0.5, 5.0)]
    spans += [asked("p2", 6.0, "policy"), asked("j2", 8.0, "judge"), reward(1.0, 10.0)]
    ours = for_models(adapter, ["policy"])
    assert [(each.metadata["span_id"], each.reward) for each in ours.adapt(spans)] == [("p1", 0.5), ("p2", 1.0)]
    assert len(adapter.adapt(spans)) == 4
    assert adapter.models is None


def test_the_gateway_knows_a_model_by_the_name_that_counts():
    own = llm("own", 1.0, 4.0, response_id="r", gen_ai__request__model="openai/policy")
    seen = gateway("seen", 2.0, 3.0, ([1], [2]), gen_ai__response__id="r", gen_ai__request__model="policy")
    [triplet] = for_models(TracerTraceToTriplet(), ["policy"]).adapt([own, seen])
    assert (triplet.metadata["span_id"], triplet.metadata["model"]) == ("own", "policy")


def test_an_adapter_of_another_kind_is_left_as_it_is():
    class Counting(TraceAdapter[int]):
        def adapt(self, source, /):
            return len(source)

    adapter = Counting()
    assert for_models(adapter, ["policy"]) is adapter


def test_a_judge_behind_the_gateway_is_left_out_by_the_place_of_its_own_span():
    seen = gateway("seen", 4.1, 4.9, ([1], [2]), gen_ai__response__id="v")
    judge = [*JUDGED[:3], llm("verdict", 4.0, 5.0, parent="ask", response_id="v"), seen]
    answer = gateway("a", 1.0, 2.0, ([3], [4]))
    assert [t.metadata["span_id"] for t in LlmProxyTraceToTriplet().adapt([answer, *judge])] == ["a"]


# -- whatever the trace ------------------------------------------------------------------------------


@st.composite
def traces(draw):
    """Trees of operations with calls and rewards at random places, some with a lost parent, in random order."""
    count = draw(st.integers(0, 12))
    made = []
    for number in range(count):
        start = draw(st.integers(0, 20))
        parent = draw(st.one_of(st.none(), st.just("gone"), st.sampled_from([str(n) for n in range(count)])))
        make = draw(st.sampled_from([_call, _operation, _reward]))
        made.append(make(str(number), float(start), float(start + draw(st.integers(0, 6))), parent, number))
    return draw(st.permutations(made))


def _call(id, start, end, parent, number):
    return llm(id, start, end, parent=parent, number=number, response_id=f"resp-{id}")


def _operation(id, start, end, parent, number):
    return operation(f"op-{id}", start, end, id=id, parent=parent, number=number)


def _reward(id, start, end, parent, number):
    return reward(float(number), start, id=id, parent=parent, number=number)


@given(traces(), st.booleans(), st.sampled_from(list(RewardMatchPolicy)))
def test_every_call_is_one_triplet_in_order_and_every_reward_is_given_once(spans, repair, policy):
    adapter = TracerTraceToTriplet(repair, exclude_llm_call_in_reward=False, reward_match=policy)
    triplets = adapter.adapt(spans)
    made = [s for s in spans if s.name == "chat small"]
    expected = [s.span_id for s in sorted(made, key=lambda s: (s.start_time, s.sequence_id))]
    assert [t.metadata["span_id"] for t in triplets] == expected
    given_rewards = [t.reward for t in triplets if t.reward is not None]
    assert len(given_rewards) == len(set(given_rewards))
    ends, starts = {s.span_id: s.end_time for s in made}, {float(s.sequence_id): s.start_time for s in spans}
    assert all(ends[t.metadata["span_id"]] <= starts[t.reward] for t in triplets if t.reward is not None)


@given(traces(), st.booleans())
def test_leaving_out_calls_only_ever_takes_calls_away(spans, repair):
    everything = names(spans, repair_hierarchy=repair, exclude_llm_call_in_reward=False)
    fewer = names(spans, repair_hierarchy=repair)
    assert [name for name in everything if name in set(fewer)] == fewer


def test_a_long_flat_trace_is_adapted_quickly():
    spans = []
    for number in range(3000):
        at = number * 10.0
        spans += [
            operation("step", at, at + 5.0, id=f"op-{number}"),
            llm(f"c-{number}", at + 1.0, at + 2.0),
            reward(float(number), at + 3.0),
        ]
    assert calls(spans, agent_match="step") == [(f"c-{number}", float(number)) for number in range(3000)]
