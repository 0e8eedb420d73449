"""The models in files of this machine (`local:FILE.gguf`): each gets a server of llama.cpp in this
process, which listens on a local port with a key that nobody else has.

To the rest of the gateway they are models at an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from ..errors import ConfigError, ModelError
from ..models.llama_cpp import start_server
from .config import LOCAL, GatewayConfig, ServedModel

KEY_VARIABLE = "REDRAFT_LOCAL_KEY"


@dataclass(frozen=True, slots=True)
class ModelFileServer:
    """A server and the key that it asks for."""

    server: Any
    key: str

    @property
    def url(self) -> str:
        return f"{self.server.listening_address}/v1"


class LocalServers:
    """The servers of one gateway. They end with it: `close`."""

    def __init__(self) -> None:
        self._servers: dict[tuple[str, int | None], ModelFileServer] = {}

    def start(
        self, config: GatewayConfig, env: Mapping[str, str]
    ) -> tuple[GatewayConfig, Mapping[str, str]]:
        """Return the configuration with the addresses of its local models, and the environment with
        their keys.

        Models that do not run yet are loaded, which blocks. Raises ConfigError for one that cannot
        be.
        """
        models = dict(config.models)
        keys: dict[str, str] = {}
        for name, model in config.models.items():
            if model.url.startswith(LOCAL):
                found, variable = self._server(model), f"{KEY_VARIABLE}_{len(keys)}"
                keys[variable] = found.key
                models[name] = replace(model, url=found.url, key_env=variable)
        return (replace(config, models=models), {**env, **keys}) if keys else (config, env)

    def _server(self, model: ServedModel) -> ModelFileServer:
        path = model.url.removeprefix(LOCAL)
        place = path, model.context_window
        if place not in self._servers:
            key = token_hex(32)
            try:
                server = start_server(Path(path), model.context_window or 0, key=key)
            except ModelError as error:
                raise ConfigError(f"models.{model.name}: {error}") from None
            self._servers[place] = ModelFileServer(server, key)
        return self._servers[place]

    def close(self) -> None:
        """Free all models once their calls have ended. Blocks."""
        self._servers.clear()
