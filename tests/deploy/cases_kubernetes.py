"""The Kubernetes manifests: well-formed, rendered, and saying what kvferryd needs."""

import glob
import json
import os
import re
import shutil
import subprocess

import manifests
from harness import Failed, expect, expect_equal
from runner import TOP

ROOT = f"{TOP}/deploy/kubernetes"
KUSTOMIZATIONS = ["base", "monitoring", "overlays/rdma"]
FORCED_S = 10
MIB = {"Mi": 1, "Gi": 1024}


def _find(objects, kind):
    found = [one for one in objects if one["kind"] == kind]
    expect_equal(len(found), 1, f"objects of kind {kind}")
    return found[0]


def _quantity_mib(text):
    return int(text[:-2]) * MIB[text[-2:]]


def _settings(objects):
    text = _find(objects, "ConfigMap")["data"]["kvferryd.conf"]
    return dict(re.findall(r"(?m)^([a-z-]+) = (.+)$", text))


def manifests_have_no_field_that_there_is_not(case):
    for name in KUSTOMIZATIONS:
        for one in manifests.render(f"{ROOT}/{name}"):
            manifests.judge(one)
    read = {os.path.relpath(path, ROOT) for path in glob.glob(f"{ROOT}/**/*.yaml", recursive=True)}
    named = set()
    for name in KUSTOMIZATIONS:
        found = manifests.documents(f"{ROOT}/{name}/kustomization.yaml")[0]
        named |= {f"{name}/kustomization.yaml"} | {f"{name}/{one}" for one in found["resources"] if one.endswith(".yaml")}
        named |= {f"{name}/{one['path']}" for one in found.get("patches", [])}
    expect_equal(read - named, set(), "files that no kustomization names")


def manifests_with_a_fault_are_refused(case):
    """The judge itself: faults of every kind, planted one at a time."""
    with open(f"{ROOT}/base/daemonset.yaml") as file:
        text = file.read()
    planted = {"a misspelt field": ("hostNetwork:", "hostNetworks:"), "a number for text": ('cpu: "1"', "cpu: 1"),
               "text for a truth": ("hostNetwork: true", "hostNetwork: yes"), "a key twice": ("hostNetwork: true", "hostNetwork: true\n      hostNetwork: true"),
               "a wrong place": ("      nodeSelector:\n", "      periodSeconds: 5\n      nodeSelector:\n"),
               "a bad quantity": ("memory: 8704Mi}\n          # Pinning", "memory: 8704MB}\n          # Pinning")}
    for what, (old, new) in planted.items():
        expect(old in text, f"{what}: nothing to plant it in")
        with open(case.path("planted.yaml"), "w") as file:
            file.write(text.replace(old, new, 1))
        try:
            for one in manifests.documents(case.path("planted.yaml")):
                manifests.judge(one)
        except Failed:
            continue
        raise Failed(f"{what} was not noticed")


