#!/usr/bin/env python3
"""judge.py FOLDER... - checks each completion against what the target's NIC had acknowledged before.

Knows nothing of Longhaul's own code, and never looks at a UDP source port.
A folder holds what one run left (two-sites.sh, `watch`):

  rxe0.pcap, rxe1.pcap   what either host's interface sent and received, named after its RDMA device
  partners               who is connected with whom, as the kernel says (partners.py)
  incarnations           the same, as noted by programs that make connections too short to be polled

An *incarnation* is a queue pair from one connect to the next reset.
A response names only the requester's queue pair, and a request only the target's.
The partners join the two.

Rules, for each response that reaches a requester:
1. It confirms every message end up to its PSN; a NAK or RNR NAK confirms those before its PSN.
   Each of these must be confirmed by an earlier response in the target's capture.
   That response goes to the same queue pair, and comes from this very incarnation's partner.
2. A READ response must be one that the target gave: the same PSN, the same bytes.
3. An atomic's result must be the one that the target gave for this PSN.
A response inside a message confirms only the messages before it: gateways may send such ACKs.

Options:
  --self-test          judges sound and faulty captures that it makes itself (judge_faults.py)
  --trace DEVICE:LQPN  prints all that passed to and from a queue pair, and what it came to
  --unjudged N         allows so many message ends of queue pairs that polling never saw (default 0)
  --count              prints only "false unjudged ends", and exits with 0: to compare runs

A completion of `completion = "local"` is the gateway's word; such a run is not judged.

Exit status 0: something was judged, nothing was false.
"""
import collections
import heapq
import ipaddress
import json
import os
import struct
import sys

ROCE_PORT = 4791
HALF = 1 << 23
FOREVER = 1 << 63
# RC opcodes that end a message, and those with a RETH after BTH.
SENDS_AND_WRITES = frozenset((*range(0x00, 0x0C), 0x16, 0x17))
ENDS = frozenset((0x02, 0x03, 0x04, 0x05, 0x08, 0x09, 0x0A, 0x0B, 0x13, 0x14, 0x16, 0x17, 0x1C, 0x1D))
MORE_FOLLOWS = frozenset((0x00, 0x01, 0x06, 0x07, 0x0D, 0x0E))
READ_REQUEST, ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE = 0x0C, 0x11, 0x12
READ_RESPONSES = range(0x0D, 0x11)
RESPONSES = range(0x0D, 0x13)
# Bytes between BTH and payload.
HEADERS = {0x03: 4, 0x05: 4, 0x06: 16, 0x09: 4, 0x0A: 16, 0x0B: 20, 0x0D: 4, 0x0F: 4, 0x10: 4, 0x16: 4, 0x17: 4}
COMPARED = 32  # bytes of a READ response's payload

Packet = collections.namedtuple("Packet", "time leaves host source to opcode pair psn syndrome length content")
Fault = collections.namedtuple("Fault", "time kind weight text")


class Unreadable(Exception):
    """Says what is wrong with a run's files."""


def frames(path):
    """Yields time in nanoseconds and bytes of each frame of a pcap file.

    A last frame that was cut by the end of the capture is left out.
    """
    with open(path, "rb") as file:
        head = file.read(24)
        kinds = {b"\xd4\xc3\xb2\xa1": ("<", 1000), b"\xa1\xb2\xc3\xd4": (">", 1000), b"\x4d\x3c\xb2\xa1": ("<", 1), b"\xa1\xb2\x3c\x4d": (">", 1)}
        order, unit = kinds.get(head[:4], (None, 0))
        if order is None or struct.unpack(order + "I", head[20:24])[0] != 1:
            raise Unreadable(f"{path}: not a pcap file of Ethernet frames")
        record = struct.Struct(order + "IIII")
        while len(read := file.read(16)) == 16:
            seconds, fraction, captured, _ = record.unpack(read)
            frame = file.read(captured)
            if len(frame) < captured:
                return
            yield seconds * 1_000_000_000 + fraction * unit, frame


