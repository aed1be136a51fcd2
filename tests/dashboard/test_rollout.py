"""One rollout."""

import math
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser

import pytest
from starlette.types import ASGIApp as App

from sharpen.store import InMemoryLightningStore, LightningStore
from sharpen.types import RolloutConfig, Span
from tests.dashboard.internals import StoreSource, make_app

from .asgi_client import ask
from .made_rollouts import START, add_group, add_hostile, add_rollout, call_attributes

OWN = "/runs/lab/rollouts/member-2"


@pytest.fixture
async def store() -> AsyncIterator[LightningStore]:
    made = InMemoryLightningStore()
    await add_group(made)
    await add_hostile(made)
    yield made
    await made.close()


@pytest.fixture
def pages(store: LightningStore) -> App:
    return make_app(StoreSource(store, "lab"), view_token=None, edit_token=None)


async def test_the_page_shows_waterfall_conversation_tools_rewards_and_tokens(pages: App) -> None:
    text = (await ask(pages, OWN)).text
    assert text.count('class="bar i0') == 2
    assert 'role="tree"' in text
    assert "What is 2 + 2?" in text
    assert "answer 2" in text
    assert "calculator" in text
    assert "&#34;query&#34;" in text
    assert 'class="reward-mark"' in text
    assert text.count('class="tk h') == 7
    assert "token 106, log-probability -3.0000, 5.0 %" in text
    assert "weights 7" in text
    assert "/runs/lab/resources/kit/2" in text


async def test_the_attributes_of_a_span_come_on_demand(pages: App) -> None:
    page = (await ask(pages, OWN)).text
    assert "gen_ai.usage.input_tokens" not in page
    answer = await ask(pages, f"{OWN}/span?span=span-0")
    assert "gen_ai.usage.input_tokens" in answer.text
    assert "<html" not in answer.text
    assert "gen_ai.usage.input_tokens" in (await ask(pages, f"{OWN}?span=span-0")).text  # a link to a span


async def test_a_rollout_a_span_or_an_attribute_that_is_not_there_is_named(pages: App) -> None:
    for path in ("/runs/lab/rollouts/nobody", f"{OWN}/span?span=no", f"{OWN}/value?span=span-0&key=no"):
        assert (await ask(pages, path)).status == 404
    assert (await ask(pages, f"{OWN}?attempt=no")).status == 404


async def test_every_attempt_has_a_tab_that_says_why_it_ended(store: LightningStore, pages: App) -> None:
    config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
    await add_rollout(store, "twice", "t", status="failed", metadata={"error": "ValueError: first"}, config=config)
    claimed = await store.dequeue_rollout("runner-1")
    assert claimed is not None
    await store.complete_attempt("twice", claimed.attempt.attempt_id, reward=1.0)
    text = (await ask(pages, "/runs/lab/rollouts/twice")).text
    assert "Attempt 1" in text
    assert "Attempt 2" in text
    assert "ValueError: first" in text


async def test_a_rollout_that_waits_is_shown_without_an_attempt(store: LightningStore, pages: App) -> None:
    waiting = await store.enqueue_rollout("later")
    text = (await ask(pages, f"/runs/lab/rollouts/{waiting.rollout_id}")).text
    assert "No worker has claimed" in text
    assert "not finished" in text


@pytest.mark.parametrize(
    "path", ["", "?span=span-1", "/span?span=span-1", "/entries", "/task", "/value?span=span-1&key=%3Cb%3E"]
)
async def test_a_hostile_trace_is_only_text(pages: App, path: str) -> None:
    answer = await ask(pages, f"/runs/lab/rollouts/hostile{path}")
    assert answer.status == 200
    assert "<script>x" not in answer.text
    assert "<script>document" not in answer.text
    assert "<img" not in answer.text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", answer.text)
    assert not _forbidden(answer.text)


async def test_a_huge_text_is_cut_and_its_whole_is_fetched(pages: App) -> None:
    cut = (await ask(pages, "/runs/lab/rollouts/hostile/span?span=span-1")).text
    assert len(cut) < 30_000
    assert "Show all 300,000 characters" in cut
    whole = (await ask(pages, "/runs/lab/rollouts/hostile/value?span=span-1&key=huge")).text
    assert whole.count("y") == 300_000


async def test_a_long_answer_is_cut_and_shown_whole_on_demand(store: LightningStore, pages: App) -> None:
    await add_rollout(store, "long", "t", [("sharpen.llm_call", call_attributes("q", "z" * 50_000))])
    assert (await ask(pages, "/runs/lab/rollouts/long")).text.count("z" * 4001) == 0
    assert "z" * 50_000 in (await ask(pages, "/runs/lab/rollouts/long/entries?span=span-0")).text


