"""Who looks at the page: sessions in memory, each opened by a key, and the tokens that tell our forms from others'.

A session is no key: it ends with its key, after some hours, and with the server. Without keys there is one session, of
whoever reaches the server.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from dataclasses import dataclass

from abstain.serving.api.keys import LOOPBACK_KEY, ApiKey, ApiKeys, Role

SESSION_HOURS = 12.0
"""A session ends so long after it was opened."""
MAX_SESSIONS = 1000
"""Sessions at once; the oldest goes for one more."""


@dataclass(frozen=True)
class Visitor:
    """The holder of a session's key. `form_token` belongs into each form of theirs; `session`: empty without keys."""

    api_key: ApiKey
    session: str
    form_token: str

    def has_roles(self, *roles: Role) -> bool:
        return self.api_key.roles.issuperset(roles)


class Sessions:
    """The sessions of a server. Any thread may call its methods."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._open: dict[str, tuple[ApiKey, float]] = {}

    def log_in(self, key: str) -> str | None:
        """A new session of the holder of `key`; None where nobody holds it."""
        holder = self._keys.authenticate(key)
        if holder is None:
            return None
        session = secrets.token_urlsafe(32)
        with self._lock:
            while len(self._open) >= MAX_SESSIONS:
                del self._open[next(iter(self._open))]
            self._open[session] = holder, time.monotonic() + SESSION_HOURS * 3600
        return session

    def get_visitor(self, session: str | None) -> Visitor | None:
        """Whose session this is, by the keys as they are now; None where it is nobody's (any more)."""
        if not self._keys.required:
            return Visitor(LOOPBACK_KEY, "", self.form_token(""))
        with self._lock:
            holder, until = self._open.get(session or "", (None, 0.0))
        if session is None or holder is None:
            return None
        now = self._keys.refresh(holder)
        if now is None or time.monotonic() >= until:
            self.log_out(session)
            return None
        return Visitor(now, session, self.form_token(session))

    def log_out(self, session: str) -> None:
        with self._lock:
            self._open.pop(session, None)

    def form_token(self, of: str) -> str:
        """The token of the forms of a session, or of the log-in that the cookie `of` tells from others."""
        return hmac.new(self._secret, of.encode(), hashlib.sha256).hexdigest()

    def is_valid_form_token(self, of: str, token: str) -> bool:
        """Whether a form with this token is one that we gave to `of`."""
        return hmac.compare_digest(self.form_token(of).encode(), token.encode())
