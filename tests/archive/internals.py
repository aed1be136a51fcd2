"""What the tests use of `sharpen.archive` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.archive.best import export_best
    from sharpen.archive.catalog import RunCatalog, RunEntry, size_of
    from sharpen.archive.comparison import Comparison, compare, setting_differences, summaries
    from sharpen.archive.conversation import Message, ToolCall
    from sharpen.archive.curves import MetricsTail, Series, main_metrics, read_curves
    from sharpen.archive.entries import Entry
    from sharpen.archive.export import export_rollouts, exported, matching
    from sharpen.archive.groups import task_group
    from sharpen.archive.live_counts import counted_now
    from sharpen.archive.opening import open_store
    from sharpen.archive.published import best_prompts
    from sharpen.archive.removal import remove_run
    from sharpen.archive.scores import Evaluation, RunRewards, Score, difference, read_rewards
    from sharpen.archive.side_work import TURN_SECONDS, aside
    from sharpen.archive.tokens import TokenStrip, token_strips
    from sharpen.archive.transcript import Transcript, read_transcript, transcript_of, why_ended
    from sharpen.archive.waterfall import Bar, Waterfall, waterfall

__getattr__ = imports_on_use(__file__)
