"""Who may ask: only pages that this server itself gave to a browser on this machine.

A foreign page may send requests to localhost, and a foreign name may be pointed at 127.0.0.1 (DNS
rebinding). The first is told by its Origin, the second by its Host; nothing allows CORS.
"""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses other hosts and origins, and adds the headers that keep a page to itself."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        if port == 80:  # a browser then leaves it out
            self.hosts |= {"127.0.0.1", "localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            refused = self._refuse(scope["method"], Headers(scope=scope))
            await (refused or self.app)(scope, receive, _with_headers(send))

    def _refuse(self, method: str, headers: Headers) -> JSONResponse | None:
        host = headers.get("host", "").lower()
        if host not in self.hosts or len(headers.getlist("host")) != 1:
            return JSONResponse({"error": "This server answers to localhost only."}, 421)
        if method in ("GET", "HEAD") or headers.getlist("origin") == [f"http://{host}"]:
            return None
        return JSONResponse({"error": "Only this server's own page may ask for that."}, 403)


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return send_with_headers
