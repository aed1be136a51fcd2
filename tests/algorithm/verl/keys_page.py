"""The page of keys, written from the table: `python -m tests.algorithm.verl.keys_page` writes it again."""

from collections.abc import Iterator
from pathlib import Path

from tests.algorithm.internals import FIXED, IGNORED, KEYS, OTHER_NAMES, Key

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "verl-keys.md"

START = """# Keys of `VERL`

The config of `VERL` uses verl's keys. It is a mapping, nested or with dotted names or both, or the path of a YAML file,
and overrides the defaults below.

```python
from sharpen import VERL

algorithm = VERL(
    {
        "data": {"train_batch_size": 16},
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref": {"actor": {"optim": {"lr": "1e-5"}}},
        "trainer": {"n_gpus_per_node": 1},
    }
)
assert algorithm.config["actor_rollout_ref"]["actor"]["optim"]["lr"] == 1e-5
```

There are four kinds of keys:

- [Keys that act](#keys-that-act). A value of the wrong type or range is a `ConfigError` that names the key.
- [Other names](#other-names) of these keys, from older and newer releases of verl.
- [Keys with one value](#keys-with-one-value): any other value would change what is learned, and is an error.
- [Keys without a meaning here](#keys-without-a-meaning-here): accepted, and logged with the reason.

Any other key is an error with the nearest name. A key without a value (`null`) uses its default, unless None is listed
below. References such as `${data.max_prompt_length}`, `${oc.select:name,default}` and `${oc.env:NAME}` are followed.
Numbers may be text, as YAML reads `1e-6`.

`algorithm.config` is the whole config with its defaults. A key whose default is "as" another key follows that key.
`ppo_mini_batch_size` is lowered to `train_batch_size`; `grpo` and `rloo` need an `n` of 2 or more; the keys of the
critic are used only with `gae`.
"""


def page() -> str:
    return "\n".join(
        [
            START,
            "## Keys that act\n",
            "| key | default | values | meaning |\n| --- | --- | --- | --- |",
            *(f"| `{key.name}` | {_default(key)} | {_values(key)} | {key.meaning} |" for key in KEYS.values()),
            "\n## Other names\n",
            "| key | means |\n| --- | --- |",
            *(f"| `{name}` | `{key}` |" for name, key in OTHER_NAMES.items()),
            "\n## Keys with one value\n",
            "| key | value | otherwise |\n| --- | --- | --- |",
            *(f"| `{name}` | `{fixed.value}` | {fixed.advice} |" for name, fixed in FIXED.items()),
            "\n## Keys without a meaning here\n",
            "`*` matches anything.\n",
            *_ignored(),
        ]
    )


def _default(key: Key) -> str:
    if key.same_as is not None:
        return f"as `{key.same_as}`"
    return "depends on other keys" if key.default is None and not key.is_optional else f"`{key.default}`"


def _values(key: Key) -> str:
    return key.kind.words + ("; or None" if key.is_optional else "")


def _ignored() -> Iterator[str]:
    for reason, patterns in IGNORED.items():
        yield f"- {reason[0].upper()}{reason[1:]}: {', '.join(f'`{pattern}`' for pattern in patterns)}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
