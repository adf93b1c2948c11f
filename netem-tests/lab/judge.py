#!/usr/bin/env python3
"""judge.py FOLDER... - holds what requesters were told on their LAN against what their targets' NICs acknowledged on theirs.

It shares no code with the gateways and never looks at UDP ports. A folder holds one run, as judged.sh writes it:

  v0.pcap, v1.pcap  RoCEv2 packets at the NICs of hosts 0 and 1, both ways, headers and the first bytes of payload
  v0.log, v1.log    tcpdump's words, with its counts
  evidence          which queue pairs were partners, and when; see evidence.py
  polls             the same from `rdma resource show qp`, for programs that do not say it themselves

Rules, for each queue pair and incarnation:

  ack, nak, rnr     an ACK, a fatal or sequence NAK, an RNR NAK confirms no message end that the target's NIC had not confirmed
  response          no READ or atomic response confirms more of what came before it
  answer            a READ or atomic response is one that the target's NIC gave for this PSN, with these first bytes, and fits the request
  done              a work request succeeds only after the target's NIC has confirmed it
  sent              a request that the target's NIC may execute is one that its partner sent

ACKs inside a message are exempt: they complete nothing. With `completion local` so are WRITEs and SENDs.
Exit status: 0 all is well, 1 a rule was broken, 2 something could not be judged. With `--some` only a capture with holes
or one without a message end is a 2. `--self-test` plants faults in made-up captures and looks for each.
InfiniBand specification, volume 1, chapter 9, and annex A17 (RoCEv2).
"""
import bisect
import collections
import os
import struct
import sys

import evidence

# Extension headers in bytes by opcode, of RC alone.
EXTENSION = {
    0x00: 0, 0x01: 0, 0x02: 0, 0x03: 4, 0x04: 0, 0x05: 4, 0x06: 16, 0x07: 0, 0x08: 0, 0x09: 4, 0x0A: 16, 0x0B: 20, 0x0C: 16,
    0x0D: 4, 0x0E: 0, 0x0F: 4, 0x10: 4, 0x11: 4, 0x12: 12, 0x13: 28, 0x14: 28, 0x16: 4, 0x17: 4, 0x1C: 20, 0x1D: 16,
}
READ, ACK, ATOMIC_ACK, FETCH_ADD = 0x0C, 0x11, 0x12, 0x14
RESPONSES = range(0x0D, 0x13)
STARTS = {0x00, 0x04, 0x05, 0x06, 0x0A, 0x0B, 0x0C, 0x13, 0x14, 0x17, 0x1C, 0x1D}
ENDS = {0x02, 0x03, 0x04, 0x05, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x13, 0x14, 0x16, 0x17, 0x1C, 0x1D}
FULL = {0x00, 0x01, 0x06, 0x07, 0x0D, 0x0E}  # as long as the path MTU
ATOMICS = {0x13, 0x14}
WAITS = {0x0C, 0x13, 0x14, 0x1C, 0x1D}  # never complete early
COMPARAND = 20  # where an AtomicETH's begins, which FetchAdd does not use
SEQUENCE_NAK = 0x60
PREFIX = 32  # bytes of payload that are compared
PSNS = 1 << 24
ROCE_PORT = 4791
FILES = ("evidence", "polls", "v0.log", "v0.pcap", "v1.log", "v1.pcap")


class NotJudged(Exception):
    """A capture that does not show everything."""


Packet = collections.namedtuple("Packet", "time source target leaves opcode qpn psn extension pad solicited length prefix")


