"""What systems change by themselves, told to whoever reads the log."""
import logging
from typing import List, Set, Tuple

from thinwire.extension import _C
from thinwire.interface import Writer

_logger = logging.getLogger("thinwire")

# Of a training of weeks, the newest.
_MOST = 10000


class ChangeLog:
    """Collects an engine's changes over buckets that are made anew and systems that are replaced, which both
    begin with none. Rank 0 logs each once."""

    def __init__(self, engine: _C.Engine, rank: int) -> None:
        self._engine = engine
        self._logs = rank == 0
        self._seen = 0
        self._known: Set[Tuple[int, str]] = set()  # of the engine's
        self._all: List[Tuple[int, str]] = []
        self._unwritten: List[Tuple[int, str]] = []

    def all(self) -> List[Tuple[int, str]]:
        """Steps and reasons of what was collected so far."""
        return list(self._all)

    def collect(self) -> None:
        """Logs what is new. Waits for a step that is under way where it has brought changes; else it costs
        nothing."""
        times = self._engine.times_changed()
        if times == self._seen:
            return
        self._seen = times
        of_engine = self._engine.changes()
        new = [change for change in of_engine if change not in self._known]
        self._known = set(of_engine)
        for changes in (self._all, self._unwritten):
            changes.extend(new)
            del changes[:-_MOST]
        if self._logs:
            for step, reason in new:
                _logger.info("step %d: %s", step, reason)

    def write_to(self, writer: Writer) -> None:
        """Gives ``writer`` what none was given before, where it takes texts."""
        new, self._unwritten = self._unwritten, []
        add_text = getattr(writer, "add_text", None)
        if add_text is not None:
            for step, reason in new:
                add_text("thinwire/changes", reason, step)
