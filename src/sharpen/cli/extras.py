"""The installed packages and the requirements of each feature, from package metadata: nothing is imported."""

import re
import sys
from importlib import metadata

import msgspec

from .._version import __version__
from .findings import Finding

FEATURES = {
    "llm": "fine-tuning and serving language models (SFT, GRPO, sharpen serve)",
    "rl": "training policies in simulators",
    "demo": "a small language model to try things with",
    "dashboard": "sharpen dashboard",
    "apo": "APO: a model improves prompts",
    "gepa": "GEPA: prompts improved by reflection and evolution",
    "prompts": "Jinja and POML templates",
    "postgres": "stores in PostgreSQL",
    "redis": "stores in Redis",
    "ray": "runners on a Ray cluster",
    "parquet": "Parquet data sets and exports",
    "mcp": "sharpen mcp",
    "otel": "traces of the OpenAI client, export to OpenTelemetry",
    "agentops": "traces with AgentOps",
    "langchain": "agents written with LangChain",
    "litellm": "models of other providers through the gateway",
    "plot": "plots of metrics",
    "tensorboard": "metrics to TensorBoard",
    "wandb": "metrics to Weights & Biases",
    "mlflow": "metrics to MLflow",
}
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(\[[^]]*\])?\s*([^;]*);?\s*(.*)")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w.-]+)['\"]")
_LEAST = re.compile(r">=\s*([\d.]+)")


class Package(msgspec.Struct, frozen=True):
    name: str
    wanted: str
    installed: str | None

    @property
    def is_fine(self) -> bool:
        return self.installed is not None and not self._is_old

    @property
    def _is_old(self) -> bool:
        least = _LEAST.search(self.wanted)
        return least is not None and _numbers(self.installed or "") < _numbers(least[1])

    @property
    def words(self) -> str:
        if self.installed is None:
            return self.name
        return f"{self.name} ({self.installed} is older than {self.wanted})"


class Extra(msgspec.Struct, frozen=True):
    """A group of packages that a feature needs."""

    extra: str
    feature: str
    packages: list[Package]
    is_installed: bool
    command: str | None
    """The command that installs it, if something is missing."""

    @property
    def needs(self) -> str:
        missing = ", ".join(each.words for each in self.packages if not each.is_fine)
        return f"needs {missing}"


def extras() -> list[Extra]:
    """Return every feature with its packages, the most popular first; none if Sharpen is not installed as a package."""
    try:
        wanted = _requirements()
    except metadata.PackageNotFoundError:
        return []
    return [_extra(name, packages) for name in FEATURES if (packages := wanted.get(name))]


def core_findings() -> list[Finding]:
    """Check Python, Sharpen, and the packages that it requires."""
    version = ".".join(map(str, sys.version_info[:3]))
    is_new = sys.version_info >= (3, 11)
    return [
        Finding(
            "Python",
            "ok" if is_new else "broken",
            f"{version}, {sys.executable}",
            _unless(is_new, "use Python 3.11 or newer"),
        ),
        *_sharpen_findings(),
    ]


def _sharpen_findings() -> list[Finding]:
    try:
        packages = _requirements().get("", [])
    except metadata.PackageNotFoundError:
        text = f"{__version__}, not installed as a package, so its requirements are unknown"
        return [Finding("Sharpen", "note", text, "install Sharpen with pip, so that its features can be checked")]
    missing = [each.words for each in packages if not each.is_fine]
    command = f"pip install {' '.join(repr(each.name + each.wanted) for each in packages if not each.is_fine)}"
    found = f"missing: {', '.join(missing)}" if missing else f"{len(packages)} of {len(packages)} installed"
    return [
        Finding("Sharpen", "ok", __version__),
        Finding("its packages", "broken" if missing else "ok", found, _unless(not missing, command)),
    ]


def _unless(is_fine: bool, advice: str) -> str | None:
    return None if is_fine else advice


def _extra(name: str, packages: list[Package]) -> Extra:
    is_installed = all(each.is_fine for each in packages)
    command = None if is_installed else f"pip install 'sharpen[{name}]'"
    return Extra(name, FEATURES[name], packages, is_installed, command)


def _requirements() -> dict[str, list[Package]]:
    """Return the requirements by extra, those of Sharpen itself under an empty name."""
    found: dict[str, list[Package]] = {}
    for text in metadata.requires("sharpen") or ():
        parsed = _REQUIREMENT.fullmatch(text)
        if parsed is None:
            continue
        extra = _EXTRA.search(parsed[4])
        if extra is None and "platform_" in parsed[4] and sys.implementation.name != "cpython":
            continue
        found.setdefault(extra[1] if extra else "", []).append(_package(parsed[1], parsed[3].strip()))
    return found


def _package(name: str, wanted: str) -> Package:
    try:
        installed: str | None = metadata.version(name)
    except metadata.PackageNotFoundError:
        installed = None
    return Package(name, wanted, installed)


def _numbers(version: str) -> list[int]:
    """Return the leading numbers of a version, which is enough for a minimum version."""
    return [int(each) for each in re.findall(r"\d+", version.partition("+")[0])[:3]]
