"""Figures for CloudWatch, by which an Auto Scaling group follows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from chunking.errors import TransientError, UsageError
from storage import aws
from storage.aws import AwsOptions, aws_client, status_of

NAMESPACE = "Spotscribe"
ANSWER_S = 10.0
REFUSED = (400, 401, 403)


class Gauges:
    """Metrics of one account and region. Safe to share by threads."""

    def __init__(self, options: AwsOptions) -> None:
        with aws.translated("CloudWatch", _of_answer):
            self._client: Any = aws_client("cloudwatch", options)

    def publish(self, values: Mapping[tuple[str, str], float]) -> None:
        """Values by metric and engine, at this moment. Raises UsageError without the right to, TransientError."""
        data = [
            {"MetricName": name, "Dimensions": [{"Name": "Engine", "Value": engine}], "Value": value, "Unit": "Count"}
            for (name, engine), value in values.items()
        ]
        with aws.translated("CloudWatch", _of_answer):
            self._client.put_metric_data(Namespace=NAMESPACE, MetricData=data)


def _of_answer(error: ClientError, code: str) -> Exception:
    if status_of(error) in REFUSED:
        return UsageError(f"CloudWatch refuses: {code}; the right cloudwatch:PutMetricData is needed")
    return TransientError(f"CloudWatch does not answer: {code}")
