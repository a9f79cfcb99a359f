"""API keys: who may ask, give feedback, review, or see withheld answers.

A key is 32 random bytes. Its SHA-256 is stored in a file (`ABSTAIN_SERVE_KEYS_FILE`) or a variable
(`ABSTAIN_SERVE_KEYS`), one key a line: `NAME ROLE[,ROLE...] SHA256`. Any number may be valid at once, so a key is
replaced without a pause: add the new line, change the callers, remove the old one. The file is read again whenever it
changes. A variable or file that is set but has no key admits nobody.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

Role = Literal["ask", "feedback", "review", "read_withheld"]
ROLES: frozenset[Role] = frozenset(get_args(Role))
_NO_STAMP = (0, 0, 0, 0)
_log = logging.getLogger("abstain.serve")
_LINE = re.compile(r"(?P<name>[\w.-]{1,64})\s+(?P<roles>[a-z_,]+)\s+(?P<digest>[0-9a-f]{64})")


@dataclass(frozen=True)
class ApiKey:
    """A key, without its secret.

    The role `feedback` gives thumbs, `review` sees the review queue and gives reviews, `read_withheld` sees the
    text of withheld answers.

    Attributes:
        name: Name of the key.
        roles: Its roles.
        digest: SHA-256 (hex) of the secret.
    """

    name: str
    roles: frozenset[Role]
    digest: str = field(repr=False)


LOOPBACK_KEY = ApiKey("loopback", ROLES, "")
"""The key of every caller on a server without keys, which listens only to its own machine."""


def create_key(name: str, roles: Iterable[Role]) -> tuple[str, str]:
    """Create a key.

    Args:
        name: Name of the key.
        roles: Its roles.

    Returns:
        The secret, and the line that admits it.

    Raises:
        AbstainError: The name or a role is invalid.
    """
    key = f"abstain_{secrets.token_urlsafe(32)}"
    line = f"{name} {','.join(sorted(roles))} {_digest(key)}"
    parse_keys(line, "the key")
    return key, line


def parse_keys(text: str, source: str) -> tuple[ApiKey, ...]:
    """Parse lines of keys; blank lines and those that begin with # are skipped.

    Args:
        text: The lines.
        source: Name of the file or variable, for messages.

    Returns:
        The keys.

    Raises:
        AbstainError: A line is invalid; the message has its source and number but never its content.
    """
    keys = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        roles = match["roles"].split(",") if match else []
        if match is None or not ROLES.issuperset(roles):
            raise AbstainError(
                Code.BAD_SETTING,
                f"{source} line {number}: write NAME ROLE[,ROLE] SHA256, as `abstain key` prints it, with the roles "
                f"{', '.join(sorted(ROLES))}",
            )
        keys.append(ApiKey(match["name"], frozenset(role for role in ROLES if role in roles), match["digest"]))
    return tuple(keys)


class ApiKeys:
    """The keys of a server. Without a file and a text there are no keys, and every caller has all roles.

    Args:
        text: Lines of keys; None if the variable is not set.
        file: File of keys; None if there is none.

    Attributes:
        required: Whether callers need a key.
    """

    def __init__(self, text: str | None = None, file: Path | None = None) -> None:
        self._text_keys = parse_keys(text or "", "ABSTAIN_SERVE_KEYS")
        self.required = text is not None or file is not None
        self._file, self._stamp = file, _NO_STAMP
        self._file_keys: tuple[ApiKey, ...] = ()
        self._reload()

    def authenticate(self, key: str | None) -> ApiKey | None:
        """Return the key with a secret.

        Args:
            key: The secret that a caller sent.

        Returns:
            The key; None if it is invalid.

        Raises:
            AbstainError: The file of keys cannot be read any more; only the server's log has its path.
        """
        return self._find_key(_digest(key or ""))

    def refresh(self, api_key: ApiKey) -> ApiKey | None:
        """Return a key with the roles that it has now.

        Args:
            api_key: A key of `authenticate`.

        Returns:
            The key; None if it was removed.

        Raises:
            AbstainError: As in `authenticate`.
        """
        return self._find_key(api_key.digest)

    def _find_key(self, digest: str) -> ApiKey | None:
        if not self.required:
            return LOOPBACK_KEY
        try:
            self._reload()
        except AbstainError as error:
            _log.error("%s", error.message_with_code)
            raise AbstainError(Code.NO_SERVICE, "the API keys cannot be read: see the server's log") from None
        matching_key = None
        for key in (*self._text_keys, *self._file_keys):
            if hmac.compare_digest(key.digest, digest):
                matching_key = key
        return matching_key

    def _reload(self) -> None:
        """Read the file if it has changed; a file that became damaged admits nobody."""
        if self._file is None:
            return
        try:
            stat = self._file.stat()
            # Who copies a file with its time changes neither that nor, with lines of equal length, its size.
            if (stamp := (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)) != self._stamp:
                self._file_keys, self._stamp = (), stamp
                self._file_keys = parse_keys(self._file.read_text(encoding="utf-8"), str(self._file))
        except (OSError, UnicodeDecodeError) as error:
            self._file_keys, self._stamp = (), _NO_STAMP
            raise AbstainError(Code.BAD_SETTING, f"{self._file}: the API keys cannot be read ({error})") from None


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