def records(name, data):
    """The time in ns and the bytes of each frame in a classic pcap file of Ethernet."""
    magic = {b"\xd4\xc3\xb2\xa1": ("<", 1000), b"\xa1\xb2\xc3\xd4": (">", 1000), b"\x4d\x3c\xb2\xa1": ("<", 1), b"\xa1\xb2\x3c\x4d": (">", 1)}
    order, unit = magic.get(data[:4], (None, 0))
    if order is None or len(data) < 24 or struct.unpack_from(order + "I", data, 20)[0] != 1:
        raise NotJudged(f"{name} is not a capture of Ethernet frames")
    head, at, found = struct.Struct(order + "IIII"), 24, []
    while at < len(data):
        if len(data) < at + 16 or len(data) < at + 16 + head.unpack_from(data, at)[2]:
            raise NotJudged(f"{name} is cut short")
        seconds, fraction, captured, _ = head.unpack_from(data, at)
        found.append((seconds * 10**9 + fraction * unit, data[at + 16 : at + 16 + captured]))
        at += 16 + captured
    return found


def parse(time, frame, host, hosts):
    """The RC packet in a frame that was captured at a host, or None if there is none."""
    kind = int.from_bytes(frame[12:14], "big")
    if kind == 0x0800:
        udp, protocol, addresses = 14 + (frame[14] & 15) * 4, frame[23], (frame[26:30], frame[30:34])
    elif kind == 0x86DD:
        udp, protocol, addresses = 54, frame[20], (frame[22:38], frame[38:54])
    else:
        return None
    if protocol != 17 or int.from_bytes(frame[udp + 2 : udp + 4], "big") != ROCE_PORT:
        return None
    source, target = (hosts.get(bytes(address)) for address in addresses)
    bth = udp + 8
    opcode = frame[bth] if len(frame) > bth else None
    # Only what a host's own NIC sends, or what comes to it.
    if opcode not in EXTENSION or source is None or target is None or host not in (source, target):
        return None
    start = bth + 12 + EXTENSION[opcode]
    pad = frame[bth + 1] >> 4 & 3
    length = int.from_bytes(frame[udp + 4 : udp + 6], "big") - 8 - 12 - EXTENSION[opcode] - pad - 4
    if len(frame) < start + min(max(length, 0), PREFIX):
        raise NotJudged("frames were cut within what is compared")
    return Packet(
        time, source, target, source == host, opcode,
        int.from_bytes(frame[bth + 5 : bth + 8], "big"), int.from_bytes(frame[bth + 9 : bth + 12], "big"),
        frame[bth + 12 : start], pad, frame[bth + 1] >> 7, length, frame[start : start + min(max(length, 0), PREFIX)],
    )  # fmt: skip


