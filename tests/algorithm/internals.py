"""What the tests use of `sharpen.algorithm` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.algorithm import computing, own_thread, task_order
    from sharpen.algorithm.apo.critic import Critic, load_prompts, template_in
    from sharpen.algorithm.apo.results import RolloutResultForAPO, VersionedPromptTemplate
    from sharpen.algorithm.apo.shown_rollouts import show_rollouts
    from sharpen.algorithm.base import Gateway
    from sharpen.algorithm.bounds import UpperBound, least, product, split_sizes, sum_of
    from sharpen.algorithm.computing import BrokenOff, ThreadInterrupted, compute, finish
    from sharpen.algorithm.datasets import Tasks, size_of
    from sharpen.algorithm.few_shot.demonstration import Demonstration, UnfitRolloutError, read_demonstration
    from sharpen.algorithm.few_shot.exploration import ENOUGH_UNFIT
    from sharpen.algorithm.few_shot.layout import why_unshowable, with_demonstrations
    from sharpen.algorithm.few_shot.template_parts import values_in, without_demos
    from sharpen.algorithm.finished import FinishedRollouts
    from sharpen.algorithm.gepa.budget import Budget, check_budget
    from sharpen.algorithm.gepa.family import Family, StableName
    from sharpen.algorithm.gepa.feedback import record_of, record_without_trace
    from sharpen.algorithm.gepa.options import REFUSED
    from sharpen.algorithm.gepa.reflector import split_answer, what_to_keep
    from sharpen.algorithm.gepa.scores import ScoreScale
    from sharpen.algorithm.gepa.search_thread import SearchThread
    from sharpen.algorithm.own_thread import run_in_own_thread
    from sharpen.algorithm.prompts import assistant as prompts_assistant, evaluations as prompts_evaluations
    from sharpen.algorithm.prompts.assistant import Answer, Assistant, choose_client
    from sharpen.algorithm.prompts.blame import infrastructure_fault, spent_limit
    from sharpen.algorithm.prompts.call_failures import NoAnswerError
    from sharpen.algorithm.prompts.candidates import Candidate, CandidateBook, Cost, Score, short_number
    from sharpen.algorithm.prompts.conversations import NO_CONVERSATION, clip, conversations_text
    from sharpen.algorithm.prompts.difference import best_diff, coloured_diff, prompt_diff, show_best_diff, show_diff
    from sharpen.algorithm.prompts.evaluations import Evaluation, Evaluations, cost_of
    from sharpen.algorithm.prompts.items import Item, as_items
    from sharpen.algorithm.prompts.loop_client import loop_client
    from sharpen.algorithm.prompts.model_list import names_in
    from sharpen.algorithm.prompts.optimiser import SEED, PromptOptimiser
    from sharpen.algorithm.prompts.placeholders import as_child, optional_names, placeholders, why_unfit
    from sharpen.algorithm.prompts.plain_text import clipped, escaped, one_line
    from sharpen.algorithm.prompts.promotion import Promotion, is_better
    from sharpen.algorithm.prompts.race import Pairs, Race, Slice, Usual
    from sharpen.algorithm.prompts.records import FOLDER, read_records, write_records
    from sharpen.algorithm.prompts.scoreboard import Scoreboard, cost_metrics, side_by_side
    from sharpen.algorithm.prompts.seed_prompt import prompt_of_agent, seed_prompts, takes_prompt
    from sharpen.algorithm.prompts.shared_options import SharedOptions
    from sharpen.algorithm.prompts.tree import draw_tree
    from sharpen.algorithm.prompts.unused_prompt import optional_fields_filled, unfilled_fields, unused_prompts
    from sharpen.algorithm.rewards import with_last_attempt
    from sharpen.algorithm.sequence import file_name, stages_of, title_of
    from sharpen.algorithm.task_order import TaskOrder, all_tasks, indices_of_batch
    from sharpen.algorithm.verl import (
        learner as verl_learner,
        loop as verl_loop,
        rollouts as verl_rollouts,
    )
    from sharpen.algorithm.verl.checkpoints import StepFolders, changes, read_state, resumable_state, settings_of
    from sharpen.algorithm.verl.config import VERLConfig, read_config
    from sharpen.algorithm.verl.config_input import read_value
    from sharpen.algorithm.verl.credit import Credit, Estimator, assign_credit
    from sharpen.algorithm.verl.grpo import OPTIONS, SYNONYMS
    from sharpen.algorithm.verl.keys import FIXED, IGNORED, KEYS, OTHER_NAMES, Key, why_ignored
    from sharpen.algorithm.verl.learner import Groups, Learner
    from sharpen.algorithm.verl.loop import frozen_heap
    from sharpen.algorithm.verl.preflight import (
        Check,
        check_agreement,
        check_answers,
        check_length,
        check_outcomes,
        check_rewards,
        check_spread,
        check_temperature,
        check_template,
        check_tokens,
        conclude,
        run_checks,
    )
    from sharpen.algorithm.verl.reports import (
        Selection,
        describe_metrics,
        final_warning,
        group_labels,
        limit_warning,
        staleness,
        step_warnings,
        validation_metrics,
    )
    from sharpen.algorithm.verl.rollouts import FIRST_SPANS, LATE_PAUSES, MOST_IN_VAIN, Batch, Rollouts
    from sharpen.algorithm.verl.scoring import Conversation, RewardModel, conversation_of
    from sharpen.algorithm.verl.training_data import CollectedRollout, collect
    from sharpen.algorithm.window import MAX_LENGTH, Window

__getattr__ = imports_on_use(__file__)
