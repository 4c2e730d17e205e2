"""Tokens: who may do what over a network, signed with a key of this root.

A token is a JWT (HS256) with the agent's name (`sub`), its scopes, an id (`jti`) and an end
(`exp`). It counts only while its id stands in `.server_tokens.json`, so that one can be revoked
and none survives the loss of that file. The key, 32 random bytes, is made on first use in
`.server_key` (0600); there is no default. HERMES_SERVER_SECRET takes its place where it is set,
and has to be strong.
"""
from __future__ import annotations

import contextlib
import json
import re
import secrets
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hermes_ext.calls import SCOPES
from hermes_lite import (
    ConfigError,
    DamagedData,
    FileLock,
    HermesLite,
    NotFound,
    Record,
    UsageError,
    fits,
    from_json,
    iso,
    make_folder,
    parse_time,
    read_key_file,
    write_atomic,
)

__all__ = ["Identity", "Issued", "Tokens", "Unauthorized"]

_ALGORITHM = "HS256"
_LEAST_SECRET = 32
_LONGEST = 4_096           # characters of a token
_LOCK_SECONDS = 5.0
_JWT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_ROW = {"agent": str, "scopes": [str], "created": str, "expires": str, "revoked?": (str, None)}


class Unauthorized(Exception):
    """A token that does not count; it says nothing of why, so that nobody can feel a way in."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a token speaks for."""
    id: str
    agent: str
    scopes: frozenset[str]
    expires: str


@dataclass(frozen=True, slots=True)
class Issued(Record):
    """A token as `token create` and `token list` show it; the token itself only once."""
    id: str
    agent: str
    scopes: tuple[str, ...]
    created: str
    expires: str
    revoked: str | None = None
    token: str | None = None


class Tokens:
    """Issues, checks and revokes the tokens of one root."""

    def __init__(self, memory: HermesLite) -> None:
        self._memory = memory
        self._key_path = memory.root / ".server_key"
        self._path = memory.root / ".server_tokens.json"
        self._cached: tuple[object, dict[str, dict[str, Any]]] = (None, {})

    # -- issuing --------------------------------------------------------------

    def create(self, agent: str, scopes: Iterable[str], *, days: float) -> Issued:
        """Issue a token; UsageError for an empty name, an unknown scope or a life of no length."""
        import jwt
        wanted = tuple(dict.fromkeys(scopes))
        agent = agent.strip()
        if not agent or len(agent) > 100 or not agent.isprintable():
            raise UsageError("agent is the name under which the token writes: 1 to 100 characters")
        for scope in wanted:
            if scope not in SCOPES:
                raise UsageError(f"there is no scope {scope[:40]!r}; use {', '.join(SCOPES)}")
        if not wanted:
            raise UsageError(f"a token without a scope may do nothing; use {', '.join(SCOPES)}")
        if not 0 < days <= _MOST_DAYS:
            raise UsageError(f"days is {days:g}; give a number from 1 to {_MOST_DAYS}")
        now = self._memory.clock()
        end = now + timedelta(days=days)
        issued = Issued(secrets.token_hex(8), agent, wanted, iso(now), iso(end))
        token = jwt.encode({"jti": issued.id, "sub": agent, "scope": list(wanted),
                            "iat": int(now.timestamp()), "exp": int(end.timestamp())},
                           self._key(), algorithm=_ALGORITHM)
        with self._changing() as rows:
            rows[issued.id] = {"agent": agent, "scopes": list(wanted), "created": issued.created,
                               "expires": issued.expires}
        return Issued(**{**issued.entry(), "scopes": wanted, "token": token})

    def revoke(self, token_id: str) -> Issued:
        """Let a token count no longer; NotFound for an unknown id."""
        with self._changing() as rows:
            if token_id not in rows:
                raise NotFound(f"there is no token {token_id[:40]!r}; `token list` shows them")
            rows[token_id].setdefault("revoked", iso(self._memory.clock()))
            return _issued(token_id, rows[token_id])

    def rows(self) -> list[Issued]:
        """Return the tokens that were issued, newest first."""
        rows = [_issued(token_id, row) for token_id, row in self._read().items()]
        return sorted(rows, key=lambda row: row.created, reverse=True)

    # -- checking -------------------------------------------------------------

    def identify(self, token: str) -> Identity:
        """Return whom a token speaks for; Unauthorized for any that does not count."""
        import jwt
        if len(token) > _LONGEST or not _JWT.fullmatch(token):
            raise Unauthorized                     # a signature with padding is another string
        try:
            claims = jwt.decode(token, self._key(), algorithms=[_ALGORITHM], options={
                "require": ["exp", "iat", "jti", "sub"], "verify_exp": False,
                "verify_iat": False})
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise Unauthorized from None
        row = self._read().get(str(claims["jti"]))
        if row is None or row.get("revoked") or row["agent"] != claims["sub"]:
            raise Unauthorized
        end = parse_time(row["expires"])           # ours, as it was issued
        is_over = type(claims["exp"]) is not int or end is None or self._memory.clock() >= end
        if is_over or self._memory.clock().timestamp() >= claims["exp"]:
            raise Unauthorized
        return Identity(str(claims["jti"]), row["agent"], frozenset(row["scopes"]), row["expires"])

    # -- files ----------------------------------------------------------------

    def _key(self) -> bytes:
        """Return the key that signs; it is made where there is none yet."""
        secret = self._memory.config.env("HERMES_SERVER_SECRET")
        if secret:
            _check_secret(secret)
            return secret.encode()
        if not self._key_path.exists():
            with self._locked():
                if not self._key_path.exists():
                    write_atomic(self._key_path, secrets.token_hex(32).encode() + b"\n")
        return _checked_key(read_key_file(self._key_path))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        make_folder(self._memory.root)
        lock = FileLock(self._memory.root / ".lock_server")
        lock.acquire(timeout=_LOCK_SECONDS)
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, dict[str, Any]]]:
        with self._locked():
            rows = json.loads(json.dumps(self._read()))
            yield rows
            write_atomic(self._path, json.dumps(rows, indent=1, ensure_ascii=False).encode()
                         + b"\n")

    def _read(self) -> dict[str, dict[str, Any]]:
        """Return the issued tokens by id, read again when the file has changed."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return {}
        version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if version != self._cached[0]:
            self._cached = (version, _rows_in(self._path.read_bytes()))
        return self._cached[1]


_MOST_DAYS = 3_650


def _rows_in(data: bytes) -> dict[str, dict[str, Any]]:
    try:
        rows = from_json(data)
        if isinstance(rows, dict) and all(fits(row, _ROW) for row in rows.values()):
            return rows
    except ValueError:
        pass
    raise DamagedData(".server_tokens.json cannot be read, and no token counts; delete it and "
                      "create the tokens anew")


def _issued(token_id: str, row: Mapping[str, Any]) -> Issued:
    return Issued(token_id, row["agent"], tuple(row["scopes"]), row["created"], row["expires"],
                  row.get("revoked"))


def _checked_key(key: bytes) -> bytes:
    if len(key) != 64 or not set(key.decode("latin-1")) <= set(string.hexdigits):
        raise ConfigError(".server_key is no key of 32 bytes; delete it, and a new one is made: "
                          "every token has to be created anew")
    return bytes.fromhex(key.decode())


def _check_secret(secret: str) -> None:
    """Refuse a secret that can be guessed."""
    if len(secret) < _LEAST_SECRET or len(set(secret)) < 10:
        raise ConfigError(f"HERMES_SERVER_SECRET is too weak; give {_LEAST_SECRET} random "
                          "characters or more, or take it out: then a key is made in .server_key")
