"""Whether what must agree in examples/kubernetes.yaml, or in a FILE made from it,
does: kubernetes_test.py [FILE]

Without FILE it also finds each disagreement in spoiled copies,
and starts a rank's command with the variables that its pod would have.
"""
import copy
import os
import subprocess
import sys
import tempfile

try:
    import yaml
except ImportError:
    print("skipped: no yaml (Debian: python3-yaml)")
    sys.exit(77)

EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "kubernetes.yaml")


def parts(documents):
    """The service, the job and the pods' template."""
    kinds = {document["kind"]: document for document in documents}
    return kinds["Service"], kinds["Job"], kinds["Job"]["spec"]["template"]


def variables_of(template):
    """Of the container: text, or where a pod finds it."""
    return {one["name"]: one.get("value", one.get("valueFrom"))
            for one in template["spec"]["containers"][0]["env"]}


def problems_of(documents):
    service, job, template = parts(documents)
    spec, pod, variables = job["spec"], template["spec"], variables_of(template)
    name, subdomain = job["metadata"]["name"], service["metadata"]["name"]
    expected = [
        ("apiVersion of the service", service["apiVersion"], "v1"),
        ("apiVersion of the job", job["apiVersion"], "batch/v1"),
        ("clusterIP", service["spec"].get("clusterIP"), "None"),
        ("completionMode", spec.get("completionMode"), "Indexed"),
        ("parallelism", spec.get("parallelism"), spec.get("completions")),
        ("WORLD_SIZE", variables.get("WORLD_SIZE"), str(spec.get("completions"))),
        ("subdomain", pod.get("subdomain"), subdomain),
        ("MASTER_ADDR", variables.get("MASTER_ADDR"), f"{name}-0.{subdomain}"),
        ("restartPolicy", pod.get("restartPolicy"), "Never"),
        ("containers", len(pod["containers"]), 1),
    ]
    problems = [f"{what} is {found}, and should be {wanted}"
                for what, found, wanted in expected if found != wanted]
    labels = template["metadata"].get("labels", {})
    if not service["spec"]["selector"].items() <= labels.items():
        problems.append(f"selector is {service['spec']['selector']}, and the pods have the labels {labels}")
    problems += [f"{key} is {value!r}, and should be text"
                 for key, value in variables.items() if not isinstance(value, (str, dict))]
    # A label is not allowed to be longer, and the host name of a pod is the job's name with its index.
    if len(f"{name}-{spec.get('completions')}") > 63:
        problems.append(f"the name {name} is too long for a host name")
    return problems


def spoiled(documents):
    """(what, copy) with one field changed each."""

    def other(what, change):
        result = copy.deepcopy(documents)
        change(*parts(result))
        return what, result

    def set_variable(name, value):
        def change(service, job, template):
            next(one for one in template["spec"]["containers"][0]["env"]
                 if one["name"] == name)["value"] = value
        return change

    yield other("clusterIP", lambda service, job, template: service["spec"].pop("clusterIP"))
    yield other("selector", lambda service, job, template: service["spec"].update(selector={"app": "other"}))
    yield other("completionMode", lambda service, job, template: job["spec"].pop("completionMode"))
    yield other("parallelism", lambda service, job, template: job["spec"].update(parallelism=2))
    yield other("WORLD_SIZE", lambda service, job, template: job["spec"].update(parallelism=8, completions=8))
    yield other("WORLD_SIZE", set_variable("WORLD_SIZE", "3"))
    yield other("MASTER_PORT", set_variable("MASTER_PORT", 29500))
    yield other("MASTER_ADDR", lambda service, job, template: job["metadata"].update(name="renamed"))
    yield other("too long", lambda service, job, template: job["metadata"].update(name="n" * 63))
    yield other("subdomain", lambda service, job, template: service["metadata"].update(name="renamed"))
    yield other("restartPolicy",
                lambda service, job, template: template["spec"].update(restartPolicy="OnFailure"))


def started(template, index):
    """What the rank's program has for RANK, WORLD_SIZE and MASTER_ADDR, and its arguments,
    in a pod whose master has a name at last."""
    container = template["spec"]["containers"][0]
    with tempfile.TemporaryDirectory() as folder:
        programs = {
            "python3": 'echo "$RANK $WORLD_SIZE $MASTER_ADDR $*"',
            # The first time the name is unknown.
            "getent": f"[ -e {folder}/asked ] && exit 0; touch {folder}/asked; exit 2",
            "sleep": "exit 0",
        }
        for name, text in programs.items():
            path = os.path.join(folder, name)
            with open(path, "w", encoding="ascii") as file:
                file.write(f"#!/bin/sh\n{text}\n")
            os.chmod(path, 0o755)
        texts = {key: value for key, value in variables_of(template).items() if isinstance(value, str)}
        environment = {**texts, "JOB_COMPLETION_INDEX": str(index), "PATH": f"{folder}:{os.environ['PATH']}"}
        done = subprocess.run(container["command"] + container["args"], env=environment, capture_output=True,
                              text=True, timeout=30, check=True)
        assert os.path.exists(os.path.join(folder, "asked")), "the command does not wait for the name"
        return done.stdout


def main():
    with open(sys.argv[1] if len(sys.argv) > 1 else EXAMPLE, encoding="utf-8") as file:
        documents = list(yaml.safe_load_all(file))
    problems = problems_of(documents)
    print(*(problems or ["everything agrees"]), sep="\n")
    if len(sys.argv) > 1 or problems:
        return 1 if problems else 0
    for what, result in spoiled(documents):
        found = problems_of(result)
        assert any(what in problem for problem in found), f"spoiled {what}: {found}"
    line = started(parts(documents)[2], 2)
    assert line == "2 4 thinwire-train-0.thinwire train.py\n", line
    return 0


if __name__ == "__main__":
    sys.exit(main())