def distance(psn, other):
    """From one PSN to another, the short way round."""
    return (psn - other + PSNS // 2) % PSNS - PSNS // 2


def syndrome(packet):
    """What an AETH is: ack, rnr or nak."""
    return {0: "ack", 1: "rnr", 3: "nak"}.get(packet.extension[0] >> 5)


def request_print(packet):
    """A request without what gateways and networks may change: AckReq, ECN, and a FetchAdd's comparand."""
    used = COMPARAND if packet.opcode == FETCH_ADD else None
    return packet.opcode, packet.solicited, packet.pad, packet.extension[:used], packet.length, packet.prefix


def answer_print(packet):
    """The result that a response carries. Which packet of a READ is the first depends on where it was resumed."""
    value = packet.extension[4:] if packet.opcode == ATOMIC_ACK else b""
    return value, packet.length, packet.prefix


Message = collections.namedtuple("Message", "place opcode extension")  # of its last packet


class Way:
    """The requests of one end in one incarnation. Places count from its first PSN and do not wrap."""

    def __init__(self, base):
        self.base = base
        self.sent = 0  # one past the last place sent
        self.holes = set()  # places before that which were not seen to leave: lost on the way to the capture
        self.ends = []  # one past the last place of each message, in order
        self.messages = {}  # by end
        self.prints = collections.defaultdict(set)
        self.given = 0  # the target's NIC has confirmed everything before
        self.answers = collections.defaultdict(set)
        self.next = 0  # the place that the target's NIC waits for
        self.told = 0  # the requester was told everything before
        self.judged = set()  # ends
        self.blamed = set()  # ends that were found wrong already
        self.suspects = {}  # by place: what the target's NIC may have executed
        self.doubt = None  # why nothing here can be judged

    def place(self, psn):
        """The place of a PSN: the nearest to the last one sent."""
        if self.base is None:
            return None
        place = self.sent + distance(psn, (self.base + self.sent) % PSNS)
        return place if place >= 0 else None

    def request(self, packet, mtu):
        """The requester's NIC sends it."""
        if self.base is None:
            self.base = packet.psn
        place = self.place(packet.psn)
        if place is None:
            return
        self.prints[place].add(request_print(packet))
        if place < self.sent and place not in self.holes:
            return
        end = place + self.span(packet, mtu)
        self.holes.update(range(self.sent, place))
        self.holes.difference_update(range(place, end))
        self.sent = max(self.sent, end)
        if packet.opcode in ENDS:
            bisect.insort(self.ends, end)
            self.messages[end] = Message(place, packet.opcode, packet.extension)

    @staticmethod
    def span(packet, mtu):
        """How many PSNs a request takes."""
        if packet.opcode != READ:
            return 1
        return max(1, -(-int.from_bytes(packet.extension[12:16], "big") // mtu))

    def confirm(self, packet):
        """The target's NIC answers."""
        place = self.place(packet.psn)
        # Refused, so not executed: gateways put a queue pair in error that way.
        if packet.opcode == ACK and syndrome(packet) == "nak" and packet.extension[0] != SEQUENCE_NAK:
            self.suspects.pop(place, None)
        if place is None or place >= self.sent:
            return
        own = packet.opcode != ACK or syndrome(packet) == "ack"
        if packet.opcode == ACK and syndrome(packet) is None:
            return
        self.given = max(self.given, place + own)
        self.next = max(self.next, self.given)
        if packet.opcode == ACK and syndrome(packet) == "rnr":
            self.next = place
        if packet.opcode != ACK:
            self.answers[place].add(answer_print(packet))

    def answered_at(self, place):
        """The READ, atomic or the like whose answer has this place."""
        index = bisect.bisect_right(self.ends, place)
        message = self.messages[self.ends[index]] if index < len(self.ends) else None
        return message if message and message.opcode in WAITS and message.place <= place else None


class Bond:
    """One incarnation of a connection: two ends (host, queue pair number), each other's partners."""

    def __init__(self, name, ends, psns, mtu):
        self.name, self.ends, self.mtu = name, ends, mtu
        self.ways = [Way(psn) for psn in psns]

    def describe(self, requester):
        (host, qpn), (other, other_qpn) = self.ends[requester], self.ends[1 - requester]
        return f"incarnation {self.name}, requests of host {host} queue pair {qpn:#x} to host {other} queue pair {other_qpn:#x}"


Wrong = collections.namedtuple("Wrong", "rule time bond requester place what")


class Judge:
    """All that was seen of one run, in the order of time."""

    def __init__(self, mtus, local=False):
        self.mtus = mtus  # by bond's name
        self.local = local
        self.bonds = {}
        self.live = {}  # (host, queue pair) -> (bond, end)
        self.toward = collections.defaultdict(list)  # (host, other host, queue pair there) -> [(bond, end)]
        self.before = collections.defaultdict(list)  # (host, queue pair) -> [Way]
        self.wrong = []
        self.unjudged = collections.Counter()
        self.strangers = set()

    def connected(self, name, end, ends, psns):
        """One end of an incarnation is connected."""
        if name not in self.bonds:
            self.bonds[name] = Bond(name, ends, psns, self.mtus.get(name, 4096))
        bond = self.bonds[name]
        self.reset(ends[end])
        self.live[ends[end]] = bond, end
        self.toward[(ends[end][0], *ends[1 - end])].append((bond, end))
        self.before[ends[end]].append(bond.ways[end])

    def reset(self, place):
        """A queue pair hears nothing any more, and is nobody's partner."""
        if place in self.live:
            bond, end = self.live.pop(place)
            self.toward[(place[0], *bond.ends[1 - end])].remove((bond, end))

    def doubtful(self, place, reason):
        """What is told to this queue pair in this incarnation cannot be judged."""
        if place in self.live:
            bond, _ = self.live[place]
            for way in bond.ways:
                way.doubt = way.doubt or reason

    def seen(self, packet):
        """A packet at the NIC of a host."""
        is_response = packet.opcode in RESPONSES
        if packet.leaves:
            senders = self.toward.get((packet.source, packet.target, packet.qpn), [])
            if len(senders) > 1:
                for bond, _ in senders:
                    bond.ways[0].doubt = bond.ways[1].doubt = "two queue pairs have the same partner"
            elif not senders:
                if packet.opcode in ENDS:
                    self.strangers.add((packet.source, packet.target, packet.qpn, packet.psn))
            elif is_response:
                bond, end = senders[0]
                bond.ways[1 - end].confirm(packet)
            else:
                bond, end = senders[0]
                bond.ways[end].request(packet, bond.mtu)
            return
        bond, end = self.live.get((packet.target, packet.qpn), (None, 0))
        if bond is None:
            return
        if is_response:
            self.hears(packet, bond, end)
        else:
            self.takes(packet, bond, 1 - end)

    def hears(self, packet, bond, requester):
        """The requester's NIC is told something."""
        way = bond.ways[requester]
        place = way.place(packet.psn)
        kind = "response" if packet.opcode != ACK else syndrome(packet)
        # What was not sent yet, the NIC drops.
        if place is None or place >= way.sent or kind is None:
            return
        to = place + (kind == "ack")
        first = bisect.bisect_right(way.ends, way.told)
        for index in range(first, bisect.bisect_right(way.ends, to)):
            self.end_told(way, way.ends[index], (kind, packet.time, bond, requester), packet)
        # No gateway has seen them either, unless the capture has holes of its own.
        for hole in sorted(hole for hole in way.holes if hole < to):
            way.holes.remove(hole)
            self.unjudged["requests that were confirmed are missing in the capture"] += 1
        way.told = max(way.told, to)
        if kind == "response" and way.doubt is None:
            self.answered(packet, bond, requester, place)

    def end_told(self, way, end, where, packet):
        """A message end is confirmed to its requester for the first time."""
        kind, time, bond, requester = where
        if way.doubt is not None:
            self.unjudged[way.doubt] += 1
            return
        if self.local and way.messages[end].opcode not in WAITS:
            self.unjudged["completes early, by its class"] += 1
            return
        way.judged.add(end)
        if end > way.given and end not in way.blamed:
            way.blamed.add(end)
            what = f"PSN {packet.psn:#x} confirms the message end at place {end - 1}, the target's NIC is at place {way.given}"
            self.wrong.append(Wrong(kind, time, bond, requester, end - 1, what))

    def answered(self, packet, bond, requester, place):
        """A READ or atomic response comes to the requester's NIC."""
        way = bond.ways[requester]
        message = way.answered_at(place)
        if message is None:
            return
        if place + 1 in way.messages:
            way.judged.add(place + 1)
        fits = (message.opcode in ATOMICS) == (packet.opcode == ATOMIC_ACK)
        given = way.answers[place]
        if (not fits or answer_print(packet) not in given) and ("answer", place) not in way.blamed:
            way.blamed.add(("answer", place))
            fault = "is none to such a request" if not fits else "the target's NIC gave otherwise" if given else "the target's NIC never gave"
            what = f"a response with PSN {packet.psn:#x}, which {fault}"
            self.wrong.append(Wrong("answer", packet.time, bond, requester, place, what))

    def takes(self, packet, bond, requester):
        """A request comes to the target's NIC."""
        way = bond.ways[requester]
        place = way.place(packet.psn)
        if place is None or way.doubt is not None or not way.given <= place <= way.next:
            return
        if place == way.next:
            way.next += way.span(packet, bond.mtu)
        if request_print(packet) in way.prints.get(place, ()) or self.resumes(packet, way, place, bond.mtu):
            return
        if ("sent", place) not in way.blamed:
            way.blamed.add(("sent", place))
            what = f"a request with opcode {packet.opcode:#x} and PSN {packet.psn:#x}, which its partner did not send"
            way.suspects[place] = Wrong("sent", packet.time, bond, requester, place, what)

    @staticmethod
    def resumes(packet, way, place, mtu):
        """Whether this is a part of a READ that was sent, from this place on."""
        message = way.answered_at(place)
        if packet.opcode != READ or message is None or message.opcode != READ:
            return False
        asked, whole = (struct.unpack(">QII", extension) for extension in (packet.extension, message.extension))
        skipped = (place - message.place) * mtu
        return asked[0] == (whole[0] + skipped) % 2**64 and asked[1] == whole[1] and asked[2] <= whole[2] - skipped

    def done(self, time, place, count):
        """So many work requests of a queue pair have succeeded since it was connected."""
        bond, end = self.live.get(place, (None, 0))
        if bond is None:
            self.unjudged["a completion of a queue pair that is not connected"] += 1
            return
        way = bond.ways[end]
        last = way.ends[count - 1] if 0 < count <= len(way.ends) else way.sent + 1 if count else 0
        exempt = self.local and last in way.messages and way.messages[last].opcode not in WAITS
        if way.doubt is None and not exempt and last > way.given and ("done", last) not in way.blamed:
            way.blamed.add(("done", last))
            what = f"work request {count} succeeds, the target's NIC is at place {way.given}"
            self.wrong.append(Wrong("done", time, bond, end, last - 1, what))

    def ends_checked(self):
        return sum(len(way.judged) for bond in self.bonds.values() for way in bond.ways)

    def hint(self, wrong):
        """Where a false word may have come from."""
        way, own = wrong.bond.ways[wrong.requester], wrong.bond.ends[wrong.requester]
        if wrong.rule == "sent":
            return "an incarnation before" if len(self.before[own]) > 1 else "nobody"
        earlier = self.before[own][: self.before[own].index(way)]
        if any(other.given > wrong.place for other in earlier):
            return "an incarnation before"
        others = [bond.ways[end] for bond, end in self.live.values() if bond is not wrong.bond and bond.ends[end][0] == own[0]]
        if any(other.given > wrong.place for other in others):
            return "another queue pair"
        return "its target, later" if way.given > wrong.place else "nobody"


def mtus_of(packets, lines):
    """The path MTU of each incarnation, from its longest First or Middle packet: without one, it does not matter."""
    found, heard, sent = {}, {}, {}
    for _, kind, item in merged(packets, lines):
        if kind == "line" and item.kind == "connect":
            own, other = item.ends[item.end], item.ends[1 - item.end]
            heard[own] = sent[(own[0], *other)] = item.name
        elif kind == "packet" and item.opcode in FULL:
            name = sent.get((item.source, item.target, item.qpn)) if item.leaves else heard.get((item.target, item.qpn))
            found[name] = max(found.get(name, 0), item.length)
    return found


def merged(packets, lines):
    """Packets and lines of evidence in the order of time; at the same instant, the evidence first, then what leaves."""
    everything = [(line.time, 0, "line", line) for line in lines]
    everything += [(packet.time, 2 - packet.leaves, "packet", packet) for packet in packets]
    everything.sort(key=lambda item: item[:2])
    return [(time, kind, item) for time, _, kind, item in everything]


def judge(packets, run):
    """Judges a run: its packets, and its evidence."""
    result = Judge(mtus_of(packets, run.lines), run.local)
    for time, kind, item in merged(packets, run.lines):
        if run.end is not None and time > run.end:
            break
        if kind == "packet":
            result.seen(item)
        elif item.kind == "connect":
            result.connected(item.name, item.end, item.ends, item.psns)
        elif item.kind == "reset":
            result.reset(item.place)
        elif item.kind == "doubt":
            result.doubtful(item.place, item.reason)
        else:
            result.done(item.time, item.place, item.count)
    for bond in result.bonds.values():
        for way in bond.ways:
            result.wrong += way.suspects.values()
    result.wrong.sort(key=lambda wrong: wrong.time)
    if result.strangers:
        result.unjudged["nothing tells the partner"] += len(result.strangers)
    return result


def counted(host, log, last, run):
    """Raises NotJudged unless tcpdump has written every packet up to the end."""
    counts = {}
    for line in log.splitlines():
        words = line.split()
        if len(words) > 2 and words[0].isdigit():
            # One is a packet, others are packets.
            counts[" ".join(["packets", *words[2:]])] = int(words[0])
    captured, received = counts.get("packets captured"), counts.get("packets received by filter")
    if captured is None or received is None:
        raise NotJudged(f"v{host}: the capture did not end by itself")
    for words, count in counts.items():
        if "dropped" in words and count:
            raise NotJudged(f"v{host}: {count} {words}")
    if run.limit is not None and captured >= run.limit:
        raise NotJudged(f"v{host}: more than {run.limit} packets")
    # What is missing came after the end, if something that was captured did.
    if captured < received and (run.end is None or last <= run.end):
        raise NotJudged(f"v{host}: {received - captured} packets were left unread")


def load(folder):
    """The files of a folder, by name."""
    files = {}
    for name in FILES:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path, "rb") as file:
                files[name] = file.read()
    return files


def read(files):
    """Packets and evidence of a run's files."""
    missing = [name for name in FILES if name not in files and name != "polls"]
    if missing:
        raise NotJudged(f"no {', '.join(missing)}")
    run = evidence.read(files)
    packets = []
    for host in (0, 1):
        frames = records(f"v{host}.pcap", files[f"v{host}.pcap"])
        last = max((time for time, _ in frames), default=0)
        counted(host, files[f"v{host}.log"].decode(), last, run)
        packets += filter(None, (parse(time, frame, host, run.hosts) for time, frame in frames))
    return packets, run


def report(folder, some):
    """Judges a folder, prints what was found, and returns the exit status."""
    name = os.path.basename(os.path.normpath(folder))
    try:
        packets, run = read(load(folder))
        result = judge(packets, run)
    except (NotJudged, evidence.Unclear, OSError) as reason:
        print(f"{name}: NOT JUDGED: {reason}")
        return 2
    checked = result.ends_checked()
    not_judged = sum(result.unjudged.values())
    reasons = "".join(f"; {count}: {reason}" for reason, count in sorted(result.unjudged.items()))
    print(
        f"{name}: {len(packets)} packets, {len(result.bonds)} connections, {checked} message ends checked, "
        f"{len(result.wrong)} wrong, {not_judged} not judged{reasons}"
    )
    for wrong in result.wrong[:20]:
        print(f"  {wrong.rule} at {wrong.time / 1e9:.6f}: {wrong.bond.describe(wrong.requester)}: {wrong.what} (from {result.hint(wrong)})")
    if result.wrong:
        return 1
    early = result.unjudged["completes early, by its class"]
    return 2 if checked + early == 0 or not some and not_judged > early else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        import judge_faults

        sys.exit(judge_faults.main())
    some = "--some" in sys.argv
    folders = [argument for argument in sys.argv[1:] if argument != "--some"]
    found = [report(folder, some) for folder in folders]
    # A false word outweighs a missing one.
    sys.exit(1 if 1 in found else 2 if 2 in found or not found else 0)


if __name__ == "__main__":
    main()
