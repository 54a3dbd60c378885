"""Clients of S3, SQS and SNS, at AWS or at a server that speaks like it, and what goes wrong in them as errors of ours.

The only importer of boto3, the client that AWS itself keeps. Credentials come from boto3's usual places and are never
logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigParseError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ValidationError,
)
from urllib3.exceptions import HTTPError

from chunking.errors import TransientError, UsageError

OF_THIS_MACHINE = {
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "TokenRefreshRequired",
    "RequestTimeTooSkewed", "RequestExpired", "AuthorizationHeaderMalformed",
    "InvalidClientTokenId", "UnrecognizedClientException", "ExpiredTokenException", "InvalidSignatureException",
    "IncompleteSignature", "MissingAuthenticationToken", "InvalidSecurity", "OptInRequired",
}  # fmt: skip
"""Refusals that say nothing of what was asked for: another worker may be served."""


@dataclass(frozen=True, slots=True)
class AwsOptions:
    """Where a service is, and the patience with it. Timeouts in seconds."""

    endpoint: str | None = None
    """None: AWS."""
    region: str = "us-east-1"
    connect_s: float = 5.0
    read_s: float = 60.0
    attempts: int = 4
    """Of boto3 itself, with its back-off; only then an error reaches us."""
    connections: int = 16


def aws_client(service: str, options: AwsOptions, **more: Any) -> Any:
    """A boto3 client, with `more` of boto3's options; safe to share by threads."""
    config = Config(
        connect_timeout=options.connect_s,
        read_timeout=options.read_s,
        retries={"mode": "standard", "total_max_attempts": options.attempts},
        max_pool_connections=options.connections,
        **more,
    )
    return boto3.Session().client(service, endpoint_url=options.endpoint, region_name=options.region, config=config)


@contextmanager
def translated(service: str, answered: Callable[[ClientError, str], Exception]) -> Iterator[None]:
    """boto3's errors as ours. `answered` is told what the service answered, and the code in it."""
    try:
        yield
    except ClientError as e:
        name = str(e.response.get("Error", {}).get("Code", ""))
        if name in OF_THIS_MACHINE:
            raise UsageError(f"{service} does not take this machine's credentials, or its clock: {name}") from e
        raise answered(e, name) from e
    except ParamValidationError as e:
        raise UsageError(f"{service} cannot take this name: {str(e).splitlines()[-1]}") from e
    except (NoCredentialsError, PartialCredentialsError) as e:
        variables = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise UsageError(f"no credentials for {service}: set {variables}, or a role") from e
    except (ProfileNotFound, ConfigParseError, ValidationError) as e:
        raise UsageError(f"AWS's settings on this machine: {str(e).splitlines()[0]}") from e
    except (Boto3Error, BotoCoreError, HTTPClientError, HTTPError, OSError) as e:
        raise TransientError(f"{service} does not answer: {type(e).__name__}") from e


def status_of(error: ClientError) -> int:
    """The HTTP status of an answer; 0: none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
