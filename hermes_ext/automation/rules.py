"""Rules: when a memory is such and such, run a command, call a webhook or write a line.

    hermes_lite.py rules                          the rules, and what they did
    hermes_lite.py rules check --dry-run          what they would do about all memories now
    hermes_lite.py rules retry                    do again what failed or was interrupted

In config.yaml, each rule under a name that stays:

    systems:
      rules:
        calendar:  {when: {tag: deadline, score_above: 5}, append: deadlines.ics}
        legal:     {when: {anchor: contract_id, recalled_more_than: 3, per: week},
                    run: [python3, /opt/mail.py, legal]}
        crm:       {when: {anchor: status, from: draft, to: signed}, webhook: $CRM_URL}

when     tag, anchor (a type that the system anchors finds) and score_above hold together. The
         score is the salience as it is now where that system is on, else the importance.
         `recalled_more_than` counts the recalls that return this anchor's value within one day,
         week or month (UTC). `from` and `to`, one or both, are a change: of a status, also one
         that a newer memory states about the same number, of the state of an action_item (open,
         done), of the value of another type. A value is known from the first time that the
         rules see the memory; a change made before that is not seen.
run      a list: program and arguments, no shell, in the folder of the command that set it off;
         the memory comes as JSON on standard input, the rule's name as HERMES_RULE. Of the
         environment it gets PATH, HOME, LANG and their like, and the variables that the rule
         names in a list, `env: [SMTP_PASSWORD]`; never HERMES_MASTER_KEY or HERMES_SYNC_KEY. It
         is killed after `timeout` seconds (10). In a command that a rule started no rule fires.
webhook  a POST of {"rule", "cause", "at", "memory"} to a URL, or to what $NAME says in the
         environment or .env. https, or http to this machine. An address that is not public is
         refused unless the rule says `private: true`; it is looked up before sending, so a name
         that changes in that instant is not caught. Redirects are not followed, proxies and
         .netrc not used. Needs requests.
append   FILE.ics (an all-day event on the deadline, expires_at, a date in the text, or the day it
         was made) or FILE.md (a line); a relative name is one in the data root. They are
         readable: refused where the memory is encrypted and encryption.markdown is false.

When it fires: after a write, after a recall, or by `rules check`, which a cron job may run. Each
cause fires once, for ever and in all processes: (rule, memory) for tag, anchor and score; (rule,
value, period) for recalls; each single change of a value. First the firing is claimed in
logs/rules.log and synced, then it acts: at most once. A kill in between loses the action, and
`rules` shows it as interrupted; `rules retry` then acts again, so command and webhook may be done
twice (the `cause` is the same), a line in a file not. A failure is a warning of the write.

logs/rules.log (version 1), a JSON object a line: {"at", "cause", "rule", "id", "agent", "why"} for
a claim, {"at", "cause", "did": {action: "ok" or what failed}} for its end. No text of a memory is
in it; what was forgotten is only an id there, and its lines are taken out of .ics and .md again.
"""
from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from hermes_ext.scores import current_score
from hermes_lite import (Config, ConfigError, Event, FileLock, HermesError, HermesLite, Memory,
                         NotFound, Operation, Param, Record, StorageError, UsageError,
                         append_bytes, check_known, display_text, excerpt, fits, from_json,
                         import_system, iso, make_folder, parse_time, redact_nested, to_json,
                         write_atomic)

__all__ = ["Firing", "OPERATIONS", "Overview", "Rule", "Rules", "read_rule", "system"]

_PERIODS = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}
_WHEN = ("tag", "score_above", "anchor", "recalled_more_than", "per", "from", "to")
_ACTIONS = ("run", "webhook", "append")
_ALERTS = ("alert", "alarm", "告警", "警报", "报警")
_FINE = ("ok", "forgotten")
_GRACE = 60                                        # seconds before a firing counts as interrupted


@dataclass(frozen=True, slots=True)
class Rule(Record):
    """One rule of config.yaml; `when` and the actions are as they stand there."""
    name: str
    when: Mapping[str, object]
    run: tuple[str, ...] = ()
    webhook: str | None = None
    append: str | None = None
    timeout: float = 10.0
    private: bool = False
    env: tuple[str, ...] = ()

    @property
    def actions(self) -> list[str]:
        return [name for name in _ACTIONS if getattr(self, name)]

    @property
    def counts(self) -> bool:
        return "recalled_more_than" in self.when

    @property
    def changes(self) -> bool:
        return "to" in self.when or "from" in self.when


