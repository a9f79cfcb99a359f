"""API keys: who may ask, give feedback, review, or see withheld answers.

A key is 32 random bytes; what is stored is its SHA-256, in a file (`ABSTAIN_SERVE_KEYS_FILE`) or a variable
(`ABSTAIN_SERVE_KEYS`), one key a line: `NAME ROLE[,ROLE...] SHA256`. Any number may be valid at once, so a key is
replaced without a pause: add the new line, change the callers, remove the old one. The file is read again whenever it
changes. A variable or file that is set and holds none lets nobody in.
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

Role = Literal["ask", "feedback", "review", "withheld"]
ROLES: frozenset[Role] = frozenset(get_args(Role))
_NEVER = (0, 0, 0, 0)
_log = logging.getLogger("abstain.serve")
_LINE = re.compile(r"(?P<name>[\w.-]{1,64})\s+(?P<roles>[a-z,]+)\s+(?P<digest>[0-9a-f]{64})")


@dataclass(frozen=True)
class ApiKey:
    """The holder of a key.

    Of the roles, `feedback` gives thumbs, `review` sees the review queue and gives reviews, `withheld` sees the text of
    withheld answers.
    """

    name: str
    roles: frozenset[Role]
    digest: str = field(repr=False)


LOOPBACK_KEY = ApiKey("loopback", ROLES, "")
"""Who asks a server without keys, which listens to its own machine alone."""


def create_key(name: str, roles: Iterable[Role]) -> tuple[str, str]:
    """A new key, and the line that lets it in. Raises `AbstainError` for a name or role that no line may have."""
    key = f"abstain_{secrets.token_urlsafe(32)}"
    line = f"{name} {','.join(sorted(roles))} {_digest(key)}"
    parse_keys(line, "the key")
    return key, line


def parse_keys(text: str, source: str) -> tuple[ApiKey, ...]:
    """The keys of `text`; blank lines and those that begin with # are left out.

    Raises `AbstainError`, naming `source` and line but never its content, for one that is wrong.
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
    """The keys of a server. Without a file and a text there are none, and who reaches the server may do everything."""

    def __init__(self, text: str | None = None, file: Path | None = None) -> None:
        self._given = parse_keys(text or "", "ABSTAIN_SERVE_KEYS")
        self.required = text is not None or file is not None
        self._file, self._stamp = file, _NEVER
        self._read: tuple[ApiKey, ...] = ()
        self._reload()

    def authenticate(self, presented: str | None) -> ApiKey | None:
        """Who holds the key `presented`; None where nobody does.

        Raises `AbstainError` where the file of keys cannot be read any more; its place is in the server's log alone.
        """
        return self._of_digest(_digest(presented or ""))

    def refresh(self, holder: ApiKey) -> ApiKey | None:
        """`authenticate` with the roles that it has now; None where its key lets nobody in any more."""
        return self._of_digest(holder.digest)

    def _of_digest(self, digest: str) -> ApiKey | None:
        if not self.required:
            return LOOPBACK_KEY
        try:
            self._reload()
        except AbstainError as error:
            _log.error("%s", error.message_with_code)
            raise AbstainError(Code.NO_SERVICE, "the API keys cannot be read: see the server's log") from None
        found = None
        for key in (*self._given, *self._read):
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def _reload(self) -> None:
        """Read the file where it has changed; one that became damaged lets nobody in."""
        if self._file is None:
            return
        try:
            stat = self._file.stat()
            # Who copies a file with its time changes neither that nor, with lines of equal length, its size.
            if (stamp := (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)) != self._stamp:
                self._read, self._stamp = (), stamp
                self._read = parse_keys(self._file.read_text(encoding="utf-8"), str(self._file))
        except (OSError, UnicodeDecodeError) as error:
            self._read, self._stamp = (), _NEVER
            raise AbstainError(Code.BAD_SETTING, f"{self._file}: the API keys cannot be read ({error})") from None


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
