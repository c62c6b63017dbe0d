"""`make audit`: do the installed packages, at the versions of `constraints.txt`, have known vulnerabilities?

pip-audit asks a service on the network. A known vulnerability fails. A service that cannot be reached, or that knows
none of the packages, is reported without failing. Anything else that goes wrong fails.

python tools/audit.py [OPTION OF pip-audit…]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any, NamedTuple

COMMAND = ("-m", "pip_audit", "--local", "--skip-editable", "--progress-spinner", "off", "--timeout", "5", "-f", "json")
# The last line of what pip-audit says when nobody answers: its own words, or those of the library it asks with.
UNREACHED = re.compile(
    r"could not connect|ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError", re.IGNORECASE
)


class Verdict(NamedTuple):
    fails: bool
    message: str


def judge(code: int, output: str, errors: str) -> Verdict:
    """What pip-audit's exit code, JSON and messages come to."""
    try:
        found = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (errors.strip().splitlines() or ["nothing was said"])[-1][:300]
        if UNREACHED.search(last):
            return Verdict(False, f"warning: no audit: the service that knows of flaws could not be reached ({last})")
        return Verdict(True, f"pip-audit ended with {code}: {last}")
    asked = [entry for entry in found if "skip_reason" not in entry]
    flawed = [entry for entry in asked if entry["vulns"]]
    if flawed:
        return Verdict(True, "\n".join(map(_flaw, flawed)))
    if not asked:
        return Verdict(False, f"warning: no audit: the service could be asked for none of {len(found)} packages")
    if code != 0:
        return Verdict(True, f"pip-audit ended with {code}, though it names no flaw")
    unknown = ", ".join(entry["name"] for entry in found if "skip_reason" in entry)
    return Verdict(
        False, f"no flaw is known of {len(asked)} packages" + (f"; not looked up: {unknown}" if unknown else "")
    )


def _flaw(entry: dict[str, Any]) -> str:
    flaws = [
        f"{flaw['id']} (fixed in {', '.join(flaw['fix_versions']) or 'no version yet'})" for flaw in entry["vulns"]
    ]
    return f"{entry['name']} {entry['version']}: {'; '.join(flaws)}"


def main() -> int:
    done = subprocess.run([sys.executable, "-P", *COMMAND, *sys.argv[1:]], capture_output=True, text=True, check=False)
    verdict = judge(done.returncode, done.stdout, done.stderr)
    print(f"audit: {verdict.message}", file=sys.stderr if verdict.fails else sys.stdout)
    return 1 if verdict.fails else 0


if __name__ == "__main__":
    sys.exit(main())
