"""How the weights of a policy are spread over its ranks."""

import msgspec


class Sharding(msgspec.Struct, frozen=True, kw_only=True):
    """Each rank holds a part of every layer, and has a layer whole only while it computes with it."""

    reshards_after_forward: bool = True
    """Whether a layer is given up after the forward pass and gathered again for the gradient: less memory, more
    traffic."""
    offloads: bool = False
    """Whether the parts, their gradients and the optimiser are in the memory of the CPU. No effect on a CPU."""
