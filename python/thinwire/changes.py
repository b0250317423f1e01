"""What systems change by themselves, told to whoever reads the log."""
import logging
from typing import List, Optional, Set, Tuple

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

    def all(self, writer: Optional[Writer]) -> List[Tuple[int, str]]:
        """Steps and reasons. Waits for a step that is under way where it has brought changes."""
        self.collect(writer)
        return list(self._all)

    def collect(self, writer: Optional[Writer]) -> None:
        """Logs what is new, and writes it to ``writer`` where that takes texts. Else it costs nothing."""
        times = self._engine.times_changed()
        if times == self._seen:
            return
        self._seen = times
        of_engine = self._engine.changes()
        new = [change for change in of_engine if change not in self._known]
        self._known = set(of_engine)
        self._all.extend(new)
        del self._all[:-_MOST]
        add_text = getattr(writer, "add_text", None)
        for step, reason in new:
            if self._logs:
                _logger.info("step %d: %s", step, reason)
            if add_text is not None:
                add_text("thinwire/changes", reason, step)
