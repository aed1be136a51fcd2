"""What looks like a secret, by its name or by its form: one rule for everything that is shown or saved.

`max_tokens`, `token_len` and `eos_token` count or name tokens of a model, and are not secrets.
"""

import json
import re
import reprlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, urlsplit

HIDDEN = "***"
MAX_SHOWN = 80

# Anywhere in a name. Headers are hidden as a whole: any of them may hold a credential.
_OPENS = re.compile(r"passw|secret|credential|authorization|bearer|cookie|headers", re.IGNORECASE)
_KEY = re.compile(r"(api|access|private|signing|encryption|master|account|ssh)[-_. ]?keys?(?![a-z])", re.IGNORECASE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_TOKEN = {"token", "tokens"}
# Next to one of these words, a token is one of a model: they count tokens, or say where in a text they are.
_OF_MODELS = re.compile(
    r"max|min|num|n|len|length|lens|limit|limits|count|counts|per|id|ids|idx|index|budget|rate|usage|total|avg|"
    r"mean|level|loss|prob|probs|logprob|logprobs|mask|masks|batch|type|types|weight|weights|ratio|fraction|"
    r"penalty|size|input|output|prompt|response|completion|generated|new|cached|cache|reasoning|thinking|"
    r"sampled|price|cost|mode|pad|eos|bos|unk|sep|cls|stop|start|begin|end|first|last|special|extra|added|"
    r"draft|image|audio"
)

_NAMED = re.compile(r"(?<![\w-])([A-Za-z_][\w-]*+)['\"]?\s*[=:]\s*")
# What is not a plain value is hidden to the end of the text.
_VALUE = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?:(?:bearer|basic|token)\s+)?[\w.+/*-]+(?=[\s,&)\]}'"]|$)|.*""",
    re.IGNORECASE | re.DOTALL,
)
_NUMBER = re.compile(r"[-+]?[0-9][0-9_]{0,8}(?:\.[0-9]+)?$|true$|false$|none$|null$", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+(?=@)")
# In a query a key is often just named `key`, and a signature is a credential too.
_URL_KEYS = ("key", "sig", "signature", "code")
_URL_FIELD = re.compile(r"(?<=[?&])((?:key|sig|signature|code)=)[^&\s'\"#]+", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(?<=[?&])([^=&]*passw[^=&]*=)[^&]*", re.IGNORECASE)
_OF_REQUESTS = re.compile(r"headers|query|params", re.IGNORECASE)
ENV_PREFIX = "env:"
REFERENCE = re.compile(rf"{ENV_PREFIX}(\w+)")
_BEARER = re.compile(r"\b(bearer\s+)[\w.+/=~-]+", re.IGNORECASE)
# The forms of keys that services issue.
_FORM = re.compile(r"\b((?:sk|pk|rk|hf|gsk|xai|nvapi|ghp)[-_]|AIza)(?=[\w-]*[0-9])[\w-]{16,}")


class _Known:
    """The values to hide, with the number of users of each: runs in several threads may hide the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: Counter[tuple[str, str]] = Counter()
        self.replacements: tuple[tuple[str, str], ...] = ()
        """For every form of every value, the longest first. It is never changed, only replaced as a whole."""

    def change(self, secrets: Mapping[str, str], by: int) -> None:
        with self._lock:
            for pair in secrets.items():
                self._users[pair] += by
                if not self._users[pair]:
                    del self._users[pair]
            forms = {form: text for value, text in self._users for form in _forms(value)}
            self.replacements = tuple(sorted(forms.items(), key=lambda pair: len(pair[0]), reverse=True))

    def values(self) -> dict[str, str]:
        with self._lock:
            return dict(self._users.keys())


_known = _Known()


@contextmanager
def hiding(secrets: Mapping[str, str]) -> Iterator[None]:
    """Hide these values in logs and results during the block, also in processes started meanwhile.

    Each maps to the text that replaces it. Several threads may do so at once, each with its own values.
    """
    secrets = dict(secrets)
    _known.change(secrets, 1)
    try:
        yield
    finally:
        _known.change(secrets, -1)


def remember_secrets(secrets: Mapping[str, str]) -> None:
    """Hide these values too, until this process ends."""
    _known.change(secrets, 1)


def _forms(value: str) -> set[str]:
    """Return a secret as it is, with plain line ends, and as Python and JSON write it."""
    written = {repr(value), json.dumps(value), json.dumps(value, ensure_ascii=False)}
    return {value, value.replace("\r\n", "\n"), *(each[1:-1] for each in written)} - {""}


def known_secrets() -> dict[str, str]:
    """Return the values that are being hidden, for the children of this process."""
    return _known.values()


def hide_known(text: str) -> str:
    """Return the text without the values that are being hidden."""
    for form, replacement in _known.replacements:
        text = text.replace(form, replacement)
    return text


def looks_secret(name: str, value: object = None) -> bool:
    """Whether the value of this name must not be shown. A bool never is a secret, nor is a number whose name only
    mentions tokens."""
    if isinstance(value, bool):
        return False
    if _OPENS.search(name) or _KEY.search(name):
        return True
    words = _WORD.findall(name)
    # The end of an environment variable, such as OPENAI_KEY; in lower case it is a sort_key.
    if words and words[-1] in ("KEY", "KEYS"):
        return True
    lower = [word.lower() for word in words]
    if "auth" in lower:
        return True
    if isinstance(value, int | float) or not _TOKEN.intersection(lower):
        return False
    return not any(_OF_MODELS.fullmatch(word) for word in lower)


def hidden_password(url: str) -> str:
    """Return the address of a database without its password.

    A password with an `@`, a `/` or a `?` in it should be quoted and often is not, so all up to the last `@` counts.
    """
    scheme, sign, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    hidden = f"{scheme}{sign}{user}:{HIDDEN}@{place}" if colon else f"{scheme}{sign}{login}{at}{place}"
    return _URL_PASSWORD.sub(rf"\g<1>{HIDDEN}", hidden)


def secret_in_url(url: str) -> str | None:
    """Return the name of the secret in a URL (a login, or a field of the query) without its value, or None."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL
        return None
    if "@" in parts.netloc:
        return "a login"
    fields = parse_qsl(parts.query)
    return next((f"{name}=" for name, value in fields if name.lower() in _URL_KEYS or looks_secret(name, value)), None)


def secrets_in(values: object) -> Iterator[str]:
    """Yield the places of secrets in nested values, such as `['extra_headers']['X-Api-Key']`.

    A reference such as `env:NAME` is not a secret.
    """
    found: list[str] = []

    def note(place: str, text: str) -> str:
        if not REFERENCE.fullmatch(text):
            found.append(place)
        return text

    map_secrets(values, note)
    return iter(found)


def map_secrets(
    values: Any, change: Callable[[str, str], str], path: str = "", *, under: str = "", is_secret: bool = False
) -> Any:
    """Return a copy of nested values in which `change(place, text)` replaces each secret.

    Only a text is a secret, by its form or by its name. (A dict with such a name describes a value, as in the schema of
    a tool.)
    """
    if isinstance(values, Mapping):
        return {
            name: map_secrets(value, change, f"{path}[{name!r}]", under=str(name), is_secret=_is_secret(name, under))
            for name, value in values.items()
        }
    if isinstance(values, list | tuple):
        found = [
            map_secrets(value, change, f"{path}[{number}]", under=under, is_secret=is_secret)
            for number, value in enumerate(values)
        ]
        return tuple(found) if isinstance(values, tuple) else found
    if isinstance(values, str) and values and (is_secret or _FORM.search(values) or _BEARER.search(values)):
        return change(path, values)
    return values


def _is_secret(name: object, under: str) -> bool:
    words = [word.lower() for word in _WORD.findall(str(name))]
    if _OF_REQUESTS.search(under) and words and words[-1] in _URL_KEYS and "idempotency" not in words:
        return True
    return looks_secret(str(name), "")


def without_secrets(text: str) -> str:
    """Return the text with secrets hidden: after `api_key=`, in a URL, or by their form."""
    text = _BEARER.sub(rf"\g<1>{HIDDEN}", _URL_LOGIN.sub(HIDDEN, _without_named(text)))
    return _FORM.sub(rf"\g<1>{HIDDEN}", _URL_FIELD.sub(rf"\g<1>{HIDDEN}", text))


def _without_named(text: str) -> str:
    parts, at = [], 0
    for name in _NAMED.finditer(text):
        if name.start() < at or not looks_secret(name[1]):
            continue
        value = _VALUE.match(text, name.end())
        if value is None or (_NUMBER.match(value[0]) and not looks_secret(name[1], 1)):
            continue
        parts += [text[at : name.end()], HIDDEN]
        at = value.end()
    return "".join([*parts, text[at:]])


# -- values in messages ------------------------------------------------------------------------------


def shown(value: object) -> str:
    """Return the repr of a value on one line, cut to `MAX_SHOWN` characters.

    A value whose key looks like a secret is never shown, not even in part: hiding comes before cutting.
    """
    text = without_secrets(_HidingRepr().repr(value))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


class _HidingRepr(reprlib.Repr):
    """The repr of any object, also of one whose `__repr__` fails, with secrets in dicts hidden."""

    def __init__(self) -> None:
        super().__init__()
        # Far above MAX_SHOWN: a text cut in its middle could lose the key and keep the secret.
        self.maxstring = self.maxother = 10_000

    def repr_dict(self, x: Mapping[object, object], level: int) -> str:
        if level <= 0:
            return "{...}"
        return "{" + ", ".join(self._pair(key, value, level - 1) for key, value in islice(x.items(), MAX_SHOWN)) + "}"

    def _pair(self, key: object, value: object, level: int) -> str:
        return f"{self.repr1(key, level)}: {HIDDEN if looks_secret(str(key), value) else self.repr1(value, level)}"
