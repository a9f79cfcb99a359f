"""The model registry `registry.json`: the version in production, in one tracked file.

Versions are immutable git tags (`probe@v1.2.0`, GTO's format); this file is the pointer, its history, the blocked
versions, and those that were trained on rows erased since. Functions here are pure: the compare-and-swap, a
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

from abstain.config.params import ServableKind
from abstain.core.codes import Code
from abstain.core.errors import AbstainError

MODEL = "probe"
_NUMBER = "(0|[1-9][0-9]{0,8})"
VERSION = re.compile(rf"v{_NUMBER}\.{_NUMBER}\.{_NUMBER}")
Version = Annotated[str, StringConstraints(pattern=f"^{VERSION.pattern}$")]
"""It is also the name of a folder and of a tag, so nothing else may stand in `registry.json`."""


class RegistryEvent(BaseModel):
    """One move of the pointer.

    `guaranteed`: whether the version's threshold has a guarantee that the gate has checked. Where it has none,
    `more_reviews` is about how many more reviews would give one, None where no number of them is known to. `kind`: of
    its live scorer. `sha256`: of the bundle's probe.onnx; `bundle_sha256`: of all its files.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["promote", "rollback"]
    version: Version
    sha256: str
    candidate: str
    at: datetime
    holdout: str
    reason: str
    guaranteed: bool
    more_reviews: int | None
    kind: ServableKind
    bundle_sha256: str

    @property
    def notice(self) -> str:
        """What a version without a checked guarantee is marked as, with the reviews that are missing; else ""."""
        return "" if self.guaranteed else describe_missing_guarantee(self.more_reviews)


class Taint(BaseModel):
    """The mark of a version that was trained on rows erased since.

    `since` is the first erasure. `certain` is False where the version's data cannot be read any more, so that it is
    unknown. `kept` is the recorded reason to leave the version in production, None without such a decision.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    since: datetime
    certain: bool = True
    kept: str | None = None

    def __str__(self) -> str:
        mark = f"trained on erased rows since {self.since:%Y-%m-%d}"
        if not self.certain:
            mark = f"perhaps {mark}: its data cannot be read any more"
        return f"{mark}; kept on purpose: {self.kept}" if self.kept else mark


class Registry(BaseModel):
    """The parsed file. `history` is oldest first; the last event is what is in production."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    history: tuple[RegistryEvent, ...] = ()
    blocked: dict[Version, str] = {}
    tainted: dict[Version, Taint] = {}

    @property
    def production(self) -> RegistryEvent | None:
        return self.history[-1] if self.history else None

    @property
    def production_version(self) -> str | None:
        """The version in production, None where nothing is."""
        return self.production.version if self.production else None

    @property
    def guaranteed(self) -> bool:
        """Whether a version with a checked guarantee is in production."""
        return self.production is not None and self.production.guaranteed

    @property
    def taint(self) -> Taint | None:
        """Set where the version in production was trained on rows that were erased since."""
        return self.tainted.get(self.production.version) if self.production else None

    def require_taint(self) -> Taint:
        """`taint`, or an `AbstainError` where there is none."""
        if self.taint is None:
            live = (
                f"probe {self.production_version} was not trained on erased rows"
                if self.production
                else "nothing is in production"
            )
            raise AbstainError(Code.NO_VERSION, f"{live}: there is nothing to decide")
        return self.taint

    @property
    def warning(self) -> str | None:
        """The warning of a report while a tainted version is in production."""
        return (
            f"In production when this was written: probe {self.production_version}, {self.taint}"
            if self.taint
            else None
        )

    def require_prod(self) -> RegistryEvent:
        """The event of the version that decides. Raises `AbstainError` where none is in production or it is blocked."""
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
        """The registry after promoting a version that was never promoted and is not blocked."""
        if event.version in self.blocked or any(past.version == event.version for past in self.history):
            raise AbstainError(
                Code.NO_VERSION, f"{event.version} was promoted before: a version is promoted once, then rolled back to"
            )
        return self.model_copy(update={"history": (*self.history, event)})

    def rollback_target(self, wanted: str | None) -> RegistryEvent:
        """The past event to go back to: `wanted`, else the latest version before this one that is not blocked."""
        if self.production is None:
            raise AbstainError(Code.NO_VERSION, "nothing is in production yet: run `abstain retrain` first")
        usable = [e for e in self.history if e.version not in self.blocked and e.version != self.production.version]
        if wanted is None:
            named = [e for e in usable if parse_version(e.version) < parse_version(self.production.version)]
        else:
            named = [e for e in usable if e.version == wanted]
        if not named:
            there_are = ", ".join(dict.fromkeys(e.version for e in usable)) or "none"
            raise AbstainError(
                Code.NO_VERSION,
                f"no version {wanted or 'before ' + self.production.version} to roll back to: other versions that were in "
                f"production and are not blocked: {there_are}",
            )
        return max(named, key=lambda e: parse_version(e.version)) if wanted is None else named[-1]

    def roll_back(self, event: RegistryEvent) -> Registry:
        """The registry after moving back to `event.version`; the version that was left is blocked."""
        assert self.production is not None
        blocked = {**self.blocked, self.production.version: event.reason}
        return self.model_copy(update={"history": (*self.history, event), "blocked": blocked})

    def mark_erased(self, versions: Mapping[str, bool], at: datetime) -> Registry:
        """The registry after rows were erased that `versions` were trained on: version -> whether that is certain.

        A version keeps its earliest date. A decision to keep it covered only earlier erasures, and ends.
        """
        marked = dict(self.tainted)
        for version, certain in versions.items():
            before = marked.get(version, Taint(since=at, certain=certain))
            marked[version] = Taint(since=before.since, certain=certain or before.certain)
        return self.model_copy(update={"tainted": marked})

    def keep_tainted(self, reason: str) -> Registry:
        """The registry after the decision to leave a tainted version in production; `AbstainError` where none is."""
        taint = self.require_taint()
        assert self.production_version is not None
        kept = {self.production_version: taint.model_copy(update={"kept": reason})}
        return self.model_copy(update={"tainted": {**self.tainted, **kept}})

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"


