"""Signs of life of a trial: Optuna gives them only inside its own loop."""

import threading
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from optuna import Study


class Heartbeat:
    """Records a sign of life of one trial every so many seconds while its block is open."""

    def __init__(self, study: "Study", trial_id: int, seconds: float) -> None:
        self._storage, self._trial_id, self._seconds = study._storage, trial_id, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        try:
            while not self._stop.wait(self._seconds):
                with suppress(Exception):  # a database that is out for a moment; the trial goes on
                    self._storage.record_heartbeat(self._trial_id)  # type: ignore[attr-defined]
        finally:
            self._storage.remove_session()  # an SQLite connection belongs to the thread that opened it
