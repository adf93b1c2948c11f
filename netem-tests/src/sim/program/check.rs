//! Checks of what the programs get: completions in their order, and memory as it was sent.

use std::time::Instant;

use super::{BLANK, End, Program, RECEIVE, State};
use crate::host::{Access, Completion, Operation, RegionHandle, Status};
use crate::sim::scenario::Op;
use crate::sim::site::Site;
use crate::sim::{Broken, pattern};

impl Program {
    /// The number of the program that posted what completes.
    pub(in crate::sim) fn of(completion: &Completion) -> usize {
        ((completion.wr_id & !RECEIVE) >> 48) as usize
    }

    /// A completion of end `end`.
    pub(in crate::sim) fn completed(
        &mut self,
        end: usize,
        completion: &Completion,
        sites: &mut [Site; 2],
        now: Instant,
    ) -> Result<(), Broken> {
        let life = completion.wr_id >> 32 & 0xffff;
        if life != self.life as u64 || self.state != State::Running {
            let flushed = completion.status == Status::Flushed;
            return if flushed {
                Ok(())
            } else {
                Err(("I2", format!("a completion after the end: {completion:?}")))
            };
        }
        if completion.status != Status::Success {
            let refused = matches!(
                completion.status,
                Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation
            );
            let half = &mut self.halves[end];
            if completion.wr_id & RECEIVE == 0 && !std::mem::replace(&mut half.op_failed, true) {
                half.abandoned = !refused;
            }
            half.failed = true;
        }
        let index = (completion.wr_id & 0xffff_ffff) as usize;
        if completion.wr_id & RECEIVE != 0 {
            return self.received(end, index, completion, sites);
        }
        let half = &mut self.halves[end];
        if index != half.done {
            return Err(("I1", format!("operation {index} completes, {} is next", half.done)));
        }
        half.done += 1;
        if completion.status == Status::Success {
            self.tally.succeeded += 1;
            let posted = half.ops.get(index).and_then(|posted| posted.at);
            self.tally.times.extend(posted.map(|at| now.saturating_duration_since(at)));
            self.check_success(end, index, sites)
        } else {
            self.tally.failed += 1;
            self.note_not_received(end, index, completion.status);
            Ok(())
        }
    }

    fn note_not_received(&mut self, end: usize, index: usize, status: Status) {
        let posted = self.halves[end].ops.get(index);
        if let (Status::RnrRetryExceeded, Some(posted)) = (status, posted) {
            self.not_received.push((end, self.flows[end].len() - 1, posted.message));
        }
    }

    /// Checks that what a requester was told its target did not receive, the target never received.
    /// Returns how many messages that were.
    pub(in crate::sim) fn check_not_received(&self) -> Result<u64, Broken> {
        for (end, flow, message) in &self.not_received {
            if self.flows[*end].get(*flow).is_some_and(|flow| flow.has_arrived(*message)) {
                let what = format!("message {message} of end {end} failed with RNR, and arrived after all");
                return Err(("I1", what));
            }
        }
        Ok(self.not_received.len() as u64)
    }

    fn received(
        &mut self,
        end: usize,
        index: usize,
        completion: &Completion,
        sites: &mut [Site; 2],
    ) -> Result<(), Broken> {
        if completion.status != Status::Success {
            return Ok(());
        }
        let half = &mut self.halves[end];
        if index != half.received {
            return Err(("I2", format!("receive {index} completes, {} is next", half.received)));
        }
        half.received += 1;
        let receive = half.receives[index];
        let (operation, imm, invalidated) = match receive.op {
            Op::SendInvalidate(_) => (Operation::Recv, None, Some(receive.key)),
            Op::Send(_, imm) => (Operation::Recv, imm, None),
            Op::Write(_, imm) => (Operation::RecvWriteImm, imm, None),
            _ => (Operation::Recv, None, None),
        };
        let expected = Completion {
            operation,
            byte_len: receive.op.len(),
            imm,
            invalidated,
            solicited: receive.solicited,
            ..*completion
        };
        if *completion != expected {
            return Err(("I2", format!("receive {index} is {completion:?}, not {receive:?}")));
        }
        let host = &sites[self.ends[end].site].hosts[self.ends[end].host].host;
        if invalidated.is_some_and(|key| host.access(key) != Some(Access::LOCAL)) {
            return Err(("I2", format!("the key of {receive:?} is still valid")));
        }
        if operation == Operation::Recv {
            self.expect(end, receive.region, receive.seed, receive.op.len(), sites)?;
        }
        Ok(())
    }

