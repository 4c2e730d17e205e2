"""Items of a framework kept as memories: one record for each key, found again by it.

The text is searchable and redacted like any other; the item itself stands in `meta`, redacted, too.
A record has an id made of its key, and tags made of the groups that it belongs to, as hashes: they
name what they like without becoming a tag that a person sees. It is confirmed, because the program
has put it there; so it does not expire after a week.
"""
from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from hermes_lite import HermesLite, Memory, UsageError, iso

__all__ = ["Records", "text_of"]


class Records:
    """The records of one framework in a memory; *name* is a word such as "langgraph"."""

    def __init__(self, memory: HermesLite, name: str) -> None:
        self.memory, self.name = memory, name

    def id_of(self, key: object) -> str:
        """Return the id of the record with this key, whether there is one or not."""
        return f"mem_{self.name}_{_hash(key)}"

    def tag_of(self, group: object) -> str:
        """Return the tag of all records of a group."""
        return _hash([self.name, group])

    def get(self, key: object) -> Memory | None:
        """Return the record with this key, None where there is none."""
        with self.memory.session.reading() as store:
            found = store.get(self.id_of(key))
        return None if found is None else self.memory.redactor.outgoing(found)

    def put(self, key: object, text: str, item: Mapping[str, Any], *, groups: Iterable[object],
            expires_at: str | None = None) -> Memory:
        """Keep an item under its key, in place of the one that was there."""
        if not text.strip():
            text = "(empty)"
        with self.memory.session.writing() as store:
            old = store.get(self.id_of(key))
            now = iso(self.memory.clock())
            record = Memory(
                self.id_of(key), text, execution_verified=True, source=self.name,
                created_at=old.created_at if old else now, expires_at=expires_at,
                tags=tuple(dict.fromkeys(self.tag_of(group) for group in groups)),
                meta={self.name: {**item, "updated_at": now}})
            done = self.memory.admit(record, replacing=True)
            found = store.get(done.id)
        assert found is not None
        return found

    def remove(self, key: object) -> bool:
        """Forget the record with this key; False where there is none."""
        with self.memory.session.writing() as store:
            if store.get(self.id_of(key)) is None:
                return False
            self.memory.forget(self.id_of(key), why=f"deleted through {self.name}")
            return True

    def of_group(self, group: object) -> list[Memory]:
        """Return the records of a group, newest first as stored."""
        with self.memory.session.reading() as store:
            found = [store.get(one) for one in store.search.tagged((self.tag_of(group),))]
        return [self.memory.redactor.outgoing(one) for one in found if one is not None]

    def search(self, group: object, query: str, limit: int) -> list[tuple[Memory, float]]:
        """Return (record, score) of the best hits of a question in a group."""
        hits = self.memory.recall(query, tags=[self.tag_of(group)], top_k=limit)
        return [(hit.memory, hit.score) for hit in hits]

    def item(self, memory: Memory) -> dict[str, Any]:
        """Return the item as the framework has put it, but for what was redacted."""
        found = memory.meta.get(self.name)
        return dict(found) if isinstance(found, Mapping) else {}


def _hash(value: object) -> str:
    """Return a hash in the form of a UUID, which redaction does not take for a secret."""
    digest = hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).digest()
    return str(uuid.UUID(bytes=digest[:16]))


def text_of(value: object) -> str:
    """Return what a JSON value says, for the search: its strings and numbers, with their names."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        parts = [(str(name), text_of(item)) for name, item in value.items()]
        if len(parts) == 1:
            return parts[0][1]
        return "\n".join(f"{name}: {text}" for name, text in parts if text)
    if isinstance(value, (list, tuple)):
        return "\n".join(filter(None, map(text_of, value)))
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, (int, float)):
        return str(value)
    raise UsageError(f"a value of type {type(value).__name__} is no JSON; give strings, numbers, "
                     "lists and objects")
