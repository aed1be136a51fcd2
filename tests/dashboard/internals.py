"""What the tests use of `sharpen.dashboard` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.dashboard import event_stream, formats, live, sources
    from sharpen.dashboard.app import make_app
    from sharpen.dashboard.curves import (
        curves_of_file,
        curves_of_store,
        first_metrics,
        newest_of_store,
        series_of_rollouts,
    )
    from sharpen.dashboard.live import QUICK_SECONDS
    from sharpen.dashboard.log_file import MOST, PIECE_BYTES, parse, read_log
    from sharpen.dashboard.pages import runs as pages_runs
    from sharpen.dashboard.pages.workers import health_of, rows_of
    from sharpen.dashboard.rendering import environment
    from sharpen.dashboard.security import CSP, Guard
    from sharpen.dashboard.serving import serve_dashboard, source_of
    from sharpen.dashboard.sources import RunSource, RunsSource, Source, StoreSource
    from sharpen.dashboard.sparks import polyline, spark_of
    from sharpen.dashboard.views.candidate_tree import Node, candidate_tree
    from sharpen.dashboard.views.episode_file import read_episodes
    from sharpen.dashboard.views.heat_strip import heat_strip
    from sharpen.dashboard.views.metrics_table import metrics_csv
    from sharpen.dashboard.views.rollout_filter import RolloutFilter, split_resources
    from sharpen.dashboard.views.shown_text import as_json, as_words, clipped, one_line, short_id, signed, visible
    from sharpen.dashboard.views.waterfall_rows import waterfall_rows
    from sharpen.dashboard.views.word_diff import text_diff

__getattr__ = imports_on_use(__file__)
