"""An agent that knows nothing of Sharpen: it reads a date from a text with a model, with the standard library alone.

    python examples/command_agent/date_reader.py        # run by examples/command_agent.py, once for every rollout

The task is {"text": …, "date": …}. The reward is 1 for exactly the date, a half where it stands among other words.
"""

import json
import os
import urllib.request
from typing import Any


def post(url: str, body: Any) -> bytes:
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}",
    }
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return bytes(answer.read())


def main() -> None:
    task = json.loads(os.environ["SHARPEN_TASK"])
    prompt = os.environ["SHARPEN_PROMPT"].replace("{text}", task["text"])
    talk = {"model": os.environ["SHARPEN_MODEL"], "messages": [{"role": "user", "content": prompt}]}
    said = json.loads(post(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", talk))
    answer = said["choices"][0]["message"]["content"]
    reward = 1.0 if answer == task["date"] else 0.5 * (task["date"] in answer)
    post(os.environ["SHARPEN_REWARD_URL"], {"reward": reward, "message": f"the model said: {answer}"})


if __name__ == "__main__":
    main()
