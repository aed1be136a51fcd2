"""What the actors of a run have in common: what they are given, and how they come to a place in the cluster."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..._version import __version__
from ...errors import ConfigError
from .arrival import Surroundings
from .resources import Amounts, options_for
from .waiting import Patience, first_answer


@dataclass(frozen=True)
class Terms:
    """Of one run. `node_id` is the node of the program, `runtime_env` what the connection has not been given."""

    surroundings: Surroundings
    node_id: str
    runtime_env: dict[str, Any] | None
    placement_timeout: float

    def hire(self, kind: type, amounts: Amounts, **options: Any) -> Any:
        """A new actor, which waits for its place."""
        import ray

        options |= options_for(amounts)
        if self.runtime_env is not None:
            options["runtime_env"] = self.runtime_env
        try:
            return ray.remote(kind).options(**options).remote()
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"Ray rejected the resources or the runtime_env of an actor: {error} (if the program calls ray.init "
                "itself, pass its folders there)"
            ) from error

    async def prepared(self, actor: Any, *given: Any, who: str, amounts: Amounts, setting: str) -> dict[str, Any]:
        """What the actor answers when it is to be ready; `setting` is where its resources stand."""
        ask: Callable[[], Any] = lambda: actor.prepare.remote(__version__, self.surroundings, *given)  # noqa: E731
        answer: dict[str, Any] = await first_answer(ask, Patience(who, amounts, setting, self.placement_timeout))
        return answer
