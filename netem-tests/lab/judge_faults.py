"""The self-test of judge.py: captures made by hand, some sound, some with one planted fault each.

The judge must find each fault, of the kind that was planted, and nothing in sound captures.
"""
import ipaddress
import json
import os
import struct
import tempfile

import judge

ADDRESSES = {"rxe0": ("10.0.0.1", "fd10::1"), "rxe1": ("10.0.1.1", "fd10:0:1::1"), "rxe2": ("10.0.2.1", "fd10:0:2::1")}
WIDTH = 1024
ACK, ATOMIC_RESULT = 0x11, 0x12
RNR, SEQUENCE, ACCESS, REMOTE_OPERATION = 0x21, 0x60, 0x62, 0x63
SEND_ONLY, WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY, READ, FETCH_ADD = 0x04, 0x06, 0x07, 0x08, 0x0A, 0x0C, 0x14
READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY = 0x0D, 0x0E, 0x0F, 0x10


class Run:
    """Holds what captures and notes of a run that never was would hold."""

    def __init__(self, version=4, hosts=("rxe0", "rxe1")):
        self.now, self.version, self.hosts = 1_000_000_000_000, version, hosts
        self.frames = {host: [] for host in hosts}
        self.events = [{"event": "device", "host": host, "addresses": ADDRESSES[host]} for host in hosts]

    def tick(self, microseconds=10):
        self.now += microseconds * 1000

    def connect(self, host, number, partner, name=None, poll=0, **more):
        """Connects a queue pair; with `poll`, polling saw it within so many microseconds."""
        self.tick()
        event = {"event": "connect", "at": [self.now - poll * 1000, self.now + poll * 1000], "host": host, "lqpn": number, "rqpn": partner, "pid": 7, **more}
        event |= {"by": "poll"} if poll else {"name": name} if name is not None else {}
        self.events.append(event)
        self.tick(max(1, poll))

    def reset(self, host, number, poll=0):
        self.tick()
        event = {"event": "reset", "at": [self.now - poll * 1000, self.now + poll * 1000], "host": host, "lqpn": number, "pid": 7}
        self.events.append(event | ({"by": "poll"} if poll else {}))
        self.tick(max(1, poll))

    def pair(self, one=17, other=18, name=None, poll=0):
        self.connect("rxe1", other, one, name, poll)
        self.connect("rxe0", one, other, name, poll)

    def frame(self, capture, source, to, opcode, pair, psn, body):
        """Adds a frame to a host's capture, with a source port that says nothing."""
        pad = -len(body) & 3
        bth = struct.pack(">BBHII", opcode, pad << 4, 0xFFFF, pair, psn & 0xFFFFFF)
        udp = struct.pack(">HHHH", 0xC000, judge.ROCE_PORT, 8 + 12 + len(body) + pad + 4, 0) + bth + body + bytes(pad + 4)
        ends = [ipaddress.ip_address(ADDRESSES[host][self.version == 6]).packed for host in (source, to)]
        if self.version == 4:
            packet = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0x4000, 64, 17, 0) + b"".join(ends) + udp
        else:
            packet = struct.pack(">IHBB", 0x60000000, len(udp), 17, 64) + b"".join(ends) + udp
        frame = bytes(12) + (b"\x08\x00" if self.version == 4 else b"\x86\xdd") + packet
        self.tick()
        self.frames[capture].append((self.now, frame))

    def ask(self, psn, opcode=WRITE_ONLY, length=64, pair=18, source="rxe0", to="rxe1"):
        """Has a request leave the requester."""
        if opcode == READ:
            body = struct.pack(">QII", 0, 1, length)
        else:
            body = bytes({FETCH_ADD: 28}.get(opcode, judge.HEADERS.get(opcode, 0))) + bytes(0 if opcode == FETCH_ADD else length)
        self.frame(source, source, to, opcode, pair, psn, body)

    def write(self, psn, packets, **more):
        """Has a WRITE of so many packets leave the requester."""
        for index in range(packets):
            opcode = WRITE_FIRST if index == 0 else WRITE_LAST if index == packets - 1 else WRITE_MIDDLE
            self.ask(psn + index, opcode, WIDTH, **more)

    @staticmethod
    def response(opcode, syndrome, content):
        return (b"" if opcode == READ_MIDDLE else bytes([syndrome, 0, 0, 0])) + content

    def answer(self, psn, opcode=ACK, syndrome=0x1F, content=b"", pair=17, source="rxe1", to="rxe0"):
        """Has a response leave the target's NIC."""
        self.frame(source, source, to, opcode, pair, psn, self.response(opcode, syndrome, content))

    def hear(self, psn, opcode=ACK, syndrome=0x1F, content=b"", pair=17, source="rxe1", to="rxe0"):
        """Has a response reach the requester."""
        self.frame(to, source, to, opcode, pair, psn, self.response(opcode, syndrome, content))

    def both(self, psn, *others, **named):
        self.answer(psn, *others, **named)
        self.hear(psn, *others, **named)

    def judged(self):
        with tempfile.TemporaryDirectory() as folder:
            for host, frames in self.frames.items():
                with open(os.path.join(folder, host + ".pcap"), "wb") as file:
                    file.write(b"\x4d\x3c\xb2\xa1" + struct.pack("<HHIIII", 2, 4, 0, 0, 128, 1))
                    for time, frame in frames:
                        kept = frame[:128]
                        file.write(struct.pack("<IIII", time // 10**9, time % 10**9, len(kept), len(frame)) + kept)
            with open(os.path.join(folder, "partners"), "w", encoding="ascii") as file:
                file.writelines(json.dumps(event) + "\n" for event in self.events)
            return judge.judge(folder)


SOUND, FAULTY = [], []


def sound(case):
    SOUND.append(case)
    return case


def faulty(kind):
    def add(case):
        FAULTY.append((kind, case))
        return case

    return add


def connected(**named):
    run = Run(**named)
    run.pair()
    return run


# Sound runs.


@sound
def each_message_acknowledged():
    run = connected()
    for psn in range(3):
        run.ask(psn)
        run.both(psn)
    return run


@sound
def by_ipv6():
    run = connected(version=6)
    run.ask(5)
    run.both(5)
    return run


@sound
def acks_inside_a_message_come_from_the_gateway():
    run = connected()
    run.write(0, 4)
    for psn in range(3):
        run.hear(psn)
    run.both(3)
    return run


@sound
def one_ack_for_many_and_some_lost():
    run = connected()
    for psn in range(6):
        run.ask(psn)
    for psn in (0, 1, 5):
        run.answer(psn)
    run.hear(5)
    run.hear(2)
    return run


@sound
def the_wrap_of_the_psn():
    run = connected()
    for psn in range(0xFFFFFE, 0x1000003):
        run.ask(psn)
        run.both(psn & 0xFFFFFF)
    return run


@sound
def naks_that_confirm_what_the_target_has():
    run = connected()
    for psn in range(4):
        run.ask(psn)
    run.answer(2, syndrome=SEQUENCE)
    run.hear(2, syndrome=SEQUENCE)
    run.hear(2, syndrome=RNR)
    run.hear(2, syndrome=REMOTE_OPERATION)
    return run


@sound
def a_target_not_ready():
    run = connected()
    run.ask(0, SEND_ONLY)
    run.both(0, syndrome=RNR)
    run.ask(0, SEND_ONLY)
    run.both(0)
    return run


@sound
def a_read_and_its_replay():
    run = connected()
    run.ask(0)
    run.ask(1, READ, 3 * WIDTH)
    run.ask(4)
    for content in (b"a", b"b"):
        for psn, opcode in ((1, READ_FIRST), (2, READ_MIDDLE), (3, READ_LAST)):
            run.answer(psn, opcode, content=content * WIDTH)
    run.hear(1, READ_FIRST, content=b"a" * WIDTH)
    run.hear(2, READ_MIDDLE, content=b"b" * WIDTH)
    run.hear(3, READ_LAST, content=b"b" * WIDTH)
    run.both(4)
    return run


@sound
def atomics():
    run = connected()
    for psn in range(2):
        run.ask(psn, FETCH_ADD)
        run.both(psn, ATOMIC_RESULT, content=struct.pack(">Q", psn))
    run.hear(1, ATOMIC_RESULT, content=struct.pack(">Q", 1))
    return run


@sound
def numbers_that_two_hosts_share():
    run = Run(hosts=("rxe0", "rxe1", "rxe2"))
    run.connect("rxe1", 18, 17, rhost="rxe0")
    run.connect("rxe1", 19, 17, rhost="rxe2")
    run.connect("rxe0", 17, 18)
    run.connect("rxe2", 17, 19)
    run.ask(0)
    run.ask(0, source="rxe2", pair=19)
    run.both(0)
    run.both(0, to="rxe2")
    return run


@sound
def both_directions():
    run = connected()
    run.ask(0)
    run.ask(9, source="rxe1", to="rxe0", pair=17)
    run.both(9, source="rxe0", to="rxe1", pair=18)
    run.both(0)
    return run


@sound
def connected_again_with_the_same_numbers():
    run = Run()
    for name in range(3):
        run.pair(name=name)
        run.ask(0)
        run.both(0)
        run.reset("rxe0", 17)
        # To nobody.
        run.hear(0)
        run.reset("rxe1", 18)
    return run


@sound
def polled_only():
    run = Run()
    for one, other in ((17, 18), (19, 18), (19, 20)):
        run.pair(one, other, poll=200)
        run.ask(0, pair=other)
        run.both(0, pair=one)
        run.reset("rxe0", one, poll=200)
        run.reset("rxe1", other, poll=200)
    return run


@sound
def noted_without_an_end_and_polled():
    run = Run()
    for host, number, partner in (("rxe1", 18, 17), ("rxe0", 17, 18)):
        run.connect(host, number, partner, name=1)
        run.connect(host, number, partner, poll=5)
    run.ask(0)
    run.both(0)
    run.reset("rxe1", 18, poll=5)
    run.reset("rxe0", 17, poll=5)
    return run


@sound
def a_late_ack_of_before_confirms_nothing_unsent():
    run = Run()
    run.pair(name=1)
    run.hear(1000)
    run.ask(0)
    run.both(0)
    return run


# Faults of what is confirmed.


@faulty("confirmed")
def a_silent_target():
    run = connected()
    run.ask(0)
    run.hear(0)
    return run


@faulty("confirmed")
def an_ack_before_the_targets():
    run = connected()
    run.ask(0)
    run.hear(0)
    run.answer(0)
    return run


@faulty("confirmed")
def an_ack_one_message_too_far():
    run = connected()
    run.ask(0)
    run.ask(1)
    run.answer(0)
    run.hear(1)
    return run


@faulty("confirmed")
def an_ack_from_inside_a_message_to_its_end():
    run = connected()
    run.write(0, 4)
    run.answer(2)
    run.hear(3)
    return run


@faulty("confirmed")
def an_ack_inside_a_message_that_confirms_the_one_before():
    run = connected()
    run.ask(0)
    run.write(1, 4)
    run.hear(2)
    run.answer(0)
    return run


@faulty("confirmed")
def an_ack_far_beyond_what_was_sent():
    run = connected()
    run.ask(0)
    run.hear(4000)
    return run


@faulty("confirmed")
def too_far_past_the_wrap():
    run = connected()
    run.ask(0xFFFFFF)
    run.ask(0)
    run.answer(0xFFFFFF)
    run.hear(0)
    return run


@faulty("confirmed")
def the_wrong_partners_ack():
    run = Run()
    run.pair(17, 18)
    run.pair(19, 20)
    run.ask(0)
    run.ask(0, pair=20)
    run.answer(0, pair=19)
    run.hear(0, pair=17)
    return run


@faulty("confirmed")
def partners_crosswise():
    run = Run()
    run.connect("rxe1", 70, 69)
    run.connect("rxe1", 71, 70)
    run.connect("rxe0", 69, 70)
    run.connect("rxe0", 70, 71)
    run.ask(0, pair=70)
    run.ask(0, pair=71)
    run.answer(0, pair=70)
    run.hear(0, pair=69)
    return run


@faulty("confirmed")
def another_hosts_queue_pair_of_the_same_number():
    run = Run(hosts=("rxe0", "rxe1", "rxe2"))
    run.connect("rxe1", 18, 17)
    run.connect("rxe1", 19, 17)
    run.connect("rxe0", 17, 18)
    run.connect("rxe2", 17, 19)
    run.ask(0)
    run.ask(0, source="rxe2", pair=19)
    run.answer(0, to="rxe2")
    run.hear(0)
    return run


@faulty("confirmed")
def an_answer_that_no_partner_gave():
    run = Run()
    run.connect("rxe0", 17, 18)
    # The target's queue pair has gone to another requester, and does not answer.
    run.connect("rxe1", 18, 21)
    run.ask(0)
    run.both(0)
    return run


@faulty("confirmed")
def an_answer_by_who_is_not_the_partner():
    run = Run()
    run.connect("rxe0", 17, 18)
    # Left over from a connection of which the requester knows nothing any more.
    run.connect("rxe1", 20, 17)
    run.connect("rxe1", 18, 21)
    run.ask(0)
    run.both(0)
    return run


@faulty("confirmed")
def an_answer_from_another_host_than_the_partners():
    run = Run(hosts=("rxe0", "rxe1", "rxe2"))
    run.connect("rxe0", 17, 18, rhost="rxe1")
    run.connect("rxe1", 18, 17)
    run.connect("rxe2", 18, 17)
    run.ask(0)
    run.both(0, source="rxe2")
    return run


def again(poll=0):
    """Returns a run whose only connection went well and was reset."""
    run = Run()
    run.pair(name=1, poll=poll)
    run.ask(0)
    run.both(0)
    run.reset("rxe0", 17, poll)
    run.reset("rxe1", 18, poll)
    run.tick(20_000)
    return run


@faulty("confirmed")
def the_old_incarnations_ack():
    run = again()
    run.pair(name=2)
    run.ask(0)
    run.hear(0)
    return run


@faulty("confirmed")
def the_old_incarnations_ack_by_polling():
    run = again(poll=200)
    run.pair(poll=200)
    run.ask(0)
    run.hear(0)
    return run


@faulty("confirmed")
def the_old_target_answers_the_new_requester():
    run = Run()
    run.pair(name=1)
    run.ask(0)
    run.both(0)
    run.reset("rxe0", 17)
    run.connect("rxe0", 17, 18, name=2)
    run.ask(0)
    # A repetition of the old one, answered by the old one.
    run.both(0)
    return run


@faulty("confirmed")
def the_new_target_is_not_there_yet():
    run = again()
    run.connect("rxe0", 17, 18, name=2)
    run.ask(0)
    run.both(0)
    run.connect("rxe1", 18, 17, name=2)
    return run


@faulty("confirmed")
def a_late_ack_of_the_old_targets_beyond_what_is_sent():
    run = again()
    run.pair(name=2)
    run.ask(0)
    run.answer(900)
    run.hear(0)
    return run


@faulty("confirmed")
def a_sequence_nak_too_far():
    run = connected()
    for psn in range(4):
        run.ask(psn)
    run.answer(1, syndrome=SEQUENCE)
    run.hear(2, syndrome=SEQUENCE)
    return run


@faulty("confirmed")
def an_rnr_nak_too_far():
    run = connected()
    for psn in range(3):
        run.ask(psn, SEND_ONLY)
    run.answer(0)
    run.hear(2, syndrome=RNR)
    return run


@faulty("confirmed")
def an_access_nak_too_far():
    run = connected()
    for psn in range(3):
        run.ask(psn)
    run.answer(1, syndrome=ACCESS)
    run.hear(2, syndrome=ACCESS)
    return run


@faulty("confirmed")
def a_refusal_too_far():
    run = connected()
    for psn in range(3):
        run.ask(psn)
    run.hear(1, syndrome=REMOTE_OPERATION)
    return run


@faulty("confirmed")
def an_rnr_nak_told_as_an_ack():
    run = connected()
    run.ask(0, SEND_ONLY)
    run.answer(0, syndrome=RNR)
    run.hear(0)
    return run


@faulty("confirmed")
def a_read_that_confirms_the_write_before_it():
    run = connected()
    run.ask(0)
    run.ask(1, READ)
    run.answer(0, syndrome=SEQUENCE)
    run.hear(1, READ_ONLY, content=b"x" * 64)
    return run


@faulty("confirmed")
def an_ack_past_a_read_that_is_half_answered():
    run = connected()
    run.ask(0, READ, 2 * WIDTH)
    run.ask(2)
    run.answer(0, READ_FIRST, content=b"x" * WIDTH)
    run.hear(0, READ_FIRST, content=b"x" * WIDTH)
    run.hear(1)
    return run


@faulty("confirmed")
def an_answer_by_a_target_whose_program_is_gone():
    run = Run()
    for host, number, partner in (("rxe1", 18, 17), ("rxe0", 17, 18)):
        run.connect(host, number, partner, name=1)
        run.connect(host, number, partner, poll=5)
    run.ask(0)
    # The program notes no end of it; polling sees it.
    run.reset("rxe1", 18, poll=5)
    run.both(0)
    return run


# Faults of what is brought.


@faulty("invented")
def a_read_response_out_of_nothing():
    run = connected()
    run.ask(0, READ)
    run.hear(0, READ_ONLY, content=b"x" * 64)
    return run


@faulty("altered")
def a_read_response_with_other_bytes():
    run = connected()
    run.ask(0, READ)
    run.answer(0, READ_ONLY, content=b"x" * 64)
    run.hear(0, READ_ONLY, content=b"y" * 64)
    return run


@faulty("altered")
def a_read_response_cut_short():
    run = connected()
    run.ask(0, READ)
    run.answer(0, READ_ONLY, content=b"x" * 64)
    run.hear(0, READ_ONLY, content=b"x" * 60)
    return run


@faulty("invented")
def a_read_response_from_memory():
    run = again()
    run.pair(name=2)
    run.ask(0, READ)
    run.answer(0)
    run.hear(0, READ_ONLY, content=b"x" * 64)
    return run


@faulty("invented")
def a_journals_stale_result():
    run = Run()
    run.pair(name=1)
    run.ask(0, FETCH_ADD)
    run.both(0, ATOMIC_RESULT, content=bytes(8))
    run.reset("rxe0", 17)
    run.reset("rxe1", 18)
    run.pair(name=2)
    run.ask(0, FETCH_ADD)
    run.hear(0, ATOMIC_RESULT, content=bytes(8))
    return run


@faulty("altered")
def another_atomics_result():
    run = connected()
    for psn in range(2):
        run.ask(psn, FETCH_ADD)
        run.answer(psn, ATOMIC_RESULT, content=struct.pack(">Q", psn))
    run.hear(0, ATOMIC_RESULT, content=bytes(8))
    run.hear(1, ATOMIC_RESULT, content=bytes(8))
    return run


@faulty("invented")
def an_atomic_that_was_only_acknowledged():
    run = connected()
    run.ask(0, FETCH_ADD)
    run.answer(0)
    run.hear(0, ATOMIC_RESULT, content=bytes(8))
    return run


@faulty("confirmed")
def a_silent_target_by_ipv6():
    run = connected(version=6)
    run.ask(0)
    run.hear(0)
    return run


def blind_spots():
    """Returns what is wrong with how the judge treats what it cannot judge."""
    unseen = Run()
    unseen.connect("rxe0", 17, 18)
    unseen.ask(0)
    unseen.hear(0)
    stranger = connected()
    stranger.ask(0, pair=99)
    found = unseen.judged()
    wrong = [] if (found.unjudged, found.faults) == (1, []) else ["a target that polling never saw is not called unjudged"]
    if stranger.judged().strangers != 1:
        wrong.append("a requester that polling never saw is not called unjudged")
    lying = Run()
    lying.connect("rxe0", 17, 18, name=1)
    lying.connect("rxe0", 17, 19, poll=5)
    if len(lying.judged().partners.contradictions) != 1:
        wrong.append("a program's note that contradicts the kernel goes unnoticed")
    return wrong


def main():
    wrong = blind_spots()
    for case in SOUND:
        found = case().judged()
        if found.faults or found.unjudged or found.strangers or not found.ends:
            wrong.append(f"{case.__name__}: sound, but {found.faults or 'not all was judged'}")
    for kind, case in FAULTY:
        kinds = {fault.kind for fault in case().judged().faults}
        if kind not in kinds:
            wrong.append(f"{case.__name__}: a planted fault ({kind}) was not found, but {kinds or 'none'}")
    for text in wrong:
        print(text)
    print(f"{len(FAULTY)} planted faults, {len(SOUND)} sound runs: {len(wrong)} judged wrongly")
    return 1 if wrong else 0
