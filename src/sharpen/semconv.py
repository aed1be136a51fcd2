"""Names of spans and attributes, so that writers and readers of a trace agree.

LLM calls use OpenTelemetry's GenAI names (`gen_ai.*`); Sharpen's own names begin with `sharpen.`.
"""

from enum import StrEnum

AGL_ANNOTATION = "sharpen.annotation"
AGL_MESSAGE = "sharpen.message"
AGL_OBJECT = "sharpen.object"
AGL_EXCEPTION = "sharpen.exception"
AGL_OPERATION = "sharpen.operation"
AGL_REWARD = "sharpen.reward"
AGL_VIRTUAL = "sharpen.virtual"
# One LLM call as the gateway recorded it.
SHARPEN_LLM_CALL = "sharpen.llm_call"
# A recording gateway keeps the raw exchange in the call's span, under this name with `.request` and `.response`.
SHARPEN_LLM_EXCHANGE = "sharpen.llm.exchange"
# Why a span has no content: the class of the error that the user's redaction raised.
SHARPEN_REDACTION_ERROR = "sharpen.llm.redaction_error"


class LightningResourceAttributes(StrEnum):
    """Attributes of a span's resource that link it to its attempt."""

    ROLLOUT_ID = "sharpen.rollout_id"
    ATTEMPT_ID = "sharpen.attempt_id"
    SPAN_SEQUENCE_ID = "sharpen.span_sequence_id"
    TRACER_NAME = "sharpen.tracer.name"


class LightningSpanAttributes(StrEnum):
    """Attributes of spans that Sharpen itself writes.

    Rewards are numbered: `sharpen.reward.0.name` and `sharpen.reward.0.value`; number 0 is the primary one.
    """

    REWARD = "sharpen.reward"
    LINK = "sharpen.link"
    TAG = "sharpen.tag"
    MESSAGE_BODY = "sharpen.message.body"
    OBJECT_TYPE = "sharpen.object.type"
    OBJECT_LITERAL = "sharpen.object.literal"
    OBJECT_JSON = "sharpen.object.json"
    OPERATION_NAME = "sharpen.operation.name"
    OPERATION_INPUT = "sharpen.operation.input"
    OPERATION_OUTPUT = "sharpen.operation.output"


class LightningLLMAttributes(StrEnum):
    """What the gateway records about one call, in addition to the GenAI names.

    Token ids and log-probabilities are lists of numbers, one per token; for several choices, JSON of such lists.
    """

    PROMPT_TOKEN_IDS = "sharpen.llm.prompt_token_ids"
    RESPONSE_TOKEN_IDS = "sharpen.llm.response_token_ids"
    RESPONSE_LOGPROBS = "sharpen.llm.response_logprobs"
    WEIGHTS_VERSION = "sharpen.llm.weights_version"
    """Of the first token."""
    WEIGHTS_VERSIONS = "sharpen.llm.weights_versions"
    """Of each token, as texts; only if the weights changed while it was sampled."""

    CALL_ID = "sharpen.llm.call_id"
    API = "sharpen.llm.api"
    """chat, completions, responses, embeddings or messages."""
    UPSTREAM = "sharpen.llm.upstream"
    ENGINE = "sharpen.llm.engine"
    PARAMETERS = "sharpen.llm.parameters"
    """JSON of the parameters that the GenAI names do not cover."""
    ADDED_FIELDS = "sharpen.llm.added_fields"
    """Fields that the gateway added to the request."""
    PREVIOUS_RESPONSE_ID = "sharpen.llm.previous_response_id"

    TIME_TO_FIRST_TOKEN = "sharpen.llm.time_to_first_token"
    """Seconds, as all times."""
    TIME_TO_LAST_TOKEN = "sharpen.llm.time_to_last_token"
    COST = "sharpen.llm.cost"
    """US dollars."""
    IS_USAGE_ESTIMATED = "sharpen.llm.is_usage_estimated"
    """True if the upstream did not report all token counts, and they were counted from the text."""

    IS_COMPLETE = "sharpen.llm.is_complete"
    """False if the response ended early."""
    ERROR = "sharpen.llm.error"
    REFUSED = "sharpen.llm.refused"
    """Why the gateway itself refused the call."""


PRIMARY_REWARD_VALUE = f"{LightningSpanAttributes.REWARD}.0.value"
