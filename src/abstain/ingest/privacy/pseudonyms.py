"""Keyed pseudonyms for people: the same person has the same name, which only the key links to the id.

Notes:

* HMAC-SHA256 with a secret key, not a bare hash: user ids are few and can be guessed, so a hash of them is no secret.
  80 bits of it are used: collisions among a million users are unlikely.
* An id that is a pseudonym already is unchanged, so that data can be ingested again. A source id that looks like a
  pseudonym would be kept; ids come from the assistant's own log-in and are not typed by users.
* If one machine does all of the ingest, the key is made once in its home. Several machines would make several keys, and
  so several names for one user, and `abstain erase-user` would miss rows: with ABSTAIN_ORIGIN the key must be set.
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

_MIN_KEY_CHARACTERS = 32


def normalize_name(name: str) -> str:
    """Normalize a name to NFC, without outer spaces: typed in a terminal, its accents may be separate characters.

    Nothing else is folded: an id in other case is another user's.

    Args:
        name: Id or pseudonym of a user, or name of a reviewer.

    Returns:
        The normalized name.
    """
    return unicodedata.normalize("NFC", name.strip())


def derive_seal_key(settings: Settings) -> bytes:
    """Derive the key of seals in review files from the user key, so that a seal tells nothing about pseudonyms.

    Args:
        settings: Settings with the user key.

    Returns:
        The key.

    Raises:
        AbstainError: See `load_user_key`.
    """
    return hmac.digest(load_user_key(settings), b"review file", "sha256")


def derive_log_key(settings: Settings) -> bytes:
    """Derive the key by which the decision log recognizes a repeated row from the user key.

    Args:
        settings: Settings with the user key.

    Returns:
        The key.

    Raises:
        AbstainError: See `load_user_key`.
    """
    return hmac.digest(load_user_key(settings), b"decision log", "sha256")


class Pseudonyms:
    """Names for users (`u-...`) and reviewers (`r-...`): a person who is both has two unlinkable names.

    Args:
        key: The secret key.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def pseudonymize_user(self, name: str) -> str:
        """Return `u-` and 20 hexadecimal digits for `name`; an empty name and a pseudonym are unchanged."""
        return self._derive("u", name)

    def pseudonymize_reviewer(self, name: str) -> str:
        """Return `r-` and 20 hexadecimal digits for `name`; an empty name and a pseudonym are unchanged."""
        return self._derive("r", name)

    def _derive(self, kind: str, name: str) -> str:
        person = normalize_name(name)
        if not person or PSEUDONYM.fullmatch(person):
            return person
        message = f"{kind}\0{person}".encode("utf-8", "surrogatepass")
        return f"{kind}-{hmac.digest(self._key, message, 'sha256').hex()[:20]}"


def load_user_key(settings: Settings) -> bytes:
    """Load the pseudonym key: ABSTAIN_USER_KEY, else the home's own, which is made if there is none.

    Args:
        settings: Settings with the key, and with the path of the home's key.

    Returns:
        The key.

    Raises:
        AbstainError: The key is too short or damaged, or a team (ABSTAIN_ORIGIN) has none.
    """
    key = settings.user_key.get_secret_value().strip() if settings.user_key else ""
    if key:
        if len(key) < _MIN_KEY_CHARACTERS:
            raise AbstainError(
                Code.BAD_SETTING,
                f"ABSTAIN_USER_KEY has {len(key)} characters, {_MIN_KEY_CHARACTERS} are needed: "
                "make one with `openssl rand -hex 32`, and keep it",
            )
        return key.encode()
    if settings.origin:
        raise AbstainError(
            Code.BAD_SETTING,
            "ABSTAIN_USER_KEY is not set: with ABSTAIN_ORIGIN other machines ingest, too, and must give a user the "
            "same pseudonym and know each other's review files: set one key (`openssl rand -hex 32`) on all of them",
        )
    return _load_key(settings.user_key_file)


def _load_key(file: Path) -> bytes:
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
