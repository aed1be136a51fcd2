"""The policy of a language model: from what was sampled to a gradient.

- `policy`, `critic`, `local_model`: models on this machine that sample, score and learn
- `samples`: turns of a conversation merged into training sequences, and what is learned from them (no torch)
- `advantages`: rewards into credit per rollout, per turn and per token
- `losses`, `objective`: policy, KL and value losses, entropy, importance correction; the whole loss of a micro-batch
- `packing`: sequences side by side, in which common beginnings are computed once
- `forward`, `fast_forward`, `logprob_head`: the forward pass of a model for training
- `optimiser`, `trainable`, `checkpoint`: the step, which weights take it, and their state in a file
- `settings`: what is set for all of these (no torch)
- `ranks`: the same on several devices

What stands at a token is about that token: `logprobs[t]` is the log-probability of token t after the tokens before it.
So the first token of a sequence is never trained.

Axis letters: N rollouts, K turns of all rollouts, B sequences (rows), T positions in a row, V the vocabulary.
"""
