"""Does the work of a kubelet for the pods of a chart, as far as pmnet can see it: files, variables, user, network
and probes of each container.

The root of a container has the contents of `make image`: the program, and the libraries with which it is linked.
There is no container runtime, no scheduler, no service address and no network policy.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request

USER = 65532
NETWORK = "10.77.0"
NODE = 254
toml = tomllib.loads
PASSWORD = "a-password-of-the-test"
SECRETS = ("ca.crt", "tls.crt", "tls.key", "password", "cluster.key", "front.key")
DEVICES = ("null", "urandom")
# Time limit in seconds within which a chain must have formed or repaired itself.
WAIT = 60


def run(*command):
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    if done.returncode != 0:
        sys.exit(f"helm-test: {' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def in_a_namespace():
    """Moves this process into a network and a mount namespace of its own."""
    if os.environ.get("PMNET_HELM_NAMESPACE") != "1":
        if os.geteuid() != 0:
            sys.exit("helm-test: needs root, for namespaces and mounts")
        os.environ["PMNET_HELM_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", "--", sys.executable, *sys.argv])


class Pod:
    def __init__(self, name, service, template, number):
        self.name, self.service, self.number = name, service, number
        self.spec = template["spec"]
        self.component = template["metadata"]["labels"]["app.kubernetes.io/component"]
        self.address = f"{NETWORK}.{number}"
        self.process = None

    def names(self):
        return [self.name] + ([f"{self.name}.{self.service}"] if self.service else [])


def pods_of(objects, first=10):
    found = []
    for one in objects:
        if one["kind"] in ("StatefulSet", "Deployment"):
            for ordinal in range(one["spec"]["replicas"]):
                name = f"{one['metadata']['name']}-{ordinal if one['kind'] == 'StatefulSet' else f'5d8f-{ordinal}'}"
                found.append(Pod(name, one["spec"].get("serviceName"), one["spec"]["template"], first + len(found)))
    return found


class Node:
    """One machine with its kubelet."""

    def __init__(self, folder, program, fail):
        self.folder, self.program, self.fail = pathlib.Path(folder), program, fail
        self.hosts = self.folder / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")
        self.secret = self.folder / "secret"
        self.others = []
        self.configs = {}
        run("mount", "--make-rprivate", "/")
        self.make_secret()
        self.image = self.folder / "image"
        self.fill()

    def make_secret(self):
        """All secrets of the chart are one secret here. A pod sees only the keys that it names."""
        self.secret.mkdir()
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/O=test",
            "-addext", "subjectAltName=DNS:localhost", "-days", "2", "-keyout", self.secret / "tls.key", "-out", self.secret / "tls.crt")
        shutil.copy(self.secret / "tls.crt", self.secret / "ca.crt")
        (self.secret / "password").write_text(PASSWORD + "\n")
        run(self.program, "key", "new", self.secret / "cluster.key")
        run(self.program, "key", "front", "front", self.secret / "front.key", "--of", self.secret / "cluster.key")

    def fill(self):
        for source in [self.program] + [pathlib.Path(path) for path in re.findall(r"(/\S+)", run("ldd", self.program))]:
            target = self.image / ("usr/bin/pmnet" if source == self.program else str(source).lstrip("/"))
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source.resolve(), target)
        for name, text in [("hosts", ""), ("nsswitch.conf", "hosts: files\n"), ("passwd", f"pmnet:x:{USER}:{USER}::/:/\n"), ("group", f"pmnet:x:{USER}:\n")]:
            (self.image / "etc").mkdir(exist_ok=True)
            (self.image / "etc" / name).write_text(text)
        (self.image / "proc").mkdir()
        (self.image / "dev").mkdir()
        for name in DEVICES:
            (self.image / "dev" / name).touch()

    def knows(self, pods, configs):
        """Names to which Kubernetes would give addresses, and the ConfigMaps."""
        self.configs = configs
        known = {name: pod.address for pod in pods for name in pod.names()}
        for text in (text for data in configs.values() for text in data.values()):
            for host in re.findall(r"([a-z][a-z0-9.-]*):\d+", text):
                known.setdefault(host, f"{NETWORK}.{ {'etcd': 2, 'redis': 3}.get(host, 4)}")
        self.hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in known.items()))

    def volume(self, pod, volume):
        """Makes the folder of a volume, with the permissions that a kubelet sets. fsGroup is the user's group."""
        folder = self.folder / "volumes" / pod.name / volume["name"]
        kept = "claim" in volume
        if folder.exists() and not kept:
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            for name, text in self.configs[volume["configMap"]["name"]].items():
                (folder / name).write_text(text)
        elif "secret" in volume:
            about = volume["secret"]
            items = about.get("items") or [{"key": key, "path": key} for key in SECRETS]
            for item in items:
                target = folder / item["path"]
                shutil.copyfile(self.secret / item["key"], target)
                shutil.chown(target, 0, USER)
                target.chmod(about["defaultMode"] | 0o440)
        else:
            shutil.chown(folder, 0, USER)
            folder.chmod(0o2775 if kept else 0o2777)
        return folder

    def mounted(self, pod, container, tag):
        """Makes the root of a container. The root is read-only, except its volumes."""
        root = self.folder / "roots" / f"{pod.name}-{tag}"
        shutil.copytree(self.image, root, copy_function=os.link)
        mounts = container.get("volumeMounts", [])
        for mount in mounts:
            (root / mount["mountPath"].lstrip("/")).mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", root, root)
        run("mount", "-o", "remount,ro,bind", root)
        # The mounts are removed one by one, because a recursive removal of this folder must never reach files of the
        # machine itself.
        for name in ["proc"] + [f"dev/{name}" for name in DEVICES]:
            run("mount", "--bind", f"/{name}", root / name)
        run("mount", "--bind", self.hosts, root / "etc/hosts")
        for mount in mounts:
            target = root / mount["mountPath"].lstrip("/")
            run("mount", "--bind", pod.volumes[mount["name"]], target)
            if mount.get("readOnly"):
                run("mount", "-o", "remount,ro,bind", target)
        return root

    def words(self, pod, container):
        """Returns variables and arguments. $(NAME) is replaced in them."""
        variables = {}
        for one in container.get("env", []):
            value = one.get("value", pod.name if "valueFrom" in one else "")
            variables[one["name"]] = re.sub(r"\$\((\w+)\)", lambda found: variables[found.group(1)], value)
        args = [re.sub(r"\$\((\w+)\)", lambda found: variables[found.group(1)], str(word)) for word in container["args"]]
        return variables, args

    def prepared(self, pod, claims):
        volumes = pod.spec.get("volumes", []) + [{"name": name, "claim": True} for name in claims]
        pod.volumes = {volume["name"]: self.volume(pod, volume) for volume in volumes}

    def begin(self, pod, container, tag, args=None, network=True):
        variables, own = self.words(pod, container)
        root = self.mounted(pod, container, tag)
        words = ["ip", "netns", "exec", pod.name] if network else []
        words += ["setpriv", "--no-new-privs", "chroot", f"--userspec={USER}:{USER}", f"--groups={USER}", str(root), "/usr/bin/pmnet", *(args or own)]
        log = open(self.folder / f"{pod.name}.log", "a")
        # A kubelet does not pass its own PATH to a container. But `ip` needs one.
        return subprocess.Popen(words, env={"PATH": os.environ["PATH"], **variables}, stdout=log, stderr=log, start_new_session=True)

    def finish(self, pod, container, tag, **more):
        process = self.begin(pod, container, tag, **more)
        if process.wait(30) != 0:
            self.fail(f"{pod.name}: {container['name']} ended with {process.returncode}:\n{self.log(pod)}")

    def start(self, pod, claims, tag="main"):
        self.prepared(pod, claims)
        self.connect(pod.name, pod.number)
        for container in pod.spec.get("initContainers", []):
            self.finish(pod, container, f"{tag}-{container['name']}")
        [container] = pod.spec["containers"]
        pod.process = self.begin(pod, container, tag)

    def connect(self, name, number):
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"veth{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", f"veth{number}", "master", "node", "up")
        run("ip", "-n", name, "addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", name, "link", "set", device, "up")

    def bridge(self):
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "node", "type", "bridge")
        run("ip", "addr", "add", f"{NETWORK}.{NODE}/24", "dev", "node")
        run("ip", "link", "set", "node", "up")

    def log(self, pod):
        return (self.folder / f"{pod.name}.log").read_text()[-4000:]

    def probe(self, pod, which):
        [container] = pod.spec["containers"]
        about = container[f"{which}Probe"]["httpGet"]
        port = next(port["containerPort"] for port in container["ports"] if port["name"] == about["port"])
        try:
            with urllib.request.urlopen(f"http://{pod.address}:{port}{about['path']}", timeout=2) as answer:
                return answer.status == 200
        except urllib.error.HTTPError as error:
            pod.said = error.read().decode()
        except OSError as error:
            pod.said = str(error)
        return False

    def wait(self, what, pods, which, meanwhile=lambda: None):
        deadline = time.monotonic() + WAIT
        late = pods
        while late and time.monotonic() < deadline:
            for pod in pods:
                if pod.process.poll() is not None:
                    self.fail(f"{what}: {pod.name} ended with {pod.process.returncode}:\n{self.log(pod)}")
            meanwhile()
            late = [pod for pod in late if not self.probe(pod, which)]
            time.sleep(0.2)
        if late:
            said = {pod.name: pod.said for pod in late}
            self.fail(f"{what}: {which} probe: {said}\n" + "".join(f"{pod.name}:\n{self.log(pod)}\n" for pod in pods))

    def close(self):
        for process in self.others:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for root in (self.folder / "roots").glob("*"):
            subprocess.run(["umount", "--recursive", "--lazy", str(root)], check=False)


