"""deploy/helm: what the chart says fits the programs, its values fit its templates, and it holds no secret.

These tests read the templates as text and, with the template actions taken out, as YAML. Where there is a `helm` the
chart is linted and rendered as well.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import iop
from iop.config.edge import EdgeSection
from iop.config.fields import HostPort
from iop.config.node import NodeSection
from iop.edge.api.routes import PAGES
from tests.support.deploy import DEPLOY, config_file_of, edge_of, node_of, secret_paths, tool

CHART = DEPLOY / "helm/iop"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
TEMPLATES = {path.name: path.read_text() for path in sorted((CHART / "templates").iterdir())}
BOTH = pytest.mark.parametrize("part", ["edge", "node"])
PRE_STOP_S = 5
GOODBYE_S = 10  # at least, between the end of the drain and SIGKILL


def skeleton(name: str) -> list[dict[str, Any]]:
    """The documents of a template without its actions: branches are all taken, values are 'x'."""
    text = re.sub(r"^\s*\{\{-? .*?\}\}\n", "", TEMPLATES[name], flags=re.MULTILINE)
    return list(yaml.safe_load_all(re.sub(r"\{\{.*?\}\}", "x", text)))


def pod(part: str) -> dict[str, Any]:
    (deployment,) = skeleton(f"{part}-deployment.yaml")
    return deployment["spec"]["template"]["spec"]


def container(part: str) -> dict[str, Any]:
    (one,) = pod(part)["containers"]
    return one


def config_text(part: str) -> str:
    """The file that the default values give this program; for the node the chart adds where the edge is."""
    config = VALUES[part]["config"]
    if part == "node":
        config = {**config, "node": {**config["node"], "edge": "iop-edge-nodes:7443"}}
    return yaml.safe_dump(config)


def leaves(values: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in values.items():
        whole = f"{path}.{key}"
        # The programs' own configuration and what Kubernetes defines is passed on whole.
        if isinstance(value, dict) and value and key not in {"config", "resources"}:
            yield from leaves(value, whole)
        else:
            yield whole


def test_chart_and_project_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == iop.__version__


def test_every_value_is_used_and_every_used_value_is_there() -> None:
    text = "\n".join(TEMPLATES.values())
    used = set(re.findall(r"\.Values((?:\.\w+)+)", text))
    there = set(leaves(VALUES))
    assert {path for path in there if not any(one == path or one.startswith(path + ".") for one in used)} == set()
    for path in used:
        value: Any = VALUES
        for key in path.strip(".").split("."):
            assert key in value, f".Values{path} is not in values.yaml"
            value = value[key]


@BOTH
def test_the_default_configuration_is_one_that_the_program_takes(part: str, tmp_path: Path) -> None:
    text = config_text(part)
    if part == "edge":
        config = edge_of(text, tmp_path)
        assert not config.http.listen.is_loopback
        assert config.admin.listen is not None
        assert config.admin.listen.is_loopback  # it has no authentication
        assert config.transport.tls is not None
    else:
        node = node_of(text, tmp_path)
        assert node.reconnect.max_attempts == 0
        assert node.node.tls is not None
        assert node.store.url is not None
        written = Path(node.store.url.removeprefix("file:").partition("?")[0])
        assert str(written.parent) in [m["mountPath"] for m in container(part)["volumeMounts"] if not m.get("readOnly")]


@BOTH
def test_the_program_finds_its_file_and_its_secrets(part: str) -> None:
    arguments = [str(word) for word in container(part)["args"]]
    file = Path(config_file_of(f"iop-{part}", arguments))
    mounts = {mount["name"]: mount for mount in container(part)["volumeMounts"]}
    (configmap,) = skeleton(f"{part}-configmap.yaml")
    assert mounts["config"] == {"name": "config", "mountPath": str(file.parent), "readOnly": True}
    assert list(configmap["data"]) == [file.name]
    assert mounts["secrets"]["readOnly"] is True
    assert {str(Path(path).parent) for path in secret_paths(config_text(part))} == {mounts["secrets"]["mountPath"]}
    volumes = {volume["name"]: volume for volume in pod(part)["volumes"]}
    assert set(volumes) == set(mounts)
    assert set(volumes["secrets"]) == {"name", "secret"}


def test_probes_ask_what_the_edge_answers() -> None:
    ports = {port["name"]: port["containerPort"] for port in container("edge")["ports"]}
    assert set(ports) == {"http", "nodes", "admin"}
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container("edge")[probe]["httpGet"] == {"path": path, "port": "http"}
        assert PAGES[path.encode()].keyless
    declared = re.findall(
        r'- name: (\w+)\n +containerPort: \{\{ include "iop.port" ([\w.]+) \}\}', TEMPLATES["edge-deployment.yaml"]
    )
    assert dict(declared) == {
        "http": ".Values.edge.config.http.listen",
        "nodes": ".Values.edge.config.transport.listen",
        "admin": ".listen",
    }
    clients, nodes = skeleton("edge-services.yaml")
    assert [port["targetPort"] for port in clients["spec"]["ports"]] == ["http"]
    assert [port["targetPort"] for port in nodes["spec"]["ports"]] == ["nodes"]
    assert VALUES["edge"]["nodeService"]["port"] == HostPort.parse(VALUES["edge"]["config"]["transport"]["listen"]).port


@BOTH
def test_the_grace_period_follows_the_drain(part: str) -> None:
    pattern = (
        r"terminationGracePeriodSeconds: "
        r'\{\{ add (\d+) \(ceil \(dig "(\w+)" "drain_timeout_sec" (\d+) ([\w.]+)\)\) \}\}'
    )
    found = re.search(pattern, TEMPLATES[f"{part}-deployment.yaml"])
    assert found is not None
    spare, section, default, source = found.groups()
    assert int(spare) >= GOODBYE_S + PRE_STOP_S
    assert (section, source) == (part, f".Values.{part}.config")
    fields = {"edge": EdgeSection, "node": NodeSection}[part].model_fields
    assert int(default) == fields["drain_timeout_sec"].default
    if part == "edge":
        assert container(part)["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", str(PRE_STOP_S)]


@BOTH
def test_there_is_one_of_each(part: str) -> None:
    """Leases and queue live in one edge; a node is connected once, so its successor waits for it to end."""
    (deployment,) = skeleton(f"{part}-deployment.yaml")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"]["type"] == {"edge": "RollingUpdate", "node": "Recreate"}[part]


@BOTH
def test_a_pod_may_do_little(part: str) -> None:
    names = TEMPLATES["_names.tpl"]
    assert "runAsNonRoot: true\nrunAsUser: 10001\n" in names
    assert "readOnlyRootFilesystem: true\ncapabilities: {drop: [ALL]}" in names
    assert "allowPrivilegeEscalation: false" in names
    for name in ("iop.podSecurity", "iop.containerSecurity"):
        assert f'include "{name}" .' in TEMPLATES[f"{part}-deployment.yaml"]
    assert pod(part)["automountServiceAccountToken"] is False
    assert "USER 10001:10001" in (DEPLOY / "docker/Dockerfile").read_text()


def test_no_secret_is_in_the_chart() -> None:
    """Secrets are named, never given: none is made here, and a ConfigMap holds the configuration alone, which has no
    setting that could hold one."""
    kinds = [document["kind"] for name in TEMPLATES if name.endswith(".yaml") for document in skeleton(name)]
    assert "Secret" not in kinds
    for part, source in (("edge", "toYaml .Values.edge.config"), ("node", 'include "iop.nodeConfig" .')):
        text = TEMPLATES[f"{part}-configmap.yaml"]
        assert re.findall(r"^data:\n.*\n\s+\{\{- (.*?) \| nindent 4 \}\}", text, re.MULTILINE) == [source]
        assert "env" not in container(part)
    assert container("node")["envFrom"] == [{"secretRef": {"name": "x"}}]
    assert all(isinstance(VALUES[part]["secret"], str) for part in ("edge", "node"))


def test_the_admin_listener_is_reached_only_by_who_is_named() -> None:
    (policy,) = skeleton("networkpolicy.yaml")
    ports = [rule["ports"][0]["port"] for rule in policy["spec"]["ingress"]]
    assert ports == ["http", "nodes", "admin"]
    assert VALUES["networkPolicy"]["enabled"] is True
    assert VALUES["networkPolicy"]["metricsFrom"] == []
    before, _, _ = TEMPLATES["networkpolicy.yaml"].partition("port: admin")
    assert before.rstrip().endswith("{{- with .Values.networkPolicy.metricsFrom }}\n    - ports:\n        -")


# ---- with helm ------------------------------------------------------------------------------------------------------

HELM = tool("helm")
needs_helm = pytest.mark.skipif(not HELM, reason="helm is not installed: the chart is not rendered")

EVERYTHING = """
edge:
  podMonitor: true
  config: {admin: {listen: "0.0.0.0:9191"}, edge: {drain_timeout_sec: 90.5}, http: {max_body_bytes: 67108864}}
