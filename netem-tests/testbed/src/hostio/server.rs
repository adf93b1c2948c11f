//! The server: memory to be written and read, and receives.

use std::sync::atomic::Ordering;

use super::workload::{Op, Workload, first_qpn};
use super::{EndpointConfig, EndpointError, Progress, Role, Tally};
use soft_nic::{Access, Completion, Host, HostError, Operation, RegionHandle, Status, fill, holds};

pub(super) struct Server {
    workload: Workload,
    inbox: RegionHandle,
    lanes: Vec<Lane>,
    tally: Tally,
}

/// One queue pair's receives.
struct Lane {
    /// Sequence number of the client's next message that may consume a receive.
    next: u64,
    /// Receives filled.
    received: u64,
}

impl Server {
    pub(super) fn new(config: &EndpointConfig) -> Result<(Host, Self), EndpointError> {
        let workload = config.workload.clone();
        let mut host = Host::new(config.ip, first_qpn(Role::Server));
        let inbox = register(&mut host, &workload)?;
        let mut lanes = Vec::new();
        for qp in 0..workload.qps {
            let qpn = host.create_qp(workload.qp_config())?;
            host.connect(
                qpn,
                workload.psn(Role::Server, qp),
                workload.remote(Role::Client, config.remote_ip, qp),
            )?;
            for receive in 0..u64::from(workload.depth) {
                host.post_recv(qpn, receive, inbox.slice(workload.buffer(qp, receive), workload.message))?;
            }
            lanes.push(Lane { next: 0, received: 0 });
        }
        let tally = Tally::new()?;
        Ok((host, Self { workload, inbox, lanes, tally }))
    }

    pub(super) fn into_tally(self) -> Tally {
        self.tally
    }

    /// Takes completions and posts their receives again.
    pub(super) fn drive(&mut self, host: &mut Host, progress: &Progress) -> Result<(), HostError> {
        while let Some(completion) = host.poll_completion() {
            if completion.status != Status::Success {
                self.tally.failure(&completion, progress);
                continue;
            }
            let qp = completion.qpn.get().saturating_sub(first_qpn(Role::Server));
            if !self.received_right(host, qp, &completion) {
                self.tally.wrong(progress);
            }
            self.tally.messages += 1;
            self.tally.bytes += u64::from(completion.byte_len);
            progress.messages.fetch_add(1, Ordering::Relaxed);
            progress.bytes.fetch_add(u64::from(completion.byte_len), Ordering::Relaxed);
            let buffer = self.inbox.slice(self.workload.buffer(qp, completion.wr_id), self.workload.message);
            match host.post_recv(completion.qpn, completion.wr_id, buffer) {
                // In error since: its flushed receives follow.
                Err(HostError::NotReady(_)) => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Returns true if this is the message whose turn it is: the order of operations is known, so
    /// order, kind and contents are checked.
    fn received_right(&mut self, host: &Host, qp: u32, completion: &Completion) -> bool {
        let Self { workload, inbox, lanes, .. } = self;
        let index = usize::try_from(qp).unwrap_or(usize::MAX);
        if !workload.verify {
            return true;
        }
        let Some(lane) = lanes.get_mut(index) else {
            return false;
        };
        while !workload.operation(qp, lane.next).consumes_receive() {
            lane.next += 1;
        }
        let sequence = lane.next;
        lane.next += 1;
        let place = lane.received % u64::from(workload.depth);
        lane.received += 1;
        if completion.wr_id != place || completion.byte_len != workload.message {
            return false;
        }
        if workload.operation(qp, sequence) == Op::WriteImm {
            let low = u32::try_from(sequence & 0xffff_ffff).ok();
            return completion.operation == Operation::RecvWriteImm && completion.imm == low;
        }
        let start = usize::try_from(workload.buffer(qp, place)).unwrap_or(usize::MAX);
        let len = usize::try_from(workload.message).unwrap_or(usize::MAX);
        let memory = host.memory(inbox.key).unwrap_or_default();
        let bytes = memory.get(start..start.saturating_add(len));
        completion.operation == Operation::Recv
            && bytes.is_some_and(|bytes| holds(workload.key(qp, sequence), bytes))
    }
}

/// Registers the regions in the order that the client counts on; returns the one for receives.
fn register(host: &mut Host, workload: &Workload) -> Result<RegionHandle, EndpointError> {
    let bytes =
        |len: u64| usize::try_from(len).map_err(|_| EndpointError::Workload("more memory than there is"));
    let readable = Access { remote_read: true, ..Access::LOCAL };
    let writable = Access { remote_write: true, ..readable };
    host.register(vec![0; bytes(workload.target().len)?], writable);
    let mut source = vec![0; bytes(workload.source().len)?];
    let message = bytes(u64::from(workload.message))?;
    for (index, slot) in (0..).zip(source.chunks_mut(bytes(workload.slot())?)) {
        fill(workload.source_key(index), slot.get_mut(..message).unwrap_or_default());
    }
    host.register(source, readable);
    host.register(vec![0; bytes(workload.counters().len)?], Access { remote_atomic: true, ..Access::LOCAL });
    Ok(host.register(vec![0; bytes(workload.slots() * workload.slot())?], Access::LOCAL))
}
