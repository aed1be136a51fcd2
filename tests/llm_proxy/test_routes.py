"""Where paths lead."""

import pytest

from tests.llm_proxy.internals import Place, Route, find_route

ATTEMPT = Place("ro-1", "at-1")


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/chat/completions", Route(api="chat")),
        ("/completions", Route(api="completions")),
        ("/v1/v1/messages", Route(api="messages")),
        ("/v1/responses/", Route(api="responses")),
        ("/rollout/ro-1/attempt/at-1/v1/embeddings", Route(api="embeddings", place=ATTEMPT)),
        ("/rollout/ro-1/attempt/at-1/chat/completions", Route(api="chat", place=ATTEMPT)),
        (
            "/rollout/ro-1/attempt/at-1/role/a%2Fb/v1/chat/completions",
            Route(api="chat", place=Place("ro-1", "at-1", "a/b")),
        ),
        ("/role/critic/v1/chat/completions", Route(api="chat")),
        ("/v1/models", Route(page="models")),
        ("/v1/models/org/name", Route(page="models", model="org/name")),
        ("/rollout/ro-1/attempt/at-1/v1/models", Route(page="models", place=ATTEMPT)),
        ("/health", Route(page="health")),
        ("/", None),
        ("/v1", None),
        ("/v2/chat/completions", None),
        ("/rollout/ro-1/v1/chat/completions", None),
        ("/rollout/ro-1/attempt/at-1", None),
        ("/v1/messages/count_tokens", None),
    ],
)
def test_a_path_leads_to_its_api_and_attempt(path: str, route: Route | None) -> None:
    assert find_route(path.encode()) == route
