"""Fine-tunes a tiny model in as many processes as a launcher starts: `launched.py ALGORITHM OPTIONS`, in JSON."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from sharpen.callbacks import Callback
from sharpen.llm import GRPOTrainerWrapper, SFTTrainerWrapper
from tests.llm.training.scenes import rl_rows, sft_rows, share_of_e

torch.set_num_threads(1)


class StopAfter(Callback):
    """Asks the run to stop, as early stopping does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_iter_end(self, loop: Any, trained: Any) -> None:
        loop.should_stop = loop.should_stop or loop.current_iter == self.step


def main() -> None:
    algorithm, options = sys.argv[1], json.loads(sys.argv[2])
    train = {"resume": options.pop("resume", False)}
    options["callbacks"] = [StopAfter(options.pop("stop_after", -1))]
    if algorithm == "sft":
        wrapper: Any = SFTTrainerWrapper(dataset=sft_rows(16), eval_dataset=sft_rows(4), **options)
    else:
        wrapper = GRPOTrainerWrapper(dataset=rl_rows(8), reward_fn=share_of_e, **options)
    result = wrapper.train(**train)
    said = Path(options["output_dir"]).with_suffix(f".rank{os.environ.get('RANK', '0')}.json")
    said.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