def decode(frame):
    """Returns the fields of an RC packet, from its source on, or None for anything else."""
    kind = frame[12:14]
    if kind == b"\x08\x00":
        udp = 14 + (frame[14] & 15) * 4
        if frame[23] != 17 or frame[20] & 0x3F or frame[21]:
            return None
        source, to = frame[26:30], frame[30:34]
    elif kind == b"\x86\xdd":
        udp = 54
        if frame[20] != 17:
            return None
        source, to = frame[22:38], frame[38:54]
    else:
        return None
    bth = udp + 8
    if len(frame) < bth + 16 or int.from_bytes(frame[udp + 2 : udp + 4], "big") != ROCE_PORT:
        return None
    opcode = frame[bth]
    if opcode > 0x1F:
        return None
    body = bth + 12 + HEADERS.get(opcode, 0)
    length = int.from_bytes(frame[udp + 4 : udp + 6], "big") - 8 - (body - bth) - (frame[bth + 1] >> 4 & 3) - 4
    syndrome, content = 0, b""
    if opcode in RESPONSES:
        syndrome = frame[bth + 12] if opcode != 0x0E else 0
        if opcode == ATOMIC_ACKNOWLEDGE:
            content = frame[bth + 16 : bth + 24]
        elif opcode != ACKNOWLEDGE:
            content = frame[body : body + min(length, COMPARED)]
    elif opcode == READ_REQUEST:
        length = int.from_bytes(frame[bth + 24 : bth + 28], "big")
    return source, to, opcode, int.from_bytes(frame[bth + 5 : bth + 8], "big"), int.from_bytes(frame[bth + 9 : bth + 12], "big"), syndrome, length, content


def packets(host, path, hosts):
    """Yields the RC packets of a host's capture in order of time.

    Several processors write a capture, so neighbours may be exchanged in it.
    """
    waiting, number = [], 0
    for time, frame in frames(path):
        found = decode(frame)
        if found is None:
            continue
        source, to = hosts.get(found[0]), hosts.get(found[1])
        if source is None or to is None or host not in (source, to):
            continue
        # What leaves comes before what arrives at the same instant.
        packet = Packet(time, source == host, host, source, to, *found[2:])
        heapq.heappush(waiting, (time, not packet.leaves, number, packet))
        number += 1
        if len(waiting) > 2000:
            yield heapq.heappop(waiting)
    while waiting:
        yield heapq.heappop(waiting)


def word(packet):
    """Returns the name of a response."""
    if packet.opcode == ATOMIC_ACKNOWLEDGE:
        return "atomic result"
    if packet.opcode in READ_RESPONSES:
        return "READ response"
    return ("ACK", "RNR NAK", "reserved", f"NAK {packet.syndrome:02x}")[packet.syndrome >> 5 & 3]


class Incarnation:
    """A queue pair from one connect to the next reset.

    Holds its partner, what it sent as a requester, and how its target answered.
    """

    def __init__(self, event):
        self.host, self.number, self.partner = event["host"], event["lqpn"], event["rqpn"]
        self.partner_host, self.pid, self.name = event.get("rhost"), event.get("pid"), event.get("name")
        self.begins, self.known, self.ends = event["at"][0], event["at"][1], FOREVER
        self.polled = event.get("by") == "poll"
        # The last PSN that was sent, and the last one that the target confirmed, unwrapped.
        self.sent = self.acknowledged = None
        self.last_end = None
        self.open = collections.deque()  # ends of messages that the requester was told nothing of
        self.answers = collections.defaultdict(set)  # (PSN, kind): contents that the target gave

    def __str__(self):
        return f"{self.host}:{self.number}" + (f" ({self.name})" if self.name is not None else "")

    def is_at(self, time):
        return self.begins <= time <= self.ends

    def unwrapped(self, psn):
        """Returns the PSN without its wrap, as the nearest to what was sent last."""
        return self.sent + ((psn - self.sent + HALF) & 0xFFFFFF) - HALF

    def fits(self, other):
        """True if each of both is the other's partner."""
        if (self.partner, other.partner) != (other.number, self.number):
            return False
        if self.partner_host not in (None, other.host) or other.partner_host not in (None, self.host):
            return False
        if self.name is not None and other.name is not None:
            return self.name == other.name
        return self.begins <= other.ends and other.begins <= self.ends