@dataclass(frozen=True, slots=True)
class Firing(Record):
    """One firing: `did` maps actions to "ok" or what failed; it is empty when interrupted."""
    at: str
    rule: str
    id: str
    cause: str
    why: str
    agent: str | None = None
    did: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """Return done, failed, interrupted, or forgotten when no memory was left to act on."""
        if not self.did:
            return "interrupted"
        if self.failures:
            return "failed"
        return "forgotten" if "forgotten" in self.did.values() else "done"

    @property
    def failures(self) -> dict[str, str]:
        """Return {action: what went wrong}; a memory that was forgotten needs no action."""
        return {name: result for name, result in self.did.items() if result not in _FINE}


# -- reading the rules --------------------------------------------------------

def read_rule(name: str, raw: object) -> Rule:
    """Check one rule of config.yaml; ConfigError names the rule and what is wrong."""
    place = f"config.yaml: systems.rules.{name}"
    if not isinstance(raw, Mapping) or not isinstance(raw.get("when"), Mapping):
        raise ConfigError(f"{place} needs `when:` with a condition, and run, webhook or append")
    for key in raw:
        check_known(key, ("when", *_ACTIONS, "timeout", "private", "env"), place)
    for key in raw["when"]:
        check_known(key, _WHEN, f"{place}.when")
    rule = Rule(name, dict(raw["when"]), tuple(raw.get("run") or ()) if isinstance(
        raw.get("run"), list) else (), raw.get("webhook"), raw.get("append"),
        raw.get("timeout", 10.0), raw.get("private", False),
        tuple(raw["env"]) if isinstance(raw.get("env"), list) else ())
    for problem in _problems(rule, raw):
        raise ConfigError(f"{place}: {problem}")
    return rule


def _problems(rule: Rule, raw: Mapping[str, object]) -> Iterator[str]:
    when = rule.when
    if "run" in raw and not (rule.run and all(isinstance(word, str) for word in rule.run)):
        yield "run is a list of strings, such as [python3, /opt/mail.py]"
    if "env" in raw and not (rule.env and all(isinstance(name, str) for name in rule.env)):
        yield "env is a list of names of variables, such as [SMTP_PASSWORD]"
    for name in rule.env:
        if isinstance(name, str) and re.fullmatch(r"HERMES_.*KEY.*", name.upper()):
            yield f"env may not name {name}: the keys of this memory stay with it"
    if not rule.actions:
        yield "it does nothing; give run, webhook or append"
    if not {"tag", "score_above", "anchor"} & set(when):
        yield "when needs tag, score_above or anchor"
    if (rule.counts or rule.changes) and "anchor" not in when:
        yield "recalled_more_than, from and to need an anchor beside them"
    if rule.counts and rule.changes:
        yield "recalled_more_than and from/to are two rules"
    if when.get("per", "week") not in _PERIODS or "per" in when and not rule.counts:
        yield f"per is one of {', '.join(_PERIODS)}, beside recalled_more_than"
    for name in ("score_above", "recalled_more_than"):
        if type(when.get(name, 0)) not in (int, float):
            yield f"{name} is a number"
    for name in ("tag", "anchor", "from", "to"):
        if not isinstance(when.get(name, ""), str):
            yield f"{name} is a string; put it in quotes"
    for name in ("webhook", "append"):
        if not isinstance(raw.get(name, ""), str):
            yield f"{name} is a string"
    if type(rule.timeout) not in (int, float) or not 0 < rule.timeout <= 600:
        yield "timeout is a number of seconds up to 600"
    if rule.append and Path(rule.append).suffix.lower() not in (".ics", ".md"):
        yield "append names a file that ends in .ics or .md"


# -- when a rule holds --------------------------------------------------------

def _form(text: object) -> str:
    return str(text).strip().lstrip("#").casefold()


def _patterns(config: Config) -> Mapping[str, str]:
    """Return the patterns that the user gave to the system anchors: pattern -> type."""
    settings = config["systems"].get("anchors")
    own = settings.get("patterns") if isinstance(settings, Mapping) else None
    return own if isinstance(own, Mapping) else {}


