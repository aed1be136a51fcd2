"""What ranks do together with tensors: sums and copies, by NCCL between GPUs, else by Gloo over loopback.

The group is one of its own: it is not torch's default group, which belongs to the user's program. Only `fully_shard`
cannot do without a default group: where it is used (`is_default`), the group is that one until it is left. Nothing of
it listens beyond this machine.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ....errors import ConfigError

dist: Any = torch.distributed  # no type checker knows all that its compiled part has
_LOOPBACK = "127.0.0.1"
_TIMEOUT = timedelta(minutes=10)
# By default NCCL's watchdog ends the process, here the user's, when another rank has gone. It is to be an error.
_NCCL_ENVIRONMENT = {
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}


class Group:
    """This process as a member. Rank 0 makes it with `open`, the others with its port; all `join`."""

    def __init__(self, rank: int, devices: Sequence[str], port: int, *, is_default: bool = False) -> None:
        self.rank, self.size, self.port, self.device = rank, len(devices), port, devices[rank]
        self.is_nccl = is_nccl(devices)
        self._is_default = is_default
        self._store: Any = None
        self._backend: Any = None

    @classmethod
    def open(cls, devices: Sequence[str], *, is_default: bool = False) -> "Group":
        """That of rank 0, at a free port where the others find it."""
        if is_default and dist.is_available() and dist.is_initialized():
            raise ConfigError(
                "sharded training needs torch's default process group, but this program already has one: start it "
                "without torchrun or accelerate (it starts its own ranks), and close the other sharded policy first"
            )
        listening = socket.create_server((_LOOPBACK, 0))
        group = cls(0, devices, listening.getsockname()[1], is_default=is_default)
        group._store = dist.TCPStore(
            _LOOPBACK,
            group.port,
            is_master=True,
            wait_for_workers=False,
            timeout=_TIMEOUT,
            master_listen_fd=listening.detach(),
        )
        return group

    def join(self) -> None:
        """Wait for the others. Before it nothing can be done together."""
        if self._store is None:
            self._store = dist.TCPStore(_LOOPBACK, self.port, is_master=False, timeout=_TIMEOUT)
        if self._is_default:
            self._backend = self._default()
        else:
            self._backend = self._nccl() if self.is_nccl else self._gloo()

    def _default(self) -> Any:
        """torch's default group, and the backend in it that the other methods use."""
        names = "nccl" if self.is_nccl else "cpu:gloo,cuda:gloo" if torch.cuda.is_available() else "gloo"
        loopback = {"GLOO_SOCKET_IFNAME": next((name for _, name in socket.if_nameindex() if name[:2] == "lo"), "lo")}
        store = dist.PrefixStore("default", self._store)
        with _environment(_NCCL_ENVIRONMENT | loopback):
            dist.init_process_group(names, store=store, rank=self.rank, world_size=self.size, timeout=_TIMEOUT)
            return dist.group.WORLD._get_backend(torch.device("cuda" if self.is_nccl else "cpu"))

    def mesh(self, device: str) -> DeviceMesh:
        """All ranks in a line, for `fully_shard`."""
        kind = torch.device(device).type
        if kind == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]  # otherwise torch would choose the GPU by the number of the rank
        return DeviceMesh(kind, list(range(self.size)))

    def _gloo(self) -> Any:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
        options._timeout = _TIMEOUT
        return dist.ProcessGroupGloo(self._store, self.rank, self.size, options)

    def _nccl(self) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _TIMEOUT
        with _environment(_NCCL_ENVIRONMENT):
            return dist.ProcessGroupNCCL(self._store, self.rank, self.size, options)

    def sum_to(self, tensor: Tensor, owner: int) -> None:
        """The owner has the sum of all ranks' tensors in its own; those of the others hold nothing of use."""
        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank = dist.ReduceOp.SUM, owner
        with self._reachable(tensor) as reachable:
            self._backend.reduce([reachable], options).wait()

    def sum_all(self, tensor: Tensor) -> None:
        """Every rank has the sum of all ranks' tensors in its own."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        with self._reachable(tensor) as reachable:
            self._backend.allreduce([reachable], options).wait()

    def copy_from(self, owner: int, tensor: Tensor) -> None:
        """Every rank has the owner's tensor in its own, bit by bit."""
        options = dist.BroadcastOptions()
        options.rootRank = owner
        with self._reachable(tensor) as reachable:
            # As bytes: Gloo does not know every type of numbers.
            self._backend.broadcast([reachable.view(torch.uint8)], options).wait()

    def abort(self) -> None:
        """Wake whoever waits for a rank that has gone."""
        backend = self._backend
        if backend is not None and self.is_nccl:  # Gloo notices by itself
            backend.abort()

    def leave(self) -> None:
        """Let go of the connections. A second call changes nothing."""
        if self._is_default and self._backend is not None and dist.is_initialized():
            dist.destroy_process_group()
        self._backend = self._store = None

    @contextlib.contextmanager
    def _reachable(self, tensor: Tensor) -> Iterator[Tensor]:
        """The tensor where the backend can reach it."""
        if self.is_nccl or tensor.device.type == "cpu":
            yield tensor
            return
        here = tensor.cpu()
        yield here
        tensor.copy_(here)


def is_nccl(devices: Sequence[str]) -> bool:
    """NCCL wants a GPU for each rank."""
    return all(each.startswith("cuda") for each in devices) and len(set(devices)) == len(devices)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