def claims_of(objects, pod):
    for one in objects:
        if one["kind"] == "StatefulSet" and pod.name.rpartition("-")[0] == one["metadata"]["name"]:
            return [claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])]
    return []


def configs_of(objects):
    return {one["metadata"]["name"]: one["data"] for one in objects if one["kind"] == "ConfigMap"}


def check_files(program, objects, fail):
    """`pmnet check` must accept the file of each pod, in the root of this pod."""
    with a_node(program, fail) as node:
        pods = pods_of(objects)
        node.knows(pods, configs_of(objects))
        for pod in pods:
            [container] = pod.spec["containers"]
            _, args = node.words(pod, container)
            node.prepared(pod, claims_of(objects, pod))
            for init in pod.spec.get("initContainers", []):
                node.finish(pod, init, init["name"], network=False)
            if "--config" in args:
                node.finish(pod, container, "check", args=["check", *args[1:]], network=False)


def services(node):
    """Starts an etcd and a Redis, which are not part of the chart."""
    for name, number, words in [
        ("etcd", 2, ["etcd", "--data-dir", f"{node.folder}/etcd", "--listen-client-urls", f"http://{NETWORK}.2:2379", "--advertise-client-urls",
                     f"http://{NETWORK}.2:2379", "--listen-peer-urls", "http://127.0.0.1:2380", "--auto-compaction-mode", "periodic",
                     "--auto-compaction-retention", "5m"]),
        ("redis", 3, ["redis-server", "--bind", f"{NETWORK}.3", "--protected-mode", "no", "--appendonly", "yes", "--appendfsync", "always",
                      "--save", "", "--dir", str(node.folder)]),
    ]:
        node.connect(name, number)
        log = open(node.folder / f"{name}.log", "a")
        node.others.append(subprocess.Popen(["ip", "netns", "exec", name, *words], stdout=log, stderr=log, start_new_session=True))


