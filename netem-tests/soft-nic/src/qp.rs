//! A queue pair: its two halves, its state and its addresses.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use roce::ip::Addressing;
use roce::wire::{Ext, Kind, Nak, Packet, Psn, Qpn, Syndrome};

use super::memory::Memory;
use super::pace::{Notifier, Pace};
use super::requester::{Outcome, Outgoing, Requester};
use super::responder::{self, Receive, Responder};
use super::types::{Completion, HostError, HostStats, Operation, QpConfig, Remote, Sge, Status, Work};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not connected: receives may be posted, nothing is sent, packets are dropped.
    Init,
    Ready,
    /// Nothing is accepted; a fatal NAK that is queued still goes out.
    Error,
}

/// The PSNs that a packet can hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The one PSN whose request is executed.
    pub expected: Psn,
    /// The oldest PSN that may be answered, and how many there are.
    pub oldest: Psn,
    /// See above.
    pub outstanding: u32,
}

/// ECN-capable (RFC 3168).
const ECT_0: u8 = 2;
/// mlx5 sends notifications with DSCP 48 (`cnp_dscp`).
const CNP_TCLASS: u8 = 48 << 2;

#[derive(Debug)]
pub(super) struct QueuePair {
    qpn: Qpn,
    config: QpConfig,
    state: State,
    addressing: Addressing,
    remote: Option<Remote>,
    requester: Requester,
    responder: Responder,
    /// Work requests posted whose completion has not been polled.
    sends: usize,
    receives: usize,
    /// The next packet comes from the responder half, if both have one.
    responder_next: bool,
    /// Packets sent since it was connected.
    sent: u64,
    /// It has heard from its peer since it was connected.
    heard: bool,
    pace: Pace,
    notifier: Notifier,
    watched: bool,
    /// In the host's ready queue.
    pub(super) queued: bool,
}

impl QueuePair {
    pub(super) fn new(qpn: Qpn, config: QpConfig, watched: bool) -> Self {
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self {
            qpn,
            config,
            state: State::Init,
            addressing: Addressing {
                src: unspecified,
                dst: unspecified,
                src_port: 0,
                tclass: config.tclass | if config.personality.dcqcn { ECT_0 } else { 0 },
                ttl: config.ttl,
            },
            remote: None,
            requester: Requester::new(config, Psn::default()),
            responder: Responder::new(config, Psn::default(), watched),
            sends: 0,
            receives: 0,
            responder_next: true,
            sent: 0,
            heard: false,
            pace: Pace::default(),
            notifier: Notifier::default(),
            watched,
            queued: false,
        }
    }

    pub(super) fn connect(&mut self, ip: IpAddr, psn: Psn, remote: Remote) {
        if self.state == State::Init {
            self.responder.expect(remote.psn);
        } else {
            self.fail_locally();
            let mut old =
                std::mem::replace(&mut self.responder, Responder::new(self.config, remote.psn, self.watched));
            self.responder.done = std::mem::take(&mut old.done);
            self.responder.executed = std::mem::take(&mut old.executed);
            self.responder.follow(&old);
        }
        let done = std::mem::take(&mut self.requester.done);
        self.requester = Requester::new(self.config, psn);
        self.requester.done = done;
        self.addressing.src = ip;
        self.addressing.dst = remote.ip;
        (self.sent, self.heard) = (0, false);
        (self.pace, self.notifier) = (Pace::default(), Notifier::default());
        self.remote = Some(remote);
        self.state = State::Ready;
    }

    pub(super) fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    pub(super) fn standing(&self) -> Option<Standing> {
        let (oldest, outstanding) = self.requester.awaited();
        let expected = self.responder.expected();
        self.is_ready().then_some(Standing { expected, oldest, outstanding })
    }

    /// The addresses of the next packet; its port may be another each time.
    pub(super) fn addressing_of_next(&mut self) -> Addressing {
        let policy = self.config.personality.port;
        self.addressing.src_port = policy.port(self.qpn, self.remote_qpn(), self.sent, self.heard);
        self.sent += 1;
        self.addressing
    }

    /// A packet came that a switch has marked.
    pub(super) fn marked(&mut self, now: Instant) {
        if self.config.personality.dcqcn {
            self.notifier.marked(now);
        }
    }

    /// The addresses of a notification that is to be sent now.
    pub(super) fn notification(&mut self) -> Option<Addressing> {
        let is_due = self.notifier.take() && self.state == State::Ready;
        is_due.then(|| Addressing { tclass: CNP_TCLASS, ..self.addressing_of_next() })
    }

    /// A congestion notification; false if this NIC does not heed it.
    pub(super) fn slow_down(&mut self, now: Instant) -> bool {
        let heeds = self.config.personality.dcqcn && self.state == State::Ready;
        if heeds {
            self.pace.slow_down(now);
        }
        heeds
    }

    pub(super) fn remote_qpn(&self) -> Qpn {
        self.remote.map(|remote| remote.qpn).unwrap_or_default()
    }

    /// Only a ready queue pair takes packets, and only with the exact addresses of its peer
    /// (Soft-RoCE does not check the port).
    pub(super) fn accepts(&self, addressing: &Addressing) -> bool {
        self.state == State::Ready && addressing.src == self.addressing.dst
    }

