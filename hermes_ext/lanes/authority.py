"""What one memory may do: its lane, origin and confidence, and the seal that proves them.

In meta["lanes"] (version 1); a name is left out where it has its default:

    lane, origin, confidence
    kind    fact, snippet, lesson, entity, relation, alias, rule; default fact
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from hermes_ext.framing import sanitised
from hermes_ext.lanes.policy import CONFIDENCE, LANES, ORIGINS
from hermes_lite import Memory, Record, normalise, plain, redact_nested, tag_forms

__all__ = ["Authority", "LASTING", "NAME", "UNTRUSTED", "claimed", "entity_tag", "is_hidden",
           "quoted", "read_authority", "sealed_meta", "text_fingerprint", "with_own_tags"]

NAME = "lanes"                 # the key in Memory.meta
LASTING = ("lesson", "entity", "relation", "alias", "rule")    # kinds that no lane's days end


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


def claimed(meta: Mapping[str, object]) -> Authority | None:
    """Return what meta["lanes"] says, without looking at the seal; None where it says nothing."""
    found = meta.get(NAME)
    if not isinstance(found, Mapping):
        return None
    get = found.get
    lane, origin, confidence = get("lane"), get("origin"), get("confidence")
    kind, held, at = get("kind", "fact"), get("held"), get("at")
    rev, data = get("rev", 0), get("data", {})
    if lane not in _LANE_NAMES or origin not in ORIGINS or not isinstance(data, Mapping):
        return None
    if not isinstance(confidence, (int, float)) or not isinstance(rev, int) or (
            not isinstance(kind, str)):
        return None
    if not isinstance(held, (str, type(None))) or not isinstance(at, (str, type(None))):
        return None
    return Authority(lane, origin, float(confidence), kind, held, at, rev, data)


_LANE_NAMES = tuple(LANES)     # a tuple: what a file holds there may not be hashable


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
    return replace(memory, tags=with_own_tags(memory.tags, authority),
                   meta={**memory.meta, NAME: note})


def with_own_tags(tags: Iterable[str], authority: Authority) -> tuple[str, ...]:
    """Return tags with those by which the memories of a lane or kind are found quickly.

    The names in data["names"] make an entity/… tag each. What tags say is never proof.
    """
    own = [f"lane/{authority.lane}" if authority.kind == "fact" else f"kind/{authority.kind}"]
    if authority.held is not None:
        own.append("lanes/held")
    if is_hidden(authority):
        own.append("lanes/hidden")
    if authority.data.get("inactive"):
        own.append("lanes/resting")
    if authority.data.get("tied"):
        own.append("lanes/tied")
    names = authority.data.get("names")
    own += [entity_tag(str(name)) for name in (names if isinstance(names, (list, tuple)) else ())]
    return tag_forms([*(tag for tag in tag_forms(tags) if not tag.startswith(_OWN_TAGS)), *own])


_OWN_TAGS = ("lane/", "kind/", "lanes/", "entity/")


def entity_tag(name: str) -> str:
    """Return the tag of all that is said about an entity; a fingerprint, as a tag must not have
    blanks, nor name a secret.
    """
    return f"entity/{text_fingerprint(normalise(name))}"


def is_hidden(authority: Authority) -> bool:
    """Tell whether no search may find it: it waits, is raw conversation, or is a rule."""
    return authority.held is not None or authority.kind in ("snippet", "rule")


def _body(authority: Authority) -> dict[str, object]:
    """Return the note as it stands in meta, without the seal."""
    body: dict[str, object] = {"lane": authority.lane, "origin": authority.origin,
                               "confidence": authority.confidence}
    if authority.kind != "fact":
        body["kind"] = authority.kind
    if authority.held is not None:
        body["held"] = authority.held
    if authority.at is not None:
        body["at"] = authority.at
    if authority.rev:
        body["rev"] = authority.rev
    if authority.data:
        body["data"] = plain(authority.data)
    return body


def _seal(key: bytes, content: str, authority: Authority) -> str:
    """Return the MAC of a text and of what is said about it."""
    said = _ENCODER.encode([content, _body(authority)]).encode()
    digest = hmac.digest(key, said, "sha256").hex()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


_ENCODER = json.JSONEncoder(sort_keys=True)


def text_fingerprint(text: str) -> str:
    """Return 12 hexadecimal digits that stand for exactly this text, as an approval shows them."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def quoted(memory: Memory, authority: Authority, *, most: int = 500) -> str:
    """Return a memory as one line of quoted evidence with its lane and origin.

    What stands in a memory stays data: it can neither end nor open a frame.
    """
    text = sanitised(memory.content)
    if len(text) > most:
        text = f"{text[:most - 1]}…"
    return f'[{authority.lane} · {authority.origin}] "{text}"'
