"""The checks of infra/lint-template, which installs their dependencies.

Prints one line per check, and exits with 1 if any check has a finding.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

FUNCTION = "AWS::Serverless::Function"


class Template:
    def __init__(self, path):
        from samtranslator.yaml_helper import yaml_parse

        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.body = yaml_parse(self.text)
        if not isinstance(self.body, dict) or not isinstance(self.body.get("Resources"), dict):
            raise ValueError("it has no Resources")

    def resources(self, kind):
        for name, resource in self.body["Resources"].items():
            if isinstance(resource, dict) and resource.get("Type") == kind:
                yield name, resource, resource.get("Properties") or {}

    def events(self, *kinds):
        for name, _, properties in self.resources(FUNCTION):
            for event, body in (properties.get("Events") or {}).items():
                if isinstance(body, dict) and body.get("Type") in kinds:
                    yield f"{name}.Events.{event}", body["Type"], body.get("Properties") or {}

    def values(self, value):
        """Returns the possible values of a property: the value itself, or the default and the
        allowed values of the parameter that it refers to. Returns nothing for other references."""
        if not isinstance(value, dict):
            return [value]
        parameter = (self.body.get("Parameters") or {}).get(value.get("Ref"))
        if not isinstance(parameter, dict):
            return []
        known = [parameter["Default"]] if "Default" in parameter else []
        return known + [allowed for allowed in parameter.get("AllowedValues", []) if allowed not in known]

    def is_queue(self, source):
        if isinstance(source, str):
            return ":sqs:" in source
        if not isinstance(source, dict):
            return False
        target = source.get("Fn::GetAtt", "")
        target = target[0] if isinstance(target, list) else target.split(".")[0]
        resource = self.body["Resources"].get(target)
        return isinstance(resource, dict) and resource.get("Type") == "AWS::SQS::Queue"


def sam_validate(template):
    command = [sys.executable, "-m", "samcli", "validate", "--lint", "--template", str(template.path)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return
    # The CLI prints all findings as a list on one line.
    for line in (done.stdout + done.stderr).splitlines():
        line = re.sub(r"^\[(\[.*)\]$", r"\1", line.strip())
        if line and not line.startswith("Error: Linting failed"):
            yield from re.split(r", (?=\[[EWI]\d{4}: )", line)


def translate(template):
    """Translates the template to CloudFormation. The translator accepts only code in S3; the
    location of the code changes nothing else, so a placeholder is enough."""
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator
    from samtranslator.yaml_helper import yaml_parse

    body = yaml_parse(template.text)
    for resource in body["Resources"].values():
        for kind, place in ((FUNCTION, "CodeUri"), ("AWS::Serverless::LayerVersion", "ContentUri")):
            if isinstance(resource, dict) and resource.get("Type") == kind:
                properties = resource.setdefault("Properties", {})
                if "InlineCode" not in properties and "ImageUri" not in properties:
                    properties[place] = "s3://bucket/key"
    return Translator({}, Parser()).translate(body, {})


def translation(template, result):
    from samtranslator.model.exceptions import InvalidDocumentException

    try:
        result.update(translate(template))
    except InvalidDocumentException as error:
        for cause in error.causes:
            yield cause.message


def cfn_lint(result):
    from cfnlint.api import ManualArgs, lint

    if not result:
        yield "there is no translation to check"
        return
    # I3042 reports ARNs without a partition variable; the translator itself writes such ARNs.
    config = ManualArgs(include_checks=["I"], ignore_checks=["I3042"], regions=["us-east-1"])
    for match in lint(json.dumps(result, indent=1), config=config):
        path = ".".join(str(step) for step in getattr(match, "path", None) or [])
        yield f"{match.rule.id} {path}: {match.message}"


def code_folders(template):
    shared = ((template.body.get("Globals") or {}).get("Function") or {}).get("CodeUri")
    for name, resource, properties in template.resources(FUNCTION):
        if "InlineCode" in properties or "ImageUri" in properties:
            continue
        for code in template.values(properties.get("CodeUri", shared)):
            if code is None:
                yield f"{name}: CodeUri is missing"
            elif not code.startswith("s3://"):
                folder = template.path.parent / code
                built = (resource.get("Metadata") or {}).get("BuildMethod")
                if not folder.is_dir():
                    yield f"{name}: CodeUri {code} is not a folder beside the template"
                elif built == "rust-cargolambda" and not (folder / "Cargo.toml").is_file():
                    yield f"{name}: CodeUri {code} has no Cargo.toml"


def schedule_fault(text, dates):
    """Returns the error in a schedule expression, or None. `dates` allows at(), which only
    EventBridge Scheduler supports."""
    if rate := re.fullmatch(r"rate\((\d+) (minute|hour|day)(s?)\)", str(text)):
        number, unit, plural = int(rate[1]), rate[2], bool(rate[3])
        if number == 0:
            return "a rate must be 1 or more"
        if (number == 1) == plural:
            return f"write {number} {unit}{'' if number == 1 else 's'}"
        return None
    if cron := re.fullmatch(r"cron\((.*)\)", str(text)):
        fields = cron[1].split(" ")
        if len(fields) != 6:
            return "cron takes six fields: minutes, hours, day of month, month, day of week, year"
        names = "JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC", "SUN|MON|TUE|WED|THU|FRI|SAT"
        kinds = [
            ("minutes", 0, 59, None, ""),
            ("hours", 0, 23, None, ""),
            ("day of month", 1, 31, None, r"\?|L|LW|\d+W"),
            ("month", 1, 12, names[0], ""),
            ("day of week", 1, 7, names[1], r"\?|L|[1-7]L|[1-7]#[1-5]"),
            ("year", 1970, 2199, None, ""),
        ]
        for field, (what, low, high, words, special) in zip(fields, kinds):
            one = rf"(?:\d+{'|' + words if words else ''})"
            item = rf"(?:\*|{one}(?:-{one})?)(?:/\d+)?"
            in_form = re.fullmatch(rf"{item}(?:,{item})*", field, re.IGNORECASE)
            if not in_form and not (special and re.fullmatch(special, field)):
                return f"{what} cannot be {field}"
            numbers = [int(number) for number in re.findall(r"(?<![/\d#])\d+", field)]
            if any(not low <= number <= high for number in numbers):
                return f"{what} must be {low} to {high}"
        if (fields[2] == "?") == (fields[4] == "?"):
            return "exactly one of day of month and day of week must be ?"
        return None
    if dates and re.fullmatch(r"at\(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\)", str(text)):
        return None
    return "write rate(5 minutes) or cron(0 12 * * ? *)" + (" or at(2030-01-31T12:00:00)" if dates else "")


def schedules(template):
    found = []
    for name, kind, properties in template.events("Schedule", "ScheduleV2"):
        key = "Schedule" if kind == "Schedule" else "ScheduleExpression"
        found.append((name, properties.get(key), kind == "ScheduleV2"))
    for name, _, properties in template.resources("AWS::Events::Rule"):
        if "ScheduleExpression" in properties:
            found.append((name, properties["ScheduleExpression"], False))
    for name, _, properties in template.resources("AWS::Scheduler::Schedule"):
        found.append((name, properties.get("ScheduleExpression"), True))
    for name, expression, dates in found:
        for text in template.values(expression):
            if fault := schedule_fault(text, dates):
                yield f"{name}: {text}: {fault}"


def queue_batches(template):
    found = [(name, properties) for name, _, properties in template.events("SQS")]
    for name, _, properties in template.resources("AWS::Lambda::EventSourceMapping"):
        if template.is_queue(properties.get("EventSourceArn")):
            found.append((name, properties))
    for name, properties in found:
        sizes = [int(size) for size in template.values(properties.get("BatchSize", 10))]
        windows = [int(window) for window in template.values(properties.get("MaximumBatchingWindowInSeconds", 0))]
        if max(sizes, default=0) > 10 and 0 in windows:
            yield f"{name}: BatchSize {max(sizes)} needs MaximumBatchingWindowInSeconds of 1 or more"


def stages(template):
    """Checks the parameter files of the stages against the parameters of the template."""
    from samtranslator.yaml_helper import yaml_parse

    parameters = template.body.get("Parameters") or {}
    for path in sorted((template.path.parent / "infra" / "stages").glob("*.yaml")):
        given = yaml_parse(path.read_text(encoding="utf-8"))
        if given.get("Stage") != path.stem:
            yield f"{path.name}: Stage is not {path.stem}"
        for name, value in given.items():
            about = parameters.get(name)
            if about is None:
                yield f"{path.name}: the template has no parameter {name}"
            elif not isinstance(value, str):
                yield f"{path.name}: {name} must be text: CloudFormation accepts nothing else"
            elif "AllowedValues" in about and value not in [str(allowed) for allowed in about["AllowedValues"]]:
                yield f"{path.name}: {name} cannot be {value}"
            elif "AllowedPattern" in about and not re.search(about["AllowedPattern"], value):
                yield f"{path.name}: {name} does not match {about['AllowedPattern']}"
            elif about["Type"] == "Number" and not (
                float(about.get("MinValue", "-inf")) <= float(value) <= float(about.get("MaxValue", "inf"))
            ):
                yield f"{path.name}: {name} is out of range"


def dockerfile(template):
    """Lints the Dockerfile beside the template with hadolint."""
    path = template.path.parent / "Dockerfile"
    if not path.is_file():
        return
    bin = Path(sys.executable).parent
    # Settings of the user could switch rules off.
    done = subprocess.run(
        [bin / "hadolint", "--no-color", "--failure-threshold", "style", path],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=bin, env={"HOME": str(bin)},
    )
    if done.returncode != 0:
        found = [line.replace(str(path), path.name) for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        yield from found or [f"hadolint failed with code {done.returncode}"]


def deploy_guide(template):
    """Checks what docs/deploy.md says about parameters, outputs, and the resources that remain
    after the stack is deleted."""
    path = template.path.parent / "docs" / "deploy.md"
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8")
    section = text.split("## 2. ", 1)[-1].split("## 3. ", 1)[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    for name in {name for row in rows for name in re.findall(r"`(\w+)`", row)} - set(template.body.get("Parameters") or {}):
        yield f"{path.name}: the template has no parameter {name}"
    for name in set(re.findall(r"\$\(output (\w+)\)", text)) - set(template.body.get("Outputs") or {}):
        yield f"{path.name}: the template has no output {name}"
    for kind, key, loop in (("AWS::DynamoDB::Table", "TableName", "table"), ("AWS::SecretsManager::Secret", "Name", "secret")):
        told = re.search(rf"^for {loop} in (.*); do$", text, re.MULTILINE)
        told = set(told[1].split()) if told else set()
        # Resources that are deleted with the stack need no entry in the teardown, and no name.
        kept = [properties for _, resource, properties in template.resources(kind) if resource.get("DeletionPolicy") != "Delete"]
        names = {properties[key]["Fn::Sub"].removeprefix("umavez-${Stage}-") for properties in kept}
        for name in sorted(names - told):
            yield f"{path.name}: the teardown does not delete the {loop} {name}"
        for name in sorted(told - names):
            yield f"{path.name}: the teardown deletes the {loop} {name}, which is not in the template"


def main():
    path = Path(sys.argv[1]).resolve()
    try:
        template = Template(path)
    except Exception as error:  # any exception of the parser is about the file
        print(f"FAIL  {path.name} cannot be read: {error}")
        return 1
    result = {}
    checks = [
        ("sam validate --lint", lambda: sam_validate(template)),
        ("translation to CloudFormation", lambda: translation(template, result)),
        ("cfn-lint on the translation", lambda: cfn_lint(result)),
        ("code folders", lambda: code_folders(template)),
        ("schedule expressions", lambda: schedules(template)),
        ("queue batches", lambda: queue_batches(template)),
        ("parameter files of the stages", lambda: stages(template)),
        ("Dockerfile", lambda: dockerfile(template)),
        ("deploy guide", lambda: deploy_guide(template)),
    ]
    total = 0
    for name, check in checks:
        try:
            findings = list(check())
        except Exception as error:  # an unexpected structure is a finding, never a pass
            findings = [f"{type(error).__name__}: {error}"]
        print(f"{'FAIL' if findings else 'ok  '}  {name}", flush=True)
        for finding in findings:
            print(f"      {finding}", flush=True)
        total += len(findings)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