def _rows(host: HermesLite, memory: Memory, kind: str) -> dict[str, Mapping[str, str]]:
    """Return {value: what else is known of it} of the anchors of one type."""
    held = import_system("anchors").values_of(memory, _patterns(host.config))
    return {value: row for (name, value), row in held.items() if name == kind}


def anchors(host: HermesLite, memory: Memory, kind: str) -> tuple[str, ...]:
    """Return the values of one type of anchor; of `status` also the memory's own."""
    own = (memory.status,) if kind == "status" and memory.status else ()
    return tuple(dict.fromkeys((*own, *_rows(host, memory, kind))))


def _states(host: HermesLite, memory: Memory, kind: str) -> dict[str, tuple[str | None, str]]:
    """Return {what: (before, now)} of all that can change under one type of anchor.

    An action item changes by its status, a status by its value; `before` is None where the
    anchor does not say it.
    """
    own: dict[str, tuple[str | None, str]] = {}
    if kind == "status" and memory.status:
        own[""] = (None, memory.status)
    for value, row in _rows(host, memory, kind).items():
        own[value if "status" in row else "value"] = row.get("from"), row.get("status", value)
    return own


def _holds(host: HermesLite, rule: Rule, memory: Memory) -> str | None:
    """Say why the plain conditions of a rule hold for a memory, or None."""
    when, why = rule.when, []
    if "tag" in when:
        if _form(when["tag"]) not in map(_form, memory.tags):
            return None
        why.append(f"tag {when['tag']}")
    if "anchor" in when:
        if not anchors(host, memory, when["anchor"]):
            return None
        why.append(f"anchor {when['anchor']}")
    if "score_above" in when:
        if not (now := current_score(host, memory)) > when["score_above"]:
            return None
        why.append(f"score {now:g} above {when['score_above']:g}")
    return ", ".join(why)