class Partners:
    """All incarnations of a run.

    A program's own notes replace what polling saw of the same process's queue pair.
    """

    def __init__(self, events):
        self.hosts, self.by_pair, self.by_partner, self.contradictions = {}, collections.defaultdict(list), collections.defaultdict(list), []
        noted, polled = [], []
        events = list(events)
        for event in events:
            if event["event"] == "device":
                for address in event["addresses"]:
                    self.hosts[ipaddress.ip_address(address).packed] = event["host"]
        for kept, by_poll in ((noted, False), (polled, True)):
            last = {}
            for event in events:
                if event["event"] not in ("connect", "reset") or (event.get("by") == "poll") != by_poll:
                    continue
                pair = event["host"], event["lqpn"]
                if pair in last:
                    last[pair].ends = min(last[pair].ends, event["at"][1])
                    del last[pair]
                if event["event"] == "connect":
                    last[pair] = Incarnation(event)
                    kept.append(last[pair])
        self.merge(noted, polled)

    def merge(self, noted, polled):
        by_pair = collections.defaultdict(list)
        for incarnation in noted:
            by_pair[incarnation.host, incarnation.number, incarnation.pid].append(incarnation)
        kept = list(noted)
        for seen in polled:
            own = by_pair.get((seen.host, seen.number, seen.pid))
            if not own:
                kept.append(seen)
                continue
            if not any(known.partner == seen.partner and known.begins <= seen.known and seen.begins <= known.ends for known in own):
                self.contradictions.append(f"{seen}: the kernel names partner {seen.partner}, which the program did not note")
            # A program that ends without a reset closes its queue pairs.
            if seen.partner == own[-1].partner and own[-1].known < seen.ends < own[-1].ends == FOREVER:
                own[-1].ends = seen.ends
        for incarnation in sorted(kept, key=lambda known: known.begins):
            self.by_pair[incarnation.host, incarnation.number].append(incarnation)
            self.by_partner[incarnation.host, incarnation.partner].append(incarnation)

    def all(self):
        return [incarnation for several in self.by_pair.values() for incarnation in several]

    @staticmethod
    def latest(several, time, fits):
        for incarnation in reversed(several):
            if incarnation.is_at(time) and fits(incarnation):
                return incarnation
        return None

    def requester(self, host, target, target_pair, time):
        """Returns the incarnation at this host that sends to a target's queue pair."""
        return self.latest(self.by_partner.get((host, target_pair), ()), time, lambda found: found.partner_host in (None, target))

    def of(self, host, pair, time):
        return self.latest(self.by_pair.get((host, pair), ()), time, lambda _: True)

    def answered(self, host, pair, target, time):
        """Returns the requester's incarnation that a target answers.

        Some queue pair of the target must be its partner, and have it for partner.
        """
        for answering in reversed(self.by_partner.get((target, pair), ())):
            if answering.is_at(time) and answering.partner_host in (None, host):
                found = self.latest(self.by_pair.get((host, pair), ()), time, answering.fits)
                if found is not None:
                    return found
        return None

    def target_was_seen(self, requester):
        """True if any incarnation of the target's queue pair is known."""
        return any(key[1] == requester.partner and key[0] != requester.host for key in self.by_pair)


