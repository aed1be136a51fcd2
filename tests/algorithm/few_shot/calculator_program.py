"""Searches for demonstrations with the real model: `python calculator_program.py FOLDER RESULT`.

A run that is in the folder is gone on with. At the end RESULT holds, in JSON, the share of right answers to held-out
tasks before and after, and how long this life of the search took.
"""

import json
import sys
import time
from pathlib import Path

from few_shot_calculator import ANSWER_TOKENS, SEED, TRAIN, VAL, calculator_agent, demo_model, share_right

from sharpen import Trainer
from sharpen.algorithm.few_shot import FewShot

# A run that goes on waits so long for the runners of the life before.
RULE = {"unresponsive_seconds": 3, "max_attempts": 9, "retry_condition": ["unresponsive"]}


def main(folder: Path, result: Path) -> None:
    began = time.monotonic()
    few_shot = FewShot(explore_temperature=0.5, model=demo_model(), max_response_tokens=ANSWER_TOKENS, seed=1)
    trainer = Trainer(algorithm=few_shot, initial_resources={"prompt": SEED}, run_dir=folder, rollout_config=RULE)
    trainer.fit(calculator_agent, TRAIN, VAL, resume=folder if folder.exists() else None)
    seconds = time.monotonic() - began
    before, after = share_right(SEED, few_shot.get_best_prompt())
    result.write_text(json.dumps({"before": before, "after": after, "seconds": seconds}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
