"""Any program as an agent: APO improves the prompt of an agent that is written in another language.

    python examples/command_agent.py sh          # the agent is command_agent/date_reader.sh
    python examples/command_agent.py python      # or command_agent/date_reader.py, which knows nothing of Sharpen

A program is run once for every rollout. It finds its task, its prompt and its model in its environment, and gives its
reward by a line that it prints or by a call. Its model is behind the gateway, which records what was asked and said for
the critic of APO. The model is a stand-in, so that this runs anywhere. Needs `pip install 'sharpen[apo]'`; the agent in
sh needs curl.
"""

import argparse
from pathlib import Path

from apo_offline import SEED, make_tasks
from openai import AsyncOpenAI
from stand_in_model import StandInModel

from sharpen import APO, LLMProxy, Trainer
from sharpen.litagent import CommandAgent

PROGRAMS = Path(__file__).parent / "command_agent"
AGENTS = {
    "sh": CommandAgent(["sh", str(PROGRAMS / "date_reader.sh")]),
    "python": CommandAgent(["python", str(PROGRAMS / "date_reader.py")], reward="call"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("language", nargs="?", choices=list(AGENTS), default="python")
    agent = AGENTS[parser.parse_args().language]
    with StandInModel() as model:
        client = AsyncOpenAI(base_url=model.base_url, api_key="none")
        apo = APO(client, gradient_model="critic", apply_edit_model="editor", beam_width=2, branch_factor=2, seed=1)
        gateway = LLMProxy(model_list=[{"name": "worker", "base_url": model.base_url}])
        trainer = Trainer(algorithm=apo, llm_proxy=gateway, initial_resources={"prompt": SEED}, name="command-agent")
        result = trainer.fit(agent, make_tasks(8, seed=1), make_tasks(8, seed=2))
    before = apo.candidates[0].score
    assert before is not None
    print(f"\nmean reward on validation tasks: {before.mean:.2f} before, {result.metrics['val/reward_mean']:.2f} after")
    print(f"the best prompt:\n{apo.get_best_prompt().template}")


if __name__ == "__main__":
    main()
