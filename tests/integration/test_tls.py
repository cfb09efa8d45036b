"""TLS over real sockets: who is let in, who is not, and what is said about it."""

from __future__ import annotations

import contextlib
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pageferry as pf
import pytest
from cluster import BIN_DIR, ROOT, Program, cluster, wait_until
from engines import Engine, receive, send

SAN = "subjectAltName=DNS:localhost,IP:127.0.0.1,URI:pageferry://default/prefill/prefill/0.0.0.0"


def openssl(folder: pathlib.Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


class Authority:
    """A certificate authority of the test's own, in a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.ca = folder / "ca.pem"
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        self._new = new
        openssl(
            folder, "req", "-x509", *new, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem"
        )

    def issue(self, name: str, *, days: int = 2) -> pf.Tls:
        """A certificate for loopback; with negative `days` one that has expired."""
        request, certificate = f"{name}.csr", f"{name}.pem"
        openssl(
            self.folder, "req", *self._new, "-subj", f"/CN={name}", "-keyout", f"{name}.key",
            "-out", request,
        )  # fmt: skip
        (self.folder / "san").write_text(SAN)
        openssl(
            self.folder, "x509", "-req", "-in", request, "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", str(days), "-extfile", "san", "-out", certificate,
        )  # fmt: skip
        return pf.Tls(self.ca, self.folder / certificate, self.folder / f"{name}.key")


def flags_of(tls: pf.Tls) -> list[str]:
    return [f"--tls-ca={tls.ca}", f"--tls-cert={tls.cert}", f"--tls-key={tls.key}"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


@contextlib.contextmanager
def bootstrap(folder: pathlib.Path, *flags: str) -> Iterator[Program]:
    program = Program(
        "bootstrap",
        [str(BIN_DIR / "pageferry-bootstrap"), "--listen=127.0.0.1:0",
         "--metrics-listen=127.0.0.1:0", "--health-listen=127.0.0.1:0", *flags],
        folder,
    ).start()  # fmt: skip
    try:
        yield program
    finally:
        program.stop()


def failures(program: Program) -> dict[str, int]:
    """The counter, by reason."""
    url = f"http://127.0.0.1:{program.ports['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    name = "pageferry_process_tls_handshake_failures_total"
    return {m[1]: int(float(m[2])) for m in re.finditer(rf'{name}\{{reason="(\w+)"\}} (\S+)', text)}


def expect_refusal(program: Program, reason: str, tls: pf.Tls | None) -> None:
    """A client with `tls` gets nowhere; the counter and the log say why."""
    before = failures(program)[reason]
    with pytest.raises(pf.PageferryError):
        pf.Bootstrap.connect(f"127.0.0.1:{program.ports['grpc']}", timeout=1.5, tls=tls)
    wait_until(f"a count of {reason}", lambda: failures(program)[reason] > before)
    assert re.search(rf"handshake_failed.*reason {reason}", program.log.read_text())


def test_only_clients_of_our_authority_are_let_in(
    authority: Authority, stranger: Authority, tmp_path: pathlib.Path
) -> None:
    good = authority.issue("good")
    expired = authority.issue("expired", days=-1)
    other = stranger.issue("other")
    with bootstrap(tmp_path, *flags_of(authority.issue("bootstrap"))) as program:
        expect_refusal(program, "clear_text", None)
        expect_refusal(program, "no_certificate", pf.Tls(authority.ca))
        expect_refusal(program, "bad_certificate", pf.Tls(authority.ca, other.cert, other.key))
        expect_refusal(program, "bad_certificate", pf.Tls(authority.ca, expired.cert, expired.key))
        # A client that does not know the service's authority refuses by itself.
        with pytest.raises(pf.PageferryError):
            pf.Bootstrap.connect(
                f"127.0.0.1:{program.ports['grpc']}",
                timeout=1.5,
                tls=pf.Tls(stranger.ca, good.cert, good.key),
            )
        with pf.Bootstrap.connect(f"127.0.0.1:{program.ports['grpc']}", tls=good) as client:
            assert list(client.list_engines()) == []


def test_older_tls_is_refused(authority: Authority, tmp_path: pathlib.Path) -> None:
    tls = authority.issue("client")
    with bootstrap(tmp_path, *flags_of(authority.issue("bootstrap"))) as program:

        def shake(version: ssl.TLSVersion) -> str | None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(tls.ca)
            context.load_cert_chain(tls.cert, tls.key)
            context.set_alpn_protocols(["h2"])
            context.minimum_version = context.maximum_version = version
            address = ("127.0.0.1", program.ports["grpc"])
            with (
                socket.create_connection(address, timeout=5) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
            ):
                return secure.version()

        assert shake(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            shake(ssl.TLSVersion.TLSv1_2)
        wait_until("a count", lambda: failures(program)["old_protocol"] == 1)


def test_without_client_auth_a_certificate_is_not_asked_for(
    authority: Authority, tmp_path: pathlib.Path
) -> None:
    flags = [*flags_of(authority.issue("bootstrap")), "--tls-client-auth=none"]
    with bootstrap(tmp_path, *flags) as program:
        target = f"127.0.0.1:{program.ports['grpc']}"
        with pf.Bootstrap.connect(target, tls=pf.Tls(authority.ca)) as client:
            assert list(client.list_engines()) == []
        expect_refusal(program, "clear_text", None)


def test_new_files_are_used_without_a_restart(
    authority: Authority, stranger: Authority, tmp_path: pathlib.Path
) -> None:
    used = tmp_path / "used"
    used.mkdir()

    def use(source: Authority) -> pf.Tls:
        tls = source.issue("server")
        for name, path in (("ca.pem", tls.ca), ("cert.pem", tls.cert), ("key.pem", tls.key)):
            shutil.copy(pathlib.Path(str(path)), used / f"{name}.new")
        for name in ("ca.pem", "cert.pem", "key.pem"):
            (used / f"{name}.new").rename(used / name)
        return source.issue("client")

    first = use(authority)
    flags = flags_of(pf.Tls(used / "ca.pem", used / "cert.pem", used / "key.pem"))
    with bootstrap(tmp_path, *flags, "--tls-reload=1s") as program:
        target = f"127.0.0.1:{program.ports['grpc']}"
        pf.Bootstrap.connect(target, tls=first).close()
        second = use(stranger)

        def accepted() -> bool:
            with contextlib.suppress(pf.PageferryError):
                pf.Bootstrap.connect(target, timeout=1, tls=second).close()
                return True
            return False

        wait_until("the new authority to count", accepted)


def test_rooms_between_agents_that_show_certificates(
    authority: Authority, tmp_path: pathlib.Path
) -> None:
    """Bootstrap, peers and engines over TCP, all with certificates."""
    client = authority.issue("engine")
    flags = flags_of(authority.issue("agent"))
    with (
        cluster(*flags_of(authority.issue("bootstrap"))) as running,
        contextlib.ExitStack() as stack,
    ):
        engines = []
        for name, role in (("prefill", pf.Role.PREFILL), ("decode", pf.Role.DECODE)):
            program = running.agent(
                name, *flags, "--engine-listen=127.0.0.1:0", "--log-verbose=session"
            )
            agent = stack.enter_context(pf.Agent.connect(program.ports["engine"], tls=client))
            engine = Engine(agent, name, role, pages=64)
            stack.callback(engine.close)
            engines.append(engine)
        prefill, decode = engines
        prefill.fill(7, [1, 2, 3], 0)
        with ThreadPoolExecutor(2) as pool:
            jobs = [
                pool.submit(send, prefill, 7, [1, 2, 3], 2, 0),
                pool.submit(receive, decode, 7, [9, 8, 7], 0),
            ]
            for job in jobs:
                job.result(60)
        decode.check(7, [9, 8, 7], 0)
        # Who calls is known at the edge, for the policy that comes.
        log = running.programs[1].log.read_text()
        assert "identity pageferry://default/prefill/prefill/0.0.0.0" in log
        with pytest.raises(pf.PageferryError):
            pf.Agent.connect(running.programs[1].ports["engine"], timeout=1.5)


def test_with_tls_other_hosts_may_call(authority: Authority, tmp_path: pathlib.Path) -> None:
    with bootstrap(
        tmp_path, *flags_of(authority.issue("bootstrap")), "--listen=0.0.0.0:0"
    ) as program:
        client = pf.Bootstrap.connect(
            f"127.0.0.1:{program.ports['grpc']}", tls=authority.issue("client")
        )
        client.close()
        assert "insecure" not in program.log.read_text()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda f: {**f, "key": None}, "tls-key"),
        (lambda f: {**f, "ca": None}, "tls-ca"),
        (lambda f: {**f, "cert": "/nowhere.pem"}, "tls-cert"),
        (lambda f: {**f, "cert": f["key"]}, "tls-cert"),
        (lambda f: {**f, "key": f["other_key"]}, "tls-key"),
        (lambda f: {**f, "cert": f["expired"], "key": f["expired_key"]}, "tls-cert"),
    ],
    ids=["no key", "no ca", "no such file", "no certificate", "another's key", "expired"],
)
@pytest.mark.parametrize("program", ["bootstrap", "agent"])
def test_bad_files_are_refused_at_start(authority, program, change, named) -> None:
    good, other = authority.issue("good"), authority.issue("other")
    expired = authority.issue("expired", days=-1)
    files = change(
        {
            "ca": good.ca,
            "cert": good.cert,
            "key": good.key,
            "other_key": other.key,
            "expired": expired.cert,
            "expired_key": expired.key,
        }
    )
    flags = [f"--tls-{name}={files[name]}" for name in ("ca", "cert", "key") if files[name]]
    more = [] if program == "bootstrap" else ["--bootstrap=127.0.0.1:1"]
    ended = subprocess.run(
        [BIN_DIR / f"pageferry-{program}", *flags, *more],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert ended.returncode == 2
    assert f"{named} is" in ended.stderr


def test_dev_certs_are_good_for_a_cluster(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "certs"
    script = [str(ROOT / ".ci/certs.sh"), str(folder)]
    subprocess.run([*script, "gpu-7.example", "192.0.2.7"], check=True, capture_output=True)
    assert not list(folder.glob("ca.key"))
    for key in folder.glob("*.key"):
        assert key.stat().st_mode & 0o077 == 0
    text = subprocess.run(
        ["openssl", "x509", "-in", folder / "agent.pem", "-noout", "-text"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in ("DNS:localhost", "IP Address:127.0.0.1", "DNS:gpu-7.example", "Address:192.0.2.7"):
        assert name in text
    again = subprocess.run(script, capture_output=True, text=True)
    assert again.returncode == 1 and "not empty" in again.stderr
    tls = {
        part: pf.Tls(folder / "ca.pem", folder / f"{part}.pem", folder / f"{part}.key")
        for part in ("bootstrap", "client")
    }
    with bootstrap(tmp_path, *flags_of(tls["bootstrap"])) as program:
        pf.Bootstrap.connect(f"127.0.0.1:{program.ports['grpc']}", tls=tls["client"]).close()


def test_pageferryctl_shows_its_certificate(authority: Authority, tmp_path: pathlib.Path) -> None:
    tls = authority.issue("operator")

    def engines(*flags: str) -> subprocess.CompletedProcess[str]:
        target = f"--bootstrap=127.0.0.1:{program.ports['grpc']}"
        command = [BIN_DIR / "pageferryctl", target, "--timeout=2s", *flags, "engines"]
        return subprocess.run(command, capture_output=True, text=True, timeout=30)

    with bootstrap(tmp_path, *flags_of(authority.issue("bootstrap"))) as program:
        assert engines(*flags_of(tls)).stdout.startswith("No engines.\n")
        assert engines().returncode == 4
        wrong = engines(f"--tls-ca={tls.ca}", "--tls-cert=/nowhere", f"--tls-key={tls.key}")
        assert wrong.returncode == 2 and "tls-cert is /nowhere" in wrong.stderr
