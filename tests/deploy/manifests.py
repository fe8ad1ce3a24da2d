"""Kubernetes manifests without Kubernetes: YAML read strictly, kustomizations rendered, every field judged by a schema.

The schema lists the fields that our manifests use and no other: a field that is misspelt, in the wrong place or of the wrong
type is refused, and one that is new must be added here, with the API's reference at hand."""

import copy
import os
import re

import yaml

from harness import Failed, expect, expect_equal


class _Strict(yaml.SafeLoader):
    """No key twice; no yes/no/on/off, which Kubernetes' YAML 1.2 takes for text."""


def _mapping(loader, node, deep=False):
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    expect(len(keys) == len(set(keys)), f"{node.start_mark}: a key stands twice")
    expect(all(isinstance(key, str) for key in keys), f"{node.start_mark}: a key is no text")
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


_Strict.add_constructor("tag:yaml.org,2002:map", lambda loader, node: _mapping(loader, node, True))
_Strict.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()}
_Strict.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))


def documents(path):
    with open(path) as file:
        text = file.read()
    expect("\t" not in text, f"{path}: a tab")
    return list(yaml.load_all(text, _Strict))


# ---- kustomize, as far as we use it ----


def _merged(base, patch):
    """Strategic merge: maps by key, lists of named things by name, other lists are replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {**base, **{key: _merged(base[key], value) if key in base else copy.deepcopy(value) for key, value in patch.items()}}
    named = isinstance(base, list) and isinstance(patch, list) and all(isinstance(one, dict) and "name" in one for one in base + patch)
    if not named:
        return copy.deepcopy(patch)
    names = [one["name"] for one in base]
    return [_merged(one, next((more for more in patch if more["name"] == one["name"]), {})) for one in base] + [
        copy.deepcopy(one) for one in patch if one["name"] not in names]


def _same(one, other):
    return all(one[key] == other[key] for key in ("apiVersion", "kind")) and one["metadata"]["name"] == other["metadata"]["name"]


def render(directory):
    """The objects of a kustomization."""
    found = documents(f"{directory}/kustomization.yaml")
    expect_equal(len(found), 1, f"documents in {directory}/kustomization.yaml")
    kustomization = check(found[0], KUSTOMIZATION, directory)
    objects = []
    for name in kustomization["resources"]:
        path = os.path.normpath(f"{directory}/{name}")
        objects += render(path) if os.path.isdir(path) else documents(path)
    for one in objects:
        if one["kind"] != "Namespace":
            one["metadata"]["namespace"] = kustomization["namespace"]
    for entry in kustomization.get("patches", []):
        for patch in documents(f"{directory}/{entry['path']}"):
            at = [i for i, one in enumerate(objects) if _same(one, patch)]
            expect(len(at) == 1, f"{directory}/{entry['path']}: {len(at)} objects to patch")
            objects[at[0]] = _merged(objects[at[0]], patch)
    return objects


# ---- the schema: {field: type}; a field with ! must be there; a list has one type of elements; {"*": type} is any name ----


def check(value, schema, where):
    """The value; fails at the first field that is not as the schema says."""
    if isinstance(schema, dict):
        expect(isinstance(value, dict), f"{where}: no map")
        names = {name.rstrip("!"): kind for name, kind in schema.items()}
        for name in schema:
            expect(not name.endswith("!") or name[:-1] in value, f"{where}: {name[:-1]} is missing")
        for name, one in value.items():
            expect(name in names or "*" in names, f"{where}: there is no field {name}")
            check(one, names.get(name, names.get("*")), f"{where}.{name}")
    elif isinstance(schema, list):
        expect(isinstance(value, list) and value, f"{where}: no list, or an empty one")
        for at, one in enumerate(value):
            check(one, schema[0], f"{where}[{at}]")
    elif isinstance(schema, tuple):
        expect(value in schema, f"{where}: {value!r} is none of {schema}")
    elif isinstance(schema, re.Pattern):
        expect(isinstance(value, str) and schema.fullmatch(value), f"{where}: {value!r} is not like {schema.pattern}")
    else:
        expect(type(value) is schema, f"{where}: {value!r} is no {schema.__name__}")  # bool is no int
    return value


NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
QUANTITY = re.compile(r"[0-9]+(m|Mi|Gi|Ti)?")
PATH = re.compile(r"/[\w./-]+")
CAPABILITY = re.compile(r"ALL|[A-Z_]+")
LABELS = {"*": str}
META = {"name!": NAME, "namespace": NAME, "labels": LABELS}
KUSTOMIZATION = {"apiVersion!": ("kustomize.config.k8s.io/v1beta1",), "kind!": ("Kustomization",), "namespace!": NAME,
                 "resources!": [str], "patches": [{"path!": str}]}
SECCOMP = {"type!": ("RuntimeDefault", "Localhost"), "localhostProfile": str}
MOUNT = {"name!": NAME, "mountPath!": PATH, "readOnly": bool}
RESOURCES = {"requests!": {"*": QUANTITY}, "limits!": {"*": QUANTITY}}
CONTAINER_SECURITY = {"runAsNonRoot": bool, "runAsUser": int, "runAsGroup": int, "allowPrivilegeEscalation!": bool,
                      "readOnlyRootFilesystem!": bool, "capabilities!": {"drop!": [CAPABILITY], "add": [CAPABILITY]},
                      "seccompProfile": SECCOMP}
PROBE = {"httpGet!": {"path!": PATH, "port!": NAME}, "periodSeconds!": int, "timeoutSeconds": int, "failureThreshold!": int}
INIT = {"name!": NAME, "image!": str, "command!": [str], "securityContext!": CONTAINER_SECURITY, "resources!": RESOURCES,
        "volumeMounts!": [MOUNT]}
CONTAINER = {
    "name!": NAME, "image!": str, "imagePullPolicy": ("Always", "IfNotPresent", "Never"), "args!": [str],
    "env": [{"name!": re.compile("[A-Z_]+"), "value": str, "valueFrom": {"fieldRef!": {"fieldPath!": ("status.hostIP", "spec.nodeName")}}}],
    "ports!": [{"name!": NAME, "containerPort!": int, "protocol!": ("TCP",)}], "securityContext!": CONTAINER_SECURITY,
    "resources!": RESOURCES, "startupProbe!": PROBE, "livenessProbe!": PROBE, "readinessProbe!": PROBE,
    "lifecycle!": {"preStop!": {"exec!": {"command!": [str]}}}, "volumeMounts!": [MOUNT]}
VOLUME = {"name!": NAME, "hostPath": {"path!": PATH, "type!": ("Directory", "DirectoryOrCreate")}, "configMap": {"name!": NAME},
          "secret": {"secretName!": NAME, "defaultMode": int}}
POD = {"serviceAccountName!": NAME, "automountServiceAccountToken!": bool, "enableServiceLinks": bool, "nodeSelector!": LABELS,
       "tolerations": [{"key!": str, "operator!": ("Exists", "Equal"), "effect!": ("NoSchedule", "NoExecute", "PreferNoSchedule")}],
       "hostNetwork!": bool, "dnsPolicy!": ("ClusterFirstWithHostNet",), "terminationGracePeriodSeconds!": int,
       "securityContext!": {"runAsNonRoot!": bool, "runAsUser!": int, "runAsGroup!": int, "fsGroup": int,
                            "fsGroupChangePolicy": ("OnRootMismatch", "Always"), "seccompProfile!": SECCOMP},
       "initContainers": [INIT], "containers!": [CONTAINER], "volumes!": [VOLUME]}
OBJECTS = {
    ("v1", "Namespace"): {"metadata!": META},
    ("v1", "ServiceAccount"): {"metadata!": META, "automountServiceAccountToken!": bool},
    ("v1", "ConfigMap"): {"metadata!": META, "data!": {"*": str}},
    ("v1", "Service"): {"metadata!": META, "spec!": {"clusterIP!": ("None",), "selector!": LABELS,
                                                     "ports!": [{"name!": NAME, "port!": int, "targetPort!": NAME}]}},
    ("apps/v1", "DaemonSet"): {"metadata!": META, "spec!": {
        "selector!": {"matchLabels!": LABELS}, "minReadySeconds": int,
        "updateStrategy": {"type!": ("RollingUpdate",), "rollingUpdate!": {"maxUnavailable!": int}},
        "template!": {"metadata!": {"labels!": LABELS}, "spec!": POD}}},
    ("monitoring.coreos.com/v1", "ServiceMonitor"): {"metadata!": META, "spec!": {
        "selector!": {"matchLabels!": LABELS}, "namespaceSelector!": {"matchNames!": [NAME]},
        "endpoints!": [{"port!": NAME, "path!": PATH, "interval!": re.compile("[0-9]+s"), "scrapeTimeout!": re.compile("[0-9]+s"),
                        "relabelings": [{"targetLabel!": str, "replacement": str, "sourceLabels": [str]}]}]}},
    ("monitoring.coreos.com/v1", "PrometheusRule"): {"metadata!": META, "spec!": {"groups!": [{"name!": NAME, "rules!": [
        {"alert!": str, "expr!": str, "for": re.compile("[0-9]+m"), "labels!": LABELS, "annotations!": LABELS}]}]}},
}


def judge(one):
    """An object of a kind that we know, with fields that it has."""
    kind = (one.get("apiVersion"), one.get("kind"))
    if kind not in OBJECTS:
        raise Failed(f"no such kind: {kind}")
    check({name: value for name, value in one.items() if name not in ("apiVersion", "kind")}, OBJECTS[kind], kind[1])
    return one