node: {enabled: true, envSecret: keys, edge: "edge.example.org:7443", extraContainers: [{name: vllm, image: vllm}]}
networkPolicy: {metricsFrom: [{namespaceSelector: {}}]}
"""


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, check=False)


def rendered(values: str, folder: Path) -> dict[tuple[str, str], Any]:
    (folder / "values.yaml").write_text(values)
    linted = helm("lint", str(CHART), "--strict", "-f", str(folder / "values.yaml"))
    assert linted.returncode == 0, linted.stdout + linted.stderr
    ran = helm("template", "prod", str(CHART), "-f", str(folder / "values.yaml"))
    assert ran.returncode == 0, ran.stderr
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(ran.stdout) if one}


@needs_helm
def test_the_chart_renders_with_its_own_values(tmp_path: Path) -> None:
    there = rendered("{}", tmp_path)
    assert {kind for kind, _ in there} == {"ConfigMap", "Deployment", "Service", "NetworkPolicy"}
    config = edge_of(there["ConfigMap", "prod-iop-edge"]["data"]["edge.yaml"], tmp_path)
    spec = there["Deployment", "prod-iop-edge"]["spec"]["template"]["spec"]
    ports = {port["name"]: port["containerPort"] for port in spec["containers"][0]["ports"]}
    assert ports == {"http": config.http.listen.port, "nodes": config.transport.listen.port, "admin": 9090}
    assert spec["terminationGracePeriodSeconds"] >= config.edge.drain_timeout_sec + PRE_STOP_S + GOODBYE_S


@needs_helm
def test_the_chart_renders_with_everything(tmp_path: Path) -> None:
    there = rendered(EVERYTHING, tmp_path)
    config = edge_of(there["ConfigMap", "prod-iop-edge"]["data"]["edge.yaml"], tmp_path)
    assert config.http.max_body_bytes == 67_108_864
    spec = there["Deployment", "prod-iop-edge"]["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == 91 + 15
    assert {"name": "admin", "containerPort": 9191} in spec["containers"][0]["ports"]
    node = node_of(there["ConfigMap", "prod-iop-node"]["data"]["node.yaml"], tmp_path)
    assert str(node.node.edge) == "edge.example.org:7443"
    assert there["PodMonitor", "prod-iop-edge"]["spec"]["podMetricsEndpoints"] == [
        {"port": "admin", "path": "/metrics"}
    ]
    ingress = there["NetworkPolicy", "prod-iop-edge"]["spec"]["ingress"]
    assert ingress[-1] == {"ports": [{"port": "admin"}], "from": [{"namespaceSelector": {}}]}


@needs_helm
def test_the_node_of_a_release_dials_the_edge_of_it(tmp_path: Path) -> None:
    there = rendered("node: {enabled: true}", tmp_path)
    node = node_of(there["ConfigMap", "prod-iop-node"]["data"]["node.yaml"], tmp_path)
    service = there["Service", node.node.edge.host]
    assert service["spec"]["ports"][0]["port"] == node.node.edge.port
    labels = there["Deployment", "prod-iop-edge"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


@needs_helm
def test_scraping_a_listener_on_loopback_is_refused(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("edge: {podMonitor: true}")
    ran = helm("template", "prod", str(CHART), "-f", str(tmp_path / "values.yaml"))
    assert ran.returncode != 0
    assert "edge.config.admin.listen" in ran.stderr
