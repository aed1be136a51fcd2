"""An agent that asks the model behind the gateway: replace it by your own."""

from openai import OpenAI

from sharpen import LLM, rollout


@rollout
def ask(task: dict[str, str], llm: LLM) -> float:
    client = OpenAI(base_url=llm.endpoint, api_key=llm.resolve_api_key() or "none", max_retries=5)
    said = client.chat.completions.create(
        model=llm.model, messages=[{"role": "user", "content": task["question"]}], max_tokens=64
    )
    return float(task["answer"] in (said.choices[0].message.content or ""))
