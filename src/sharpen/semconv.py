"""Names of spans and attributes, so that writers and readers of a trace agree.

LLM calls follow OpenTelemetry's GenAI names (`gen_ai.*`); everything of our own stands under `sharpen.`.
"""

from enum import StrEnum

AGL_ANNOTATION = "sharpen.annotation"
AGL_MESSAGE = "sharpen.message"
AGL_OBJECT = "sharpen.object"
AGL_EXCEPTION = "sharpen.exception"
AGL_OPERATION = "sharpen.operation"
AGL_REWARD = "sharpen.reward"
AGL_VIRTUAL = "sharpen.virtual"
# One LLM call as the gateway saw it.
SHARPEN_LLM_CALL = "sharpen.llm_call"


class LightningResourceAttributes(StrEnum):
    """Attributes of a span's resource that tie it to its attempt."""

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
    """What a model read and sampled in one call, beside the GenAI names: lists of numbers, one per token."""

    PROMPT_TOKEN_IDS = "sharpen.llm.prompt_token_ids"
    RESPONSE_TOKEN_IDS = "sharpen.llm.response_token_ids"
    RESPONSE_LOGPROBS = "sharpen.llm.response_logprobs"


PRIMARY_REWARD_VALUE = f"{LightningSpanAttributes.REWARD}.0.value"
