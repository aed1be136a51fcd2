"""Seeds that follow from who asks what: a run that is repeated samples the same again.

The seed of a call is made of the server's seed, the rollout, the prompt, and how often the attempt has asked with this
very prompt before. So an agent that asks the same thing several times gets different answers, and the order in which
rollouts happen to call changes nothing.
"""

from collections import OrderedDict
from hashlib import blake2b

MAX_COUNTS = 200_000


class CallSeeds:
    """Counts calls, of the attempts and prompts that asked last.

    What the rollout ids of a run begin with, `rollout_prefix`, has no say: it differs where two runs are the same.
    """

    def __init__(self, seed: int, rollout_prefix: str = "") -> None:
        self._seed, self._prefix = b"%d" % seed, rollout_prefix
        self._counts: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    def next(self, *, rollout_id: str, attempt_id: str, prompt_digest: bytes) -> int:
        """The seed of the next call with this prompt."""
        key = (attempt_id, prompt_digest)
        count = self._counts.pop(key, 0)
        self._counts[key] = count + 1
        if len(self._counts) > MAX_COUNTS:
            self._counts.popitem(last=False)
        place = rollout_id.removeprefix(self._prefix).encode()
        text = b"\0".join((self._seed, place, b"%d" % count, prompt_digest))
        return int.from_bytes(blake2b(text, digest_size=8).digest())
