"""Settings of this machine, read from `ABSTAIN_*` variables, never from `params.yaml`.

DVC hashes the command and the parameters of a stage; the device or cache folder of a machine must not be part of them.
"""

from __future__ import annotations

import re
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from abstain.core.codes import Code
from abstain.core.errors import AbstainError

_WITH_PASSWORD = re.compile(r"(?P<scheme>https?://)(?P<user>[^:/@]*):(?P<password>.*)@(?P<rest>.+)", re.IGNORECASE)


class Settings(BaseSettings):
    """Settings of this machine."""

    model_config = SettingsConfigDict(env_prefix="ABSTAIN_", frozen=True, populate_by_name=True)

    home: Path = Field(Path(".abstain"), description="caches, workspaces, the local remote and the Prefect database")
    origin_url: SecretStr | None = Field(
        None,
        exclude=True,
        validation_alias="ABSTAIN_ORIGIN",
        description="git URL that runs clone from and push to; default: a local bare repository in `home`",
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 where the hardware computes in it, else float32"
    )
    batch_tokens: Annotated[int, Field(ge=1)] = Field(
        2048, description="most tokens, padding included, in one forward pass"
    )
    features_url: str | None = Field(
        None,
        validation_alias="ABSTAIN_FEATURES",
        description="folder or fsspec URL of the feature cache; default: `features` in home",
    )
    runner: Literal["local", "processes", "dask", "prefect"] = Field(
        "local",
        description="what computes features: this process, `workers` processes of this host, a Dask cluster, flow runs "
        "on the work pool `gpu`",
    )
    workers: Annotated[int, Field(ge=1)] = Field(
        1, description="how many processes share that, or flow runs; a Dask cluster has its own number"
    )
    dask_scheduler: str | None = Field(None, description="address of the Dask scheduler, for the runner `dask`")
    user_key: SecretStr | None = Field(
        None, exclude=True, description="secret of the users' pseudonyms; default: the home's own, `user.key`"
    )

    decision_log: SecretStr | None = Field(
        None,
        exclude=True,
        description="postgresql:// URL of the decision log of `abstain serve`; default: `decisions.sqlite` in home",
    )
    index: SecretStr | None = Field(
        None,
        exclude=True,
        description="postgresql:// URL of a vector index that many processes share; default: one in this process",
    )

    @property
    def origin(self) -> str | None:
        """The URL for git: ABSTAIN_ORIGIN without the password of an http(s) URL."""
        return self._split_origin()[0]

    @property
    def origin_access(self) -> str | None:
        """The value of the header `Authorization` for `origin`; None if its URL has no password."""
        return self._split_origin()[1]

    def _split_origin(self) -> tuple[str | None, str | None]:
        url = self.origin_url.get_secret_value() if self.origin_url else None
        match = _WITH_PASSWORD.fullmatch(url or "")
        if match is None:
            return url, None
        access = f"{unquote(match['user'])}:{unquote(match['password'])}"
        return match["scheme"] + match["rest"], f"Basic {b64encode(access.encode()).decode()}"

    @property
    def models(self) -> Path:
        """Safetensors copies of the embedded models."""
        return self.home.resolve() / "models"

    @property
    def embeddings(self) -> Path:
        """Embeddings of the knowledge base, cached by content."""
        return self.home.resolve() / "embeddings"

    @property
    def user_key_file(self) -> Path:
        """The secret of the users' pseudonyms, if ABSTAIN_USER_KEY is not set."""
        return self.home.resolve() / "user.key"

    @property
    def features(self) -> str:
        """The root of the content-addressed feature cache: a URL, or an absolute path."""
        if self.features_url and "://" in self.features_url:
            return self.features_url
        return str(
            Path(self.features_url).expanduser().resolve() if self.features_url else self.home.resolve() / "features"
        )


def get_decision_log_url(settings: Settings, home: Path | None = None) -> str:
    """Return the URL of the decision log: ABSTAIN_DECISION_LOG, else that of the file in the home folder.

    Args:
        settings: Settings of this machine.
        home: Home folder; None for that of the settings.

    Returns:
        The URL.
    """
    url = settings.decision_log.get_secret_value().strip() if settings.decision_log else ""
    return url or f"sqlite:///{(home or settings.home).resolve() / 'decisions.sqlite'}"


def load_settings() -> Settings:
    """Read the settings of this process.

    Returns:
        The settings.

    Raises:
        AbstainError: A variable is invalid; the message names it.
    """
    try:
        return Settings()
    except ValidationError as error:
        problem = error.errors()[0]
        name = "ABSTAIN_" + "_".join(str(part) for part in problem["loc"]).upper().removeprefix("ABSTAIN_")
        raise AbstainError(Code.BAD_SETTING, f"environment variable {name}: {problem['msg']}") from None
