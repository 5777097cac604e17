#!/usr/bin/env python3
"""Tests the chart contrib/helm/pmnet: Kubernetes must accept its objects, and its pods must work.

    tests/helm/run.py tools      builds helm and kubectl-validate into target/tools (Go; about 25 minutes, once)
    tests/helm/run.py            lint, schemas of Kubernetes, refused values, rules of pods, alert rules, `pmnet check` of each file
    tests/helm/run.py pods       runs the pods as processes, each with the files, user, variables and network that a kubelet would give it

The last two need target/tools; `pods` needs root, etcd and redis-server, and both pmnet (--pmnet FILE; default target/release/pmnet).
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import yaml

import pods

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "contrib" / "helm" / "pmnet"
HERE = ROOT / "tests" / "helm"
TOOLS = ROOT / "target" / "tools"
WANTED = {"helm": "helm.sh/helm/v3/cmd/helm@v3.19.5", "kubectl-validate": "sigs.k8s.io/kubectl-validate@v0.0.4"}
KUBERNETES = ["1.27", "1.30"]
# Kinds of the Prometheus Operator. Kubernetes has no schema for these kinds.
CUSTOM = {"ServiceMonitor", "PrometheusRule"}
MONITORED = ["--set", "serviceMonitor.enabled=true", "--set", "prometheusRule.enabled=true", "--set", "prometheusRule.labels.release=stack"]
# A Helm that is not built as a release assumes an old cluster, so the version is given.
FOR = ["--kube-version", KUBERNETES[0]]
LIMIT = 120
checks = 0


def passed():
    global checks
    checks += 1


def fail(text):
    sys.exit(f"helm-test: {text}")


def run(*command, right=True, **options):
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT, **options)
    if right and done.returncode != 0:
        fail(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done


def tools():
    """Each compiled package is cached, so an interrupted build can continue."""
    folder = ROOT / "target" / "go"
    environment = {**os.environ, "GOBIN": str(TOOLS), "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -p=2",
                   "GOMODCACHE": str(folder / "mod"), "GOCACHE": str(folder / "build")}
    for name, module in WANTED.items():
        if not (TOOLS / name).exists():
            print(f"helm-test: building {module}, once", flush=True)
            subprocess.run(["go", "install", module], check=True, env=environment)


def tool(name):
    path = TOOLS / name
    if not path.exists():
        fail(f"there is no target/tools/{name}: run tests/helm/run.py tools (it needs Go)")
    return path


def template(values, *more, release="pmnet"):
    """Returns the objects that Helm makes. Removes Helm's warnings about symbolic links."""
    command = [tool("helm"), "template", release, CHART, "--namespace", "shop", "--values", values, *FOR, *more]
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT)
    if done.returncode != 0:
        fail(f"{values}: {done.stderr}")
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def kubernetes(values, objects):
    """Checks the objects with the schemas of Kubernetes, and the chart with Helm's linter."""
    run(tool("helm"), "lint", "--strict", CHART, "--values", values, *FOR)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "all.yaml"
        path.write_text(yaml.safe_dump_all([one for one in objects if one["kind"] not in CUSTOM]))
        for version in KUBERNETES:
            run(tool("kubectl-validate"), "--version", version, path)
            passed()
    # A validator that accepts everything would find no fault. So the validator is tested with a wrong object.
    broken = [one for one in objects if one["kind"] == "StatefulSet"][0]
    broken = json.loads(json.dumps(broken))
    broken["spec"]["replica"] = 3
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "broken.yaml"
        path.write_text(yaml.safe_dump(broken))
        if run(tool("kubectl-validate"), "--version", KUBERNETES[0], path, right=False).returncode == 0:
            fail("kubectl-validate takes a StatefulSet with `replica`")
    passed()


def refused():
    for case in json.loads((HERE / "refused.json").read_text()):
        words = [word for one in case["set"] for word in ("--set", one)]
        done = run(tool("helm"), "template", "pmnet", CHART, "--values", HERE / "values" / "usual.yaml", *FOR, *words, right=False)
        # A schema may write the path of a value with slashes or with dots.
        said = done.stdout.replace("/", ".")
        if done.returncode == 0 or case["says"].replace("/", ".") not in said:
            fail(f"{case['set']}: it should say {case['says']!r}, and says:\n{done.stdout[-2000:]}")
        passed()


def matches(selector, labels):
    return selector.items() <= labels.items()


