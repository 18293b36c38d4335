"""A network that drops: a proxy for local ports that cuts all connections after a given number of bytes."""

import contextlib
import socket
import struct
import threading


_CHUNK_BYTES = 4096
# Close at once and with a reset, which is how a pulled cable ends.
_RESET = struct.pack("ii", 1, 0)


class Network:
    """Proxy between clients and servers.

    Args:
        ports (`int`): Ports of the servers; `urls` holds the address to use instead of each.
    """

    def __init__(self, *ports):
        self.carried_bytes = 0
        self.is_down = False
        self.times_down = 0
        self._drop_at_bytes = None
        self._down_s = None
        self._open = set()
        self._lock = threading.Lock()
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in ports]
        self.urls = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in self._listeners]
        for listener, port in zip(self._listeners, ports, strict=True):
            threading.Thread(target=self._accept, args=(listener, port), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.restore()
        for listener in self._listeners:
            listener.close()

    def drop(self, after_bytes, down_s=None):
        """Drop every connection after more bytes were carried, and refuse new ones.

        Args:
            after_bytes (`int`): Number of bytes, both directions together.
            down_s (`float`, *optional*): Seconds until it is restored; by default it stays down until `restore`.
        """
        with self._lock:
            self._drop_at_bytes, self._down_s = self.carried_bytes + after_bytes, down_s

    def restore(self):
        """Carry everything again."""
        with self._lock:
            self._drop_at_bytes, self.is_down = None, False

    def _accept(self, listener, port):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            # A drop may have closed it meanwhile: the client has its error then.
            with contextlib.suppress(OSError):
                self._connect(client, port)

    def _connect(self, client, port):
        server = socket.create_connection(("127.0.0.1", port))
        with self._lock:
            self._open |= {client, server}
            if self.is_down:
                self._cut()
        for source, target in ((client, server), (server, client)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                target.sendall(data[: self._count(len(data))])
            target.shutdown(socket.SHUT_WR)

    def _count(self, num_bytes):
        """Return how many of these bytes still pass; go down if those are not all."""
        with self._lock:
            if self._drop_at_bytes is not None and self.carried_bytes + num_bytes >= self._drop_at_bytes:
                num_bytes = max(self._drop_at_bytes - self.carried_bytes, 0)
                self._go_down()
            self.carried_bytes += num_bytes
            return num_bytes

    def _go_down(self):
        self.is_down, self._drop_at_bytes = True, None
        self.times_down += 1
        self._cut()
        if self._down_s is not None:
            threading.Timer(self._down_s, self.restore).start()

    def _cut(self):
        """Reset every connection that is open."""
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                connection.shutdown(socket.SHUT_RDWR)
                connection.close()
        self._open.clear()