async def test_many_entries_and_many_tokens_come_piece_by_piece(store: LightningStore, pages: App) -> None:
    spans = [("sharpen.llm_call", call_attributes(f"question {number}", "a", tokens=40)) for number in range(400)]
    await add_rollout(store, "many", "t", spans)
    first = (await ask(pages, "/runs/lab/rollouts/many")).text
    assert first.count("<article") == 80
    assert "Show more (320 left)" in first
    assert first.count('class="bar ') == 400
    assert first.count('class="tk h') <= 1000
    rest = (await ask(pages, "/runs/lab/rollouts/many/entries?first=320")).text
    assert rest.count("<article") == 80
    assert "question 399" in rest
    strip = (await ask(pages, "/runs/lab/rollouts/many/tokens?span=span-399")).text
    assert strip.count('class="tk h') == 40


async def test_spans_without_times_and_attributes_of_any_type_are_shown(store: LightningStore, pages: App) -> None:
    attempt_id = await add_rollout(store, "odd", None)
    odd = {"dict": {"a": [1]}, "none": None, "nan": math.nan, "nested": [[1, "x"], []], "big": 10**30}
    await store.add_many_spans(
        [
            Span("odd", attempt_id, 1, "t", "no-times", name="", attributes=odd),
            Span("odd", attempt_id, 2, "t", "no-end", "lost-parent", start_time=START),
            Span("odd", attempt_id, 3, "t", "backwards", start_time=START + 5, end_time=START - 5),
            Span("odd", attempt_id, 4, "t", "far", start_time=1e300, end_time=math.inf),
        ]
    )
    page = await ask(pages, "/runs/lab/rollouts/odd")
    assert page.status == 200
    assert page.text.count('role="treeitem"') == 4
    for span_id in ("no-times", "no-end", "backwards", "far"):
        assert (await ask(pages, f"/runs/lab/rollouts/odd/span?span={span_id}")).status == 200
    assert "no end recorded" in (await ask(pages, "/runs/lab/rollouts/odd/span?span=no-end")).text


class _Reader(HTMLParser):
    """Notes what a strict page must not have: scripts within it, styles, handlers, addresses that run code."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs if name.startswith("on") or name == "style"]
        targets = [value for name, value in attrs if name in ("href", "src", "hx-get") and value]
        self.found += names + [value for value in targets if value.strip().lower().startswith("javascript")]
        if tag in ("img", "iframe", "style") or (tag == "script" and not dict(attrs).get("src")):
            self.found.append(tag)


def _forbidden(page: str) -> list[str]:
    reader = _Reader()
    reader.feed(page)
    return reader.found


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, "many"])
async def test_odd_counts_of_tokens_hide_no_rollout(store: LightningStore, pages: App, value: float | str) -> None:
    attributes = call_attributes("Why?", "Because.") | {
        "gen_ai.usage.input_tokens": value, "gen_ai.usage.output_tokens": value, "sharpen.llm.cost": value,
    }  # fmt: skip
    await add_rollout(store, "odd", "task", spans=[("chat", attributes)])
    for address in ("", ".md", "/group"):
        assert (await ask(pages, f"/runs/lab/rollouts/odd{address}")).status == 200


async def test_an_unfinished_rollout_tells_in_a_few_bytes_whether_it_changed(store: LightningStore, pages: App) -> None:
    await store.enqueue_rollout("new", rollout_id="begun")
    claimed = await store.dequeue_rollout(worker_id="w")
    assert claimed is not None
    own = f"/runs/lab/rollouts/{claimed.rollout_id}"
    page = (await ask(pages, own)).text
    mark, address = re.findall(r'data-unfinished="([^"]*)" data-state="([^"]*)"', page)[0]
    assert (await ask(pages, address)).json == {"mark": mark}
    await store.add_span(
        Span.from_attributes(
            rollout_id=claimed.rollout_id, attempt_id=claimed.attempt.attempt_id, sequence_id=1, attributes={}
        )
    )
    assert (await ask(pages, address)).json["mark"] != mark


@pytest.mark.parametrize("ending", [".json", ".md"])
async def test_an_id_may_end_like_a_file(store: LightningStore, pages: App, ending: str) -> None:
    await store.enqueue_rollout("odd name", rollout_id=f"notes{ending}")
    page = await ask(pages, f"/runs/lab/rollouts/notes{ending}")
    assert (page.status, f"notes{ending}</h1>" in page.text) == (200, True)
    assert (await ask(pages, f"/runs/lab/rollouts/notes{ending}.json")).json["rollout_id"] == f"notes{ending}"
    assert (await ask(pages, f"/runs/lab/rollouts/nothing{ending}")).status == 404
