# The project with its environment: `docker build -t abstain .`, then `docker run --rm -v abstain:/state abstain demo`.
# With torch for NVIDIA GPUs: `docker build --target cuda -t abstain:cuda .` (docs/howto/containers.md).
# BASE: any Debian with Python 3.11 or newer as `python3`, and its venv.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ENV UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1 VIRTUAL_ENV=/venv
# uv is outside of what the image gets, and so is pip.
RUN python3 -m venv /uv && /uv/bin/pip install --no-cache-dir uv==0.13.9 && python3 -m venv --without-pip /venv
WORKDIR /project
COPY requirements.lock requirements-dev.lock requirements.excludes.txt ./
# Empty: whichever torch the build's own package index has.
ARG TORCH_BACKEND=cpu
RUN /uv/bin/uv pip install ${TORCH_BACKEND:+--torch-backend "$TORCH_BACKEND"} --no-deps -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY flows flows
COPY tasks tasks
# What compose.yaml needs beside the packages that always run; the other lock file has their versions, too.
ARG EXTRAS=postgres,s3
RUN /uv/bin/uv pip install --excludes requirements.excludes.txt -c requirements-dev.lock -e ".[$EXTRAS]"

FROM build AS build-cuda
# CUDA 12.6 needs a driver of 525.60.13 or newer, and CUDA 13.0 one of 580.65.06.
ARG TORCH_BACKEND=cu130
RUN /uv/bin/uv pip install ${TORCH_BACKEND:+--torch-backend "$TORCH_BACKEND"} -c requirements.lock \
    --reinstall-package torch "$(grep '^torch==' requirements.lock)"

FROM ${BASE} AS runtime
# safe.directory: git would refuse a checkout that is mounted on /project and that another user owns.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory /project \
    && useradd --create-home --uid 1000 abstain \
    && install --directory --owner abstain /project /state
# Includes .git: a run works on commits, by default on the image's own (without ABSTAIN_ORIGIN).
COPY --chown=abstain . /project
ENV PATH=/venv/bin:$PATH ABSTAIN_HOME=/state DO_NOT_TRACK=1 \
    PREFECT_SERVER_ANALYTICS_ENABLED=false PREFECT_SERVER_UI_V2_ENABLED=false
USER 1000
WORKDIR /project
VOLUME /state
ENTRYPOINT ["abstain"]
CMD ["--help"]

FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /venv /venv

FROM runtime AS cpu
COPY --from=build /venv /venv