class Judge:
    """Takes a run's packets in order of time; finds what was confirmed too early, or never given."""

    def __init__(self, partners, trace=None):
        self.partners, self.trace = partners, trace
        self.faults, self.unjudged, self.ends, self.reads, self.atomics, self.strangers, self.to_nobody = [], 0, 0, 0, 0, 0, 0
        # By direction and queue pair: the payload of a packet that others follow, the path MTU.
        self.widest = {}

    def learn_width(self, packet):
        if packet.opcode in MORE_FOLLOWS:
            key = packet.source, packet.to, packet.pair
            self.widest[key] = max(self.widest.get(key, 0), packet.length)

    def take(self, packet):
        if packet.opcode in RESPONSES:
            (self.target_answers if packet.leaves else self.requester_hears)(packet)
        elif packet.leaves:
            self.requester_asks(packet)

    def say(self, packet, incarnation, text):
        if self.trace is not None and incarnation is not None and (incarnation.host, incarnation.number) == self.trace:
            print(f"{packet.time / 1e6 % 1e7:14.3f} ms  {incarnation}  {text}")

    def requester_asks(self, packet):
        requester = self.partners.requester(packet.host, packet.to, packet.pair, packet.time)
        if requester is None:
            self.strangers += packet.opcode in ENDS or packet.opcode == READ_REQUEST
            return
        psn = packet.psn if requester.sent is None else requester.unwrapped(packet.psn)
        end = None
        if packet.opcode == READ_REQUEST:
            width = max(self.widest.get((packet.to, packet.source, requester.number), 0), self.widest.get((packet.source, packet.to, packet.pair), 0))
            end = psn + (max(0, packet.length - 1) // width if width else 0)
        elif packet.opcode in ENDS:
            end = psn
        self.say(packet, requester, f"asks    {packet.opcode:02x} PSN {packet.psn}" + (" again" if requester.sent is not None and psn <= requester.sent else ""))
        requester.sent = max(psn if end is None else end, psn if requester.sent is None else requester.sent)
        if end is not None and (requester.last_end is None or end > requester.last_end):
            requester.last_end = end
            requester.open.append(end)

    @staticmethod
    def confirmed(packet, requester):
        """Returns the last PSN that a response confirms."""
        negative = packet.opcode == ACKNOWLEDGE and packet.syndrome >> 5 & 3 in (1, 3)
        return requester.unwrapped(packet.psn) - negative

    def target_answers(self, packet):
        requester = self.partners.answered(packet.to, packet.pair, packet.host, packet.time)
        if requester is None or requester.sent is None:
            self.to_nobody += 1
            self.say(packet, self.partners.of(packet.to, packet.pair, packet.time), f"target  {packet.opcode:02x} syndrome {packet.syndrome:02x} PSN {packet.psn}: of another incarnation")
            return
        self.say(packet, requester, f"target  {packet.opcode:02x} syndrome {packet.syndrome:02x} PSN {packet.psn}")
        confirmed = self.confirmed(packet, requester)
        # It cannot have got what was not sent yet: a late packet of an earlier incarnation.
        if confirmed <= requester.sent and (requester.acknowledged is None or confirmed > requester.acknowledged):
            requester.acknowledged = confirmed
        if packet.opcode in READ_RESPONSES or packet.opcode == ATOMIC_ACKNOWLEDGE:
            requester.answers[requester.unwrapped(packet.psn), packet.opcode == ATOMIC_ACKNOWLEDGE].add((packet.length, packet.content))

    def requester_hears(self, packet):
        requester = self.partners.of(packet.host, packet.pair, packet.time)
        if requester is None or requester.sent is None:
            return
        said = f"hears   {packet.opcode:02x} syndrome {packet.syndrome:02x} PSN {packet.psn}"
        confirmed = self.confirmed(packet, requester)
        false = []
        while requester.open and requester.open[0] <= confirmed:
            end = requester.open.popleft()
            self.ends += 1
            if requester.acknowledged is None or end > requester.acknowledged:
                false.append(end)
        if false and not self.partners.target_was_seen(requester):
            self.unjudged += len(false)
            false = []
        if false:
            had = "nothing" if requester.acknowledged is None else f"PSN {requester.acknowledged & 0xFFFFFF}"
            text = f"{word(packet)} with PSN {packet.psn} confirms {len(false)} message(s) to PSN {false[-1] & 0xFFFFFF}; the target had confirmed {had}"
            self.fault(packet, requester, "confirmed", text, len(false))
            said += f": FALSE, {len(false)} messages"
        self.say(packet, requester, said)
        self.check_contents(packet, requester)

    def check_contents(self, packet, requester):
        atomic = packet.opcode == ATOMIC_ACKNOWLEDGE
        if not atomic and packet.opcode not in READ_RESPONSES or not self.partners.target_was_seen(requester):
            return
        self.atomics += atomic
        self.reads += not atomic
        psn = requester.unwrapped(packet.psn)
        given = requester.answers.get((psn, atomic))
        what = "an atomic's result" if atomic else "a READ response"
        if not given:
            # To a PSN that was never asked for, nobody listens.
            if psn <= requester.sent:
                self.fault(packet, requester, "invented", f"{what} with PSN {packet.psn}, which the target did not give")
        elif (packet.length, packet.content) not in given:
            self.fault(packet, requester, "altered", f"{what} with PSN {packet.psn} is {packet.content[:8].hex()}..., the target gave {sorted(given)[0][1][:8].hex()}...")

    def fault(self, packet, requester, kind, text, weight=1):
        self.faults.append(Fault(packet.time, kind, weight, f"{requester}: {text}"))


def events(folder):
    """Yields the events that a run noted, those of each file in its own order."""
    for name in ("partners", "incarnations"):
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            continue
        with open(path, encoding="ascii") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield json.loads(line)
                except ValueError:
                    # A program that is killed may leave half a line.
                    if line.endswith("\n"):
                        raise Unreadable(f"{path}, line {number}: not a JSON object: {line[:60]!r}") from None


def judge(folder, trace=None):
    """Judges one run."""
    partners = Partners(events(folder))
    captures = {name[:-5]: os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".pcap")}
    missing = set(partners.hosts.values()) - set(captures)
    if os.path.exists(os.path.join(folder, "incomplete")):
        raise Unreadable(f"{folder}: the captures are incomplete")
    if not captures or missing:
        raise Unreadable(f"{folder}: no capture of {', '.join(sorted(missing)) or 'any host'}")
    found = Judge(partners, trace)
    for host, path in captures.items():
        for *_, packet in packets(host, path, partners.hosts):
            found.learn_width(packet)
    for *_, packet in heapq.merge(*(packets(host, path, partners.hosts) for host, path in captures.items()), key=lambda item: item[:2]):
        found.take(packet)
    return found


