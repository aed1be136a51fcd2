"""The units of systemd in `deploy/`: they fit our commands, and systemd."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.internals import load_config, make_parser, read_gateway_config

from .units import Unit, variables_of

FOLDER = Path(__file__).parents[2] / "deploy"
UNITS = sorted((FOLDER / "systemd").glob("*.service"))
KNOWN = {
    "Unit": "Description After Wants StartLimitIntervalSec",
    "Service": "Type User Group WorkingDirectory EnvironmentFile Environment StateDirectory StateDirectoryMode "
    "SyslogIdentifier ExecStart Restart RestartSec RestartPreventExitStatus SuccessExitStatus KillMode TimeoutStopSec "
    "NoNewPrivileges PrivateTmp ProtectSystem ProtectHome ProtectControlGroups ProtectKernelModules "
    "ProtectKernelTunables RestrictAddressFamilies RestrictSUIDSGID LockPersonality CapabilityBoundingSet "
    "SystemCallArchitectures UMask LimitNOFILE",
    "Install": "WantedBy",
}
SECRETS = ("SHARPEN_TOKEN", "SHARPEN_GATEWAY_TOKEN", "UPSTREAM_API_KEY")


def environment_of(unit: Unit) -> dict[str, str]:
    """As the examples of the environment files make it."""
    folder = FOLDER / "systemd"
    texts = {f"/etc/sharpen/{path.name.removesuffix('.example')}": path.read_text() for path in folder.glob("*.env.*")}
    return unit.environment(texts, "/var/lib")


def test_there_is_a_unit_for_every_role() -> None:
    roles = {Unit(path).one("ExecStart").split()[1] for path in UNITS}
    assert roles == {"store", "gateway", "algorithm", "runner"}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_command_of_a_unit_is_one_of_ours(path: Path) -> None:
    unit = Unit(path)
    command = unit.command(environment_of(unit))
    assert command[0] == "/opt/sharpen/bin/sharpen"
    parsed = make_parser().parse_args(command[1:])
    assert parsed.command in path.name
    if parsed.command == "algorithm":
        assert parsed.resume == "unfinished"  # or a restart would begin anew
    if parsed.command in ("gateway", "algorithm", "runner"):
        assert parsed.store == "http://127.0.0.1:4747"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_has_only_keys_of_its_sections_and_no_secret(path: Path) -> None:
    unit = Unit(path)
    for section, keys in unit.sections.items():
        assert set(keys) <= set(KNOWN[section].split())
    assert not unit.variables & set(SECRETS)
    assert unit.one("SuccessExitStatus") == "143"
    assert "2" in unit.one("RestartPreventExitStatus").split()
    assert ("Install" in unit.sections) == (unit.name != "sharpen-algorithm.service")


def test_secrets_are_left_for_the_user_to_fill_in() -> None:
    given: dict[str, str] = {}
    for path in (FOLDER / "systemd").glob("*.env.*"):
        given |= variables_of(path.read_text())
    assert {name: given[name] for name in SECRETS} == dict.fromkeys(SECRETS, "")


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """Where systemd is installed; the program and the user of the units need not be here."""
    for path in UNITS:
        text = path.read_text().replace("/opt/sharpen/bin/sharpen", sys.executable)
        (tmp_path / path.name.replace("@.", "@1.")).write_text(text)
    files = sorted(str(path) for path in tmp_path.iterdir())
    assert len(files) == 4
    if shutil.which("systemd-analyze") is not None:
        command = ["systemd-analyze", "verify", "--man=no", *files]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")


def test_the_files_of_the_project_are_what_the_roles_read(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(FOLDER / "config.yaml")
    assert config.dataset("train_dataset") is not None
    monkeypatch.setenv("SHARPEN_GATEWAY_URL", "http://127.0.0.1:4749")
    trainer = config.trainer(store="memory")
    assert repr(trainer.llm_proxy) == "<LLMProxyClient http://127.0.0.1:4749, models []>"
    assert read_gateway_config(str(FOLDER / "gateway.yaml")).gateway().model_names == ["small"]
