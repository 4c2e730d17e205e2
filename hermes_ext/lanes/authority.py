"""What one memory may do: its lane, origin and confidence, and the seal that proves them.

In meta["lanes"] (version 1); a name is left out where it has its default:

    lane, origin, confidence
    kind    fact, snippet, lesson, entity, relation, rule, snapshot …; default fact
    held    why it waits and is not found: review, rebound
    at      since when its days count anew, an ISO time: it was restated, or approved
    rev     how often it was sealed: an older copy of a record never wins over a newer one
    data    what the kind needs, such as the trigger of a rule
    seal    a MAC over the text and all of the above, under this root's own key, as a UUID,
            which redaction does not take for a secret

Read it with `read_authority`: without a valid seal the lane is evidence and the origin external;
`kind` and `held` stay, as they only take something away.
"""
from __future__ import annotations

import hashlib
import hmac
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from hermes_ext.lanes.policy import CONFIDENCE, LANES, ORIGINS
from hermes_lite import Memory, Record, fits, plain, redact_nested, tag_forms

__all__ = ["Authority", "UNTRUSTED", "claimed", "quoted", "read_authority", "sealed_meta",
           "tags_of", "text_fingerprint"]

NAME = "lanes"                 # the key in Memory.meta


@dataclass(frozen=True, slots=True)
class Authority(Record):
    """What a memory may do. `sealed` tells whether this root vouches for it."""
    lane: str = "evidence"
    origin: str = "external"
    confidence: float = CONFIDENCE["external"]
    kind: str = "fact"
    held: str | None = None
    at: str | None = None
    rev: int = 0
    data: Mapping[str, object] = field(default_factory=dict)
    sealed: bool = False


UNTRUSTED = Authority()
_FORM = {"lane": str, "origin": str, "confidence": float, "kind?": str, "held?": str, "at?": str,
         "rev?": int, "data?": {str: object}, "seal?": str}


def claimed(meta: Mapping[str, object]) -> Authority | None:
    """Return what meta["lanes"] says, without looking at the seal; None where it says nothing."""
    found = meta.get(NAME)
    if not isinstance(found, Mapping):
        return None
    shape = {name: kind for name, kind in _FORM.items() if name != "data?"}
    found = {**found}
    data = found.get("data", {})
    if isinstance(found.get("confidence"), int):
        found["confidence"] = float(found["confidence"])       # 1 of a hand-edited file
    if not fits(found, shape) or not isinstance(data, Mapping):
        return None
    if found["lane"] not in LANES or found["origin"] not in ORIGINS:
        return None
    return Authority(found["lane"], found["origin"], found["confidence"],
                     found.get("kind", "fact"), found.get("held"), found.get("at"),
                     found.get("rev", 0), data)


def read_authority(memory: Memory, key: bytes) -> Authority:
    """Return what a memory may do: what its note says where the seal is valid."""
    found = claimed(memory.meta)
    if found is None:
        return UNTRUSTED
    note = memory.meta[NAME]
    seal = note.get("seal") if isinstance(note, Mapping) else None
    if isinstance(seal, str) and seal.isascii() and hmac.compare_digest(
            seal, _seal(key, memory.content, found)):
        return replace(found, sealed=True)
    return replace(UNTRUSTED, kind=found.kind, held=found.held, data=found.data)


def sealed_meta(memory: Memory, authority: Authority, key: bytes,
                clean: Callable[[str], str]) -> Memory:
    """Return the memory with this authority, sealed, and the tags that belong to it.

    *clean* redacts, as the store will do: the seal closes what will stand there.
    """
    data = redact_nested(authority.data, clean)
    assert isinstance(data, Mapping)
    authority = replace(authority, data=data, sealed=False)
    note = {**_body(authority), "seal": _seal(key, memory.content, authority)}
    own = [tag for tag in tag_forms(memory.tags) if not tag.startswith(_OWN_TAGS)]
    return replace(memory, tags=tag_forms([*own, *tags_of(authority)]),
                   meta={**memory.meta, NAME: note})


_OWN_TAGS = ("lane/", "kind/", "lanes/")


def tags_of(authority: Authority) -> tuple[str, ...]:
    """Return the tags by which the memories of a lane or kind are found quickly."""
    tags = [f"lane/{authority.lane}"]
    if authority.kind != "fact":
        tags = [f"kind/{authority.kind}"]
    if authority.held is not None:
        tags.append("lanes/held")
    if is_hidden(authority):
        tags.append("lanes/hidden")
    return tuple(tags)


def is_hidden(authority: Authority) -> bool:
    """Tell whether no search may find it: it waits, or is raw conversation, or no longer holds."""
    return authority.held is not None or authority.kind in ("snippet", "rule") or bool(
        authority.data.get("inactive"))


def _body(authority: Authority) -> dict[str, object]:
    """Return the note as it stands in meta, without the seal."""
    body: dict[str, object] = {"lane": authority.lane, "origin": authority.origin,
                               "confidence": authority.confidence}
    for name, default in (("kind", "fact"), ("held", None), ("at", None), ("rev", 0),
                          ("data", {})):
        if getattr(authority, name) != default:
            body[name] = plain(getattr(authority, name))
    return body


def _seal(key: bytes, content: str, authority: Authority) -> str:
    """Return the MAC of a text and of what is said about it."""
    said = json.dumps([content, _body(authority)], sort_keys=True).encode()
    return str(uuid.UUID(bytes=hmac.new(key, said, hashlib.sha256).digest()[:16]))


def text_fingerprint(text: str) -> str:
    """Return 12 hexadecimal digits that stand for exactly this text, as an approval shows them."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def quoted(memory: Memory, authority: Authority, *, most: int = 500) -> str:
    """Return a memory as one line of quoted evidence with its lane and origin.

    Line ends, and the marks by which a text could close its frame or open another, are replaced,
    so that what stands in a memory stays data.
    """
    text = " ".join(memory.content.split())
    for mark, harmless in (("<", "‹"), (">", "›"), ("```", "'''"), ("\u201d", "'"), ('"', "'")):
        text = text.replace(mark, harmless)
    if len(text) > most:
        text = f"{text[:most - 1]}…"
    return f'[{authority.lane} · {authority.origin}] "{text}"'