    fn check_success(&mut self, end: usize, index: usize, sites: &mut [Site; 2]) -> Result<(), Broken> {
        let posted = self.halves[end].ops[index];
        if let Some(flow) = self.flows[end].last() {
            flow.check_success(posted.message)?;
            if !flow.has_arrived(posted.message) {
                self.tally.early += 1;
                self.halves[end].early.push_back(index);
                return Ok(());
            }
        }
        self.check_arrival(end, index, sites)
    }

    /// Checks the arrival of what succeeded before its target had it: it arrives in its order.
    pub(super) fn note_arrivals(&mut self, end: usize, sites: &mut [Site; 2]) -> Result<bool, Broken> {
        let mut arrived = false;
        while let Some(index) = self.halves[end].early.front().copied()
            && let Some(flow) = self.flows[end].last()
            && flow.has_arrived(self.halves[end].ops[index].message)
        {
            self.halves[end].early.pop_front();
            self.check_arrival(end, index, sites)?;
            arrived = true;
        }
        Ok(arrived)
    }

    /// The target has all of a message that succeeded.
    fn check_arrival(&mut self, end: usize, index: usize, sites: &mut [Site; 2]) -> Result<(), Broken> {
        let posted = self.halves[end].ops[index];
        if posted.receive.is_some_and(|receive| self.halves[1 - end].received <= receive) {
            return Err((
                "I1",
                format!("operation {index} {:?} completes before the target received it", posted.op),
            ));
        }
        match posted.op {
            Op::Read(len) => self.expect(end, posted.local, posted.seed, len, sites),
            Op::Write(len, _) => {
                self.expect(1 - end, posted.remote, posted.seed, len, sites)?;
                self.seal(1 - end, posted.remote, sites);
                Ok(())
            }
            Op::Send(..) | Op::SendInvalidate(_) => {
                self.seal(1 - end, posted.remote, sites);
                Ok(())
            }
            Op::AtomicWrite(_) => {
                self.halves[end].atomics += 1;
                Ok(())
            }
            // That it was executed, and once, the model has seen.
            Op::Flush(_) => Ok(()),
            Op::FetchAdd(_) | Op::CompareSwap(_) => {
                let found = cell(self.ends[end], posted.local, sites);
                if found == Some(posted.before) {
                    self.halves[end].atomics += 1;
                    Ok(())
                } else {
                    Err(("I2", format!("atomic {index} found {found:?}, not {}", posted.before)))
                }
            }
            Op::BadKey(_) => Err(("I1", "a WRITE to an invalid key succeeded".to_owned())),
        }
    }

    /// A region of `end` must hold what was sent.
    fn expect(
        &self,
        end: usize,
        region: RegionHandle,
        seed: u64,
        len: u32,
        sites: &[Site; 2],
    ) -> Result<(), Broken> {
        let End { site, host, .. } = self.ends[end];
        if sites[site].hosts[host].host.memory(region.key) == Some(&pattern(len as usize, seed)[..]) {
            Ok(())
        } else {
            Err(("I2", format!("memory of {len} bytes at end {end} is not what was sent")))
        }
    }

    /// The program has its data; from now on a write to it is a second execution.
    fn seal(&mut self, end: usize, region: RegionHandle, sites: &mut [Site; 2]) {
        let End { site, host, .. } = self.ends[end];
        if let Some(memory) = sites[site].hosts[host].host.memory_mut(region.key) {
            memory.fill(BLANK);
            self.sealed.push((site, host, region.key));
        }
    }

    /// The cell holds what some number of atomics left there: no fewer than succeeded, no more than
    /// were posted.
    pub(super) fn check_atomics(&self, end: usize, sites: &[Site; 2]) -> Result<(), Broken> {
        let half = &self.halves[end];
        let mut left = vec![0];
        let mut target = None;
        for posted in &half.ops[..half.next] {
            if posted.op.is_atomic() {
                left.push(posted.op.applied(posted.before));
                target = Some(posted.remote);
            }
        }
        let Some(target) = target else { return Ok(()) };
        let found = cell(self.ends[1 - end], target, sites).unwrap_or(0);
        let possible = &left[half.atomics..];
        if possible.contains(&found) {
            Ok(())
        } else {
            Err(("I2", format!("the atomics left {found}, not one of {possible:?}")))
        }
    }

    /// Memory that a program had finished with is as it left it.
    pub(in crate::sim) fn check_sealed(&self, sites: &[Site; 2]) -> Result<(), Broken> {
        for (site, host, key) in &self.sealed {
            let memory = sites[*site].hosts[*host].host.memory(*key).unwrap_or_default();
            if memory.iter().any(|byte| *byte != BLANK) {
                return Err(("I2", "a message was executed again after its completion".to_owned()));
            }
        }
        Ok(())
    }
}

fn cell(end: End, region: RegionHandle, sites: &[Site; 2]) -> Option<u64> {
    let memory = sites[end.site].hosts[end.host].host.memory(region.key)?;
    memory.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}
