"""`abstain serve` and `abstain key`: the gate as an HTTP service, and the keys of those who may ask it.

torch and FastAPI are imported by the commands, as in `abstain_cli.app`: `--help` is instant.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from abstain.config.params import PrivacyParams
    from abstain.data.decision_log.log import DecisionLog
    from abstain.llm.signals.compute_features import OnComputed


def serve(
    host: Annotated[str, typer.Option(help="address to listen to; other than this machine's own needs keys")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 8700,
    on_unavailable: Annotated[
        Literal["abstain", "show"] | None,
        typer.Option(help="what is done with answers without a decision; default: ABSTAIN_SERVE_ON_UNAVAILABLE"),
    ] = None,
    retrieve: Annotated[
        bool, typer.Option(help="retrieve contexts from the knowledge base where a request names entitlements")
    ] = False,
) -> None:
    """Decide about answers over HTTP with the version in production, and follow the registry."""
    from abstain.config.params import load_params
    from abstain.config.serve_settings import load_serve_settings
    from abstain.config.settings import load_settings
    from abstain.core import paths
    from abstain.core.codes import Code
    from abstain.core.errors import AbstainError
    from abstain.data.decision_log import queries
    from abstain.serving.api.app import make_app
    from abstain.serving.api.server import get_allowed_hosts, listen, require_loopback, serve_app
    from abstain.serving.feature_writer import FeatureCacheWriter
    from abstain.serving.gate import Gate
    from abstain.serving.generate import add_familiarity_check
    from abstain.serving.service.gate_service import GateService
    from abstain.serving.service.keys import ApiKeys
    from abstain.serving.service.telemetry import export_events
    from abstain.serving.service.version_follower import VersionFollower
    from abstain.serving.status_page.page import add_page
    from abstain_cli.kb import open_if_enabled
    from abstain_tasks.release.version_source import OriginShadowSource, OriginVersionSource
    from abstain_tasks.runs.workspace import project_root

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings, serving = load_settings(), load_serve_settings()
    max_cached = serving.cached_answers_per_day
    if on_unavailable is not None:
        serving = serving.model_copy(update={"on_unavailable": on_unavailable})
    text = serving.keys.get_secret_value() if serving.keys else None
    keys = ApiKeys(text, serving.keys_file)
    require_loopback(host, keys.required)
    if serving.familiarity == "background" and not retrieve:
        raise AbstainError(
            Code.BAD_SETTING, "ABSTAIN_SERVE_FAMILIARITY=background takes background from where --retrieve does: add it"
        )
    params = load_params(project_root() / paths.PARAMS)
    log = _open_log(params.privacy)

    def open_gate(bundle: Path, keep: OnComputed | None = None) -> Gate:
        return Gate.open(bundle, settings, serving.on_unavailable, keep)

    with (
        export_events(),
        listen(host, port) as listening,
        open_if_enabled(retrieve) as base,
        FeatureCacheWriter(partial(queries.read_interactions, log.database), max_cached) as feature_writer,
    ):
        retrieve_chunks, chunks = (base.find_contexts, base.chunk_by_id) if base else (None, {})

        def open_live_gate(bundle: Path) -> Gate:
            gate = replace(open_gate(bundle, feature_writer.add), chunks=chunks)
            return add_familiarity_check(gate, serving.familiarity, retrieve_chunks)

        follower, shadow_follower = VersionFollower(OriginVersionSource(), open_live_gate), None
        if serving.shadow != "off":
            # Without forward passes of its own it needs no base model, which may be another one.
            warm = Gate.warm_up if serving.shadow == "full" else lambda gate: None
            shadow_follower = VersionFollower(OriginShadowSource(), open_gate, warm)
        service = GateService(follower, log, serving, retrieve_chunks, shadow_follower)
        app = make_app(service, keys, None if keys.required else get_allowed_hosts(host))
        add_page(app, service, keys, params.labels, chunks)
        shown = f"[{host}]" if ":" in host else host
        print(f"gate         http://{shown}:{listening.getsockname()[1]}", flush=True)
        serve_app(app, listening)


def key(
    name: Annotated[str, typer.Argument(help="who will hold it")],
    role: Annotated[
        list[str] | None,
        typer.Option("--role", "-r", help="ask, feedback, review or read_withheld; repeatable; default: ask"),
    ] = None,
) -> None:
    """Make an API key: it is printed once, and the line for ABSTAIN_SERVE_KEYS_FILE holds only its hash."""
    from abstain.core.codes import Code
    from abstain.core.errors import AbstainError
    from abstain.serving.service.keys import ROLES, create_key

    roles = [known_role for known_role in ROLES if known_role in (role or ["ask"])]
    if unknown := set(role or ()) - ROLES:
        raise AbstainError(
            Code.UNKNOWN_NAME, f"--role {', '.join(sorted(unknown))}: there are {', '.join(sorted(ROLES))}"
        )
    secret, line = create_key(name, roles)
    print(f"key   {secret}\nline  {line}")


def _open_log(params: PrivacyParams) -> DecisionLog:
    """Open the decision log with ingest's rules for texts and people."""
    from abstain.config.serve_settings import load_serve_settings
    from abstain.config.settings import get_decision_log_url, load_settings
    from abstain.data.decision_log.log import DecisionLog
    from abstain.ingest.privacy.policy import Privacy
    from abstain.ingest.privacy.pseudonyms import derive_log_key

    settings, serving = load_settings(), load_serve_settings()
    privacy = Privacy.from_params(params, settings)
    return DecisionLog.open(
        get_decision_log_url(settings),
        redact=privacy.redact_row,
        pseudonym=privacy.get_pseudonym,
        key=derive_log_key(settings),
        withheld_sampling_rate=serving.withheld_sampling_rate,
        keep_days=serving.text_retention_days,
        calls_each=serving.caller.max_registered_calls,
    )
