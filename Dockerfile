# The project with its environment: `docker build -t abstain .`, then `docker run --rm -v abstain:/state abstain demo`.
FROM python:3.11-slim-bookworm AS build
ENV UV_TORCH_BACKEND=cpu UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1 VIRTUAL_ENV=/venv
RUN python -m venv /venv && pip install --no-cache-dir uv==0.13.9
WORKDIR /project
COPY requirements.lock ./
RUN uv pip install --no-deps -r requirements.lock
COPY pyproject.toml requirements.in README.md LICENSE ./
COPY src src
COPY flows flows
COPY tasks tasks
RUN uv pip install --no-deps -e .

FROM python:3.11-slim-bookworm
# safe.directory: git would refuse a checkout that is mounted on /project and that another user owns.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory /project \
    && useradd --create-home --uid 1000 abstain \
    && install --directory --owner abstain /project /state
COPY --from=build /venv /venv
# Includes .git: a run works on commits, by default on the image's own (without ABSTAIN_ORIGIN).
COPY --chown=abstain . /project
ENV PATH=/venv/bin:$PATH ABSTAIN_HOME=/state DO_NOT_TRACK=1 \
    PREFECT_SERVER_ANALYTICS_ENABLED=false PREFECT_SERVER_UI_V2_ENABLED=false
USER 1000
WORKDIR /project
VOLUME /state
ENTRYPOINT ["abstain"]
CMD ["--help"]
