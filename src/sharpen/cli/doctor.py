"""`sharpen doctor`: check the installation, the requirements of each feature, and this machine.

Nothing heavy is imported without `--deep`, and nothing is left behind.
"""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .columns import Column
from .exit_codes import FAILED, OK
from .output import Output, add_output_options
from .parser import examples

if TYPE_CHECKING:
    from .extras import Extra
    from .findings import Finding

_STYLES = {"ok": "green", "note": "yellow", "broken": "bold red"}


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="check the installation, the requirements of each feature, and this machine",
        description="Check Python, packages, processors, GPU, disk, ports and clock. The exit code is 1 if something "
        "that Sharpen needs is broken. For optional features, the command that installs what is missing is printed.",
        epilog=examples("sharpen doctor", "sharpen doctor --deep      # also loads torch to check the GPU"),
    )
    parser.add_argument("--deep", action="store_true", help="also load torch and check its threads and GPU (slow)")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check everything; return 1 if something that is needed is broken."""
    from .extras import core_findings, extras
    from .machine import machine_findings

    out = Output.of(arguments)
    findings = [*core_findings(), *machine_findings(is_deep=arguments.deep)]
    features = extras()
    is_broken = any(each.state == "broken" for each in findings)
    if out.is_json:
        out.value({"is_fine": not is_broken, "findings": findings, "features": features})
    else:
        _show(out, findings, features)
    return FAILED if is_broken else OK


def _show(out: Output, findings: "Sequence[Finding]", features: "Sequence[Extra]") -> None:
    from rich.text import Text

    rows = [(each.name, Text(each.state, style=_STYLES[each.state]), each.text) for each in findings]
    out.table(("check", "state", Column("result", least=24, wraps=True)), rows, title="This machine")
    out.line()
    installed = Text("installed", style=_STYLES["ok"])
    cells = [(each.extra, each.feature, installed if each.is_installed else each.needs) for each in features]
    columns = ("extra", Column("feature", least=20, wraps=True), Column("state", least=24, wraps=True))
    out.table(columns, cells, title="Features")
    missing = [each.command for each in features if each.command is not None]
    if missing:
        out.line("\nTo install missing features:")
    for command in missing:
        out.line(f"  {command}")
    advice = [each.advice for each in findings if each.advice]
    if advice:
        out.line("\nRecommendations:")
    for each in advice:
        out.line(f"  - {each}")
    if not any(each.state == "broken" for each in findings):
        out.line("\nSharpen is ready to use.")
