"""The main program of infra/sam-local: builds, stages and checks the binaries, runs the events, and
compares the answers."""

import argparse
import base64
import contextlib
import ipaddress
import json
import os
import platform
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INFRA = ROOT / "infra"
EVENTS = INFRA / "events"
# The version in provided.al2023. A binary that needs a newer one does not start there.
NEWEST_GLIBC = (2, 34)
ACCOUNT = "000000000000"
REGION = "us-east-1"
# The base URL of the providers in the local parameters. It is replaced by the local stack's front.
PROVIDERS = "http://provider.local/"
MACHINE = {"x86_64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), platform.machine())
IMAGE = f"public.ecr.aws/lambda/provided:al2023-rapid-{MACHINE}"
# In seconds. Longer than any test machine needs; only a hang reaches it.
PATIENCE = 120


class Failure(Exception):
    """An error with a message for the user."""


class NotUp(Failure):
    """A program that this script started has ended or does not answer."""


def say(text):
    print(f"sam-local: {text}", flush=True)


def run(command, **options):
    done = subprocess.run([str(word) for word in command], cwd=ROOT, **options)
    if done.returncode != 0:
        raise Failure(f"`{' '.join(str(word) for word in command[:4])} …` ended with {done.returncode}")
    return done


# ---- the template ---------------------------------------------------------------------------------------------------


class Template:
    """template.yaml, with the parameters and names of the local stack."""

    def __init__(self, path, parameters):
        from samtranslator.yaml_helper import yaml_parse

        self.body = yaml_parse(path.read_text(encoding="utf-8"))
        self.resources = self.body["Resources"]
        defaults = {name: about.get("Default") for name, about in self.body.get("Parameters", {}).items()}
        self.parameters = {**defaults, **parameters}
        self.functions = [
            Function(self, name, resource)
            for name, resource in self.resources.items()
            if resource["Type"] == "AWS::Serverless::Function"
        ]

    def value(self, node):
        """Returns a property as text. Supports only the functions that environments and names
        use."""
        if not isinstance(node, dict):
            return self._text(node)
        ((kind, argument),) = node.items()
        if kind == "Ref":
            return self.reference(argument)
        if kind == "Fn::Sub" and isinstance(argument, str):
            return re.sub(r"\$\{([^}]+)\}", lambda found: self.substitution(found[1]), argument)
        if kind == "Fn::GetAtt":
            name, attribute = argument if isinstance(argument, list) else argument.split(".", 1)
            return self.attribute(name, attribute)
        if kind == "Fn::If":
            condition, then, otherwise = argument
            return self.value(then if self.holds(self.body["Conditions"][condition]) else otherwise)
        raise Failure(f"infra/sam_local.py does not support {kind}; add it, or write the value in another way")

    @staticmethod
    def _text(node):
        return str(node).lower() if isinstance(node, bool) else str(node)

    def holds(self, condition):
        ((kind, argument),) = condition.items()
        if kind == "Fn::Not":
            return not self.holds(argument[0])
        if kind == "Fn::Equals":
            return self.value(argument[0]) == self.value(argument[1])
        raise Failure(f"infra/sam_local.py does not support the condition {kind}")

    def substitution(self, name):
        return self.attribute(*name.split(".", 1)) if "." in name else self.reference(name)

    def reference(self, name):
        if name in self.parameters:
            return self._text(self.parameters[name])
        pseudo = {"AWS::Region": REGION, "AWS::AccountId": ACCOUNT, "AWS::Partition": "aws", "AWS::URLSuffix": "amazonaws.com"}
        if name in pseudo:
            return pseudo[name]
        kind, physical = self.named(name)
        if kind == "AWS::SQS::Queue":
            return f"{{aws}}/{ACCOUNT}/{physical}"
        if kind == "AWS::SecretsManager::Secret":
            return f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:{physical}-local0"
        return physical

    def attribute(self, name, attribute):
        kind, physical = self.named(name)
        if attribute in ("QueueName",):
            return physical
        if attribute == "Arn" and kind == "AWS::SQS::Queue":
            return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{physical}"
        if attribute == "Arn" and kind == "AWS::DynamoDB::Table":
            return f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{physical}"
        raise Failure(f"infra/sam_local.py does not support {name}.{attribute}")

    def named(self, name):
        resource = self.resources.get(name)
        if resource is None:
            raise Failure(f"the template has no {name}")
        properties = resource.get("Properties", {})
        for key in ("TableName", "QueueName", "BucketName", "Name", "FunctionName"):
            if key in properties:
                return resource["Type"], self.value(properties[key])
        # The name that the local stack gives to a resource without a name in the template.
        return resource["Type"], f"umavez-local-{name}".lower()

    def sources(self):
        """Returns the queues and tables that deliver to functions, and the schedules."""
        deliveries, ticks = set(), set()
        for function in self.functions:
            for event, about in function.properties.get("Events", {}).items():
                properties = about.get("Properties", {})
                if about["Type"] == "SQS":
                    deliveries.add(self.source(properties["Queue"]))
                elif about["Type"] == "DynamoDB":
                    deliveries.add(self.source(properties["Stream"]))
                elif about["Type"] in ("Schedule", "ScheduleV2"):
                    ticks.add(f"{function.id}{event}")
        return sorted(deliveries), sorted(ticks)

    def source(self, node):
        target = node["Fn::GetAtt"]
        return self.named(target[0] if isinstance(target, list) else target.split(".")[0])[1]


class Function:
    def __init__(self, template, name, resource):
        shared = template.body.get("Globals", {}).get("Function", {})
        self.template, self.id = template, name
        self.properties = resource["Properties"]
        self.binary = resource["Metadata"]["BuildProperties"]["Binary"]
        self.timeout = self.properties.get("Timeout", shared.get("Timeout", 3))
        self.memory = self.properties.get("MemorySize", shared.get("MemorySize", 128))
        self.variables = {
            **shared.get("Environment", {}).get("Variables", {}),
            **self.properties.get("Environment", {}).get("Variables", {}),
        }

    def environment(self, aws):
        """Returns the environment of the function, with the emulators at this address."""
        given = json.loads((INFRA / "sam-local-environment.json").read_text())
        values = {name: self.template.value(node) for name, node in self.variables.items()} | given
        provider = f"{aws}/_provider/{self.binary}@sam-local/"
        place = lambda text: text.replace("{aws}", aws).replace("{function}", self.binary).replace(PROVIDERS, provider)
        return {name: place(value) for name, value in values.items()}


# ---- events and answers ---------------------------------------------------------------------------------------------


class Step:
    """One event for one function, with the expected answer and outcome."""

    def __init__(self, about, functions):
        self.event_file = EVENTS / about["event"]
        if not self.event_file.is_file():
            raise Failure(f"infra/events/answers.json names {about['event']}, which is not in infra/events")
        self.event = json.loads(self.event_file.read_text())
        binary = about.get("function", self.event_file.stem)
        if binary not in functions:
            raise Failure(f"{about['event']} is for `{binary}`, which is not in the template")
        self.function = functions[binary]
        self.answer, self.outcome = about["answer"], about.get("outcome")

    @property
    def is_http(self):
        return "routeKey" in self.event and self.event.get("type") != "REQUEST"


def steps_of(template):
    about = json.loads((EVENTS / "answers.json").read_text())
    functions = {function.binary: function for function in template.functions}
    steps = [Step(step, functions) for step in about["steps"]]
    for binary in functions.keys() - {step.function.binary for step in steps}:
        raise Failure(
            f"`{binary}` is in the template and has no sample event: add infra/events/{binary}.json, "
            "and its expected answer to infra/events/answers.json"
        )
    return steps, about["sent"]


def fits(expected, actual):
    """Returns whether the actual value contains all that is expected. `*` matches any value but
    None."""
    if expected == "*":
        return actual is not None
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(name in actual and fits(value, actual[name]) for name, value in expected.items())
    if isinstance(expected, list):
        return isinstance(actual, list) and len(expected) == len(actual) and all(map(fits, expected, actual))
    return expected == actual


def as_json(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def http_answer(answer):
    """Converts the answer of a function to API Gateway to the response that the client gets."""
    if not isinstance(answer, dict) or "statusCode" not in answer:
        return answer
    body = answer.get("body") or ""
    if answer.get("isBase64Encoded"):
        body = base64.b64decode(body).decode()
    return {"status": answer["statusCode"], "body": as_json(body)}


# ---- binaries -------------------------------------------------------------------------------------------------------


def needed_glibc(path):
    """Returns the newest glibc version that the binary needs (from its section .gnu.version_r)."""
    data = path.read_bytes()
    if data[:5] != b"\x7fELF\x02":
        raise Failure(f"{path} is not a 64-bit ELF binary")
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQII", data, offset + number * size) for number in range(count)]
    NEEDS = 0x6FFFFFFE
    newest = (0,)
    for _, kind, _, _, start, _, link, entries in headers:
        if kind != NEEDS:
            continue
        strings = headers[link][4]
        for _ in range(entries):
            _, versions, _, first, following = struct.unpack_from("<HHIII", data, start)
            at = start + first
            for _ in range(versions):
                _, _, _, name, after = struct.unpack_from("<IHHII", data, at)
                text = data[strings + name : data.index(b"\0", strings + name)].decode()
                if found := re.fullmatch(r"GLIBC_([\d.]+)", text):
                    newest = max(newest, tuple(int(part) for part in found[1].split(".")))
                at += after
            start += following
    return newest


def target_directory():
    done = run(["cargo", "metadata", "--format-version", "1", "--no-deps"], capture_output=True)
    return Path(json.loads(done.stdout)["target_directory"])


def build(options, template, target):
    """Builds the functions if necessary. Returns the path of each function's binary."""
    if options.debug:
        run(["cargo", "build", "--workspace", "--bins"])
        return {function.id: target / "debug" / function.binary for function in template.functions}
    if not options.no_build:
        say(f"sam build for {MACHINE}: link-time optimization takes a minute per function")
        run(["sam", "build", "--parameter-overrides", f"Architecture={MACHINE}"])
    return {function.id: ROOT / ".aws-sam" / "build" / function.id / "bootstrap" for function in template.functions}


def stage(binaries, place):
    """Puts each binary as `bootstrap` into its own folder, as on Lambda."""
    shutil.rmtree(place, ignore_errors=True)
    newest = (0,)
    for name, binary in binaries.items():
        if not binary.is_file():
            raise Failure(f"{name} has no binary at {binary}: run infra/sam-local without --no-build")
        needed = needed_glibc(binary)
        if needed > NEWEST_GLIBC:
            said, most = (".".join(map(str, version)) for version in (needed, NEWEST_GLIBC))
            raise Failure(f"{name} needs glibc {said}, and provided.al2023 has {most}")
        newest = max(newest, needed)
        folder = place / name
        folder.mkdir(parents=True)
        try:
            os.link(binary.resolve(), folder / "bootstrap")
        except OSError:  # a different file system
            shutil.copy2(binary, folder / "bootstrap")
    say(f"{len(binaries)} binaries, none of which needs a glibc newer than {'.'.join(map(str, newest))}")


# ---- processes ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def process(command, log, ready, **options):
    """Runs a program until the end of the block. Waits until `ready` returns a result, and
    yields it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as out:
        child = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **options
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while not (found := ready()):
            if child.poll() is not None or time.monotonic() > deadline:
                why = "ended" if child.poll() is not None else "is not up"
                raise NotUp(f"{Path(str(command[0])).name} {why}:\n{tail(log)}")
            time.sleep(0.02)
        yield found
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def tail(log, lines=25):
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def two_free_ports():
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ask(method, url, body=None, headers=None):
    request = urllib.request.Request(url, method=method, data=body, headers=headers or {})
    # Connections on this machine must not use the proxy of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def ask_json(method, url, body=None):
    data = None if body is None else json.dumps(body).encode()
    status, text = ask(method, url, data, {"content-type": "application/json"})
    if status >= 300:
        raise Failure(f"{method} {url} says {status}: {text}")
    return json.loads(text)


@contextlib.contextmanager
def local_stack(template, target, logs):
    """Starts the local stack with its emulators. Its own functions do not run: all deliveries are
    delayed and all schedules skipped, so that only this script invokes functions."""
    log = logs / "local-stack.log"
    # With --debug this is already built. Otherwise this builds the stack, which may take long.
    run(["cargo", "build", "--workspace", "--bins"])
    ready = lambda: re.search(rb"^ready (\S+)$", log.read_bytes(), re.MULTILINE)
    command = [target / "debug" / "umavez-local", "start", "--ephemeral", "--port", "0"]
    with process(command, log, ready, cwd=ROOT) as found:
        url = found[1].decode()
        deliveries, ticks = template.sources()
        always = {"times": 1_000_000_000}
        for source in deliveries:
            ask_json("POST", f"{url}/_local/faults", {"delivery": {"source": source, "action": "late", "seconds": 86_400, **always}})
        for schedule in ticks:
            ask_json("POST", f"{url}/_local/faults", {"tick": {"schedule": schedule, "action": "skip", **always}})
        yield url, ask_json("GET", f"{url}/_local")["aws"]


# ---- the two engines ------------------------------------------------------------------------------------------------


class Rie:
    """Runs each event in its own Runtime Interface Emulator, which handles one invocation at a
    time."""

    def __init__(self, template, place, logs, aws):
        import samcli

        packaged = Path(samcli.__file__).parent / "local" / "rapid" / f"aws-lambda-rie-{MACHINE}"
        if not packaged.is_file():
            raise Failure(f"the SAM CLI has no Runtime Interface Emulator for {MACHINE}")
        # The packaged file is not executable.
        self.emulator = place / "aws-lambda-rie"
        shutil.copyfile(packaged, self.emulator)
        self.emulator.chmod(0o755)
        self.place, self.logs, self.aws = place, logs, aws

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def invoke(self, step):
        for _ in range(3):
            with contextlib.suppress(NotUp):  # another program has taken one of its ports
                return self.invoke_once(step)
        return self.invoke_once(step)

    def invoke_once(self, step):
        function = step.function
        environment = function.environment(self.aws) | {
            "AWS_LAMBDA_FUNCTION_NAME": function.id,
            "AWS_LAMBDA_FUNCTION_TIMEOUT": str(function.timeout),
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory),
            "PATH": "/usr/bin:/bin",
        }
        port, runtime = two_free_ports()
        command = [self.emulator, "--runtime-interface-emulator-address", f"127.0.0.1:{port}"]
        command += ["--runtime-api-address", f"127.0.0.1:{runtime}", self.place / function.id / "bootstrap"]
        log = self.logs / f"{step.event_file.stem}.log"
        with process(command, log, lambda: listens(port), env=environment, cwd=self.place / function.id):
            url = f"http://127.0.0.1:{port}/2015-03-31/functions/function/invocations"
            _, text = ask("POST", url, json.dumps(step.event).encode())
            answer = as_json(text)
        return (http_answer(answer) if step.is_http else answer), log.read_text(errors="replace")


class SamLocal:
    """Sends HTTP events to `sam local start-api`, all other events to `sam local start-lambda`."""

    def __init__(self, template, place, logs, aws):
        self.logs, self.stack = logs, contextlib.ExitStack()
        self.template, self.place, self.aws = template, place, aws

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stand_in = provide_image(self.place)
            front = stack.enter_context(seen_by_containers(urllib.parse.urlsplit(self.aws).port))
            template, environment = self.write(f"http://{front}")
            common = ["--template", template, "--env-vars", environment, "--parameter-overrides", f"Architecture={MACHINE}"]
            common += ["--host", "127.0.0.1", "--warm-containers", "LAZY", "--container-host-interface", "127.0.0.1"]
            common += ["--skip-pull-image"] if stand_in else []
            self.api, self.invocations = two_free_ports()
            for name, port in (("start-api", self.api), ("start-lambda", self.invocations)):
                command = ["sam", "local", name, "--port", port, *common]
                stack.enter_context(process(command, self.log(name), lambda: listens(port), cwd=self.place))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def log(self, name):
        return self.logs / f"{name}.log"

    def write(self, aws):
        """Writes the template with the staged code, and the environment. `sam local` sets only
        variables that the template declares, so this declares those of the local environment
        too."""
        from samcli.yamlhelper import yaml_dump

        body = json.loads(json.dumps(self.template.body))
        environment = {}
        # `sam local` cannot resolve the `GetAtt` of an authorizer and would ignore the authorizer.
        for resource in body["Resources"].values():
            if resource["Type"] == "AWS::Serverless::HttpApi":
                for authorizer in resource["Properties"].get("Auth", {}).get("Authorizers", {}).values():
                    name = authorizer["FunctionArn"]["Fn::GetAtt"][0]
                    authorizer["FunctionArn"] = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}"
        for function in self.template.functions:
            environment[function.id] = function.environment(aws)
            resource = body["Resources"][function.id]
            resource.pop("Metadata")
            resource["Properties"]["CodeUri"] = function.id
            resource["Properties"]["Environment"] = {"Variables": {name: "" for name in environment[function.id]}}
        template = self.place / "template.yaml"
        template.write_text(yaml_dump(body))
        (self.place / "env.json").write_text(json.dumps(environment, indent=2))
        return template, self.place / "env.json"

    def invoke(self, step):
        log = self.log("start-api" if step.is_http else "start-lambda")
        before, begun = log.stat().st_size, time.time()
        if step.is_http:
            answer = self.request(step.event)
        else:
            url = f"http://127.0.0.1:{self.invocations}/2015-03-31/functions/{step.function.id}/invocations"
            _, text = ask("POST", url, json.dumps(step.event).encode())
            answer = as_json(text)
        return answer, self.logged(log, before, begun, step)

    def request(self, event):
        """Sends the HTTP request that the event describes."""
        query = event.get("rawQueryString")
        url = f"http://127.0.0.1:{self.api}{event['rawPath']}" + (f"?{query}" if query else "")
        body = event.get("body")
        if body is not None:
            body = base64.b64decode(body) if event.get("isBase64Encoded") else body.encode()
        left_out = {"host", "content-length"}
        headers = {name: value for name, value in event["headers"].items() if name.lower() not in left_out}
        status, text = ask(event["requestContext"]["http"]["method"], url, body, headers)
        return {"status": status, "body": as_json(text)}

    @staticmethod
    def logged(log, before, begun, step):
        """Returns the log lines since `before`. The lines of a container can arrive shortly
        after its answer, and `sam` loses the lines of a container that answers before `sam`
        listens, so this reads the log of the container too."""
        for _ in range(50):
            whole = log.read_bytes()
            text = whole[before:].decode(errors="replace")
            if step.outcome is None or tells(text, step.outcome):
                break
            of_function = rf"/{step.function.id} as /var/task.*?SAM_CONTAINER_ID: (\w+)"
            containers = re.findall(of_function, whole.decode(errors="replace"), re.DOTALL)
            if containers:
                told = docker("logs", "--since", f"{begun:.3f}", containers[-1])
                text += told.stdout + told.stderr
            if tells(text, step.outcome):
                break
            time.sleep(0.1)
        return text


def tells(log, outcome):
    return re.search(rf'\\?"outcome\\?":\s*\\?"{re.escape(outcome)}\\?"', log) is not None


# ---- Docker ---------------------------------------------------------------------------------------------------------


def docker(*arguments, **options):
    return subprocess.run(["docker", *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)


def docker_answers():
    return shutil.which("docker") is not None and docker("info").returncode == 0


@contextlib.contextmanager
def docker_engine(start):
    """Yields whether a Docker engine answers. An engine that this starts runs until the end of
    the block."""
    if docker_answers():
        yield True
        return
    if not start or shutil.which("dockerd") is None or os.geteuid() != 0:
        yield False
        return
    # The path of a socket must be short, so use a short folder.
    place = Path(tempfile.mkdtemp(prefix="sam-local-"))
    command = ["dockerd", "--host", f"unix://{place}/socket", "--data-root", place / "data"]
    command += ["--exec-root", place / "exec", "--pidfile", place / "pid"]
    os.environ["DOCKER_HOST"] = f"unix://{place}/socket"
    try:
        with process(command, place / "log", docker_answers):
            say("started a Docker engine")
            yield True
            return
    except NotUp as failure:
        if "dockerd" not in str(failure):
            raise
        say(f"a Docker engine could not be started: {str(failure).splitlines()[-1]}")
        os.environ.pop("DOCKER_HOST")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    yield False


def bridge_address():
    """Returns this machine's address on Docker's bridge: the gateway, by default the first
    address."""
    (network,) = json.loads(docker("network", "inspect", "bridge").stdout or "[{}]")
    about = network["IPAM"]["Config"][0]
    return about.get("Gateway") or str(next(ipaddress.ip_network(about["Subnet"]).hosts()))


@contextlib.contextmanager
def seen_by_containers(port):
    """Yields an address at which containers can reach a port of this machine's loopback. Containers
    cannot reach the loopback itself, so this forwards connections from the bridge, which only the
    containers and this machine can reach."""
    address = bridge_address()
    try:
        server = socket.create_server((address, 0))
    except OSError:
        # Docker runs in a virtual machine, which can reach this machine's loopback under this name.
        yield f"host.docker.internal:{port}"
        return

    def pump(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                near, _ = server.accept()
                far = socket.create_connection(("127.0.0.1", port))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"{address}:{server.getsockname()[1]}"
    finally:
        server.close()


def provide_image(place):
    """Pulls Lambda's image, or builds a substitute if that fails. Returns whether a local image
    is used."""
    if docker("image", "inspect", IMAGE).returncode == 0:
        return True
    real = IMAGE.replace("-rapid", "")
    with contextlib.suppress(subprocess.TimeoutExpired):
        if docker("pull", real, timeout=300).returncode == 0:
            return False
    say(f"{real} cannot be pulled: using a substitute image with this machine's C library")
    return make_stand_in(place / "image")


def certificates_of_this_machine():
    places = [ssl.get_default_verify_paths().cafile, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"]
    for place in places:
        if place and Path(place).is_file():
            return place
    raise Failure("this machine has no CA certificates; on Debian and Ubuntu: apt-get install ca-certificates")


def make_stand_in(image):
    """Builds an image with only the files that our binaries and the Runtime Interface Emulator
    need."""
    import samcli

    libraries = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1"]
    libraries += ["libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"]
    shutil.rmtree(image, ignore_errors=True)
    loader = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "arm64": "/lib/ld-linux-aarch64.so.1"}[MACHINE]
    found = [Path(loader)]
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    for name in libraries:
        if match := re.search(rf"^\s*{re.escape(name)} \(libc6[^)]*64[^)]*\) => (\S+)$", cache, re.MULTILINE):
            found.append(Path(match[1]))
    for path in found:
        copy = image / str(path).lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path.resolve(), copy)
    for folder in ("var/task", "var/rapid", "var/runtime", "tmp", "opt", "etc", "proc", "dev", "sys"):
        (image / folder).mkdir(parents=True, exist_ok=True)
    (image / "etc/passwd").write_text("root:x:0:0:root:/root:/sbin/nologin\nsbx_user1051:x:993:990::/home:/sbin/nologin\n")
    (image / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    # The clients read the certificates at start. This is their path on Amazon Linux.
    certificates = image / "etc/pki/tls/certs/ca-bundle.crt"
    certificates.parent.mkdir(parents=True)
    shutil.copyfile(certificates_of_this_machine(), certificates)
    emulator = image / "var/rapid" / f"aws-lambda-rie-{MACHINE}"
    shutil.copyfile(Path(samcli.__file__).parent / "local" / "rapid" / emulator.name, emulator)
    emulator.chmod(0o755)
    os.symlink(emulator.name, emulator.parent / "aws-lambda-rie")
    archive = image.with_suffix(".tar")
    run(["tar", "--create", "--file", archive, "--directory", image, "."])
    changes = ["--change", "WORKDIR /var/task", "--change", "ENV LD_LIBRARY_PATH=/lib64:/usr/lib64"]
    imported = docker("import", *changes, archive, IMAGE)
    if imported.returncode != 0:
        raise Failure(f"docker import: {imported.stderr.strip()}")
    return True


# ---- main -----------------------------------------------------------------------------------------------------------


def play(engine, steps):
    """Runs the steps in order. Stops at the first failure, because later steps may depend on it."""
    for step in steps:
        begin = time.monotonic()
        answer, log = engine.invoke(step)
        name = f"{step.function.binary:<20} {step.event_file.name}"
        if not fits(step.answer, answer):
            raise Failure(f"{name}: expected {json.dumps(step.answer)}\nand got {json.dumps(answer)}\n{log[-3000:]}")
        if step.outcome is not None and not tells(log, step.outcome):
            raise Failure(f"{name}: its log does not have the outcome {step.outcome!r}:\n{log[-3000:]}")
        print(f"ok    {name:<60} {time.monotonic() - begin:6.2f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="infra/sam-local", description="Runs every function under sam local; see the comment in infra/sam-local.")
    parser.add_argument("--debug", action="store_true", help="use cargo's debug binaries")
    parser.add_argument("--no-build", action="store_true", help="use the output of an earlier `sam build`")
    parser.add_argument("--engine", choices=["docker", "rie"], help="use this engine, or fail")
    parser.add_argument("--start-docker", action="store_true", help="start a Docker engine if none answers")
    options = parser.parse_args()

    template = Template(ROOT / "template.yaml", json.loads((INFRA / "local-parameters.json").read_text()))
    steps, sent = steps_of(template)
    target = target_directory()
    place = target / "sam"
    logs = target / "sam-logs"
    shutil.rmtree(logs, ignore_errors=True)
    stage(build(options, template, target), place)
    with contextlib.ExitStack() as stack:
        has_docker = options.engine != "rie" and stack.enter_context(docker_engine(options.start_docker))
        if options.engine == "docker" and not has_docker:
            raise Failure("no Docker engine answers")
        if not has_docker and options.engine is None:
            say("no Docker engine answers, so sam local cannot run: using the Runtime Interface Emulator for the same events")
        url, aws = stack.enter_context(local_stack(template, target, logs))
        engine = (SamLocal if has_docker else Rie)(template, place, logs, aws)
        with engine:
            play(engine, steps)
        got = ask_json("GET", f"{url}/_local/sent")["sent"]
        if not fits(sent, [{name: one[name] for name in ("channel", "to")} for one in got]):
            raise Failure(f"expected to be sent: {json.dumps(sent)}\nwas sent: {json.dumps(got)}")
    how = "sam local" if has_docker else "the Runtime Interface Emulator"
    say(f"{len(steps)} events of {len(template.functions)} functions through {how}: every answer as expected, and {len(sent)} messages were sent")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        print(f"sam-local: {failure}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
