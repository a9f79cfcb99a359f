"""The address of a server of the S3 API, as a team would have it, on a port of this host."""

import uuid
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket, with the environment that finds and opens it."""
    import boto3
    from s3fs import S3FileSystem

    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()  # an instance keeps the environment that it was first used in
    bucket = f"b{uuid.uuid4().hex[:12]}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return f"s3://{bucket}"
