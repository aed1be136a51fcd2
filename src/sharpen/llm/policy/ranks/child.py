"""The program of a rank other than 0: `python -m sharpen.llm.policy.ranks.child FD`.

It does one order after the other. It never runs the user's script. When rank 0 has gone, it is killed at once, with
whatever it has started: it holds nothing that is not lost anyway.
"""

import contextlib
import faulthandler
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from typing import Any

import torch

from sharpen.llm.policy.checkpoint import ModelState
from sharpen.llm.policy.ranks import messages
from sharpen.llm.policy.ranks.drawn import Drawn
from sharpen.llm.policy.ranks.group import Group
from sharpen.llm.policy.ranks.link import Link, LinkClosed
from sharpen.llm.policy.ranks.rank_policy import RankPolicy
from sharpen.llm.policy.ranks.shard_policy import ShardPolicy
from sharpen.llm.policy.settings import LocalOptions


class Rank:
    """Does what it is told."""

    policy: RankPolicy

    def __init__(self) -> None:
        self._server: Any = None

    def do(self, order: messages.AnyOrder) -> Any:
        match order:
            case messages.Begin():
                return self._begin(order)
            case messages.Meet():
                self.policy.meet()
            case messages.Train():
                return self.policy.train_part(order)
            case messages.Forget():
                self.policy.zero_grad()
            case messages.Step():
                self.policy._step()
                return self.policy.fingerprint_now if order.is_checked else None
            case messages.Score():
                return [each.numpy().tobytes() for each in self.policy.score_part(order)]
            case messages.Draw():
                return self._draw(order)
            case messages.Gather():
                self.policy._state()
            case messages.Take():
                self._take(order)
            case messages.MakeEngine() | messages.GatherModel():
                self._make_whole(order)
            case messages.Serve():
                return self._serve(order)
            case messages.StopServing() | messages.Stop():
                self._stop_serving()
        return None

    def _begin(self, order: messages.Begin) -> str:
        torch.set_num_threads(order.num_threads)
        device = order.devices[order.rank]
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        group = Group(order.rank, order.devices, order.port, is_default=order.sharding is not None)
        options: LocalOptions = {**order.options, "device": device}
        if order.sharding is None:
            self.policy = RankPolicy(order.model_name, group, **options)
        else:
            self.policy = ShardPolicy(order.model_name, group, order.sharding, **options)
        return self.policy.fingerprint_at_start

    def _make_whole(self, order: messages.MakeEngine | messages.GatherModel) -> None:
        assert isinstance(self.policy, ShardPolicy)
        if isinstance(order, messages.MakeEngine):
            self.policy.make_engine()
        else:
            self.policy.whole_model()

    def _draw(self, order: messages.Draw) -> list[Drawn]:
        engine = self.policy.engine
        requests = [engine.submit(prompt, params) for prompt, params in zip(order.prompts, order.params, strict=True)]
        return [Drawn.of(request.result()) for request in requests]

    def _take(self, order: messages.Take) -> None:
        like = self.policy.outline()
        counts = {f"step.{name}": torch.tensor(count) for name, count in order.counts.items()}
        self.policy._take(ModelState(like.fingerprint, like.trainable, order.num_updates, counts, order.counters))

    def _serve(self, order: messages.Serve) -> str:
        from sharpen.llm.server import EngineServer

        self._stop_serving()
        self._server = EngineServer(
            self.policy.engine,
            self.policy.tokenizer,
            name=order.name,
            seed=order.seed,
            rollout_prefix=order.rollout_prefix,
            chat_template_kwargs=order.chat_template_kwargs,
        )
        return str(self._server.start().base_url)

    def _stop_serving(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None


def main() -> None:
    faulthandler.enable(all_threads=False)  # a crash below Python has last words, too
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    orders: queue.SimpleQueue[messages.Asked] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(link, orders), name="sharpen-rank-0", daemon=True).start()
    rank, is_lost = Rank(), False
    while not is_lost:
        asked = orders.get()
        is_lost = _answer(rank, asked, link)
        if isinstance(asked.order, messages.Stop):
            break
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(int(is_lost))  # threads of the engine and of torch have nothing to finish


def _listen(link: Link, orders: "queue.SimpleQueue[messages.Asked]") -> None:
    with contextlib.suppress(LinkClosed):
        while (frame := link.receive()) is not None:
            orders.put(messages.decode_asked(frame))
    os.killpg(0, signal.SIGKILL)


def _answer(rank: Rank, asked: messages.Asked, link: Link) -> bool:
    """Whether this rank cannot go on: it has left the others alone in what they do together."""
    try:
        reply, is_lost = messages.encode_reply(asked.number, rank.do(asked.order)), False
    except Exception as error:  # noqa: BLE001 - raised again by rank 0
        failure = messages.Failure(type(error).__name__, str(error), traceback.format_exc())
        reply = messages.encode_reply(asked.number, failure=failure)
        is_lost = messages.leaves_others_waiting(asked.order, error)
    with contextlib.suppress(LinkClosed):  # the thread that listens notices, too
        link.send(reply)
    return is_lost


if __name__ == "__main__":
    main()
