"""What judge_faults.py makes captures with: packets of RC queue pairs as tcpdump would have written them, and the evidence beside them."""
import struct

import judge

HOSTS = ("10.0.0.1", "10.0.1.1")
HOSTS6 = ("fd10::1", "fd10:0:1::1")
A1, A2, B1, B2 = (0, 17), (0, 18), (1, 33), (1, 34)
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY, SEND_ONLY = 0x06, 0x07, 0x08, 0x0A, 0x04
READ, FETCH_ADD, READ_FIRST, READ_LAST, READ_ONLY = 0x0C, 0x14, 0x0D, 0x0F, 0x10
ACK, ATOMIC_ACK = 0x11, 0x12
RNR_TIMER, SEQUENCE, INVALID, ACCESS, OPERATION, NO_CREDITS = 0x2E, 0x60, 0x61, 0x62, 0x63, 0x1F


def reth(length, address=0x1000, key=7):
    return struct.pack(">QII", address, key, length)


def atomic(add, compare=0):
    return struct.pack(">QIQQ", 0x2000, 7, add, compare)


def aeth(syndrome=NO_CREDITS):
    return bytes([syndrome, 0, 0, 0])


class Run:
    """A run being made up, a microsecond from packet to packet."""

    def __init__(self, base=0, six=False):
        self.base, self.six = base, six
        self.now = 1_700_000_000 * 10**9
        self.frames = {0: [], 1: []}
        self.lines = [f"host {host} {HOSTS[host]} {HOSTS6[host]}" for host in (0, 1)] + ["limit 1000"]
        self.polls = None
        self.dropped, self.received, self.captured = 0, None, None
        self.magic = b"\x4d\x3c\xb2\xa1"

    def tick(self):
        self.now += 1000
        return f"{self.now // 10**9}.{self.now % 10**9:09}"

    def line(self, text):
        self.lines.append(text)

    def connect(self, name, one, other, psns=None, ends=(0, 1)):
        psns = psns or (self.base, self.base)
        for end in ends:
            own, peer = (one, other) if end == 0 else (other, one)
            self.line(f"connect {self.tick()} {name} {own[0]} {own[1]} {peer[0]} {peer[1]} {psns[end]} {psns[1 - end]}")

    def reset(self, *places):
        for host, qpn in places:
            self.line(f"reset {self.tick()} {host} {qpn}")

    def done(self, place, count):
        self.line(f"done {self.tick()} {place[0]} {place[1]} {count}")

    def packet(self, at, source, target, place, opcode, extension=b"", payload=b"", noise=0):
        """At this host's NIC, from a host to a queue pair. `noise`: of what may change on the way, bits."""
        pad = -len(payload) % 4
        psn = (self.base + place) % 2**24
        bth = bytes([opcode, pad << 4, 0xFF, 0xFF, noise << 6]) + target[1].to_bytes(3, "big") + bytes([noise << 7]) + psn.to_bytes(3, "big")
        rest = bth + extension + payload + bytes(pad) + bytes(4)
        udp = struct.pack(">HHHH", 0xC000 + noise, 4791, 8 + len(rest), 0) + rest
        addresses = HOSTS6 if self.six else HOSTS
        ends = b"".join(judge.evidence.ipaddress.ip_address(addresses[host]).packed for host in (source, target[0]))
        if self.six:
            frame = bytes(12) + b"\x86\xdd\x60\0\0\0" + struct.pack(">HBB", len(udp), 17, 64) + ends + udp
        else:
            frame = bytes(12) + b"\x08\0\x45\0" + struct.pack(">HHHBBH", 20 + len(udp), 1, 0x4000, 64, 17, 0) + ends + udp
        self.tick()
        self.frames[at].append((self.now, frame))

    def asks(self, source, target, *packet, arrives=True, **more):
        """A request leaves its NIC, and comes to its target's."""
        self.packet(source[0], source[0], target, *packet, **more)
        if arrives:
            self.packet(target[0], source[0], target, *packet, **more)

    def gives(self, source, target, *packet, **more):
        """A target's NIC answers."""
        self.packet(source[0], source[0], target, *packet, **more)

    def hears(self, source, target, *packet, **more):
        """An answer comes to a requester's NIC."""
        self.packet(target[0], source[0], target, *packet, **more)

    def answers(self, source, target, *packet, **more):
        """Both."""
        self.gives(source, target, *packet, **more)
        self.hears(source, target, *packet, **more)

    def files(self):
        files = {"evidence": "\n".join(self.lines).encode()}
        if self.polls is not None:
            files["polls"] = "\n".join(self.polls).encode()
        for host, frames in self.frames.items():
            data = self.magic + struct.pack("<HHiIII", 2, 4, 0, 0, 128, 1)
            for time, frame in frames:
                data += struct.pack("<IIII", time // 10**9, time % 10**9, min(len(frame), 128), len(frame)) + frame[:128]
            files[f"v{host}.pcap"] = data
            captured = len(frames) if self.captured is None else self.captured
            received = len(frames) if self.received is None else self.received
            counts = ((captured, "captured"), (received, "received by filter"), (self.dropped, "dropped by kernel"))
            log = [f"listening on v{host}", *(f"{count} packets {words}" for count, words in counts)]
            files[f"v{host}.log"] = "\n".join(log).encode()
        return files


def work(fill, to_end=True):
    """WRITE of three packets (places 0 to 2), SEND (3), FetchAdd (4), READ of two (5, 6), SEND (7)."""
    packets = [
        (0, WRITE_FIRST, reth(600), bytes([fill]) * 256),
        (1, WRITE_MIDDLE, b"", bytes([fill]) * 256),
        (2, WRITE_LAST, b"", bytes([fill]) * 88),
        (3, SEND_ONLY, b"", bytes([fill]) * 8),
        (4, FETCH_ADD, atomic(fill)),
        (5, READ, reth(512)),
        (7, SEND_ONLY, b"", bytes([fill]) * 9),
    ]
    return packets if to_end else packets[:3]


RESULT = struct.pack(">Q", 40)


def begun(base=0, six=False):
    """A1 has sent all its work to B1, A2 to B2; B1 has acknowledged the first message, and A1 has heard it."""
    run = Run(base, six)
    run.connect("one", A1, B1)
    run.connect("two", A2, B2)
    for own, other, fill in ((A1, B1, 1), (A2, B2, 2)):
        for packet in work(fill):
            run.asks(own, other, *packet)
    run.answers(B1, A1, 2, ACK, aeth())
    return run


def answer_all(run, target, requester, fill, give=True, hear=True):
    """The target's NIC answers the rest of its work."""
    words = [
        (3, ACK, aeth()),
        (4, ATOMIC_ACK, aeth() + RESULT),
        (5, READ_FIRST, aeth(), bytes([fill + 5]) * 256),
        (6, READ_LAST, aeth(), bytes([fill + 6]) * 256),
        (7, ACK, aeth()),
    ]
    for word in words:
        if give:
            run.gives(target, requester, *word)
        if hear:
            run.hears(target, requester, *word)


def anew(run, name="three", fill=1, pairs=((A1, B1),)):
    """Both ends are reset and connected again, and all work is sent again."""
    for own, other in pairs:
        run.reset(own, other)
    for number, (own, other) in enumerate(pairs):
        run.connect(f"{name}{number}", own, other)
        for packet in work(fill):
            run.asks(own, other, *packet)


def polled(base):
    """As begun, but known from polls alone."""
    run = begun(base)
    run.lines = [line for line in run.lines if not line.startswith("connect")]
    last = run.now
    run.polls = []

    def poll(time, pairs):
        run.polls.append(f"poll {time // 10**9}.{time % 10**9:09}")
        for (host, qpn), (_, partner) in pairs:
            run.polls.append(f"link rxe{host}/1 lqpn {qpn} rqpn {partner} type RC state RTS rq-psn 5 sq-psn 9 path-mig-state MIGRATED pid 9 comm x")
        run.polls.append("link rxe0/1 lqpn 1 type GSI state RTS sq-psn 0 comm [ib_core]")
        run.polls.append(f"polled {time // 10**9}.{(time + 10) % 10**9:09}")

    begin = 1_700_000_000 * 10**9
    poll(begin - 5000, [])
    poll(begin - 4000, [(B1, A1)])
    poll(last + 50_000, [(A1, B1), (B1, A1), (A2, B2), (B2, A2)])
    run.poll = poll
    return run
