"""Simulated time for `queue_simulator.py`: processes, and what they wait for."""

import heapq
from collections import deque
from collections.abc import Generator
from itertools import count

Process = Generator["Station | Disk | Place | float", None, None]


class Clock:
    """Runs processes in the order of simulated time. A process yields seconds to pass, or what it waits for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Process]] = []
        self._number = count()

    def start(self, process: Process) -> None:
        self.resume(process, self.now)

    def resume(self, process: Process, when: float) -> None:
        heapq.heappush(self._events, (when, next(self._number), process))

    def run(self, end: float) -> None:
        events = self._events
        while events and events[0][0] <= end:
            self.now, _, process = heapq.heappop(events)
            wanted = next(process, None)
            if wanted is None:
                continue
            if isinstance(wanted, float):
                self.resume(process, self.now + wanted)
            else:
                wanted.join(process)
        self.now = end


class Gauge:
    """A number that changes, and its integral over time."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._value, self._since, self._area = clock, 0, 0.0, 0.0

    def change(self, by: int) -> None:
        self._area, self._since = self.area, self._clock.now
        self._value += by

    @property
    def area(self) -> float:
        return self._area + self._value * (self._clock.now - self._since)

    def forget(self) -> None:
        self._area, self._since = 0.0, self._clock.now


class Station:
    """Does `capacity` pieces of work at a time; the rest wait in order."""

    def __init__(self, clock: Clock, capacity: int) -> None:
        self._clock, self.capacity, self._taken = clock, capacity, 0
        self._waiting: deque[Process] = deque()
        self.worked = 0.0

    def join(self, process: Process) -> None:
        if self._taken < self.capacity:
            self._taken += 1
            self._clock.resume(process, self._clock.now)
        else:
            self._waiting.append(process)

    def leave(self) -> None:
        if self._waiting:
            self._clock.resume(self._waiting.popleft(), self._clock.now)
        else:
            self._taken -= 1


class Disk:
    """Syncs what waits for it at once; what comes meanwhile waits for the next sync."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self.seconds = clock, seconds
        self._waiting: list[Process] = []
        self._is_busy = False
        self.worked = 0.0

    def join(self, process: Process) -> None:
        self._waiting.append(process)
        if not self._is_busy:
            self._is_busy = True
            self._clock.start(self._sync())

    def _sync(self) -> Process:
        while self._waiting:
            together, self._waiting = self._waiting, []
            self.worked += self.seconds
            yield self.seconds
            for process in together:
                self._clock.resume(process, self._clock.now)
        self._is_busy = False


class Line:
    """Runners that wait for work, in order."""

    def __init__(self) -> None:
        self._waiting: dict[Place, None] = {}

    def add(self, place: "Place") -> None:
        self._waiting[place] = None

    def remove(self, place: "Place") -> bool:
        """Whether it was still there."""
        return self._waiting.pop(place, self) is None

    def wake(self) -> bool:
        """Whether there was anybody to be woken."""
        place = next(iter(self._waiting), None)
        if place is not None:
            del self._waiting[place]
            place.wake()
        return place is not None


class Place:
    """One runner's place in the line, until it is woken or its poll is over."""

    def __init__(self, clock: Clock, line: Line, seconds: float) -> None:
        self._clock, self._line, self._seconds = clock, line, seconds
        self.is_over = False

    def join(self, process: Process) -> None:
        self._process = process
        self._line.add(self)
        self._clock.resume(self._end(), self._clock.now + self._seconds)

    def wake(self) -> None:
        self._clock.start(self._process)

    def _end(self) -> Process:
        if self._line.remove(self):
            self.is_over = True
            self.wake()
        yield from ()