def manifests_render_as_kubectl_renders_them(case):
    """Where there is a kubectl. Ours is only as good as it agrees."""
    if not shutil.which("kubectl"):
        return
    for name in KUSTOMIZATIONS:
        done = subprocess.run(["kubectl", "kustomize", f"{ROOT}/{name}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        expect(done.returncode == 0 and not done.stderr, f"kubectl kustomize {name}: {done.stderr}")
        with open(case.path("theirs.yaml"), "w") as file:
            file.write(done.stdout)
        key = lambda one: (one["kind"], one["metadata"]["name"])  # noqa: E731
        theirs, ours = sorted(manifests.documents(case.path("theirs.yaml")), key=key), sorted(manifests.render(f"{ROOT}/{name}"), key=key)
        expect(theirs == ours, f"{name}: kubectl renders something else")


def manifests_say_what_the_daemon_needs(case):
    with open(f"{TOP}/base/version.h") as file:
        version = re.search(r'KVF_VERSION "([^"]+)"', file.read())[1]
    for name in ("base", "overlays/rdma"):
        objects = manifests.render(f"{ROOT}/{name}")
        settings, daemons = _settings(objects), _find(objects, "DaemonSet")
        pod = daemons["spec"]["template"]["spec"]
        container = pod["containers"][0]
        for one in pod["containers"] + pod["initContainers"]:
            expect_equal(one["image"], f"kvferry:{version}", "image")
        expect(pod["hostNetwork"], "hostNetwork")
        expect(pod["securityContext"]["runAsNonRoot"] and "runAsNonRoot" not in container["securityContext"], f"{name}: it runs as root")
        expect_equal(container["securityContext"]["capabilities"], {"drop": ["ALL"], "add": ["IPC_LOCK"]}, "capabilities")
        expect_equal(daemons["spec"]["selector"]["matchLabels"], daemons["spec"]["template"]["metadata"]["labels"], "labels")

        grace_s, drain_s = pod["terminationGracePeriodSeconds"], int(settings["drain-timeout-s"])
        expect(grace_s > drain_s + FORCED_S + 5, f"{name}: grace {grace_s} s is too short for a drain of {drain_s} s")
        stop = container["lifecycle"]["preStop"]["exec"]["command"]
        expect(drain_s + FORCED_S < int(stop[stop.index("--timeout-s") + 1]) < grace_s, f"{name}: preStop's own deadline")

        pool_mib, limits = int(settings["pool-mib"]), container["resources"]["limits"]
        in_pages = settings.get("hugepages") == "true"
        expect_equal(_quantity_mib(limits["hugepages-2Mi"]) if in_pages else 0, pool_mib if in_pages else 0, "huge pages")
        expect(_quantity_mib(limits["memory"]) >= (0 if in_pages else pool_mib) + 512, f"{name}: the memory limit is less than pool and process")
        for resource, limit in limits.items():
            expect_equal(container["resources"]["requests"].get(resource), limit, f"request of {resource}")

        ports = {one["name"]: one["containerPort"] for one in container["ports"]}
        environment = {one["name"]: one.get("value") for one in container["env"]}
        expect_equal((environment["KVFERRY_LISTEN"], environment["KVFERRY_HTTP"]),
                     (f"$(NODE_IP):{ports['peers']}", f"$(NODE_IP):{ports['http']}"), "addresses")
        expect([one["name"] for one in container["env"]].index("NODE_IP") == 0, "NODE_IP must stand before what uses it")
        for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            expect_equal(container[probe]["httpGet"], {"path": path, "port": "http"}, probe)

        volumes = {one["name"] for one in pod["volumes"]}
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        expect_equal(set(mounts.values()), volumes, "volumes")
        for flag in ("tls-cert", "tls-key", "tls-ca", "acl", "ssd-path"):
            expect(any(settings[flag] == path or settings[flag].startswith(path + "/") for path in mounts), f"{flag} is not mounted")


def manifests_configure_a_daemon_that_starts(case):
    """kvferryd takes flags and ACL of each, with the node's name and address in the environment."""
    for name in ("base", "overlays/rdma"):
        objects = manifests.render(f"{ROOT}/{name}")
        container = _find(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]
        data = _find(objects, "ConfigMap")["data"]
        json.loads(data["acl.json"])
        for file_name, text in data.items():
            with open(case.path(file_name), "w") as file:
                file.write(text)
        case.environment = dict(case.environment, KVFERRY_NODE_ID="node-1", **{
            one["name"]: one["value"].replace("$(NODE_IP)", "10.0.0.1") for one in container["env"] if "value" in one})
        words = [case.path("kvferryd.conf") if word.endswith("/kvferryd.conf") else word for word in container["args"]]
        case.run("kvferryd", *words, "--check-config").must_end_with(0)
    # The ACL by a real start.
    case.environment = {key: value for key, value in case.environment.items() if not key.startswith("KVFERRY_")}
    case.start(case.daemon("a", acl="acl.json"))


def manifests_carry_the_same_alerts(case):
    rules = _find(manifests.render(f"{ROOT}/monitoring"), "PrometheusRule")["spec"]
    expect_equal(rules, manifests.documents(f"{TOP}/deploy/monitoring/alerts.yaml")[0], "rules of the PrometheusRule")
