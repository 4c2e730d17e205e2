"""HTTP: the memory served to programs and, as a page, to a person; docs/server.md.

    tokens      who may do what: JWT signed with a key of this root
    guard       what stands before every request: host, origin, size, token, rate
    app         the routes, made from OPERATIONS
    commands    serve, token create, token list, token revoke
    static/     the page

FastAPI, uvicorn, PyJWT, limits and prometheus-client come with the extra `server` and are imported
inside the functions that need them.
"""
from __future__ import annotations

from hermes_ext.server.commands import OPERATIONS, serve
from hermes_ext.server.tokens import Tokens, Unauthorized

__all__ = ["OPERATIONS", "Tokens", "Unauthorized", "serve"]
