"""What the store server counts, in Prometheus' text format."""

from collections import Counter, defaultdict

from .base import LightningStoreStatistics

PREFIX = "sharpen_store"


class Metrics:
    """Requests by method and status, the time they took, and the sizes of the store."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, float] = defaultdict(float)
        self.in_progress = 0

    def record(self, method: str, status: int, seconds: float) -> None:
        self._requests[method, status] += 1
        self._seconds[method] += seconds

    def render(self, statistics: LightningStoreStatistics) -> str:
        lines: list[str] = []

        def add(name: str, kind: str, text: str, rows: list[tuple[str, float]]) -> None:
            lines.append(f"# HELP {PREFIX}_{name} {text}")
            lines.append(f"# TYPE {PREFIX}_{name} {kind}")
            lines.extend(f"{PREFIX}_{name}{labels} {value!r}" for labels, value in rows)

        requests = [(f'{{method="{m}",status="{s}"}}', n) for (m, s), n in sorted(self._requests.items())]
        add("requests_total", "counter", "Requests answered.", [(labels, float(n)) for labels, n in requests])
        seconds = [(f'{{method="{m}"}}', s) for m, s in sorted(self._seconds.items())]
        add("request_seconds_total", "counter", "Seconds spent on requests, long polls included.", seconds)
        now = float(self.in_progress)
        add("requests_in_progress", "gauge", "Requests under way, long polls included.", [("", now)])
        by_status = [(f'{{status="{s}"}}', float(n)) for s, n in statistics["rollouts_by_status"].items()]
        add("rollouts", "gauge", "Rollouts by status.", by_status)
        for name, text in (
            ("queue_length", "Rollouts that wait for a worker."),
            ("open_attempts", "Attempts at work."),
            ("total_spans", "Spans kept."),
            ("total_workers", "Workers known."),
            ("size_bytes", "Bytes kept."),
            ("uptime_seconds", "Seconds since the store was opened."),
        ):
            add(name, "gauge", text, [("", float(statistics[name]))])  # type: ignore[literal-required]
        return "\n".join(lines) + "\n"
