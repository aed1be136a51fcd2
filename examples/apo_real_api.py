"""A prompt improves itself with real models: an agent that sorts support tickets, a critic and an editor.

    OPENAI_API_KEY=... python examples/apo_real_api.py [--model gpt-4.1-nano] [--budget 2]

Any OpenAI-compatible API will do: OPENAI_BASE_URL says where. All calls, those of the agent and those of critic and
editor, go through the gateway of the run, which holds the key, counts tokens and dollars, and refuses calls beyond the
budget. A run that was broken off goes on with `--resume last`, and pays for nothing twice. Needs
`pip install 'sharpen[apo]'`.
"""

import argparse
import json
import os
from functools import cache
from typing import TypedDict

from openai import AsyncOpenAI

from sharpen import APO, LLM, PromptTemplate, Trainer, rollout

SEED = PromptTemplate("Sort this support ticket. Answer with JSON: team and urgency.\n\n{ticket}")


class Task(TypedDict):
    ticket: str
    team: str
    urgency: str


def _tasks(*rows: tuple[str, str, str]) -> list[Task]:
    return [{"ticket": ticket, "team": team, "urgency": urgency} for ticket, team, urgency in rows]


TRAIN = _tasks(
    ("I was charged twice this month.", "billing", "normal"),
    ("Nobody at our office can log in since 9 am!", "technical", "urgent"),
    ("How do I change the language of the app?", "technical", "low"),
    ("Your invoice shows the wrong VAT number.", "billing", "normal"),
    ("I would like to have 50 seats. What would that cost?", "sales", "normal"),
    ("The export has been running for two days, and our audit is tomorrow.", "technical", "urgent"),
    ("Is there a discount for schools?", "sales", "low"),
    ("My card was stolen: stop all payments now.", "billing", "urgent"),
)
VAL = _tasks(
    ("The mobile app crashes when I open settings.", "technical", "normal"),
    ("Please send me last year's receipts, when you have time.", "billing", "low"),
    ("Production is down, and so are our customers.", "technical", "urgent"),
    ("We want to move from the team plan to the enterprise plan.", "sales", "normal"),
    ("Where can I find the dark mode?", "technical", "low"),
    ("You took 4,000 instead of 400. I need it back today.", "billing", "urgent"),
    ("Do you sell in Norway?", "sales", "low"),
    ("Search shows results of deleted files.", "technical", "normal"),
)


@cache
def open_client() -> AsyncOpenAI:
    """One for a process: to make one costs as much as thirty calls with it. The gateway holds the key."""
    return AsyncOpenAI(base_url="http://nowhere.invalid/v1", api_key="none")


@rollout
async def sorter(task: Task, prompt_template: PromptTemplate, llm: LLM) -> float:
    """The reward is the share of the two fields that are right."""
    client = open_client().with_options(base_url=llm.get_base_url())
    said = await client.chat.completions.create(
        model=llm.model,
        messages=[{"role": "user", "content": prompt_template.format(ticket=task["ticket"])}],
    )
    try:
        found = json.loads(said.choices[0].message.content or "")
    except ValueError:
        return 0.0
    if not isinstance(found, dict):
        return 0.0
    return ((found.get("team") == task["team"]) + (found.get("urgency") == task["urgency"])) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--model", default="gpt-4.1-nano", help="the model of the agent")
    parser.add_argument("--critic", default="gpt-5-mini")
    parser.add_argument("--editor", default="gpt-4.1-mini")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--budget", type=float, default=2.0, help="dollars")
    parser.add_argument("--resume", help="'last', or the folder of a run")
    arguments = parser.parse_args()
    if not os.environ.get("OPENAI_API_KEY"):
        parser.error("OPENAI_API_KEY is not set: this example asks real models (apo_offline.py needs none)")
    base_url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
    names = dict.fromkeys((arguments.model, arguments.critic, arguments.editor))
    models = [{"name": name, "base_url": base_url, "api_key": "env:OPENAI_API_KEY"} for name in names]
    apo = APO(
        gradient_model=arguments.critic,
        apply_edit_model=arguments.editor,
        beam_width=2,
        branch_factor=2,
        beam_rounds=arguments.rounds,
        val_batch_size=8,
    )
    trainer = Trainer(
        algorithm=apo,
        initial_resources={"prompt": SEED},
        llm_proxy={"model_list": models, "limits": {"run_cost": arguments.budget}},
        name="tickets",
    )
    trainer.fit(sorter, TRAIN, VAL, resume=arguments.resume)
    print(f"the best prompt:\n{apo.get_best_prompt().template}")


if __name__ == "__main__":
    main()
