"""The model registry `registry.json`: the version in production, in one tracked file.

Versions are immutable git tags (`probe@v1.2.0`, GTO's format). This file holds the pointer, its history, the blocked
versions, and the versions trained on rows erased or corrected later. Functions here are pure. The compare-and-swap, a
fast-forward push of the commit with the new file, is in `tasks/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.learning.thresholds.guarantee import Guarantee

MODEL = "probe"
_NUMBER = "(0|[1-9][0-9]{0,8})"
VERSION = re.compile(rf"v{_NUMBER}\.{_NUMBER}\.{_NUMBER}")
Version = Annotated[str, StringConstraints(pattern=f"^{VERSION.pattern}$")]
"""A version is also the name of a folder and of a tag, so `registry.json` must not contain anything else."""


class RegistryEvent(BaseModel):
    """One move of the pointer to production.

    Attributes:
        action: Promotion or rollback.
        version: The version that is in production after the event.
        sha256: sha256 (hex) of the bundle's probe.onnx.
        candidate_sha256: sha256 (hex) of the candidate's ONNX file.
        occurred_at: Time of the event.
        holdout_sha256: Digest of the hold-out.
        reason: Why the pointer was moved.
        guarantee: The guarantee of the version, or why there is none.
        scorer: Name of the served scorer.
        bundle_sha256: Digest of all files of the bundle.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["promote", "rollback"]
    version: Version
    sha256: str
    candidate_sha256: str
    occurred_at: datetime
    holdout_sha256: str
    reason: str
    guarantee: Guarantee
    scorer: str
    bundle_sha256: str

    @property
    def has_guarantee(self) -> bool:
        """Whether the version has a guarantee that the promotion checks have checked."""
        return self.guarantee.status == "active"

    @property
    def notice(self) -> str:
        """The notice for a version without a checked guarantee, with the missing reviews; "" with a guarantee."""
        return "" if self.has_guarantee else describe_missing_guarantee(self.guarantee.additional_reviews)


Cause = Literal["erased", "corrected"]


