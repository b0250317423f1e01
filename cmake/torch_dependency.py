"""Which torch a wheel depends on, for scikit-build-core ([[tool.dynamic-metadata]] in pyproject.toml).

torch keeps its C++ interface within a minor version,
so a wheel needs the minor version that it was built against.
"""
import os
import subprocess
import sys
from typing import Any, Dict, Mapping

PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "which_torch.py")


class TorchDependency:
    def build_state(self, build_state: str) -> None:
        self._source = build_state == "sdist"

    def dynamic_wheel(self, settings: Mapping[str, Any]) -> Dict[str, bool]:
        return {"dependencies": True}

    def dynamic_metadata(self, settings: Mapping[str, Any], project: Mapping[str, Any]) -> Dict[str, Any]:
        if self._source:
            return {"dependencies": ["torch"]}
        answer = subprocess.run([sys.executable, PROBE], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                universal_newlines=True)
        if answer.returncode:
            raise SystemExit(answer.stderr.strip())
        minor = ".".join(answer.stdout.split(".", 2)[:2])
        return {"dependencies": [f"torch=={minor}.*"]}