class Rules:
    """The rules of one root; as a system it looks at every write and recall."""
    name = "rules"

    def __init__(self, memory: HermesLite, rules: Mapping[str, object]) -> None:
        self.memory = memory
        self.rules = [read_rule(str(name), raw) for name, raw in rules.items()]
        self._check_types()
        self.log = Log(memory)
        self._counts_path = memory.root / "logs" / "rules-recalls.json"

    def _check_types(self) -> None:
        """Refuse a type that the system anchors does not find: its rule would never fire."""
        wanted = {rule.name: rule.when["anchor"] for rule in self.rules if "anchor" in rule.when}
        own = _patterns(self.memory.config).values()
        known = (*import_system("anchors").TYPES, *own) if wanted else ()
        for name, kind in wanted.items():
            check_known(kind, known, f"config.yaml: systems.rules.{name}.when.anchor", what="type")

    # -- what the core calls --

    def after_store(self, memory: Memory) -> None:
        """Fire what holds for a memory that was written; what fails is raised at the end."""
        if not self._is_inside_a_rule():
            self._act(self.due(memory))

    def after_forget(self, memory: Memory, why: str) -> None:
        """Forget its known values; take its lines out of our files unless it only grew old."""
        from hermes_ext.automation import actions

        files = {rule.name: rule for rule in self.rules if rule.append}
        for firing in self.log.firings() if files and why != "pruned" else ():
            if firing.id == memory.id and firing.rule in files:
                actions.take_out(self.memory, files[firing.rule].append, firing.cause)
        if any(rule.changes for rule in self.rules):
            with self.log.locked():
                known = self._known()
                kept = {name: {mark: value for mark, value in values.items()
                               if not mark.startswith(f"{memory.id} ")}
                        for name, values in known.items()}
                if kept != known:
                    self.memory.save_state("rules", kept)

    def on_event(self, event: Event) -> None:
        """Count a recall for the rules that ask how often; fire those that have enough."""
        rules = [rule for rule in self.rules if rule.counts]
        if event.what != "recall" or not rules or self._is_inside_a_rule():
            return
        with self.memory.lock:
            found = [m for i in event.ids if (m := self.memory.store.get(i)) is not None]
        hits = {(rule.name, value): (rule, memory) for rule in rules for memory in reversed(found)
                if _holds(self.memory, rule, memory)
                for value in anchors(self.memory, memory, rule.when["anchor"])}
        if hits:
            self._act(self._counted(hits))

    def _is_inside_a_rule(self) -> bool:
        return bool(self.memory.config.env("HERMES_RULE"))

    # -- what is due --

    def due(self, memory: Memory, *, dry_run: bool = False) -> list[tuple[Rule, Firing]]:
        """Claim and return what a memory makes fire; with *dry_run* nothing is claimed."""
        plain = [(rule, memory, memory.id, why) for rule in self.rules
                 if not (rule.counts or rule.changes) and (
                     why := _holds(self.memory, rule, memory))]
        changing = [rule for rule in self.rules if rule.changes and (
            "tag" not in rule.when or _form(rule.when["tag"]) in map(_form, memory.tags))]
        if not (plain or changing):
            return []
        with self.log.locked():
            known = self._known() if changing else {}
            before = json.dumps(known)
            causes = plain + [cause for rule in changing
                              for cause in self._changed(rule, memory, known)]
            fired = self.log.claim(causes, dry_run=dry_run)
            if not dry_run and json.dumps(known) != before:
                self.memory.save_state("rules", known)
        return fired

    def _known(self) -> dict[str, dict[str, list]]:
        """Return {rule: {memory id and what: [value, how often it changed]}}."""
        shape = {str: {str: [(str, None), int]}}
        known = self.memory.state("rules", sound=lambda state: fits(state, shape))
        return {name: dict(values) for name, values in known.items()}

    def _changed(self, rule: Rule, memory: Memory, known: dict[str, dict[str, list]]
                 ) -> Iterator[tuple[Rule, Memory, str, str]]:
        """Yield a cause for each value that went from `from` to `to`; note the new values."""
        values, kind = known.setdefault(rule.name, {}), rule.when["anchor"]
        for what, (said, now) in _states(self.memory, memory, kind).items():
            mark = f"{memory.id} {self.log.name(rule.name, what)}"
            before, turns = values.get(mark, [said, 0])
            now = _form(now)
            values[mark] = [now, turns + (now != before)]
            if before is None or (before := _form(before)) == now:
                continue
            if _form(rule.when.get("from", before)) == before and (
                    _form(rule.when.get("to", now)) == now):
                yield rule, memory, f"{mark} {turns}", f"{kind}: {before} -> {now}"

    def _counted(self, hits: Mapping[tuple[str, str], tuple[Rule, Memory]]
                 ) -> list[tuple[Rule, Firing]]:
        """Add one to each value's count of this period; claim what has enough."""
        causes = []
        with self.log.locked():
            counts = self._read_counts()
            fresh: dict[str, int] = {}
            for (name, value), (rule, memory) in sorted(hits.items(), key=lambda row: row[0]):
                period = self.memory.calendar.today().strftime(
                    _PERIODS[rule.when.get("per", "week")])
                mark = f"{period} {self.log.name(name, value)}"
                counts[mark] = fresh[mark] = counts.get(mark, 0) + 1
                if counts[mark] > rule.when["recalled_more_than"]:
                    causes.append((rule, memory, f"{value} {period}", f"{rule.when['anchor']} "
                                   f"recalled {counts[mark]} times in {period}"))
            periods = {mark.split()[0] for mark in fresh}
            kept = {m: n for m, n in counts.items() if m.split()[0] in periods or m in fresh
                    or len(counts) < 1000}
            write_atomic(self._counts_path, to_json(kept), durable=False)
            return self.log.claim(causes)

    def _read_counts(self) -> dict[str, int]:
        with contextlib.suppress(OSError, ValueError):
            counts = from_json(self._counts_path.read_bytes())
            if isinstance(counts, dict):
                return {m: n for m, n in counts.items() if type(n) is int and m.count(" ") == 1}
        return {}

    # -- acting --

    def _act(self, fired: Iterable[tuple[Rule, Firing]]) -> list[Firing]:
        """Do what was claimed, then raise one error for all that failed."""
        done = [self._do(rule, firing, rule.actions) for rule, firing in fired]
        failed = [f"rule {each.rule}: {name}: {said}" for each in done
                  for name, said in each.failures.items()]
        if failed:
            raise HermesError("; ".join(failed) + "; `rules retry` does it again")
        return done

    def _do(self, rule: Rule, firing: Firing, actions: Iterable[str]) -> Firing:
        """Do the actions of one firing; a failure is kept in the log, never raised."""
        did = dict(firing.did)
        for name in actions:
            try:
                _do(self.memory, rule, firing, name)
                did[name] = "ok"
            except NotFound:
                did[name] = "forgotten"
            except (HermesError, OSError) as problem:
                did[name] = self.memory.redact(" ".join(str(problem).split()))[0][:300]
        self.log.end(firing.cause, did)
        return replace(firing, did=did)

    def check(self, *, dry_run: bool = False) -> list[Firing]:
        """Hold every memory against the rules; failures are in the firings, not raised."""
        with self.memory.session.reading() as store:
            memories = [*store]
        return [firing if dry_run else self._do(rule, firing, rule.actions)
                for memory in memories
                for rule, firing in self.due(memory, dry_run=dry_run)]

    def retry(self) -> list[Firing]:
        """Do again what failed, or was claimed more than its time-out and a minute ago."""
        by_name, done = {rule.name: rule for rule in self.rules}, []
        with self.memory.exclusive("rules_retry"):
            for firing in self.log.firings():
                rule = by_name.get(firing.rule)
                if rule is None or firing.state in ("done", "forgotten") or (
                        firing.state == "interrupted" and self._is_young(firing, rule)):
                    continue
                done.append(self._do(rule, firing, [
                    name for name in rule.actions if firing.did.get(name) not in _FINE]))
        return done

    def _is_young(self, firing: Firing, rule: Rule) -> bool:
        began = parse_time(firing.at)
        limit = timedelta(seconds=len(rule.actions) * rule.timeout + _GRACE)
        return began is not None and abs(self.memory.clock() - began) < limit


