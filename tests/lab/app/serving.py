"""The explorer's server in a thread of the test, and plain requests to it."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import quote

from croc.config import ClusterConfig
from croc.lab.app import open_port
from croc.lab.app.explorer import Explorer
from croc.lab.show.look import Look
from croc.weights.checkpoint import untrained
from tests.data.pictures import encode, noise
from tests.tiny import tiny_config

BOXES = [[10, 20, 200, 180], [120, 100, 220, 240]]
NO_ORIGIN = "none"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    server: Any
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """With the page's own origin, unless `headers` has another; NO_ORIGIN leaves it out."""
        headers = {"Origin": self.url} | (headers or {})
        headers = {name: value for name, value in headers.items() if value != NO_ORIGIN}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())

    def ask(self, name: str, **changes: Any) -> Answer:
        fields = {"model": 0, "picture": "scene-0", "boxes": BOXES}
        return self.request("POST", f"/api/{name}", json.dumps(fields | changes))

    def upload(self, data: bytes, name: str = "a.png") -> Answer:
        return self.request("POST", f"/api/pictures?name={quote(name, safe='')}", data)

    def is_alive(self) -> bool:
        return self.ask("clusters").status == 200


def tiny_model(name: str = "tiny", seed: int = 0, **cluster: Any) -> Look:
    """Two blocks, three heads, 4 × 4 patches of 8 px."""
    settings = replace(ClusterConfig(k_start=5), **cluster)
    config = replace(tiny_config(seed=seed), cluster=settings)
    return Look(name, config, untrained(config))


@contextmanager
def serving(*models: Look) -> Iterator[Served]:
    with listening(Explorer(models)) as served:
        yield served


@contextmanager
def listening(server: Any) -> Iterator[Served]:
    with open_port(0) as bound:
        port = bound.getsockname()[1]
        listener = server.listener()
        thread = threading.Thread(target=listener.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            while not listener.started:
                time.sleep(0.01)
            yield Served(server, port)
        finally:
            listener.should_exit = True
            thread.join(timeout=10)
            server.close()
    assert not thread.is_alive()


def encoded(kind: str = "PNG", width: int = 120, height: int = 80, **options: Any) -> bytes:
    """A picture of noise as a file's bytes."""
    return encode(noise(height, width), kind, **options)