def redis(node, pod, *words):
    return run("redis-cli", "-h", pod.address, "-p", "6380", *words).strip()


@contextlib.contextmanager
def a_node(program, fail):
    with tempfile.TemporaryDirectory(dir=program.parent.parent, ignore_cleanup_errors=True) as folder:
        node = Node(folder, program, fail)
        try:
            yield node
        finally:
            node.close()


def main(program, template, values, fail):
    with a_node(program, fail) as node:
        node.bridge()
        lives(node, template, values)


def lives(node, template, values):
    services(node)
    objects = template(values)
    pods = pods_of(objects)
    node.knows(pods, configs_of(objects))

    def of(component):
        return [pod for pod in pods if pod.component == component]

    def start(pod, objects, tag="main"):
        node.start(pod, claims_of(objects, pod), tag)
        node.others.append(pod.process)

    # Starts pods as a StatefulSet with OrderedReady and minReadySeconds does.
    first, *others = of("server")
    start(first, objects)
    node.wait("the first server", [first], "readiness")
    time.sleep(2)
    for pod in others + of("device") + of("controller"):
        start(pod, objects)
    node.wait("all but fronts", others + of("device") + of("controller"), "readiness")
    for pod in of("front"):
        start(pod, objects)
    node.wait("all pods", pods, "readiness")
    node.wait("all pods", pods, "liveness")
    print(f"helm-test: {len(pods)} pods are alive and ready", flush=True)
    one, other = of("front")[:2]
    got = [redis(node, one, "SET", "greeting", "hello"), redis(node, other, "GET", "greeting"), redis(node, other, "INCR", "n")]
    if got != ["OK", "hello", "1"]:
        node.fail(f"SET, GET, INCR: {got}\n{node.log(one)}")
    print("helm-test: SET at one front, GET and INCR at the other one", flush=True)
    # The second step of an installation restarts the fronts, one by one.
    objects = template(values, "--set", "devices.chainHasFormed=true")
    again = {pod.name: pod for pod in pods_of(objects, first=100)}

    def replace(pod):
        run("ip", "netns", "delete", pod.name)
        pods[pods.index(pod)] = again[pod.name]
        node.knows(pods, configs_of(objects))
        start(again[pod.name], objects, "again")
        return again[pod.name]

    for pod in of("front"):
        pod.process.send_signal(signal.SIGTERM)
        if pod.process.wait(30) != 0:
            node.fail(f"{pod.name} ended with {pod.process.returncode}:\n{node.log(pod)}")
        node.wait("the front", [replace(pod)], "readiness")
    one, other = of("front")[:2]
    # A device is lost, and comes back with its volume at another address.
    lost = of("device")[0]
    os.killpg(lost.process.pid, signal.SIGKILL)
    lost.process.wait()
    deadline = time.monotonic() + WAIT
    while redis(node, one, "SET", "greeting", "again") != "OK":
        if time.monotonic() > deadline:
            node.fail(f"nothing is acknowledged without {lost.name}: {node.log(one)}")
    print(f"helm-test: {lost.name} is lost, and writes go on", flush=True)
    back = replace(lost)
    # In a chain without clients, the head does not notice that a device has joined. So a client sends a write.
    node.wait("the lost device", of("device"), "readiness", lambda: redis(node, one, "SET", "greeting", "again"))
    got = [redis(node, other, "GET", "greeting"), redis(node, one, "INCR", "n")]
    if got != ["again", "2"]:
        node.fail(f"GET, INCR: {got}")
    print(f"helm-test: {back.name} is back at {back.address}, and all {len(of('device'))} copies are there")
    for pod in reversed(pods):
        pod.process.send_signal(signal.SIGTERM)
    codes = {pod.name: pod.process.wait(30) for pod in pods}
    if any(codes.values()):
        node.fail(f"exit codes: {codes}")
    print("helm-test: all pods end with exit code 0 at SIGTERM")
    print("3 passed, 0 failed")
