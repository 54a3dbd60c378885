"""Alerts, dashboard and runbook: by Prometheus' own tools, and held against the metrics that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import dashboard
from pipeline.metrics import EXPORTER, WORKER
from workers.cli import COMMANDS

ROOT = Path(__file__).parent.parent.parent
RULES = ROOT / "infra" / "prometheus" / "alerts.yml"
ENDS = ("", "_bucket", "_count", "_sum")
KNOWN = {
    m.name + end: set(m.labels) | ({"le"} if end == "_bucket" else set())
    for m in (*WORKER, *EXPORTER)
    for end in (ENDS if m.kind == "histogram" else ENDS[:1])
}
OF_PROMETHEUS = {"instance", "job"}
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool (Debian: apt install prometheus)"
)


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


EXPRESSIONS = [r["expr"] for r in rules()] + dashboard.queries()


@needs_promtool
def test_each_alert_fires_when_it_should_and_not_else() -> None:
    ran = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"], cwd=RULES.parent, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    tests = yaml.safe_load((RULES.parent / "alerts_test.yml").read_text())["tests"]
    cases = [c for t in tests for c in t["alert_rule_test"]]
    names = {r["alert"] for r in rules()}
    assert {c["alertname"] for c in cases if c["exp_alerts"]} == names
    assert {c["alertname"] for c in cases if not c["exp_alerts"]} == names


@needs_promtool
def test_each_query_can_be_read(tmp_path: Path) -> None:
    recorded = [{"record": f"r:{i}", "expr": e} for i, e in enumerate(EXPRESSIONS)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": recorded}]}))
    ran = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_query_names_metrics_and_labels_that_there_are(expression: str) -> None:
    names = re.findall(r"spotscribe_\w+", expression)
    assert names or expression.startswith("up")
    assert set(names) <= set(KNOWN)
    for name, selected in re.findall(r"(spotscribe_\w+)\{([^}]*)\}", expression):
        labels = set(re.findall(r"(\w+)\s*[=!]", selected))
        assert labels <= KNOWN[name] | OF_PROMETHEUS, name
    grouped = {x.strip() for by in re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", expression) for x in by.split(",")}
    known = set().union(*(KNOWN[n] for n in names)) | OF_PROMETHEUS | {""}
    assert grouped - known <= ({"engine"} if "label_replace" in expression else set())


def test_the_dashboard_is_the_one_in_the_table() -> None:
    assert (ROOT / "infra" / "grafana" / "dashboard.json").read_text() == dashboard.dashboard()


def test_the_dashboard_shows_all_metrics_but_those_that_only_alerts_and_joins_need() -> None:
    shown = {n for q in dashboard.queries() for n in re.findall(r"spotscribe_\w+", q)}
    left = {m.name for m in (*WORKER, *EXPORTER) if not {m.name + end for end in ENDS} & shown}
    assert left == {
        "spotscribe_worker_info", "spotscribe_ready", "spotscribe_batches_total", "spotscribe_claims_total",
        "spotscribe_ended_total", "spotscribe_prepared_seconds_total", "spotscribe_gpu_memory_bytes",
        "spotscribe_backlog_recordings", "spotscribe_backlog_shards", "spotscribe_worker_rtfx",
        "spotscribe_canary_timestamp_seconds", "spotscribe_exporter_refresh_seconds",
        "spotscribe_exporter_refreshed_timestamp_seconds",
    }  # fmt: skip


def test_each_alert_has_its_entry_in_the_runbook_and_each_entry_its_alert() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text()
    entries = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    assert sorted(entries) == sorted(r["alert"] for r in rules())
    for rule in rules():
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"page", "ticket"}
    for command in re.findall(r"`spotscribe (\w+)", text):
        assert command in COMMANDS, command
