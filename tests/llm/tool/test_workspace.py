"""Paths that lead out of the base folder are refused, however they do it."""

from pathlib import Path

import pytest

from sharpen.errors import ConfigError
from tests.llm.internals import ParameterError, Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "base" / "inner").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    return Workspace(tmp_path / "base")


@pytest.mark.parametrize("value", ["./output/sft", "output", "inner/../new", "a b/ü"])
def test_paths_inside_are_taken(workspace: Workspace, value: str) -> None:
    path = workspace.output_path("output_dir", value)
    assert path.is_absolute()
    assert path.is_relative_to(workspace.base)


def test_an_absolute_path_inside_is_taken(workspace: Workspace) -> None:
    assert workspace.path("dataset", str(workspace.base / "inner")) == workspace.base / "inner"


@pytest.mark.parametrize("value", ["..", "../secret", "inner/../../secret", "/etc/passwd", "~", "~root/x", "/"])
def test_paths_outside_are_refused(workspace: Workspace, value: str) -> None:
    with pytest.raises(ParameterError):
        workspace.path("output_dir", value)


def test_links_out_of_the_folder_are_refused(workspace: Workspace) -> None:
    (workspace.base / "link").symlink_to(workspace.base.parent / "secret")
    (workspace.base / "inner" / "up").symlink_to("../..")
    for value in ("link", "link/model", "inner/up/secret", "./inner/up"):
        with pytest.raises(ParameterError):
            workspace.path("model_name", value)


def test_links_inside_the_folder_are_followed(workspace: Workspace) -> None:
    (workspace.base / "link").symlink_to("inner")
    assert workspace.path("model_name", "link") == workspace.base / "inner"


def test_a_circle_of_links_is_refused(workspace: Workspace) -> None:
    (workspace.base / "a").symlink_to("b")
    (workspace.base / "b").symlink_to("a")
    with pytest.raises(ParameterError):
        workspace.path("dataset", "a/x")


def test_a_base_folder_that_is_a_link_is_the_folder_behind_it(workspace: Workspace) -> None:
    link = workspace.base.parent / "other"
    link.symlink_to(workspace.base)
    assert Workspace(link).path("dataset", "inner") == workspace.base / "inner"


@pytest.mark.parametrize("value", [".", ".sharpen", ".sharpen/jobs/x", "inner/.."])
def test_results_do_not_go_to_the_tools_own_places(workspace: Workspace, value: str) -> None:
    with pytest.raises(ParameterError):
        workspace.output_path("output_dir", value)


def test_a_file_is_no_output_folder(workspace: Workspace) -> None:
    (workspace.base / "file").touch()
    for value in ("file", "file/below"):
        with pytest.raises(ParameterError):
            workspace.output_path("output_dir", value)


def test_a_base_folder_that_is_a_file_is_refused(workspace: Workspace) -> None:
    (workspace.base / "file").touch()
    with pytest.raises(ConfigError):
        Workspace(workspace.base / "file")


def test_our_own_folder_may_not_be_a_link(workspace: Workspace) -> None:
    (workspace.base / ".sharpen").symlink_to(workspace.base.parent / "secret")
    with pytest.raises(ConfigError), workspace.locked():
        pass
    assert not (workspace.base.parent / "secret" / "lock").exists()


def test_making_a_workspace_writes_nothing(tmp_path: Path) -> None:
    Workspace(tmp_path / "new")
    assert not (tmp_path / "new").exists()
