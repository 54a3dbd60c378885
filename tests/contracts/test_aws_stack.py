"""The CloudFormation template: linted, and brought up against moto's server, a stand-in for AWS.

Moto makes no bucket or queue policies, notifications, lifecycle hooks, scaling policies or alarms from a template: those
are given to it here by their own calls, with what the template says, so that at least their shape is checked.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml
from moto.server import ThreadedMotoServer
from sqlalchemy import text

from pipeline.settings import PREFIX, Settings
from storage.aws import AwsOptions, aws_client
from storage.database import Database
from storage.jobs import JobOptions
from tests.acceptance.command import PROGRAM, spotscribe
from tests.unit.test_infra import check_command
from workers.fleet import GONE_S

TEMPLATE = Path(__file__).parents[2] / "infra" / "aws" / "spotscribe.yaml"
REGION, ACCOUNT, STACK = "eu-central-1", "123456789012", "spot"
SECRET = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:spotscribe-AbCdEf"


class Loader(yaml.SafeLoader):
    """Knows `!Ref X` and the like as {"Ref": "X"}."""


def _function(loader: Loader, tag: str, node: yaml.Node) -> Any:
    name = tag if tag == "Ref" else f"Fn::{tag}"
    value: Any = loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None
    return {name: value.split(".", 1) if tag == "GetAtt" else value}


Loader.add_multi_constructor("!", _function)  # type: ignore[no-untyped-call]


def loaded() -> Any:
    return yaml.load(TEMPLATE.read_text(encoding="utf-8"), Loader)


def properties(name: str) -> Any:
    return loaded()["Resources"][name]["Properties"]


def of_type(kind: str) -> dict[str, Any]:
    return {n: r["Properties"] for n, r in loaded()["Resources"].items() if r["Type"] == f"AWS::{kind}"}


@dataclass
class Stack:
    """What was made, and what its names are."""

    endpoint: str
    values: dict[str, str]

    def client(self, service: str) -> Any:
        return aws_client(service, AwsOptions(self.endpoint, REGION))

    def resolved(self, node: Any) -> Any:
        """Properties as CloudFormation would hand them on."""
        if isinstance(node, list):
            return [self.resolved(n) for n in node]
        if not isinstance(node, dict):
            return node
        match node:
            case {"Ref": name}:
                return self.values[name]
            case {"Fn::GetAtt": [name, attribute]}:
                return self.values[f"{name}.{attribute}"]
            case {"Fn::Sub": said}:
                return re.sub(r"\$\{([\w.:]+)\}", lambda m: str(self.values[m[1]]), said)
            case {"Fn::Base64": said}:
                return base64.b64encode(self.resolved(said).encode()).decode()
        return {k: self.resolved(v) for k, v in node.items()}

    def properties(self, name: str) -> Any:
        return self.resolved(properties(name))


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        endpoint = f"http://{host}:{port}"
        urlopen(Request(f"{endpoint}/moto-api/reset", method="POST"), timeout=60).close()  # its state is the process's
        yield brought_up(endpoint)
    server.stop()


def brought_up(endpoint: str) -> Stack:
    made = Stack(endpoint, {})
    ec2, formation = made.client("ec2"), made.client("cloudformation")
    subnets = [s["SubnetId"] for s in ec2.describe_subnets()["Subnets"]]
    image = ec2.describe_images()["Images"][0]["ImageId"]
    given = {
        "VpcId": ec2.describe_vpcs()["Vpcs"][0]["VpcId"], "SubnetIds": ",".join(subnets[:2]),
        "EnvironmentSecretArn": SECRET, "GpuAmi": image, "CpuAmi": image,
    }  # fmt: skip
    # Moto has none of the public parameters that say the newest image.
    body = TEMPLATE.read_text(encoding="utf-8").replace(
        "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>", "AWS::EC2::Image::Id"
    )
    parameters = [{"ParameterKey": k, "ParameterValue": v} for k, v in given.items()]
    formation.create_stack(StackName=STACK, TemplateBody=body, Parameters=parameters, Capabilities=["CAPABILITY_IAM"])
    found = formation.describe_stacks(StackName=STACK)["Stacks"][0]
    assert found["StackStatus"] == "CREATE_COMPLETE"
    outputs = {o["OutputKey"]: o["OutputValue"] for o in found["Outputs"]}
    defaults = {n: p["Default"] for n, p in loaded()["Parameters"].items() if "Default" in p}
    made.values |= defaults | given | {
        "AWS::StackName": STACK, "AWS::AccountId": ACCOUNT, "AWS::Region": REGION, "AWS::Partition": "aws",
        "AWS::URLSuffix": "amazonaws.com", "GpuGroup": outputs["GpuGroupName"], "SetUp": f"{STACK}-set-up",
        "GpuFirst": "arn:of-a-policy",
    }  # fmt: skip
    for name, output in (("Inbox", "InboxUrl"), ("Work", "WorkUrl"), ("Transcripts", "TranscriptsUrl")):
        bucket = outputs[output].removeprefix("s3://").split("/")[0]
        made.values |= {name: bucket, f"{name}.Arn": f"arn:aws:s3:::{bucket}"}
    for name, output in (("Events", "EventsQueueUrl"), ("DeadEvents", "DeadEventsQueueUrl")):
        queue = outputs[output].rpartition("/")[2]
        made.values |= {name: f"{endpoint}/{ACCOUNT}/{queue}", f"{name}.Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}"}
    return made


def test_the_template_is_clean() -> None:
    ran = subprocess.run(
        [Path(sys.executable).parent / "cfn-lint", TEMPLATE], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_spot_group_has_its_policy(stack: Stack) -> None:
    [group] = stack.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=["spot-gpu"])[
        "AutoScalingGroups"
    ]
    assert (group["MinSize"], group["MaxSize"]) == (0, 10)
    assert properties("GpuGroup")["CapacityRebalance"] is True
    spot = group["MixedInstancesPolicy"]["InstancesDistribution"]
    assert (spot["OnDemandBaseCapacity"], spot["OnDemandPercentageAboveBaseCapacity"]) == (0, 0)
    assert spot["SpotAllocationStrategy"] == "price-capacity-optimized"
    template = group["MixedInstancesPolicy"]["LaunchTemplate"]
    assert len(template["Overrides"]) >= 5
    versions = stack.client("ec2").describe_launch_template_versions(
        LaunchTemplateId=template["LaunchTemplateSpecification"]["LaunchTemplateId"]
    )["LaunchTemplateVersions"]
    for data in (versions[0]["LaunchTemplateData"], properties("CpuTemplate")["LaunchTemplateData"]):
        assert data["MetadataOptions"]["HttpTokens"] == "required"
        assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 2


def test_policies_hooks_and_alarms_are_what_their_services_take(stack: Stack) -> None:
    s3, sqs, scaling = stack.client("s3"), stack.client("sqs"), stack.client("autoscaling")
    for policy in of_type("S3::BucketPolicy").values():
        said = stack.resolved(policy)
        s3.put_bucket_policy(Bucket=said["Bucket"], Policy=json.dumps(said["PolicyDocument"]))
        s3.delete_bucket_policy(Bucket=said["Bucket"])  # moto would deny all, as it reads no conditions
        [statement] = said["PolicyDocument"]["Statement"]
        assert (statement["Effect"], statement["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})
    policy = stack.properties("EventsPolicy")["PolicyDocument"]
    sqs.set_queue_attributes(QueueUrl=stack.values["Events"], Attributes={"Policy": json.dumps(policy)})
    [statement] = policy["Statement"]
    assert statement["Condition"]["ArnEquals"] == {"aws:SourceArn": stack.values["Inbox.Arn"]}
    scaling.put_lifecycle_hook(**stack.properties("GpuLeave"))
    assert GONE_S < stack.properties("GpuLeave")["HeartbeatTimeout"] <= 120
    for name in ("GpuTracking", "GpuFirst"):
        scaling.put_scaling_policy(PolicyName=name, **stack.properties(name))
    [tracking] = scaling.describe_policies(PolicyNames=["GpuTracking"])["ScalingPolicies"]
    metrics = tracking["TargetTrackingConfiguration"]["CustomizedMetricSpecification"]["Metrics"]
    wanted = metrics[0]["MetricStat"]["Metric"]
    assert (wanted["Namespace"], wanted["MetricName"]) == ("Spotscribe", "WorkersWanted")
    assert wanted["Dimensions"] == [{"Name": "Engine", "Value": JobOptions(model=stack.values["Model"]).engine}]
    stack.client("cloudwatch").put_metric_alarm(AlarmName="first", **stack.properties("GpuFirstWanted"))
    assert stack.properties("GpuFirstWanted")["Metrics"][0]["MetricStat"]["Metric"] == wanted


def test_buckets_are_closed_encrypted_and_forget_what_is_left_in_work(stack: Stack) -> None:
    s3 = stack.client("s3")
    for name, bucket in of_type("S3::Bucket").items():
        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
        assert s3.get_bucket_encryption(Bucket=stack.values[name])["ServerSideEncryptionConfiguration"]["Rules"]
    rules = stack.properties("Work")["LifecycleConfiguration"]["Rules"]
    s3.put_bucket_lifecycle_configuration(Bucket=stack.values["Work"], LifecycleConfiguration={"Rules": [
        {"ID": r["Id"], "Status": r["Status"], "Filter": {"Prefix": r.get("Prefix", "")}}
        | ({"Expiration": {"Days": r["ExpirationInDays"]}} if "ExpirationInDays" in r else {})
        | {k: v for k, v in r.items() if k == "AbortIncompleteMultipartUpload"} for r in rules
    ]})  # fmt: skip
    assert rules[0]["Prefix"] == "audio/"


WIDE = {"ecr:GetAuthorizationToken", "ec2:DescribeSpotPriceHistory", "cloudwatch:PutMetricData"}
"""Actions for which IAM knows no resources."""


def test_machines_may_do_what_they_need_and_no_more(stack: Stack) -> None:
    documents = [p["PolicyDocument"] for p in of_type("IAM::ManagedPolicy").values()]
    documents += [p["PolicyDocument"] for r in of_type("IAM::Role").values() for p in r["Policies"]]
    statements = [stack.resolved(s) for d in documents for s in d["Statement"]]
    for statement in statements:
        actions = {statement["Action"]} if isinstance(statement["Action"], str) else {*statement["Action"]}
        assert not any("*" in a for a in actions), statement
        assert statement["Resource"] != "*" or actions <= WIDE, statement
        if "cloudwatch:PutMetricData" in actions:
            assert statement["Condition"] == {"StringEquals": {"cloudwatch:namespace": "Spotscribe"}}
        if any(a.startswith("s3:") and a != "s3:ListBucket" for a in actions):
            assert stack.values["Inbox"] not in str(statement["Resource"]) or actions == {"s3:GetObject"}
    text_of_all = TEMPLATE.read_text(encoding="utf-8")
    assert not re.search(r"postgresql://|redis://|NoEcho", text_of_all)


def test_machines_run_settings_and_commands_that_there_are(stack: Stack) -> None:
    named = set(re.findall(rf"\b({PREFIX}[A-Z0-9_]+)", TEMPLATE.read_text(encoding="utf-8")))
    assert named <= {PREFIX + n.upper() for n in Settings.model_fields}
    units = set()
    for template in of_type("EC2::LaunchTemplate").values():
        data = base64.b64decode(stack.resolved(template["LaunchTemplateData"]["UserData"])).decode()
        assert subprocess.run(["bash", "-n"], input=data, text=True, check=False).returncode == 0
        for name, _, command in re.findall(r"'(\w+):(\d+):([^']+)'", data):
            units.add(name)
            check_command(command.split())
    assert units == {"gpu", "migrate", "cpu", "exporter", "ingest", "scale"}


def test_a_machine_sets_itself_up_and_keeps_secrets_in_memory(stack: Stack, tmp_path: Path) -> None:
    script = stack.client("ssm").get_parameter(Name=f"{STACK}-set-up")["Parameter"]["Value"]
    assert len(script) < 4096  # a standard parameter's limit
    made = run_in_a_box(script, tmp_path)
    unit = (made / "etc/systemd/system/spotscribe-ingest.service").read_text()
    assert "cpu ingest --watch --events sqs:https://example.org/queue\n" in unit
    assert "Restart=on-failure" in unit
    for program in ("spotscribe-environment", "spotscribe-left"):
        file = made / "usr/local/bin" / program
        assert subprocess.run(["bash", "-n", file], check=False).returncode == 0
        assert os.access(file, os.X_OK)
    on_disk = [f.read_text() for part in ("etc", "usr") for f in (made / part).rglob("*") if f.is_file()]
    assert on_disk
    assert not any("hunter2" in content for content in on_disk)
    environment = dict(line.split("=", 1) for line in (made / "run/spotscribe.env").read_text().splitlines())
    assert environment["SPOTSCRIBE_DATABASE_URL"] == "postgresql://u:hunter2@db/x"
    assert environment["SPOTSCRIBE_PRICE_PER_HOUR"] == "0.1578"
    assert environment["SPOTSCRIBE_MARKET"] == "on_demand"
    assert (made / "run/spotscribe.env").stat().st_mode & 0o077 == 0
    assert "complete-lifecycle-action" in (made / "asked").read_text()


FAKES = {
    "curl": 'case "$*" in *token*PUT*|*PUT*) echo t;; *life-cycle) echo on-demand;; *target-lifecycle-state) '
    "echo Terminated;; *instance-type) echo g6.xlarge;; *) echo zone-1;; esac",
    "aws": 'echo "$*" >> $BOX/asked; case "$*" in *get-secret-value*) printf "SPOTSCRIBE_DATABASE_URL=postgresql://u:hunter2@db/x\\n'
    'SPOTSCRIBE_BROKER_URL=redis://r\\n";; *spot-price*) echo 0.1578;; *) echo password;; esac',
    "docker": "cat >/dev/null",
    "systemctl": "true",
    "dnf": "true",
}


def run_in_a_box(script: str, folder: Path) -> Path:
    """What the script does with all its paths below a folder, and stand-ins for the programs that it calls."""
    bin_folder = folder / "bin"
    for part in ("bin", "etc/systemd/system", "usr/local/bin", "usr/local/lib", "run"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name, body in FAKES.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (bin_folder / name).chmod(0o755)
    boxed = re.sub(r"(?<![\w.])/(etc/systemd|usr/local|run/)", lambda m: f"{folder}/{m[1]}", script)
    environment = {"PATH": f"{bin_folder}:{os.environ['PATH']}", "BOX": str(folder)}
    units = ["gpu:9108:worker --roles gpu", "ingest:9110:ingest --watch --events sqs:https://example.org/queue"]
    for command in (["bash", "-s", "cpu", "spot", *units], [f"{folder}/usr/local/bin/spotscribe-environment"],
                    [f"{folder}/usr/local/bin/spotscribe-left"]):  # fmt: skip
        ran = subprocess.run(command, input=boxed, text=True, env=environment, capture_output=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


def test_what_is_put_into_the_inbox_becomes_a_job_by_its_event(
    stack: Stack, postgres: Database, broker: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3, sqs = stack.client("s3"), stack.client("sqs")
    told = stack.properties("Inbox")["NotificationConfiguration"]["QueueConfigurations"]
    s3.put_bucket_notification_configuration(
        Bucket=stack.values["Inbox"],
        NotificationConfiguration={
            "QueueConfigurations": [{"QueueArn": c["Queue"], "Events": [c["Event"]]} for c in told]
        },
    )
    url = postgres.url.set(drivername="postgresql").render_as_string(hide_password=False)
    for name, value in {
        "DATABASE_URL": url,
        "BROKER_URL": broker,
        "S3_ENDPOINT": stack.endpoint,
        "S3_REGION": REGION,
    }.items():
        monkeypatch.setenv(PREFIX + name, value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert spotscribe("sources", "add", "calls", f"s3://{stack.values['Inbox']}/", "--out", "none").code == 0
    command = [*PROGRAM, "ingest", "--watch", "--every", "1h", "--events", f"sqs:{stack.values['Events']}"]
    with (home.parent / "ingest.log").open("wb") as log:
        watching = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(postgres, "SELECT 1 FROM sources WHERE listed_at IS NOT NULL")
        s3.put_object(Bucket=stack.values["Inbox"], Key="a b+c.wav", Body=b"something")
        until(postgres, "SELECT 1 FROM jobs")
    finally:
        watching.terminate()
        assert watching.wait(30) == 0
    attributes = sqs.get_queue_attributes(QueueUrl=stack.values["Events"], AttributeNames=["All"])["Attributes"]
    assert json.loads(attributes["RedrivePolicy"])["deadLetterTargetArn"] == stack.values["DeadEvents.Arn"]


def until(database: Database, question: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        with database.reading() as tx:
            if tx.execute(text(question)).first():
                return
        assert time.monotonic() < deadline, question
        time.sleep(0.1)
