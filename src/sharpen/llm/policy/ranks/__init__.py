"""One policy on several devices of this machine: a process for each device, which holds the model or a part of it.

- `ranked_policy`: `RankedPolicy`, the policy as its user sees it; it is rank 0, in the user's process
- `crew`, `rank_process`, `child`: the other ranks, fresh interpreters that end with this process
- `group`, `sharded_optimiser`: what ranks do together; the optimiser is spread over them
- `sharded_policy`, `shard_policy`: `ShardedPolicy`, whose ranks divide the weights, too; each rank of it
- `sharding`, `sharded_model`, `shard_optimiser`, `whole_model`: how the weights are divided, stepped, and put together
- `dealing`: which rank computes which sequences
- `servers`: every rank samples for agents

What `RankedPolicy` divides by the number of ranks: the sequences of a mini-batch, the sampling, Adam's moments and the
float32 copies of the weights. Each device holds all weights and all gradients; where they do not fit, `ShardedPolicy`
divides them as well, and its engines have copies of the weights alone.

Ranks act together (sum gradients, change weights, gather a state) only after each has said that it is ready, so an
error of one never leaves the others waiting. With weights in parts also passes through the model are done together, so
there an error of one ends them all. Nothing is unpickled: orders are MessagePack on an inherited socket, and
tensors go from rank to rank as plain memory.
"""
