"""The options of a gateway."""

from rich.pretty import pretty_repr

from tests.llm_proxy.internals import GatewayOptions


def test_the_token_is_never_shown() -> None:
    options = GatewayOptions(token="s3cret", num_retries=2)
    for shown in (repr(options), str(options), pretty_repr(options)):
        assert "s3cret" not in shown
        assert "num_retries=2" in shown