# -- the log of firings -------------------------------------------------------

class Log:
    """logs/rules.log: claims and ends, read once and then only what was added."""

    def __init__(self, memory: HermesLite) -> None:
        self._memory, self._key = memory, b""
        self.path = memory.root / "logs" / "rules.log"
        self._firings: dict[str, Firing] = {}
        self._seen = 0                             # bytes that were read

    def name(self, rule: str, cause: str) -> str:
        """Return the name of a cause: a keyed hash, for it may hold a value of the text.

        It is short enough for redaction not to take it for a key.
        """
        self._key = self._key or self._memory.redactor.key("rules")
        data = f"{rule}\0{cause}".encode("utf-8", "replace")
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()[:16]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock that guards claims, known values and counts."""
        make_folder(self._memory.root)
        make_folder(self.path.parent)
        lock = FileLock(self._memory.root / ".lock_rules")
        lock.acquire(timeout=5.0)
        try:
            yield
        finally:
            lock.release()

    def claim(self, causes: Iterable[tuple[Rule, Memory, str, str]], *,
              dry_run: bool = False) -> list[tuple[Rule, Firing]]:
        """Write a line for each cause that has none, and return those; call it locked."""
        self._read()
        fresh: dict[str, tuple[Rule, Firing]] = {}
        for rule, memory, cause, why in causes:
            key = self.name(rule.name, cause)
            if key not in self._firings and key not in fresh:
                fresh[key] = rule, Firing(iso(self._memory.clock()), rule.name, memory.id, key,
                                          why, memory.agent)
        if fresh and not dry_run:
            self._append(*({name: value for name, value in dict(firing).items()
                            if name != "did"} for _, firing in fresh.values()))
        return list(fresh.values())

    def end(self, key: str, did: Mapping[str, str]) -> None:
        """Note what became of a firing."""
        with self.locked():
            self._append({"at": iso(self._memory.clock()), "cause": key, "did": dict(did)})

    def firings(self) -> list[Firing]:
        """Return every firing, oldest first."""
        if self.path.exists():
            with self.locked():
                self._read()
        return list(self._firings.values())

    def _append(self, *rows: Mapping[str, object]) -> None:
        data = b"".join(to_json(row) + b"\n" for row in rows)
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":              # a kill cut the last line
                    data = b"\n" + data
        append_bytes(self.path, data)
        self._read()

    def _read(self) -> None:
        """Take in the lines that were added since; all of them when the file is another one."""
        try:
            size = self.path.stat().st_size
            if size < self._seen:
                self._seen, self._firings = 0, {}
            if size == self._seen:
                return
            with open(self.path, "rb") as file:
                file.seek(self._seen)
                data = file.read()
        except FileNotFoundError:
            self._seen, self._firings = 0, {}
            return
        except OSError as problem:
            raise StorageError(f"cannot read {self.path}: {problem.strerror}") from None
        whole = data.rfind(b"\n") + 1
        self._seen += whole
        for row in data[:whole].splitlines():
            self._take(row)

    def _take(self, row: bytes) -> None:
        try:
            line = from_json(row)
            key, did = str(line["cause"]), line.get("did")
        except (ValueError, TypeError, LookupError, AttributeError):
            return                                 # cut by a kill: it was not acknowledged
        if did is None:
            self._firings[key] = Firing(*(str(line.get(name, "")) for name in (
                "at", "rule", "id", "cause", "why")), line.get("agent"))
        elif key in self._firings and isinstance(did, dict):
            self._firings[key] = replace(self._firings[key], did=did)


# -- what a firing does -------------------------------------------------------

def _entry(memory: HermesLite, row: Memory) -> dict[str, object]:
    """Return a memory as it may leave: redacted once more, by today's rules."""
    return redact_nested(row.entry(), lambda text: memory.redact(text)[0])


