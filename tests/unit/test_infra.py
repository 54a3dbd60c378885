"""What is deployed is what there is: every variable a setting, every command one of ours, every file there.

Kubernetes' own kinds are held against its schemas (kubernetes-validate carries them). There is none here for KEDA and
the Prometheus operator, nor for compose: those are held against the fields that their documentation names.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import kubernetes_validate
import pytest
import yaml

from pipeline.metrics import EXPORTER
from pipeline.settings import PREFIX, Settings
from storage.jobs import JobOptions
from storage.urls import job_model
from workers.cli import COMMANDS, cli

INFRA = Path(__file__).parents[2] / "infra"
COMPOSE = yaml.safe_load((INFRA / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {n: s for n, s in SERVICES.items() if str(s["image"]).startswith("${SPOTSCRIBE")}
MANIFESTS = sorted((INFRA / "kubernetes").glob("*.yaml"))
SETTINGS = {PREFIX + name.upper() for name in Settings.model_fields}


def documents(*names: str) -> Iterator[Any]:
    for file in MANIFESTS:
        if not names or file.name in names:
            yield from yaml.safe_load_all(file.read_text(encoding="utf-8"))


def kinds(*wanted: str) -> list[Any]:
    return [d for d in documents() if d["kind"] in wanted]


def check_command(arguments: list[str]) -> None:
    """A command line of ours parses, as far as that goes without doing it."""
    command, name, rest = cast(click.Command, cli), "spotscribe", list(arguments)
    while isinstance(command, click.Group):
        name = rest.pop(0)
        found = command.get_command(click.Context(command), name)
        assert found is not None, arguments
        command = found
    try:
        command.make_context(name, rest)
    except click.UsageError as e:
        pytest.fail(f"{' '.join(arguments)}: {e.format_message()}")


def test_the_dockerfile_is_clean_and_copies_what_there_is() -> None:
    ran = subprocess.run(
        [Path(sys.executable).parent / "hadolint", INFRA / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout
    text = (INFRA / "Dockerfile").read_text(encoding="utf-8")
    taken = [a for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE) for a in line.split()[:-1]]
    ignored = (INFRA.parent / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    for name in taken:
        assert (INFRA.parent / name).exists(), name
        assert any(Path(name).match(pattern) for pattern in allowed), name
    assert all("--require-hashes" in line for line in text.splitlines() if "pip install" in line and "-r " in line)
    assert re.search(r"^ENTRYPOINT \[", text, re.MULTILINE)
    assert re.findall(r"^USER (\d+)", text, re.MULTILINE) == ["10001"]


def test_what_images_have_beyond_the_requirements_is_pinned_alike() -> None:
    def pins(file: Path) -> dict[str, str]:
        return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", file.read_text(encoding="utf-8"), re.MULTILINE))

    all_of_them = pins(INFRA.parent / "requirements-dev.txt")
    for name in ("traces", "build"):
        mine = pins(INFRA / f"requirements-{name}.txt")
        assert mine
        assert mine.items() <= all_of_them.items()
    assert "nvidia-cublas-cu12" in pins(INFRA / "requirements-cuda.txt")


def test_every_variable_of_compose_is_a_setting_and_every_command_parses() -> None:
    assert {"migrate", "ingest", "worker-cpu", "worker-gpu", "worker-nogpu", "exporter"} == set(OURS)
    for name, service in OURS.items():
        variables = {v for v in service["environment"] if v.startswith(PREFIX)}
        assert variables - SETTINGS == set(), name
        check_command(service["command"])


def test_every_file_that_compose_mounts_is_there() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (INFRA / source).exists(), (name, source)
            elif not source.startswith("$"):
                assert source in COMPOSE["volumes"], (name, source)
    assert (INFRA / OURS["worker-cpu"]["build"]["dockerfile"].removeprefix("infra/")).exists()


def test_every_service_of_compose_is_kept_running_and_looked_after() -> None:
    known = {"service_healthy", "service_completed_successfully"}
    once = {"migrate", "buckets"}
    for name, service in SERVICES.items():
        assert re.search(r":[\w.-]+\}?$", service["image"]), name
        assert service["restart"] == ("on-failure" if name in once else "unless-stopped")
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] in known
            assert (other in once) == (how["condition"] == "service_completed_successfully"), (name, other)
            assert other in once or "healthcheck" in SERVICES[other], (name, other)
    for name, service in OURS.items():
        assert int(service["stop_grace_period"].removesuffix("s")) > 10, name
        assert service["read_only"]


def test_prometheus_asks_services_of_compose_and_reads_rules_that_are_there() -> None:
    config = yaml.safe_load((INFRA / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    workers, exporter = config["scrape_configs"]
    asked = {
        *workers["dns_sd_configs"][0]["names"],
        *(t.split(":")[0] for t in exporter["static_configs"][0]["targets"]),
    }
    assert asked == set(OURS) - {"migrate", "ingest"}
    for rules in config["rule_files"]:
        assert (INFRA / "prometheus" / rules).exists()


def test_names_in_the_example_are_those_that_compose_asks_for() -> None:
    asked = set(re.findall(r"\$\{([A-Z0-9_]+)", (INFRA / "compose.yaml").read_text(encoding="utf-8")))
    given = set(
        re.findall(r"^([A-Z0-9_]+)=", (INFRA / "compose.env.example").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert given <= asked
    assert asked - given == {"SPOTSCRIBE_IMAGE", "SPOTSCRIBE_GPU_IMAGE"}


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda f: f.name)
def test_manifests_are_what_kubernetes_knows(file: Path) -> None:
    operators = {"Kustomization", "ScaledObject", "PodMonitor", "ServiceMonitor"}
    for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
        assert "namespace" not in document.get("metadata", {})
        if document["kind"] not in operators:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_the_base_names_every_file_but_those_for_operators_and_the_secret() -> None:
    [base] = documents("kustomization.yaml")
    apart = {"kustomization.yaml", "secret.example.yaml", "monitoring.yaml", "autoscaling.yaml"}
    assert {*base["resources"]} == {f.name for f in MANIFESTS} - apart
    images = {c["image"] for d in kinds("Deployment", "Job") for c in d["spec"]["template"]["spec"]["containers"]}
    assert images == {i["name"] for i in base["images"]}


def test_every_variable_in_the_cluster_is_a_setting_and_every_command_parses() -> None:
    [config, secret] = kinds("ConfigMap", "Secret")
    given = {*config["data"], *secret["stringData"]}
    for workload in kinds("Deployment", "Job"):
        [container] = workload["spec"]["template"]["spec"]["containers"]
        check_command(container["args"])
        assert [next(iter(e.values()))["name"] for e in container["envFrom"]] == ["spotscribe", "spotscribe"]
        given |= {e["name"] for e in container.get("env", ())}
    assert given - SETTINGS == set()


def test_pods_may_write_nowhere_else_and_ask_the_cluster_nothing() -> None:
    accounts = {a["metadata"]["name"] for a in kinds("ServiceAccount")}
    for workload in kinds("Deployment", "Job"):
        pod = workload["spec"]["template"]["spec"]
        [container] = pod["containers"]
        assert pod["serviceAccountName"] in accounts
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["resources"]["limits"]["memory"]
        assert {m["mountPath"] for m in container["volumeMounts"]} == {"/var/lib/spotscribe", "/tmp"}
        assert all(v["emptyDir"]["sizeLimit"] for v in pod["volumes"])
        if workload["metadata"]["name"] in {"spotscribe-cpu", "spotscribe-gpu", "spotscribe-exporter"}:
            assert pod["terminationGracePeriodSeconds"] > 10
            assert {container[p]["httpGet"]["path"] for p in ("startupProbe", "readinessProbe")} == {"/readyz"}
            assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_each_workload_is_selected_and_watched_by_its_own_name() -> None:
    deployments = {d["metadata"]["name"]: d["spec"] for d in kinds("Deployment")}
    for name, spec in deployments.items():
        assert spec["selector"]["matchLabels"] == {"app.kubernetes.io/name": name}
        assert spec["template"]["metadata"]["labels"] == spec["selector"]["matchLabels"]
    [service] = kinds("Service")
    assert service["spec"]["selector"]["app.kubernetes.io/name"] in deployments
    pods, services = kinds("PodMonitor", "ServiceMonitor")
    assert {*pods["spec"]["selector"]["matchExpressions"][0]["values"]} <= set(deployments)
    assert services["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]


KEDA = {
    "scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "advanced", "triggers",
    "idleReplicaCount", "initialCooldownPeriod", "fallback",
}  # fmt: skip
"""keda.sh/docs, ScaledObject specification; and below, its Prometheus trigger."""
TRIGGER = {"serverAddress", "query", "threshold", "activationThreshold", "ignoreNullValues", "namespace", "authModes"}


def test_autoscaling_does_what_the_exporter_says_and_does_not_wait_twice() -> None:
    [config] = kinds("ConfigMap")
    scaled = {d["spec"]["scaleTargetRef"]["name"]: d["spec"] for d in kinds("ScaledObject")}
    assert set(scaled) == {"spotscribe-cpu", "spotscribe-gpu"}
    for spec in scaled.values():
        assert set(spec) <= KEDA
        assert spec["maxReplicaCount"] == int(config["data"]["SPOTSCRIBE_MAX_WORKERS"])
        assert spec["cooldownPeriod"] <= 60
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 0
        [trigger] = spec["triggers"]
        assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
        assert set(trigger["metadata"]) <= TRIGGER
        assert trigger["metadata"]["threshold"] == "1"
        assert all(isinstance(v, str) for v in trigger["metadata"].values())
        names = set(re.findall(r"spotscribe_\w+", trigger["metadata"]["query"]))
        assert "spotscribe_workers_wanted" in names
        assert names <= {m.name for m in EXPORTER}
    engine = JobOptions(model=job_model(config["data"]["SPOTSCRIBE_MODEL"])).engine
    assert f'queue="{engine}"' in scaled["spotscribe-gpu"]["triggers"][0]["metadata"]["query"]
    assert all("replicas" not in d["spec"] for d in kinds("Deployment") if d["metadata"]["name"] in scaled)


def test_grafana_is_given_a_dashboard_and_where_to_ask() -> None:
    provisioning = INFRA / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text(encoding="utf-8"))[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((provisioning / "dashboards" / "spotscribe.yaml").read_text(encoding="utf-8"))[
        "providers"
    ]
    [mounted] = [v for v in SERVICES["grafana"]["volumes"] if "dashboard.json" in v]
    assert mounted.split(":")[1].startswith(provider["options"]["path"])
    assert json.loads((INFRA / "grafana" / "dashboard.json").read_text(encoding="utf-8"))["title"]


def test_commands_that_are_deployed_exist() -> None:
    used = {s["command"][0] for s in OURS.values()}
    used |= {d["spec"]["template"]["spec"]["containers"][0]["args"][0] for d in kinds("Deployment", "Job")}
    assert used <= set(COMMANDS)
