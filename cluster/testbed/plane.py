"""What the scripts that test on a real control plane share: programs that Go builds, Helm, and etcd and kube-apiserver."""

import json
import os
import pathlib
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Longest wait for anything, in seconds.
PATIENCE = 120


def fail(why):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {why}")


def done(what):
    print(f"ok: {what}", flush=True)


def built(module, program, minutes):
    """The path of a program of a Go module in cluster/testbed, which is built if it is missing. The file is there as a whole or not at all.
    `minutes`: what that takes."""
    source = ROOT / "cluster/testbed" / module
    text = (source / "go.mod").read_text()
    package, = re.findall(rf"^(?:tool |\t)(\S+/cmd/{re.escape(program)})$", text, re.M)
    version, = re.findall(rf"^(?:require |\t){re.escape(package.partition('/cmd/')[0])} (v\S+)", text, re.M)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "sluice-cluster"
    path = cache / f"{module}-{version}" / program
    if path.is_file():
        return path
    go = shutil.which("go", path=os.environ["PATH"] + ":/usr/local/go/bin")
    if not go:
        fail("Go is missing: install Go 1.26 or newer (https://go.dev/dl), then run this again")
    print(f"building {program} {version}, about {minutes} min", file=sys.stderr)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{program}")
    own = {"GOMODCACHE": cache / "go/mod", "GOCACHE": cache / "go/build", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}
    command = [go, "build", "-buildvcs=false", "-trimpath", "-p", "2", "-ldflags", "-s -w", "-o", part, package]
    subprocess.run(command, cwd=source, env=os.environ | {k: str(v) for k, v in own.items()}, check=True)
    part.rename(path)
    return path


def helm_program():
    return built("helm", "helm", 3)


class Helm:
    """Helm, with folders of its own."""

    def __init__(self, work):
        self.program = helm_program()
        self.env = os.environ | {f"HELM_{name}_HOME": str(work / name) for name in ("CACHE", "CONFIG", "DATA")}
        self.env["KUBECONFIG"] = str(work / "kubeconfig")

    def run(self, *arguments, is_refused=False):
        """What it says. `is_refused`: it is to fail."""
        command = [str(self.program), *map(str, arguments)]
        ran = subprocess.run(command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said = ran.stdout if ran.returncode == 0 else ran.stdout + ran.stderr
        if (ran.returncode != 0) != is_refused:
            fail(f"{' '.join(command)} {'is taken' if is_refused else 'fails'}:\n{said}")
        return said


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(stack, log, *command, **options):
    """A process that ends with the stack, and what it writes in a file."""
    out = stack.enter_context(open(log, "w"))
    process = subprocess.Popen([str(one) for one in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, **options)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


class Server:
    """etcd and kube-apiserver on loopback; both end with it."""

    def __init__(self, programs, work, stack, address="127.0.0.1", port=0, flags=(), users=()):
        """`users` are lines of its file of tokens, beside an administrator's."""
        self.token, port, etcd, peer = secrets.token_hex(16), port or free_port(), free_port(), free_port()
        self.url, self.pki = f"https://{address}:{port}", work / "pki"
        etcd_url, peer_url = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
        (work / "tokens.csv").write_text("\n".join([f"{self.token},admin,admin,system:masters", *users, ""]))
        subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", work / "sa.key"], check=True)
        start(stack, work / "etcd.log", programs / "etcd", "--data-dir", work / "etcd", "--unsafe-no-fsync",
              "--listen-client-urls", etcd_url, "--advertise-client-urls", etcd_url, "--listen-peer-urls", peer_url,
              "--initial-advertise-peer-urls", peer_url, "--initial-cluster", f"default={peer_url}")
        self.process = start(
            stack, work / "kube-apiserver.log", programs / "kube-apiserver", "--etcd-servers", etcd_url, "--bind-address", address,
            "--secure-port", port, "--cert-dir", self.pki, "--service-account-key-file", work / "sa.key",
            "--service-account-signing-key-file", work / "sa.key", "--service-account-issuer", "https://kubernetes.default.svc",
            "--token-auth-file", work / "tokens.csv", "--service-cluster-ip-range", "10.96.0.0/16", "--allow-privileged=true",
            "--endpoint-reconciler-type", "none", "--profiling=false", *flags)
        self.log = work / "kube-apiserver.log"
        wait("the API server is ready", self.is_ready)
        self.kubeconfig(work / "kubeconfig", self.token)

    def kubeconfig(self, path, token):
        """Writes by what a program finds the API server."""
        authority = self.pki / "apiserver.crt"
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "t",
            "clusters": [{"name": "t", "cluster": {"server": self.url, "certificate-authority": str(authority)}}],
            "users": [{"name": "t", "user": {"token": token}}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        }))

    def is_ready(self):
        if self.process.poll() is not None:
            fail(f"kube-apiserver has ended:\n{self.log.read_text()[-3000:]}")
        try:
            return (self.pki / "apiserver.crt").exists() and self.ask("GET", "readyz")[0] == 200
        except OSError:
            return False

    def ask(self, method, path, body=None, kind="application/json", headers=None):
        """Status and answer of a request."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode() if body is not None else None
        known = {"Authorization": f"Bearer {self.token}", "Accept": "application/json", "Content-Type": kind}
        request = urllib.request.Request(f"{self.url}/{path}", data, known | (headers or {}), method=method)
        trusted = ssl.create_default_context(cafile=self.pki / "apiserver.crt")
        try:
            with urllib.request.urlopen(request, context=trusted, timeout=30) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode(errors="replace")


def wait(what, is_so):
    until = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > until:
            fail(f"waited in vain: {what}")
        time.sleep(0.1)
