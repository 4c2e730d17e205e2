"""Report: the digest of alerts, as Markdown, for a morning's mail or a file.

    hermes_lite.py report                                the alerts of the last day, by agent
    hermes_lite.py report --since 12h --by rule --file alerts.md
    hermes_lite.py report --tag deadline --since 2026-08-01

An alert is a memory that was made in the span and has one of the tags alert, alarm, 告警, 警报,
报警 (or `--tag`), or for which a rule fired in the span (logs/rules.log). Groups stand by size,
then name; in a group the best score first (the salience, else the importance), then the newest.
What was forgotten since is counted, and not shown.

`--file` writes the report whole, 0600, over an older one; a place inside the data root is
refused. From cron:

    0 9 * * *  HERMES_LITE_ROOT=/home/me/memory hermes-lite report --file /home/me/alerts.md
"""
from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hermes_ext.scores import current_score
from hermes_lite import (HermesLite, Memory, Operation, Param, Record, Refused, UsageError,
                         check_selectors, excerpt, from_json, iso, parse_time,
                         write_atomic)

__all__ = ["OPERATIONS", "Report", "report"]

TAGS = ("alert", "alarm", "告警", "警报", "报警")
BY = ("agent", "rule", "room", "category", "tag", "source")


@dataclass(frozen=True, slots=True)
class Alert(Record):
    """One line of a report; `rules` are the names of those that fired."""
    id: str
    at: str
    content: str
    score: float
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report(Record):
    """The alerts since a moment; a memory with two tags or rules stands in two groups."""
    since: str
    by: str
    total: int
    forgotten: int
    groups: tuple[tuple[str, tuple[Alert, ...]], ...]
    file: str | None = None

    def markdown(self) -> Iterator[str]:
        """Yield the lines of the report."""
        yield f"# Alerts since {self.since[:16].replace('T', ' ')} UTC: {self.total}"
        for name, alerts in self.groups:
            yield ""
            yield f"## {excerpt(name)} ({len(alerts)})"
            yield ""
            for each in alerts:
                fired = f" · rules: {', '.join(each.rules)}" if each.rules else ""
                yield (f"- {each.at[:16].replace('T', ' ')} {_plain(each.content)}"
                       f" · score {each.score:g}{fired} · {each.id}")
        if self.forgotten:
            yield ""
            yield f"{self.forgotten} more were forgotten since."


def _plain(text: str) -> str:
    """Return the beginning of a text so that Markdown shows it as it stands."""
    return re.sub(r"([\\`*_<>\[\]#|!])", r"\\\1", excerpt(text))


def report(memory: HermesLite, *, since: str = "1d", by: str = "agent", tag: str | None = None,
           file: str | None = None) -> Report:
    """Gather the alerts since a span (12h, 1d, 2w) or date; with *file*, write it as well."""
    if by not in BY:
        raise UsageError(f"--by is one of {', '.join(BY)}")
    check_selectors(since=since, tag=tag)
    target = _target(memory, file) if file is not None else None
    start, fired = memory.calendar.moment(since), {}
    for row in _firings(memory):
        if (parse_time(row.get("at")) or start) >= start:
            fired.setdefault(str(row["id"]), {})[str(row["rule"])] = None
    wanted = {word.lstrip("#").casefold() for word in ((tag,) if tag else TAGS)}
    rows = [m for m in memory.matching(since=iso(start))
            if wanted & {each.lstrip("#").casefold() for each in m.tags}]
    known = {m.id for m in rows}
    others = [memory.store.get(i) for i in fired if i not in known]
    rows += [memory.redactor.outgoing(m) for m in others if m is not None]
    memory.systems.emit("report", [m.id for m in rows])
    made = Report(iso(start), by, len(rows), others.count(None), _grouped(memory, rows, fired, by),
                  str(target) if target else None)
    if target:
        write_atomic(target, ("\n".join(made.markdown()) + "\n").encode("utf-8", "replace"))
    return made


def _target(memory: HermesLite, file: str) -> Path:
    target = Path(os.path.realpath(os.path.expanduser(file)))
    if not file.strip() or "\0" in file or target.is_dir():
        raise UsageError("--file needs the name of a file")
    if target.is_relative_to(os.path.realpath(memory.root)):
        raise Refused("--file lies inside the data root, where the store's own files are; choose "
                      "another place", "inside_root")
    return target


def _firings(memory: HermesLite) -> Iterator[dict]:
    """Yield the claims of logs/rules.log; a line that a kill cut is left out."""
    try:
        data = (memory.root / "logs" / "rules.log").read_bytes()
    except OSError:
        return
    for line in data.splitlines():
        try:
            row = from_json(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "id" in row and "rule" in row:
            yield row


def _grouped(memory: HermesLite, rows: list[Memory], fired: dict[str, dict[str, None]],
             by: str) -> tuple[tuple[str, tuple[Alert, ...]], ...]:
    groups: dict[str, list[Alert]] = {}
    for row in rows:
        alert = Alert(row.id, row.created_at, row.content, current_score(memory, row),
                      tuple(fired.get(row.id, ())))
        names = {"rule": alert.rules or ("no rule",), "tag": row.tags}.get(by) or (
            getattr(row, by, None) or f"no {by}",)
        for name in names:
            groups.setdefault(name, []).append(alert)
    for alerts in groups.values():
        alerts.sort(key=lambda alert: (alert.at, alert.id), reverse=True)
        alerts.sort(key=lambda alert: -alert.score)
    sizes = Counter({name: len(alerts) for name, alerts in groups.items()})
    return tuple((name, tuple(groups[name])) for name in sorted(
        groups, key=lambda name: (-sizes[name], name)))


OPERATIONS = (
    Operation("report", "write the digest of alerts", report, (
        Param("since", str, "from this date on, or 12h, 1d, 2w", "1d"),
        Param("by", str, f"grouped by {', '.join(BY)}", "agent"),
        Param("tag", str, "those with this tag instead of alert, 告警 …"),
        Param("file", Path, "write it to this file as well")), Report.markdown),
)
