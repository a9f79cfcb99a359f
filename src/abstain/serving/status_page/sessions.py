"""Sessions of the page's visitors, and tokens that distinguish our forms from others'.

Sessions are in memory; each is opened by a key.

A session is no key: it ends with its key, after some hours, and with the server. Without keys there is one session for
everybody who reaches the server.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from dataclasses import dataclass

from abstain.serving.service.keys import LOOPBACK_KEY, ApiKey, ApiKeys, Role

SESSION_HOURS = 12.0
"""Lifetime of a session."""
MAX_SESSIONS = 1000
"""Maximum number of sessions; the oldest is removed for one more."""


@dataclass(frozen=True)
class Visitor:
    """The owner of a session.

    Attributes:
        api_key: Key of the visitor.
        session: Id of the session; empty on a server without keys.
        form_token: Token of each form of the session.
    """

    api_key: ApiKey
    session: str
    form_token: str

    def has_roles(self, *roles: Role) -> bool:
        """Return whether the visitor's key has all `roles`."""
        return self.api_key.roles.issuperset(roles)


class Sessions:
    """The sessions of a server. Any thread may call its methods.

    Args:
        keys: Keys of the visitors.
    """

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._open: dict[str, tuple[ApiKey, float]] = {}

    def log_in(self, key: str) -> str | None:
        """Open a session.

        Args:
            key: Secret of a key.

        Returns:
            The id of the session; None if the key is invalid.
        """
        api_key = self._keys.authenticate(key)
        if api_key is None:
            return None
        session = secrets.token_urlsafe(32)
        with self._lock:
            while len(self._open) >= MAX_SESSIONS:
                del self._open[next(iter(self._open))]
            self._open[session] = api_key, time.monotonic() + SESSION_HOURS * 3600
        return session

    def get_visitor(self, session: str | None) -> Visitor | None:
        """Return the owner of a session, with the roles that the key has now.

        Args:
            session: Id of the session; None without a cookie.

        Returns:
            The visitor; None if the session does not exist or has ended.
        """
        if not self._keys.required:
            return Visitor(LOOPBACK_KEY, "", self.make_form_token(""))
        with self._lock:
            api_key, expires_at = self._open.get(session or "", (None, 0.0))
        if session is None or api_key is None:
            return None
        current_key = self._keys.refresh(api_key)
        if current_key is None or time.monotonic() >= expires_at:
            self.log_out(session)
            return None
        return Visitor(current_key, session, self.make_form_token(session))

    def log_out(self, session: str) -> None:
        """End a session."""
        with self._lock:
            self._open.pop(session, None)

    def make_form_token(self, owner: str) -> str:
        """Return the token of the forms of `owner`, a session or the cookie of the login form."""
        return hmac.new(self._secret, owner.encode(), hashlib.sha256).hexdigest()

    def is_valid_form_token(self, owner: str, token: str) -> bool:
        """Check the token of a form.

        Args:
            owner: Session or login cookie of the visitor.
            token: Token in the form.

        Returns:
            Whether it is the token of this owner.
        """
        return hmac.compare_digest(self.make_form_token(owner).encode(), token.encode())
