"""Keyed pseudonyms for people: the same person has the same name, which only the key links to the id.

Notes:

* HMAC-SHA256 with a secret key, not a bare hash: user ids are few and can be guessed, so a hash of them is no secret.
  80 bits of it are kept: collisions among a million users are unlikely.
* An id that is a pseudonym already stays as it is, so that data can be ingested again. A source id that looks like a
  pseudonym would be kept; ids come from the assistant's own log-in and are not typed by users.
* Where one machine does all of the ingest, the key is made once in its home. Several machines would make several keys,
  and so several names for one user, and `abstain erase-user` would miss rows: with ABSTAIN_ORIGIN the key must be set.
"""

from __future__ import annotations

import hmac
import unicodedata
from pathlib import Path

from abstain.config.settings import Settings
from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.secret_file import read_or_create_secret
from abstain.core.text import PSEUDONYM

_SHORTEST = 32


def normalize_name(name: str) -> str:
    """`name` without spaces around it, in NFC: typed in a terminal, it may hold its accents as characters of their own.

    Nothing else is folded: an id in other case is another user's.
    """
    return unicodedata.normalize("NFC", name.strip())


def derive_seal_key(settings: Settings) -> bytes:
    """The key of the seals in review files: derived from `user_key`, so that a seal says nothing about pseudonyms.

    Raises `AbstainError` as `user_key` does.
    """
    return hmac.digest(load_user_key(settings), b"review file", "sha256")


def log_key(settings: Settings) -> bytes:
    """The key by which the decision log recognises a row that comes again, derived likewise.

    Raises `AbstainError` as `user_key` does.
    """
    return hmac.digest(load_user_key(settings), b"decision log", "sha256")


class Pseudonyms:
    """Names for users (`u-...`) and reviewers (`r-...`): a person who is both has two unlinkable names."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def user(self, name: str) -> str:
        """`u-` and 20 hexadecimal digits; an empty name and a pseudonym stay as they are."""
        return self._pseudonym("u", name)

    def reviewer(self, name: str) -> str:
        """`r-` and 20 hexadecimal digits; an empty name and a pseudonym stay as they are."""
        return self._pseudonym("r", name)

    def _pseudonym(self, kind: str, name: str) -> str:
        person = normalize_name(name)
        if not person or PSEUDONYM.fullmatch(person):
            return person
        message = f"{kind}\0{person}".encode("utf-8", "surrogatepass")
        return f"{kind}-{hmac.digest(self._key, message, 'sha256').hex()[:20]}"


def load_user_key(settings: Settings) -> bytes:
    """The key: ABSTAIN_USER_KEY, else the home's own, which is made where there is none.

    Raises `AbstainError` for a key that is too short or damaged, and for a team (ABSTAIN_ORIGIN) without one.
    """
    given = settings.user_key.get_secret_value().strip() if settings.user_key else ""
    if given:
        if len(given) < _SHORTEST:
            raise AbstainError(
                Code.BAD_SETTING,
                f"ABSTAIN_USER_KEY has {len(given)} characters, {_SHORTEST} are needed: "
                "make one with `openssl rand -hex 32`, and keep it",
            )
        return given.encode()
    if settings.origin:
        raise AbstainError(
            Code.BAD_SETTING,
            "ABSTAIN_USER_KEY is not set: with ABSTAIN_ORIGIN other machines ingest, too, and must give a user the "
            "same pseudonym and know each other's review files: set one key (`openssl rand -hex 32`) on all of them",
        )
    return _key_of(settings.user_key_file)


def _key_of(file: Path) -> bytes:
    try:
        key = read_or_create_secret(file)
    except OSError as error:
        raise AbstainError(
            Code.BAD_SETTING,
            f"{file}: the key of the pseudonyms can be neither read nor made ({error.strerror}): set ABSTAIN_USER_KEY",
        ) from None
    if key is None:
        raise AbstainError(
            Code.BAD_SETTING,
            f"{file} holds no key: restore it, or remove it, and users get new pseudonyms that do not match the old",
        )
    return key.encode()
