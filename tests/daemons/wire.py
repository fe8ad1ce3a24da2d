"""Just enough of our protocols, by hand, to say what no library of ours would say."""

import os
import socket
import struct

from harness import expect

# ---- protobuf ----


def varint(number):
    out = bytearray()
    while True:
        byte = number & 0x7F
        number >>= 7
        out.append(byte | (0x80 if number else 0))
        if not number:
            return bytes(out)


def field(number, value):
    """A field of a message: bytes and text are length-delimited, numbers varints."""
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def parse(data):
    """{field number: last value} of one message; bytes stay bytes."""
    found, at = {}, 0

    def take():
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(data):
        tag = take()
        value = take()
        if tag & 7 == 2:
            value, at = data[at:at + value], at + value
        found[tag >> 3] = value
    return found


# ---- engine.sock ----


class EngineSocket:
    """One connection to engine.sock; what is sent need not make sense."""

    def __init__(self, daemon):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20)
        run_dir = os.open(f"{daemon.directory}/run", os.O_PATH)  # a path of any length fits so
        try:
            self.socket.connect(f"/proc/self/fd/{run_dir}/engine.sock")
        finally:
            os.close(run_dir)
        self.next_id = 0

    def request(self, kind, body=b""):
        """EngineRequest {id, oneof kind}"""
        self.next_id += 1
        return field(1, self.next_id) + field(kind, body)

    def register(self, version=1):
        return self.request(2, field(1, version) + field(2, "by hand"))

    def send(self, packet):
        self.socket.send(packet)

    def send_with_descriptor(self, packet):
        with open("/dev/null", "rb") as file:
            self.socket.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", file.fileno()))])

    def reply(self):
        packet, control, _, _ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(253 * 4))
        expect(packet != b"", "the daemon ended the connection instead of answering")
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                for (descriptor,) in struct.iter_unpack("i", data):
                    os.close(descriptor)
        fields = parse(packet)
        return {"id": fields.get(1, 0), "code": fields.get(2, 0), "message": fields.get(3, b"").decode(), "fields": fields}

    def is_ended(self):
        """The daemon ends the connection; answers before that are skipped."""
        try:
            while self.socket.recv(1 << 16):
                pass
            return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self):
        self.socket.close()


# ---- HTTP/2 as gRPC uses it ----

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
MAX_FRAME = 16384
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name, value):
    """A literal header, not indexed, without Huffman's code."""
    def text(word):
        expect(len(word) < 127, "a header that needs a longer length")
        return bytes([len(word)]) + word.encode()

    return b"\x00" + text(name) + text(value)


def call(path, messages=(), stream=1, end=False):
    """The bytes of one gRPC call, from the connection's preface on: at most 64 KiB of messages, the first window."""
    headers = b"".join(
        header(name, value)
        for name, value in ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
                            ("te", "trailers"), ("content-type", "application/grpc")))
    out = PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, 4, stream, headers)
    for message in messages:
        data = b"\0" + struct.pack(">I", len(message)) + message
        for at in range(0, len(data), MAX_FRAME):
            out += frame(DATA, 0, stream, data[at:at + MAX_FRAME])
    return out + (frame(DATA, 1, stream, b"") if end else b"")


class LongCall:
    """One gRPC call whose messages may be long: in frames, as far as the server's windows go."""

    def __init__(self, connection, path):
        self.socket = connection
        self.window = {0: 65535, 1: 65535}  # of the connection, of the stream
        self.initial, self.ended, self.unread = 65535, False, b""
        connection.settimeout(10)
        connection.sendall(call(path))

    def say(self, message, claimed=None):
        """False: the server has ended the call, and did not want all of it."""
        data = b"\0" + struct.pack(">I", len(message) if claimed is None else claimed) + message
        try:
            while data and not self.ended:
                size = min(MAX_FRAME, len(data), *self.window.values())
                if size <= 0:
                    self._hear()
                    continue
                self.socket.sendall(frame(DATA, 0, 1, data[:size]))
                data = data[size:]
                self.window = {stream: window - size for stream, window in self.window.items()}
        except OSError:
            self.ended = True
        return not self.ended

    def finish(self):
        """Half-close, and hear the end: the server's status has come, or the connection is gone."""
        try:
            if not self.ended:
                self.socket.sendall(frame(DATA, 1, 1, b""))
            while not self.ended:
                self._hear()
        except OSError:
            self.ended = True
        self.socket.close()

    def _take(self, size):
        while len(self.unread) < size:
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise ConnectionError
            self.unread += piece
        data, self.unread = self.unread[:size], self.unread[size:]
        return data

    def _hear(self):
        """One frame."""
        head = self._take(9)
        kind, flags, stream = head[3], head[4], struct.unpack(">I", head[5:])[0]
        payload = self._take(int.from_bytes(head[:3], "big"))
        if kind == WINDOW_UPDATE:
            self.window[stream] = self.window.get(stream, 0) + struct.unpack(">I", payload)[0]
        elif kind == SETTINGS and not flags & 1:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == 4:
                    self.window[1] += value - self.initial
                    self.initial = value
            self.socket.sendall(frame(SETTINGS, 1, 0, b""))
        elif kind == PING and not flags & 1:
            self.socket.sendall(frame(PING, 1, 0, payload))
        elif kind in (RST_STREAM, GOAWAY) or (kind == HEADERS and flags & 1):
            self.ended = True
