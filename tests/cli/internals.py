"""What the tests use of `sharpen.cli` beyond its public names: when a module moves, this file alone changes."""

from typing import TYPE_CHECKING

from tests.lazy_imports import imports_on_use

if TYPE_CHECKING:
    from sharpen.cli import dashboard, program
    from sharpen.cli.candidates import candidates
    from sharpen.cli.columns import Column, fit
    from sharpen.cli.completion import SCRIPTS
    from sharpen.cli.config.document import Document
    from sharpen.cli.config.fine_tuning import rewards
    from sharpen.cli.config.gateway_config import read_gateway_config
    from sharpen.cli.config.imports import load
    from sharpen.cli.config.kept_config import keep_config
    from sharpen.cli.config.plan import make_plan
    from sharpen.cli.config.recorded_run import RecordedRun
    from sharpen.cli.config.simulator import make_vessel
    from sharpen.cli.config.simulator_run import train_policy
    from sharpen.cli.config.train_config import TrainConfig, load_config
    from sharpen.cli.dashboard import _in_browser, _name_of
    from sharpen.cli.exit_codes import MEANINGS
    from sharpen.cli.extras import FEATURES
    from sharpen.cli.init import TEMPLATES
    from sharpen.cli.output import Output, add_output_options, one_line, uses_color
    from sharpen.cli.program import make_parser
    from sharpen.cli.reference import reference_page
    from sharpen.cli.sparkline import sparkline
    from sharpen.cli.store_serving import _place

__getattr__ = imports_on_use(__file__)
