# A worker or a scorer: `docker build -t abstain . && docker run --rm abstain --help`
FROM python:3.11-slim-bookworm AS build
ARG UV_TORCH_BACKEND=cpu
ENV UV_TORCH_BACKEND=${UV_TORCH_BACKEND} UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir uv==0.13.9
WORKDIR /project
COPY requirements.in requirements.lock ./
RUN /venv/bin/uv pip install --python /venv/bin/python --no-deps -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY flows ./flows
COPY tasks ./tasks
RUN /venv/bin/uv pip install --python /venv/bin/python --no-deps .

FROM python:3.11-slim-bookworm
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 abstain
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH DO_NOT_TRACK=1 DVC_NO_ANALYTICS=1 PREFECT_SERVER_ANALYTICS_ENABLED=false
USER 1000
WORKDIR /home/abstain/project
ENTRYPOINT ["abstain"]
CMD ["--help"]