def pod_rules(objects):
    """Checks the standard `restricted` for pods, and further rules for pmnet's pods."""
    if any(one["kind"] == "Secret" for one in objects):
        fail("the chart makes a Secret")
    workloads = [one for one in objects if one["kind"] in ("StatefulSet", "Deployment")]
    names = {(one["kind"], one["metadata"]["name"]) for one in objects}
    if len(names) != len(objects):
        fail("two objects have one name")
    for one in workloads:
        name, template = one["metadata"]["name"], one["spec"]["template"]
        spec, labels = template["spec"], template["metadata"]["labels"]
        of_pod = spec["securityContext"]
        right = [
            of_pod["runAsNonRoot"] is True, of_pod["runAsUser"] == 65532, of_pod["seccompProfile"] == {"type": "RuntimeDefault"},
            spec["enableServiceLinks"] is False, spec["automountServiceAccountToken"] is False,
            not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"},
            matches(one["spec"]["selector"]["matchLabels"], labels),
        ]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])}
        right += [set(volume) - {"name"} <= {"configMap", "secret", "emptyDir"} for volume in spec.get("volumes", [])]
        for container in spec["containers"] + spec.get("initContainers", []):
            context = container["securityContext"]
            right += [
                context["allowPrivilegeEscalation"] is False, context["capabilities"] == {"drop": ["ALL"]},
                context["readOnlyRootFilesystem"] is True, {"requests", "limits"} <= container["resources"].keys(),
                {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes,
            ]
        for container in spec["containers"]:
            right += [container[f"{probe}Probe"]["httpGet"]["port"] == "status" for probe in ("startup", "liveness", "readiness")]
            right.append("status" in [port["name"] for port in container["ports"]])
        if not all(right):
            fail(f"{name}: {right}")
        budgets = [two for two in objects if two["kind"] == "PodDisruptionBudget" and matches(two["spec"]["selector"]["matchLabels"], labels)]
        if len(budgets) != (1 if one["spec"]["replicas"] > 1 or "device" in name else 0):
            fail(f"{name}: {len(budgets)} PodDisruptionBudgets")
        passed()
    for service in (one for one in objects if one["kind"] == "Service"):
        if not any(matches(service["spec"]["selector"], one["spec"]["template"]["metadata"]["labels"]) for one in workloads):
            fail(f"the service {service['metadata']['name']} selects nothing")
        passed()


def device_ids(objects):
    """Each device must have an id of its own, and must send to the next device. The last device must send to an
    existing server."""
    files = next(one["data"] for one in objects if one["kind"] == "ConfigMap" and one["metadata"]["name"].endswith("-device"))
    files = [pods.toml(text)["device"] for _, text in sorted(files.items())]
    if [one["id"] for one in files] != list(range(1, len(files) + 1)):
        fail(f"ids: {[one['id'] for one in files]}")
    for one, after in zip(files, files[1:] + [None]):
        sends_to = after["listen"].split(":")[0] if after else "pmnet-server-0"
        # A device without keys refuses the flag for the id of its next hop.
        number = (after["id"] if after else 0) if "key" in one else None
        if one["next"].split(".")[0] != sends_to or one.get("next-id") != number:
            fail(f"device {one['id']} sends to {one['next']}, number {one.get('next-id')}")
    spread = next(one for one in objects if one["kind"] == "StatefulSet" and one["metadata"]["name"].endswith("-device"))
    spread = {one["topologyKey"]: one for one in spread["spec"]["template"]["spec"]["topologySpreadConstraints"]}
    if set(spread) != {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}:
        fail(f"devices are spread by {set(spread)}")
    passed()


def monitoring():
    """The rules must equal those of contrib/prometheus, and must use the job name that Prometheus assigns."""
    objects = template(HERE / "values" / "usual.yaml", *MONITORED)
    rule = next(one for one in objects if one["kind"] == "PrometheusRule")
    if rule["spec"] != yaml.safe_load((ROOT / "contrib/prometheus/pmnet.rules.yml").read_text()):
        fail("the PrometheusRule is not contrib/prometheus/pmnet.rules.yml")
    if rule["metadata"]["labels"]["release"] != "stack":
        fail("prometheusRule.labels are not there")
    monitor = next(one for one in objects if one["kind"] == "ServiceMonitor")
    service = next(one for one in objects if one["kind"] == "Service" and matches(monitor["spec"]["selector"]["matchLabels"], one["metadata"]["labels"]))
    if service["metadata"]["labels"][monitor["spec"]["jobLabel"]] != "pmnet" or service["spec"]["ports"][0]["name"] != monitor["spec"]["endpoints"][0]["port"]:
        fail("the ServiceMonitor does not lead to job=\"pmnet\"")
    if 'job="pmnet"' not in (ROOT / "contrib/prometheus/pmnet.rules.yml").read_text():
        fail("the rules look for another job")
    pod_rules([one for one in objects if one["kind"] not in CUSTOM])
    passed()


def is_documented():
    """Each value must have a comment, and the schema must have exactly the existing values."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    known = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load("\n".join(lines))

    def same(place, schema, value):
        named = set(schema.get("properties", {})) - {"global"}
        if not named:
            return
        if named != set(value):
            fail(f"{place or 'values'}: the schema has {sorted(named)}, and values.yaml {sorted(value)}")
        for name in named:
            same(f"{place}.{name}", schema["properties"][name], value[name])

    same("", known, values)
    page = (ROOT / "docs/operate/kubernetes.md").read_text()
    for name in values:
        if f"`{name}`" not in page:
            fail(f"docs/operate/kubernetes.md does not name the value {name}")
    passed()


def main():
    words = sys.argv[1:]
    program = ROOT / "target" / "release" / "pmnet"
    if "--pmnet" in words:
        at = words.index("--pmnet")
        program = pathlib.Path(words[at + 1]).resolve()
        del words[at:at + 2]
    if words == ["tools"]:
        tools()
        return
    if words not in ([], ["pods"]):
        sys.exit(__doc__)
    pods.in_a_namespace()
    if not program.exists():
        fail(f"there is no {program}: make build")
    if words:
        pods.main(program, template, HERE / "values" / "usual.yaml", fail)
        return
    is_documented()
    for values in sorted((HERE / "values").iterdir()):
        objects = template(values)
        kubernetes(values, objects)
        pod_rules(objects)
        device_ids(objects)
        pods.check_files(program, objects, fail)
        passed()
    refused()
    monitoring()
    print(f"helm-test: {checks} passed, 0 failed")


if __name__ == "__main__":
    main()
