"""`Refusal`: a request that is not answered as asked, and how that is said in OpenAI's words."""

import msgspec

RawHeaders = list[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder().encode
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


class Refusal(Exception):
    """`param` names the field that is at fault, `code` the reason in a word that programs can compare."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    @property
    def body(self) -> bytes:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return _encode({"error": error})

    @property
    def headers(self) -> RawHeaders:
        """What was wrong stays wrong, so SDKs shall not try again; a server that stops may be back soon."""
        found: RawHeaders = [(b"content-type", b"application/json")]
        if self.status < 500 and self.status not in (408, 409, 429):
            found.append((b"x-should-retry", b"false"))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        return found


def wrong(param: str, message: str, *, code: str | None = "invalid_value") -> Refusal:
    """A field with a value that cannot be."""
    return Refusal(400, message, code=code, param=param)


def stopping() -> Refusal:
    return Refusal(503, "the server is being stopped: nothing more is sampled here", code="server_stopped")
