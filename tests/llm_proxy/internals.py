"""What the tests use of `sharpen.llm_proxy` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.llm_proxy import application, attribution, proxy, retries
    from sharpen.llm_proxy.application import GatewayApplication
    from sharpen.llm_proxy.attribution import SILENT_SECONDS, Attempts
    from sharpen.llm_proxy.bookkeeping import Books, Passage
    from sharpen.llm_proxy.budgets import keeping as budgets_keeping
    from sharpen.llm_proxy.budgets.budget import MAX_MODELS, OTHER_MODELS, Budget
    from sharpen.llm_proxy.budgets.estimates import with_estimate
    from sharpen.llm_proxy.budgets.prices import KNOWN, Prices
    from sharpen.llm_proxy.calls import Api, Call, Place, Refusal, Said, Upstream, UpstreamAnswer, Usage
    from sharpen.llm_proxy.dialects import error_body, error_headers, models_body
    from sharpen.llm_proxy.gateway import Gateway
    from sharpen.llm_proxy.genai import attributes_of, span_of
    from sharpen.llm_proxy.models.keys import resolve
    from sharpen.llm_proxy.models.model_list import parse_model_list, warn_of_missing_keys
    from sharpen.llm_proxy.models.sampling import missing_defaults
    from sharpen.llm_proxy.options import GatewayOptions
    from sharpen.llm_proxy.pausing import Gate, WhenPaused
    from sharpen.llm_proxy.reading import base as reading_base
    from sharpen.llm_proxy.reading.base import reading_for
    from sharpen.llm_proxy.reading.stream_end import StreamEnd
    from sharpen.llm_proxy.recorder import Recorder
    from sharpen.llm_proxy.recording import exchanges as recording_exchanges
    from sharpen.llm_proxy.recording.exchanges import Exchange, Tape, exchange_attributes, exchange_in, key_of
    from sharpen.llm_proxy.recording.record import RecordFile, WrittenRecord
    from sharpen.llm_proxy.recording.redaction import Redaction
    from sharpen.llm_proxy.recording.replay import Replay
    from sharpen.llm_proxy.recording.shelf import Reader, Shelf
    from sharpen.llm_proxy.retries import Choice, Only, ask, pause_asked_for
    from sharpen.llm_proxy.routes import Route, find_route
    from sharpen.llm_proxy.serving import own_process as serving_own_process
    from sharpen.llm_proxy.serving.assembly import Service
    from sharpen.llm_proxy.serving.launching import is_own_process, path_of
    from sharpen.llm_proxy.settings import GatewaySettings, make_settings
    from sharpen.llm_proxy.upstreams import engines as upstreams_engines
    from sharpen.llm_proxy.upstreams.engines import (
        AGAIN_SECONDS,
        LONGEST_AGAIN_SECONDS,
        EngineFinder,
        engine_in,
        is_public,
        wanted_fields,
    )
    from sharpen.llm_proxy.upstreams.health import FIRST_SECONDS, LONGEST_SECONDS, TRIAL_SECONDS
    from sharpen.llm_proxy.upstreams.litellm_upstream import LiteLLMUpstream, _without, load_litellm
    from sharpen.llm_proxy.upstreams.outgoing import secrets_of
    from sharpen.llm_proxy.upstreams.pool import ModelUpstream, Upstreams
    from sharpen.llm_proxy.upstreams.rates import Rates
    from sharpen.llm_proxy.watching import HungUp, TimedOut, Watch

__getattr__ = imports_on_use(__file__)
