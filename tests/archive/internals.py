"""What the tests use of `sharpen.archive` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.archive.background import SWITCH_SECONDS, run_in_background
    from sharpen.archive.best import export_best
    from sharpen.archive.catalog import RunCatalog, RunEntry, size_of
    from sharpen.archive.comparison import (
        Comparison,
        Evaluation,
        RunRewards,
        Score,
        best_prompts,
        compare,
        difference,
        read_rewards,
        setting_differences,
        summaries,
    )
    from sharpen.archive.curves import MetricsTail, Series, main_metrics, read_curves
    from sharpen.archive.entries import Entry, Message, TokenStrip, ToolCall
    from sharpen.archive.export import export_rollouts, exported_rollouts
    from sharpen.archive.llm_calls import token_strips
    from sharpen.archive.lookup import matching_rollouts, open_store, task_group, why_ended, with_live_rollouts
    from sharpen.archive.removal import remove_run
    from sharpen.archive.transcript import (
        Bar,
        Transcript,
        Waterfall,
        read_transcript,
        transcript_of,
        waterfall,
    )

__getattr__ = imports_on_use(__file__)
