"""torch is loaded with the first policy, and a missing one is named with its command."""

import subprocess
import sys

from tests.errors import raises


def said(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_order_execution_and_the_list_of_policies_load_no_torch() -> None:
    code = "import sys, sharpen.rl.policies, sharpen.rl.order_execution as o; o.AllOne; print('torch' in sys.modules)"
    assert said(code) == "False"


def test_without_torch_the_command_to_install_it_is_named() -> None:
    code = """
import sys
sys.modules["torch"] = None
from sharpen.errors import MissingExtraError
import sharpen.rl.order_execution as order_execution, sharpen.rl.policies as policies
for place, name in ((policies, "SAC"), (order_execution, "PPO"), (order_execution, "Recurrent")):
    try:
        getattr(place, name)
    except MissingExtraError as error:
        print(error)
"""
    lines = said(code).splitlines()
    assert len(lines) == 3
    assert all("pip install 'sharpen[rl]'" in line and "torch" in line for line in lines)


def test_every_name_can_be_had() -> None:
    import sharpen.rl.order_execution
    import sharpen.rl.policies

    for place in (sharpen.rl.policies, sharpen.rl.order_execution):
        assert all(getattr(place, name) is not None for name in place.__all__)
        with raises(AttributeError, "Nonsense"):
            _ = place.Nonsense