def told(folder, found):
    """Returns what came of a run, in one line."""
    everyone = found.partners.all()
    polled = sum(incarnation.polled for incarnation in everyone)
    kinds = collections.Counter()
    for fault in found.faults:
        kinds[fault.kind] += fault.weight
    return (
        f"{folder.rstrip('/').rsplit('/', 1)[-1]}: {found.ends} message ends, {found.reads} READ packets, {found.atomics} atomic results"
        f" of {len(everyone)} incarnations ({polled} polled) judged: {kinds.total()} false"
        + "".join(f", {number} {kind}" for kind, number in sorted(kinds.items()))
        + f", {found.unjudged + found.strangers} unjudged"
    )


def main(arguments):
    options = {"--trace": None, "--unjudged": "0"}
    folders, count = [], False
    words = iter(arguments)
    for word in words:
        if word == "--count":
            count = True
        elif word in options:
            options[word] = next(words, None) or sys.exit(f"{word}: a value is missing")
        else:
            folders.append(word)
    trace = None
    if options["--trace"]:
        host, _, number = options["--trace"].partition(":")
        trace = host, int(number)
    good = bool(folders)
    for folder in folders:
        try:
            found = judge(folder, trace)
        except (Unreadable, OSError) as error:
            sys.exit(f"not judged: {error}")
        if count:
            print(sum(fault.weight for fault in found.faults), found.unjudged + found.strangers, found.ends)
            continue
        print(told(folder, found))
        for fault in found.faults[:10]:
            print(f"  {fault.time / 1e9:.6f} {fault.kind}: {fault.text}")
        for text in found.partners.contradictions[:10]:
            print(f"  {text}")
        good &= found.ends > 0 and not found.faults and not found.partners.contradictions
        good &= found.unjudged + found.strangers <= int(options["--unjudged"])
    return 0 if good or count else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--self-test"]:
        import judge_faults

        sys.exit(judge_faults.main())
    sys.exit(main(sys.argv[1:]))
