"""The policy of a language model: from what was sampled to a gradient.

- `samples`: turns of a conversation merged into training sequences (no torch)
- `advantages`: rewards into credit per rollout, per turn and per token
- `aggregation`: how losses per token become one number, the same however a mini-batch is split
- `losses`: policy, KL and value losses, entropy, importance correction
- `packing`: sequences side by side without padding, and back

What stands at a token is about that token: `logprobs[t]` is the log-probability of token t after the tokens before it.
So the first token of a sequence is never trained.

Axis letters: N rollouts, K turns of all rollouts, B sequences (rows), T positions in a row, V the vocabulary.
"""
