"""First the prompt, then the weights, in one run."""

import json
import re
from pathlib import Path

import pytest

from .programs import run_program, the_run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_weights_are_trained_behind_the_prompt_that_was_found(tmp_path: Path) -> None:
    done = run_program("few_shot_then_grpo", tmp_path, "--steps", "2", "--candidates", "4", timeout_seconds=800)
    found = re.search(r"held-out tasks: (\S+) at first, (\S+) after FewShot, (\S+) after GRPO", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) == 0.0 < float(found[2])
    run = the_run(tmp_path)
    best = (run / "1-fewshot" / "prompts" / "best_prompt.txt").read_text("utf-8")
    assert re.search(r"CALC\(\d+[-+*]\d+\)\n", best)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    rewards = [step["train/reward_mean"] for step in steps if "train/flat_groups" in step]
    assert len(rewards) == 2
    assert max(rewards) > 0  # which none is with the prompt that it began with
