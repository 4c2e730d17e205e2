"""The daily backup of an archive: its records as index.json has them, in backups/."""
from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, tzinfo

import hermes_lite as core
from hermes_ext.archive.file import ArchiveFile
from hermes_ext.archive.loss import LossCheck
from hermes_ext.archive.records import RecordTable

__all__ = ["DailyBackup"]

_MOST_BACKED_UP = 32_000_000         # bytes of records; more are not copied without being asked
_LARGEST_FILE = 8 * _MOST_BACKED_UP  # in which so few can lie: a larger one is not read through


class DailyBackup:
    """Copies a small archive to backups/ before the first write of a day; a large one never.

    *is_taken* tells whether a memory is there or was forgotten, by its id.
    """

    def __init__(self, file: ArchiveFile, records: RecordTable, backups: core.Backups,
                 loss: LossCheck, *, clock: Callable[[], datetime], zone: tzinfo,
                 is_taken: Callable[[str], bool]) -> None:
        self._file = file
        self._records = records
        self._backups = backups
        self._loss = loss
        self._clock = clock
        self._zone = zone
        self._is_taken = is_taken
        self._day_done = ""                        # the day whose backup was seen to

    def write_once_a_day(self) -> None:
        """Write the backup of this day, unless it is there."""
        day = self._today()
        if day == self._day_done:
            return
        self._day_done = day
        name = f"auto_index.json.{day}.bak"
        if not (self._file.files.root / "backups" / name).exists():
            self._write_unless_large(name)

    def write_after_move(self) -> None:
        """Write a second backup of this day: the first is of the store that was moved here."""
        self._write_unless_large(f"auto_index.json.{self._today()}_moved.bak")

    def _today(self) -> str:
        return f"{self._clock().astimezone(self._zone):%Y%m%d}"

    def _write_unless_large(self, name: str) -> None:
        """Copy all records, and drop old backups; nothing where there are none, or too many."""
        if self._file.path.stat().st_size >= _LARGEST_FILE:
            return
        if not 0 < self._records.size() < _MOST_BACKED_UP:
            return
        lines = (entry.encode() for entry in self._records.entries())
        self._file.files.write(f"backups/{name}", core.join_rows(lines))
        self._backups.drop_old(is_taken=self._is_taken, held=self._records.count(),
                               has_loss=self._loss.count_before_loss > 0)
