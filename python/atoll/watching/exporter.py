# SPDX-License-Identifier: Apache-2.0
"""Serves metrics for Prometheus over HTTP."""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

log = logging.getLogger("atoll.watch")


class Exporter:
    """One endpoint with the metrics of one collector, which the endpoint's own threads read. `asked` is what the user
    wrote, for errors. Raises ImportError without prometheus_client, and ValueError if it cannot listen on the port."""

    def __init__(
        self, collector_of: Callable[[Any], Any], port: int, asked: str, address: str = "0.0.0.0", hint: str = ""
    ) -> None:
        """`collector_of` gets prometheus_client.core, whose families the collector makes."""
        try:
            import prometheus_client as client
            from prometheus_client import core
        except ImportError as error:
            raise ImportError(
                f"{asked} needs the package prometheus_client ({error}): pip install prometheus_client"
            ) from None
        registry = client.CollectorRegistry()
        registry.register(collector_of(core))
        try:
            self._server, self._thread = client.start_http_server(port, addr=address, registry=registry)
        except OSError as error:
            raise ValueError(f"{asked} cannot listen: {error.strerror}: give a free port, or 0 for any{hint}") from None
        self.port: int = self._server.server_port
        self._process = os.getpid()
        log.info("Prometheus reads port %d", self.port)
        os.register_at_fork(after_in_child=self._server.socket.close)  # otherwise loader workers would keep the port

    def close(self) -> None:
        """Frees the port. Closing again does nothing, and neither does closing in a forked process."""
        if os.getpid() != self._process:
            return
        # Called by garbage collection on that thread, which cannot wait for itself.
        if threading.current_thread() is self._thread:
            threading.Thread(target=self.close, name="atoll-watch").start()
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