    pub(super) fn post_send(
        &mut self,
        wr_id: u64,
        work: Work,
        local: Sge,
        solicited: bool,
    ) -> Result<(), HostError> {
        if self.state != State::Ready {
            return Err(HostError::NotReady(self.qpn));
        }
        if self.sends >= self.config.send_depth {
            return Err(HostError::Full);
        }
        if local.len > 1 << 31 || self.config.mtu.psn_span(local.len) >= 1 << 23 {
            return Err(HostError::TooLong(local.len));
        }
        self.sends += 1;
        self.requester.post(wr_id, work, local, solicited);
        Ok(())
    }

    pub(super) fn post_recv(&mut self, receive: Receive) -> Result<(), HostError> {
        if self.state == State::Error {
            return Err(HostError::NotReady(self.qpn));
        }
        if self.receives >= self.config.recv_depth {
            return Err(HostError::Full);
        }
        self.receives += 1;
        self.responder.post(receive);
        Ok(())
    }

    pub(super) fn completion_polled(&mut self, operation: Operation) {
        let place = match operation {
            Operation::Recv | Operation::RecvWriteImm => &mut self.receives,
            _ => &mut self.sends,
        };
        *place = place.saturating_sub(1);
    }

    pub(super) fn handle(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut Memory,
        now: Instant,
        stats: &mut HostStats,
    ) {
        self.heard = true;
        if packet.bth.opcode.is_request() {
            if self.responder.handle(packet, memory, now, stats) == responder::Outcome::Fatal {
                self.state = State::Error;
                self.requester.fail(Status::Flushed);
            }
            return;
        }
        let outcome = self.handle_response(packet, memory, now, stats);
        self.apply(outcome);
    }

    fn handle_response(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut Memory,
        now: Instant,
        stats: &mut HostStats,
    ) -> Outcome {
        let psn = packet.bth.psn;
        match (packet.bth.opcode.kind(), packet.ext) {
            (Kind::ReadResponse, _) => {
                self.requester.handle_read_response(psn, packet.payload, memory, now, stats)
            }
            (Kind::AtomicAcknowledge, Ext::AtomicAck(_, original)) => {
                self.requester.handle_atomic_response(psn, original.0, memory, now, stats)
            }
            (Kind::Acknowledge, Ext::Aeth(aeth)) => match aeth.syndrome {
                Syndrome::Ack { .. } => self.requester.handle_ack(psn, now, stats),
                Syndrome::Rnr { timer } => self.requester.handle_rnr(psn, timer, now, stats),
                Syndrome::Nak(Nak::PsnSequence) => self.requester.handle_sequence_nak(psn, now, stats),
                Syndrome::Nak(nak) => self.requester.handle_fatal_nak(psn, status_of(nak), now, stats),
                Syndrome::Reserved(_) => {
                    stats.bad_packet += 1;
                    Outcome::Continue
                }
            },
            _ => {
                stats.bad_packet += 1;
                Outcome::Continue
            }
        }
    }

    fn apply(&mut self, outcome: Outcome) {
        if let Outcome::Fatal(status) = outcome {
            self.state = State::Error;
            self.requester.fail(status);
            self.responder.fail(Status::Flushed);
            self.responder.silence();
        }
    }

    /// To error on our own account: everything posted is flushed.
    pub(super) fn fail_locally(&mut self) {
        self.apply(Outcome::Fatal(Status::Flushed));
    }

    pub(super) fn wants_to_send(&self) -> bool {
        self.responder.wants_to_send() || self.has_request() || self.notifier.is_due()
    }

    fn has_request(&self) -> bool {
        self.state == State::Ready && self.requester.wants_to_send() && !self.pace.holds()
    }

    /// Alternates between answers and requests while there are both.
    pub(super) fn poll(&mut self, now: Instant, stats: &mut HostStats) -> Option<Outgoing> {
        let request = self.has_request();
        if self.responder.wants_to_send() && (self.responder_next || !request) {
            self.responder_next = false;
            return self.responder.poll();
        }
        self.responder_next = true;
        if !request {
            return None;
        }
        self.pace.sent(now);
        self.requester.poll(now, stats)
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let timers = [self.requester.next_timeout(), self.responder.next_timeout(), self.pace.next_timeout()];
        timers.into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, stats: &mut HostStats) {
        self.pace.handle_timeout(now);
        self.responder.handle_timeout(now);
        let outcome = self.requester.handle_timeout(now, stats);
        self.apply(outcome);
    }

    /// Moves finished work requests to the completion queue, and what was executed to its log.
    pub(super) fn collect(
        &mut self,
        completions: &mut VecDeque<Completion>,
        executed: &mut VecDeque<(Qpn, Vec<u8>)>,
    ) {
        let qpn = self.qpn;
        executed.extend(self.responder.executed.drain(..).map(|packet| (qpn, packet)));
        while let Some(done) = self.requester.done.pop_front() {
            completions.push_back(Completion {
                wr_id: done.wr_id,
                qpn,
                operation: done.operation,
                status: done.status,
                byte_len: done.byte_len,
                imm: None,
                invalidated: None,
                solicited: false,
            });
        }
        while let Some(done) = self.responder.done.pop_front() {
            completions.push_back(Completion {
                wr_id: done.wr_id,
                qpn,
                operation: done.operation,
                status: done.status,
                byte_len: done.byte_len,
                imm: done.imm,
                invalidated: done.invalidated,
                solicited: done.solicited,
            });
        }
    }
}

fn status_of(nak: Nak) -> Status {
    match nak {
        Nak::RemoteAccess => Status::RemoteAccess,
        Nak::RemoteOperation => Status::RemoteOperation,
        _ => Status::RemoteInvalidRequest,
    }
}
