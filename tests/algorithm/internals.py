"""What the tests use of `sharpen.algorithm` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.algorithm import datasets as algorithm_datasets, threads as algorithm_threads
    from sharpen.algorithm.apo.apo import RolloutResultForAPO, VersionedPromptTemplate
    from sharpen.algorithm.base import Gateway
    from sharpen.algorithm.bounds import UpperBound, least, product, split_sizes, sum_of
    from sharpen.algorithm.datasets import TaskOrder, Tasks, all_tasks, indices_of_batch, size_of
    from sharpen.algorithm.fast import MAX_LENGTH, Window
    from sharpen.algorithm.few_shot.demonstrations import (
        Demonstration,
        UnfitRolloutError,
        read_demonstration,
        values_in,
        why_unshowable,
        with_demonstrations,
        without_demos,
    )
    from sharpen.algorithm.few_shot.few_shot import ENOUGH_UNFIT
    from sharpen.algorithm.finished import FinishedRollouts
    from sharpen.algorithm.gepa.gepa import REFUSED, Budget, ScoreScale, check_budget
    from sharpen.algorithm.gepa.gepa_search import Family, SearchThread, StableName, split_answer, what_to_keep
    from sharpen.algorithm.prompts import evaluations as prompts_evaluations, models as prompts_models
    from sharpen.algorithm.prompts.candidates import Candidate, CandidateBook, Cost, Score, short_number
    from sharpen.algorithm.prompts.critic import (
        NO_CONVERSATION,
        Critic,
        clip,
        conversations_text,
        load_prompts,
        record_of,
        record_without_trace,
        show_rollouts,
        template_in,
    )
    from sharpen.algorithm.prompts.evaluations import Evaluation, Evaluations, Item, as_items, cost_of
    from sharpen.algorithm.prompts.failure_cause import NoAnswerError, infrastructure_fault, spent_limit
    from sharpen.algorithm.prompts.models import Answer, Assistant, choose_client, loop_client, names_in
    from sharpen.algorithm.prompts.optimiser import SEED, PromptOptimiser
    from sharpen.algorithm.prompts.preflight import (
        SharedOptions,
        optional_fields_filled,
        unfilled_fields,
        unused_prompts,
    )
    from sharpen.algorithm.prompts.race import (
        Pairs,
        Promotion,
        Race,
        Scoreboard,
        Slice,
        Usual,
        cost_metrics,
        is_better,
        side_by_side,
    )
    from sharpen.algorithm.prompts.templates import (
        as_child,
        optional_names,
        placeholders,
        prompt_of_agent,
        seed_prompts,
        takes_prompt,
        why_unfit,
    )
    from sharpen.algorithm.prompts.tree import (
        FOLDER,
        best_diff,
        clipped,
        coloured_diff,
        draw_tree,
        escaped,
        one_line,
        prompt_diff,
        read_records,
        show_best_diff,
        write_records,
    )
    from sharpen.algorithm.rewards import with_last_attempt
    from sharpen.algorithm.sequence import file_name, stages_of, title_of
    from sharpen.algorithm.threads import BrokenOff, ThreadInterrupted, compute, finish, run_in_own_thread
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

__getattr__ = imports_on_use(__file__)