def describe_missing_guarantee(more_reviews: int | None) -> str:
    """The mark of a version that guarantees nothing yet."""
    return "without a guarantee" + (f", an estimated {more_reviews:,} more reviews are needed" if more_reviews else "")


def parse_registry(text: str) -> Registry:
    """Parse `registry.json`. Raises `AbstainError` when it is damaged."""
    try:
        return Registry.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        raise AbstainError(
            Code.DAMAGED_DATA,
            f"registry.json is damaged ({'.'.join(map(str, problem['loc']))}: {problem['msg']}): "
            "restore it with `git checkout HEAD -- registry.json`",
        ) from None


def load_registry(path: Path) -> Registry:
    """The registry at `path`; an absent file is an empty registry."""
    return parse_registry(path.read_text(encoding="utf-8")) if path.is_file() else Registry()


def parse_version_tags(tags: Iterable[str]) -> list[str]:
    """The versions among `tags` such as `probe@v1.2.0`, lowest first. Others, like `probe@vnext`, are anybody's."""
    names = (tag.removeprefix(f"{MODEL}@") for tag in tags if tag.startswith(f"{MODEL}@"))
    return sorted(filter(VERSION.fullmatch, names), key=parse_version)


def next_version(promoted: Iterable[str], tags: Iterable[str]) -> str:
    """The next minor version after the highest of `promoted` whose tag is not among `tags`; v1.0.0 is the first.

    Anybody's tag, such as `probe@v999999999.0.0`, takes its own number and no other.
    """
    taken = set(parse_version_tags(tags))
    major, minor, _ = max(map(parse_version, promoted), default=(1, -1, 0))
    while (version := f"v{major}.{minor + 1}.0") in taken:
        minor += 1
    return version


def make_version_tag(version: str) -> str:
    return f"{MODEL}@{version}"


def parse_version(version: str) -> tuple[int, int, int]:
    """`v1.2.3` as numbers that sort. Raises `AbstainError` for anything else."""
    match = VERSION.fullmatch(version)
    if not match:
        raise AbstainError(Code.UNKNOWN_NAME, f"'{version}' is no version: write it as in v1.2.0")
    major, minor, patch = (int(part) for part in match.groups())
    return major, minor, patch
