"""One policy on several devices of this machine: a process for each device, which all hold the whole model.

- `ranked_policy`: `RankedPolicy`, the policy as its user sees it; it is rank 0, in the user's process
- `crew`, `rank_process`, `child`: the other ranks, fresh interpreters that end with this process
- `group`, `sharded_optimiser`: what ranks do together; the optimiser is spread over them
- `dealing`: which rank computes which sequences
- `servers`: every rank samples for agents

What is divided by the number of ranks: the sequences of a mini-batch, the sampling, Adam's moments and the float32
copies of the weights. What is not: each device holds all weights and all gradients, so a model whose weights and
gradients do not fit into one device cannot be trained here (train an adapter, or the top layers, of it).

Ranks act together (sum gradients, change weights, gather a state) only after each has said that it is ready, so an
error of one never leaves the others waiting. Nothing is unpickled: orders are MessagePack on an inherited socket, and
tensors go from rank to rank as plain memory.
"""
