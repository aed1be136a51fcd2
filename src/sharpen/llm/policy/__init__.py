"""The policy of a language model: from what was sampled to a gradient.

- `samples`: turns of a conversation merged into training sequences (no torch)
- `advantages`: rewards into credit per rollout, per turn and per token
- `aggregation`: how losses per token become one number, the same however a mini-batch is split
- `losses`: policy, KL and value losses, entropy, importance correction
- `packing`: sequences side by side without padding, and back
- `training_sample`, `loss_settings`: what is learned from, and how (no torch)
- `token_tree`, `tree_attention`: rows in which what sequences share at their beginning is computed once
- `bodies`, `body`, `head`: the forward pass of a model for training
- `objective`, `optimiser`, `schedule`, `trainable`: the whole loss, the step, and which weights take it
- `local_policy`, `critic`: models on this machine that sample, score and learn

What stands at a token is about that token: `logprobs[t]` is the log-probability of token t after the tokens before it.
So the first token of a sequence is never trained.

Axis letters: N rollouts, K turns of all rollouts, B sequences (rows), T positions in a row, V the vocabulary.
"""
