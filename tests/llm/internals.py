"""What the tests use of `sharpen.llm` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.llm.answers import is_same, read_answer, read_truth
    from sharpen.llm.completions import Completion, completion_text
    from sharpen.llm.engine import (
        attention as engine_attention,
        fused_runner as engine_fused_runner,
        sampler as engine_sampler,
    )
    from sharpen.llm.engine.attention import DecodeSpan, arrange_rows
    from sharpen.llm.engine.batch import tiles_of
    from sharpen.llm.engine.fused_runner import FusedRunner
    from sharpen.llm.engine.graphs import RecordedShapes, Step, StepGraphs, bucket
    from sharpen.llm.engine.kernels import training as kernels_training
    from sharpen.llm.engine.kernels.kernels import (
        DecodeRows,
        Heads,
        LayerHeads,
        PromptRows,
        Rotations,
        TorchKernels,
        TritonKernels,
    )
    from sharpen.llm.engine.model_runner import ModelRunner, PagedRunner
    from sharpen.llm.engine.request import Sequence
    from sharpen.llm.engine.sampler import Mode, Settings as SamplerSettings, draw, sample_seed, uniforms
    from sharpen.llm.engine.scheduler import ROOT, BlockPool
    from sharpen.llm.engine.text import TextStream
    from sharpen.llm.generation import GeneratedCompletion, check_prompt
    from sharpen.llm.gsm8k import DATA_VARIABLE
    from sharpen.llm.models.gguf import cache_folder, converted
    from sharpen.llm.models.gguf_export import export_gguf, pre_tokenizer_name
    from sharpen.llm.models.hub import hub_folder
    from sharpen.llm.models.loading import choose_device, choose_precision, torch_dtype
    from sharpen.llm.models.lora import lora_config_for, lora_differences
    from sharpen.llm.models.saving import check_save_folder, save_model
    from sharpen.llm.models.source import ModelSource, find_model, read_adapter_config
    from sharpen.llm.models.templates import check_chat_template
    from sharpen.llm.plain_json import write_json
    from sharpen.llm.policy import fast_forward as policy_fast_forward, logprob_head as policy_head
    from sharpen.llm.policy.advantages import (
        GroupAdvantages,
        Scale,
        gae_advantages,
        reinforce_plus_plus_advantages,
        turn_advantages,
        whiten,
    )
    from sharpen.llm.policy.critic import LocalCritic
    from sharpen.llm.policy.fast_forward import Body, FlashLayout, TreeAttention
    from sharpen.llm.policy.forward import AnyBody, ModelBody, body_of
    from sharpen.llm.policy.logprob_head import head_logprobs
    from sharpen.llm.policy.losses import (
        Aggregation,
        KLKind,
        Metrics,
        Totals,
        aggregate,
        entropy_from_logits,
        importance_weights,
        kl_estimate,
        kl_loss,
        merge_metrics,
        policy_loss,
        sequence_share,
        token_share,
        value_loss,
    )
    from sharpen.llm.policy.optimiser import Optimiser
    from sharpen.llm.policy.packing import (
        TokenBatch,
        TokenTree,
        micro_batches,
        pack,
        padded,
        places_of,
        token_batch,
        token_tree,
        totals_of,
        tree_batches,
    )
    from sharpen.llm.policy.policy import LocalPolicy
    from sharpen.llm.policy.ranks.dealing import deal
    from sharpen.llm.policy.ranks.pieces import Piece, buckets, pieces_of, row_pieces
    from sharpen.llm.policy.ranks.ranked_policy import CHECK_EVERY, RankedPolicy
    from sharpen.llm.policy.ranks.servers import PolicyServers
    from sharpen.llm.policy.ranks.sharded_policy import ShardedPolicy
    from sharpen.llm.policy.ranks.sharding import Sharding
    from sharpen.llm.policy.ranks.turns import NotWanted, Turns
    from sharpen.llm.policy.samples import NOT_SAMPLED, Sample, TrainingSample, Turn, merge_turns
    from sharpen.llm.policy.settings import LocalOptions, LossSettings, Schedule
    from sharpen.llm.reward_runner import RewardRunner, reward_runners, score
    from sharpen.llm.rewards import ShapedReward, count_steps
    from sharpen.llm.server import prompts as server_prompts, requests as server_requests
    from sharpen.llm.server.__main__ import parser
    from sharpen.llm.server.answers import AnswerWriter, Asked, TokenTexts
    from sharpen.llm.server.prompts import Prompt, PromptWriter, read_messages
    from sharpen.llm.server.requests import CallSeeds, ChatFields, CompletionFields
    from sharpen.llm.server.tool_calls import ToolCall, ToolCallReader
    from sharpen.llm.server.vllm import VLLMServer
    from sharpen.llm.sources import ListDataset, as_dataset, check_columns, to_hugging_face
    from sharpen.llm.tool import job as tool_job, jobs as tool_jobs
    from sharpen.llm.tool.actions import ACTIONS
    from sharpen.llm.tool.errors import JobError, ParameterError
    from sharpen.llm.tool.job import JobStopped, ProgressFile, StopRequest
    from sharpen.llm.tool.jobs import Job, ProcessMark
    from sharpen.llm.tool.parameters import Parameter
    from sharpen.llm.tool.requests import read_request
    from sharpen.llm.tool.reward_registry import build
    from sharpen.llm.tool.workspace import Workspace, check_model
    from sharpen.llm.training import config as training_config, preflight as training_preflight
    from sharpen.llm.training.building import flash_attention, is_padding_free, trl_config
    from sharpen.llm.training.checkpoints import (
        STATE_FILE,
        check_apart,
        checkpoints,
        find_checkpoint,
        keep_newest,
        remove_half_written,
        set_aside,
        write_checkpoint,
    )
    from sharpen.llm.training.loss_watch import WINDOW, LossWatch, is_oscillating
    from sharpen.llm.training.options import (
        ALGORITHMS,
        OTHER_NAMES,
        REFUSED,
        Algorithm,
        config_class,
        setting_names,
        trl_fields,
    )
    from sharpen.llm.training.preflight import (
        check_length,
        check_memory,
        check_texts,
        describe_parameters,
        free_bytes,
        prompt_lengths,
        row_lengths,
    )
    from sharpen.llm.training.processes import Processes, processes
    from sharpen.llm.training.settings import Settings as TrainingSettings, resolve, run_length

__getattr__ = imports_on_use(__file__)
