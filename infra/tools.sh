# Installs Python tools into .venv at the versions that a requirements file pins. The scripts in
# this folder source this file. Needs no AWS account and reads no credentials; only pip uses the
# network.

venv=$root/.venv

die() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

# Ignore the AWS account and the Python settings of the shell.
for name in $(compgen -e); do
  case $name in AWS_* | PYTHONHOME | PYTHONPATH) unset "$name" ;; esac
done

installed() {
  "$venv/bin/python" - "$1" >/dev/null 2>&1 <<'PYTHON'
import sys
from importlib.metadata import version

pins = [line.split("==") for line in open(sys.argv[1]).read().split()]
sys.exit(any(version(name) != pinned for name, pinned in pins))
PYTHON
}

new_venv() {
  local log
  command -v python3 >/dev/null || die "python3 is missing; 3.10 or later is needed"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "$(python3 --version) is too old; 3.10 or later is needed"
  if ! log=$(python3 -m venv --clear "$venv" 2>&1); then
    rm -rf "$venv"
    case $log in
      *ensurepip* | *"No module named venv"*) die "python3 -m venv does not work here; on Debian and Ubuntu: apt-get install python3-venv" ;;
      *) die "python3 -m venv failed: $(tail -n 1 <<<"$log")" ;;
    esac
  fi
}

# need_tools FILE…: installs the tools that these requirements files pin into .venv, if missing.
need_tools() {
  local requirements
  for requirements in "$@"; do
    installed "$requirements" && continue
    echo "Installing $(paste -sd ' ' "$requirements") into .venv"
    "$venv/bin/python" -c '' 2>/dev/null || new_venv
    "$venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check -r "$requirements" </dev/null ||
      die "pip could not install $requirements"
    installed "$requirements" || die "pip finished, but .venv does not have the versions of $requirements"
  done
}

# Keeps the SAM CLI's state in .venv. The CLI checks for a new version over the network once a week;
# a last check in the future prevents that.
quiet_sam() {
  mkdir -p "$venv/sam"
  echo '{"lastVersionCheck": 4102444800.0, "telemetryEnabled": false}' >"$venv/sam/metadata.json"
  export __SAM_CLI_APP_DIR=$venv/sam SAM_CLI_TELEMETRY=0
  export AWS_DEFAULT_REGION=us-east-1 AWS_EC2_METADATA_DISABLED=true
  export AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null
}