class Taint(BaseModel):
    """Marks a version that was trained on rows erased or corrected later.

    Attributes:
        since: Time of the first erasure or correction.
        cause: What happened to the rows; an erasure outranks a correction.
        certain: False if the version's data cannot be read any more, so that it is unknown.
        keep_reason: Recorded reason to leave the version in production; None without such a decision.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    since: datetime
    cause: Cause = "erased"
    certain: bool = True
    keep_reason: str | None = None

    def __str__(self) -> str:
        text = f"trained on {self.cause} rows since {self.since:%Y-%m-%d}"
        if not self.certain:
            text = f"perhaps {text}: its data cannot be read any more"
        return f"{text}; kept on purpose: {self.keep_reason}" if self.keep_reason else text


class Registry(BaseModel):
    """The parsed registry.json.

    Attributes:
        schema_version: Version of the format.
        history: Events, oldest first; the last one is in production.
        blocked: Blocked version -> reason.
        tainted: Version -> taint.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    history: tuple[RegistryEvent, ...] = ()
    blocked: dict[Version, str] = {}
    tainted: dict[Version, Taint] = {}

    @property
    def production(self) -> RegistryEvent | None:
        """The latest event; None if nothing is in production."""
        return self.history[-1] if self.history else None

    @property
    def production_version(self) -> str | None:
        """The version in production; None if there is none."""
        return self.production.version if self.production else None

    @property
    def has_guarantee(self) -> bool:
        """Whether a version with a checked guarantee is in production."""
        return self.production is not None and self.production.has_guarantee

    @property
    def taint(self) -> Taint | None:
        """The taint of the version in production; None if there is none."""
        return self.tainted.get(self.production.version) if self.production else None

    def require_taint(self) -> Taint:
        """Return the taint of the version in production.

        Returns:
            The taint.

        Raises:
            AbstainError: Nothing is in production, or it was not trained on erased or corrected rows.
        """
        if self.taint is None:
            state = (
                f"probe {self.production_version} was not trained on erased or corrected rows"
                if self.production
                else "nothing is in production"
            )
            raise AbstainError(Code.NO_VERSION, f"{state}: there is nothing to decide")
        return self.taint

    @property
    def warning(self) -> str | None:
        """The warning of a report while a tainted version is in production; None otherwise."""
        return (
            f"In production when this was written: probe {self.production_version}, {self.taint}"
            if self.taint
            else None
        )

    def require_production(self) -> RegistryEvent:
        """Return the event of the version that decides.

        Returns:
            The latest event.

        Raises:
            AbstainError: Nothing is in production, or the version is blocked.
        """
        if self.production is None:
            raise AbstainError(Code.NO_VERSION, "nothing is in production yet: run `abstain retrain` first")
        if self.production.version in self.blocked:
            raise AbstainError(
                Code.NO_VERSION,
                f"{self.production.version} is in production and blocked in registry.json "
                f"({self.blocked[self.production.version]}), so it is not used: run `abstain rollback`",
            )
        return self.production

    def promote(self, event: RegistryEvent) -> Registry:
        """Return the registry after a promotion.

        Args:
            event: The promotion.

        Returns:
            The new registry.

        Raises:
            AbstainError: The version was promoted before, or it is blocked.
        """
        if event.version in self.blocked or any(past.version == event.version for past in self.history):
            raise AbstainError(
                Code.NO_VERSION, f"{event.version} was promoted before: a version is promoted once, then rolled back to"
            )
        return self.model_copy(update={"history": (*self.history, event)})

    def find_rollback_target(self, version: str | None) -> RegistryEvent:
        """Find the version to roll back to.

        Args:
            version: Wanted version; None selects the highest unblocked version below the one in production.

        Returns:
            The latest registry event of that version.

        Raises:
            AbstainError: Nothing is in production, or no such version was in production without being blocked.
        """
        if self.production is None:
            raise AbstainError(Code.NO_VERSION, "nothing is in production yet: run `abstain retrain` first")
        usable = [
            event
            for event in self.history
            if event.version not in self.blocked and event.version != self.production.version
        ]
        if version is None:
            matching = [
                event for event in usable if parse_version(event.version) < parse_version(self.production.version)
            ]
        else:
            matching = [event for event in usable if event.version == version]
        if not matching:
            available = ", ".join(dict.fromkeys(event.version for event in usable)) or "none"
            raise AbstainError(
                Code.NO_VERSION,
                f"no version {version or 'before ' + self.production.version} to roll back to: other versions that "
                "were in "
                f"production and are not blocked: {available}",
            )
        return max(matching, key=lambda event: parse_version(event.version)) if version is None else matching[-1]

    def roll_back(self, event: RegistryEvent) -> Registry:
        """Return the registry after a rollback; the version that is left is blocked.

        Args:
            event: The rollback.

        Returns:
            The new registry.
        """
        assert self.production is not None
        blocked = {**self.blocked, self.production.version: event.reason}
        return self.model_copy(update={"history": (*self.history, event), "blocked": blocked})

    def mark_tainted(self, versions: Mapping[str, bool], tainted_at: datetime, cause: Cause = "erased") -> Registry:
        """Return the registry after an erasure or a correction of rows.

        A tainted version keeps its earliest date. A decision to keep it covered only what was before, so it ends.

        Args:
            versions: Version trained on the rows -> whether that is certain.
            tainted_at: Time of the erasure or correction.
            cause: Which of the two.

        Returns:
            The new registry.
        """
        tainted = dict(self.tainted)
        for version, certain in versions.items():
            earlier = tainted.get(version, Taint(since=tainted_at, cause=cause, certain=certain))
            tainted[version] = Taint(
                since=earlier.since,
                cause="erased" if "erased" in (cause, earlier.cause) else "corrected",
                certain=certain or earlier.certain,
            )
        return self.model_copy(update={"tainted": tainted})

    def keep_tainted(self, reason: str) -> Registry:
        """Return the registry after the decision to leave a tainted version in production.

        Args:
            reason: The recorded reason.

        Returns:
            The new registry.

        Raises:
            AbstainError: No tainted version is in production.
        """
        taint = self.require_taint()
        assert self.production_version is not None
        updated = {self.production_version: taint.model_copy(update={"keep_reason": reason})}
        return self.model_copy(update={"tainted": {**self.tainted, **updated}})

    def to_json(self) -> str:
        """Return the text of registry.json."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"


def describe_missing_guarantee(additional_reviews: int | None) -> str:
    """Describe a version without a guarantee.

    Args:
        additional_reviews: About how many more reviews would give one; None if unknown.

    Returns:
        The notice.
    """
    return "without a guarantee" + (
        f", an estimated {additional_reviews:,} more reviews are needed" if additional_reviews else ""
    )


def parse_registry(text: str) -> Registry:
    """Parse `registry.json`.

    Args:
        text: Content of the file.

    Returns:
        The registry.

    Raises:
        AbstainError: The file is damaged.
    """
    try:
        return Registry.model_validate_json(text)
    except ValidationError as error:
        first_error = error.errors()[0]
        raise AbstainError(
            Code.DAMAGED_DATA,
            f"registry.json is damaged ({'.'.join(map(str, first_error['loc']))}: {first_error['msg']}): "
            "restore it with `git checkout HEAD -- registry.json`",
        ) from None


def load_registry(path: Path) -> Registry:
    """Read and parse `registry.json`.

    Args:
        path: The file.

    Returns:
        The registry; an empty one if there is no file.
    """
    return parse_registry(path.read_text(encoding="utf-8")) if path.is_file() else Registry()


def parse_version_tags(tags: Iterable[str]) -> list[str]:
    """Find the versions among git tags.

    Args:
        tags: Tags such as `probe@v1.2.0`. Other tags, such as `probe@vnext`, are ignored, because anybody may set them.

    Returns:
        The versions, lowest first.
    """
    names = (tag.removeprefix(f"{MODEL}@") for tag in tags if tag.startswith(f"{MODEL}@"))
    return sorted(filter(VERSION.fullmatch, names), key=parse_version)


def get_next_version(promoted: Iterable[str], tags: Iterable[str]) -> str:
    """Return the minor version after the highest promoted one that has no tag yet; v1.0.0 is the first.

    Only promoted versions count for the highest one, so that a foreign tag such as `probe@v999999999.0.0` takes just
    its own number.

    Args:
        promoted: Versions that were promoted.
        tags: All git tags.

    Returns:
        The version.
    """
    tagged_versions = set(parse_version_tags(tags))
    major, minor, _ = max(map(parse_version, promoted), default=(1, -1, 0))
    while (version := f"v{major}.{minor + 1}.0") in tagged_versions:
        minor += 1
    return version


def make_version_tag(version: str) -> str:
    """Return the git tag of a version."""
    return f"{MODEL}@{version}"


def parse_version(version: str) -> tuple[int, int, int]:
    """Parse a version such as `v1.2.3` into numbers that sort.

    Args:
        version: The version.

    Returns:
        Major, minor and patch number.

    Raises:
        AbstainError: It is no such version.
    """
    match = VERSION.fullmatch(version)
    if not match:
        raise AbstainError(Code.UNKNOWN_NAME, f"'{version}' is no version: write it as in v1.2.0")
    major, minor, patch = (int(part) for part in match.groups())
    return major, minor, patch
