"""Asks a rate limit service with grpcio, whose HTTP/2 is gRPC's C core, and prints what came of it as JSON.

door.py HOST:PORT NAME [CA CERT KEY]; NAME begins every value that is counted
"""
import json
import sys
import threading

import grpc

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


def varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def request(key, value):
    """A RateLimitRequest of domain app with one descriptor of one entry."""
    entry = field(1, key.encode()) + field(2, (sys.argv[2] + value).encode())
    return field(1, b"app") + field(2, field(1, entry))


def connect(options=()):
    if len(sys.argv) == 3:
        return grpc.insecure_channel(sys.argv[1], options)
    ca, cert, key = (open(f, "rb").read() for f in sys.argv[3:6])
    creds = grpc.ssl_channel_credentials(ca, key, cert)
    return grpc.secure_channel(sys.argv[1], creds, (*options, ("grpc.ssl_target_name_override", "localhost")))


def caller(channel, method=METHOD):
    return channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)


def verdict(answer):
    """The overall code, the first field of a response."""
    return {b"\x08\x01": "OK", b"\x08\x02": "OVER_LIMIT"}.get(answer[:2], answer.hex())


def attempt(call, *args, **kw):
    try:
        return verdict(call(*args, timeout=kw.pop("timeout", 10), **kw))
    except grpc.RpcError as e:
        return e.code().name


def tally(answers):
    counts = {}
    for a in answers:
        counts[a] = counts.get(a, 0) + 1
    return counts


def concurrent(ask, n):
    futures = [ask.future(request("key", "concurrent"), timeout=20) for _ in range(n)]
    return tally(verdict(f.result()) for f in futures)


def canceled(ask, n):
    """Gives up n calls, then asks once more."""
    for _ in range(n):
        ask.future(request("key", "canceled"), timeout=20).cancel()
    return attempt(ask, request("key", "after"))


def threads(n, calls):
    """n channels at once, each with a connection of its own."""
    found, lock = [], threading.Lock()

    def run():
        with connect([("grpc.use_local_subchannel_pool", 1)]) as channel:
            answers = [attempt(caller(channel), request("key", "threads")) for _ in range(calls)]
        with lock:
            found.extend(answers)

    running = [threading.Thread(target=run) for _ in range(n)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    return tally(found)


def idle(seconds):
    return "idle" if not threading.Event().wait(seconds) else ""


def main():
    small = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    pings = [("grpc.keepalive_time_ms", 200), ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0)]
    with connect() as channel, connect(small) as tight, connect(pings) as pinging:
        ask = caller(channel)
        metadata = (("x-keyward-key", "k"), ("x-odd-bin", b"\x00\xff"), ("x-long", "v" * 5000))
        print(json.dumps({
            "five": [attempt(ask, request("three", "five")) for _ in range(5)],
            "concurrent": concurrent(ask, 500),
            "tight": concurrent(caller(tight), 500),
            "threads": threads(8, 50),
            "metadata": attempt(ask, request("key", "metadata"), metadata=metadata),
            "compressed": attempt(ask, request("key", "compressed"), compression=grpc.Compression.Gzip),
            "large": attempt(ask, request("key", "v" * 200_000)),
            "too large": attempt(ask, request("key", "v" * (17 << 20))),
            "garbage": attempt(ask, b"\xff\xff\xff"),
            "no domain": attempt(ask, b""),
            "unknown": attempt(caller(channel, "/other.Service/Method"), b""),
            "health": attempt(caller(channel, "/grpc.health.v1.Health/Check"), b""),
            "canceled": canceled(ask, 200),
            "pinging": [attempt(caller(pinging), request("key", "pinging")), idle(2), attempt(caller(pinging), request("key", "pinging"))],
        }))


main()
