"""Settings of `abstain serve`, read from `ABSTAIN_SERVE_*` variables; options of the command override some."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from abstain.core.codes import Code
from abstain.core.errors import AbstainError
from abstain.core.text import WITHHELD_TEXT, suggest_name

MIB = 1024 * 1024
OnUnavailable = Literal["abstain", "show"]
"""Treatment of an answer without a decision."""
FamiliarityMode = Literal["off", "withhold", "background"]
"""What happens to an answer whose question the base model is not familiar with."""
Seconds = Annotated[float, Field(gt=0, le=3600)]


class GatewayPaths(BaseModel):
    """Paths (JMESPath) to the inputs of the gate in a request of a gateway; an empty one finds nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    call_id: str = Field("", description="what joins a question, registered contexts and an answer")
    question: str = ""
    contexts: str = Field("", description="texts, or objects with a text")
    entitlements: str = Field("", description="of the asker: a path that callers of the gateway cannot write to")
    conversation: str = Field("", description="in which the tries of one question are limited")
    user: str = ""
    product: str = ""
    model: str = Field("", description="the model that wrote the answer")


class CallerLimits(BaseModel):
    """Limits of one caller of the server: one API key, or one address if there are no keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_connections: Annotated[int, Field(ge=1)] = Field(
        256, description="open connections of one address, of 1,024 in all; behind a proxy all have the proxy's"
    )
    max_queued: Annotated[int, Field(ge=1)] = Field(192, description="requests that wait for the base model")
    rows_per_minute: Annotated[int, Field(ge=1)] = Field(
        1200,
        description="decisions, thumbs, reviews and registered calls that the log takes; each 10,000 characters of one "
        "count as one more, and so do each 64 KiB, or 1,000 values, of JSON",
    )
    max_body_bytes: Annotated[int, Field(ge=1024)] = Field(
        128 * MIB, description="bytes of its bodies that are in memory, of 256 MiB in all"
    )
    max_registered_calls: Annotated[int, Field(ge=1)] = Field(
        2500, description="registered calls that are kept, of 10,000 in all"
    )
    max_tries: Annotated[int, Field(ge=0)] = Field(
        0, description="answers to one question of a `conversation` that are decided about within an hour; 0: no limit"
    )


LAST_USER_MESSAGE = "messages[?role=='user'] | [-1].content"


class LiteLLMPaths(GatewayPaths):
    """Paths in requests of LiteLLM."""

    call_id: str = "litellm_call_id"
    question: str = f"structured_{LAST_USER_MESSAGE}"
    contexts: str = "additional_provider_specific_params.contexts"
    user: str = "request_data.user_api_key_end_user_id || request_data.user_api_key_user_id"
    model: str = "model"


class KgatewayPaths(GatewayPaths):
    """Paths in requests of kgateway."""

    call_id: str = 'headers."x-abstain-call-id"'
    question: str = LAST_USER_MESSAGE
    user: str = 'headers."x-abstain-user"'


class PortkeyPaths(GatewayPaths):
    """Paths in requests of Portkey."""

    call_id: str = "metadata.abstain_call_id"
    question: str = f"(request.json.{LAST_USER_MESSAGE}) || request.json.prompt"
    user: str = "metadata._user"
    model: str = "response.json.model"


class ServeSettings(BaseSettings):
    """Settings of `abstain serve`."""

    model_config = SettingsConfigDict(env_prefix="ABSTAIN_SERVE_", env_nested_delimiter="__", frozen=True)

    keys: SecretStr | None = Field(None, exclude=True, description="lines of `abstain key`, in place of a file")
    keys_file: Path | None = Field(None, description="file of lines of `abstain key`; read again when it changes")
    on_unavailable: OnUnavailable = Field(
        "abstain", description="what is done with an answer about which there is no decision"
    )
    timeout_s: Seconds = Field(10.0, description="a decision that takes longer is `unavailable`")
    answer_timeout_s: Seconds = Field(60.0, description="the same, for answers that the base model writes")
    familiarity: FamiliarityMode = Field(
        "off",
        description="whether `/v1/answer` and `abstain generate` withhold an answer to an unfamiliar question, or add "
        "`background`",
    )
    batch_size: Annotated[int, Field(ge=1)] = Field(32, description="answers that the base model reads together")
    max_queued: Annotated[int, Field(ge=1)] = Field(
        256, description="requests that may wait for it; more get status 429"
    )
    body_limit: Annotated[int, Field(ge=1024)] = Field(
        8 * MIB, description="bytes of a request's body; states may have 64 MiB"
    )
    caller: CallerLimits = Field(CallerLimits(), description="what one caller may take: see docs/howto/serve.md")
    text_limit: Annotated[int, Field(ge=1)] = Field(100_000, description="characters of the texts of one answer")
    shadow: Literal["off", "shared", "full"] = Field(
        "off",
        description="whether the candidate of `abstain shadow` runs as a shadow: on the features that the base model "
        "computed for production's decision (`shared`), or also on those of its own forward passes (`full`)",
    )
    states_folder: Path | None = Field(
        None, description="folder whose files of hidden states a request may name; default: none may be named"
    )
    states_limit: Annotated[int, Field(ge=1024)] = Field(256 * MIB, description="bytes of such a file")
    text_retention_days: Annotated[int, Field(ge=1)] = Field(90, description="days after which the log removes texts")
    cached_answers_per_day: Annotated[int, Field(ge=0)] = Field(
        500, description="answers a day whose hidden states go into the feature cache, for drift and retraining"
    )
    withheld_sampling_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        0.15, description="chance that ingest takes a withheld answer, for reviewers"
    )
    withheld_text: Annotated[str, Field(pattern=r"\S")] = Field(
        WITHHELD_TEXT, description="what a gateway's user reads in place of a withheld answer"
    )
    withheld_sources: bool = Field(
        False, description="whether the titles of the answer's documents follow that text, for users to read there"
    )
    litellm: LiteLLMPaths = Field(
        LiteLLMPaths(),
        description="paths (JMESPath) to what the gate needs in requests of LiteLLM; an empty one finds nothing",
    )
    litellm_withheld: Literal["block", "replace"] = Field(
        "block", description="whether LiteLLM refuses a withheld answer or replaces its text"
    )
    kgateway: KgatewayPaths = Field(
        KgatewayPaths(),
        description="paths (JMESPath) to what the gate needs in requests of kgateway; an empty one finds nothing",
    )
    kgateway_withheld: Literal["mask", "reject"] = Field(
        "mask", description="whether a withheld answer is masked, or rejected, which agentgateway alone can do"
    )
    portkey: PortkeyPaths = Field(
        PortkeyPaths(),
        description="paths (JMESPath) to what the gate needs in requests of Portkey; an empty one finds nothing",
    )
    portkey_timeout_s: Seconds = Field(2.0, description="a decision for Portkey that takes longer is `unavailable`")


def load_serve_settings() -> ServeSettings:
    """Read the settings of this process.

    Returns:
        The settings.

    Raises:
        AbstainError: A variable is invalid or unknown; the message names it.
    """
    prefix = str(ServeSettings.model_config["env_prefix"])
    valid_names = {f"{prefix}{name.upper()}" for name in ServeSettings.model_fields}
    for name in os.environ:
        if name.upper().startswith(prefix) and name.upper().partition("__")[0] not in valid_names:
            raise AbstainError(
                Code.BAD_SETTING, f"environment variable {name}: {suggest_name(name, sorted(valid_names))}"
            )
    try:
        return ServeSettings()
    except ValidationError as error:
        problem = error.errors()[0]
        name = f"ABSTAIN_SERVE_{'__'.join(map(str, problem['loc'])).upper()}"
        raise AbstainError(Code.BAD_SETTING, f"environment variable {name}: {problem['msg']}") from None