def _do(memory: HermesLite, rule: Rule, firing: Firing, action: str) -> None:
    """Do one action of a rule for one memory; an error says what went wrong."""
    from hermes_ext.automation import actions      # with its network modules, only when needed

    row = memory.lookup(firing.id)
    if action == "run":
        actions.run(memory, rule.run, to_json(_entry(memory, row)), timeout=rule.timeout,
                    rule=rule.name, env=rule.env)
    elif action == "webhook":
        actions.post(memory, rule.webhook, {
            "rule": rule.name, "cause": firing.cause, "at": firing.at,
            "memory": _entry(memory, row)}, timeout=rule.timeout, private=rule.private)
    else:
        row = replace(row, content=memory.redact(row.content)[0])
        actions.append(memory, rule.append, row, cause=firing.cause,
                       dates=anchors(memory, row, "deadline"))


# -- commands -----------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Overview(Record):
    """The rules that are active, and firings, oldest first."""
    rules: tuple[Rule, ...]
    firings: tuple[Firing, ...]
    action: str = "list"
    dry_run: bool = False

    @property
    def exit_code(self) -> int:
        return int(self.action != "list" and any(f.state == "failed" for f in self.firings))


def system(memory: HermesLite, **rules: object) -> Rules:
    """Make the system of these rules, {name: rule}; the module's docstring says their form."""
    return Rules(memory, rules)


def _run(memory: HermesLite, *, action: str, limit: int, dry_run: bool) -> Overview:
    if action not in ("list", "check", "retry") or dry_run and action != "check":
        raise UsageError("rules, rules check [--dry-run] or rules retry")
    active = next((each for each in memory.systems if isinstance(each, Rules)), None)
    if active is None:
        raise ConfigError("no rule is active; write some under `systems: rules:` in config.yaml")
    if action == "check":
        found = active.check(dry_run=dry_run)
    elif action == "retry":
        found = active.retry()
    else:
        found = active.log.firings()[-limit:]
    return Overview(tuple(active.rules), tuple(found), action, dry_run)


def _show(result: Overview) -> Iterator[str]:
    if result.action == "list":
        for rule in result.rules:
            when = ", ".join(f"{name} {value}" for name, value in rule.when.items())
            yield excerpt(f"{rule.name}: when {when}: {', '.join(rule.actions)}")
    for each in result.firings:
        failed = "; ".join(f"{name}: {reason}" for name, reason in each.failures.items())
        state = "would fire" if result.dry_run else each.state
        yield display_text(f"{each.at}  {each.rule}  {each.id}  {state}  {each.why}"
                           + (f"  ({failed})" if failed else ""))
    if result.action != "list":
        count = sum(each.state != "forgotten" for each in result.firings)
        yield f"{count} {'would fire' if result.dry_run else 'fired'}"


OPERATIONS = (
    Operation("rules", "show the rules and what they did, look at all memories, or try again",
              _run, (
        Param("action", str, "list, check or retry", "list", positional=True),
        Param("limit", int, "list: at most this many firings", 20, least=1),
        Param("dry_run", bool, "check: only show", False)), _show, writes=True),
)
