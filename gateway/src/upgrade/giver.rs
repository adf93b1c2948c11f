//! The old process's end.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use session::resumption::Resumption;

use super::channel::Kind;
use super::{Broken, Channel, Hello, PREPARE, PROTOCOL, Place, RUNNING, STAND_STILL, Stand, common};

/// The old process's end of a take-over. Each step blocks, for a bounded time.
#[derive(Debug)]
pub struct Giver(Channel);

impl Giver {
    /// Greets whoever connected: says what this process is, and hands its sockets over. Returns
    /// when everything is to stand still.
    ///
    /// # Errors
    /// [`Broken`]: nothing has changed here. Whoever is there has been told.
    pub fn prepare(stream: UnixStream, stand: Stand, sockets: &[(Place, OwnedFd)]) -> Result<Self, Broken> {
        let mut giver = Self(Channel::new(stream, PREPARE)?);
        giver.greet(stand, sockets).inspect_err(|why| giver.refuse(&why.to_string()))?;
        Ok(giver)
    }

    fn greet(&mut self, stand: Stand, sockets: &[(Place, OwnedFd)]) -> Result<(), Broken> {
        use std::os::fd::AsFd;
        let (hello, _): (Hello, _) = self.0.receive_json(Kind::Hello)?;
        let agreed = |what: &str, ours, theirs| {
            common(ours, theirs).ok_or_else(|| {
                Broken::Protocol(format!("versions {theirs:?} of {what}, where {ours:?} are known here"))
            })
        };
        let protocol = agreed("a take-over", PROTOCOL, hello.protocol)?;
        // Snapshots are written in one version only.
        let snapshot = agreed("snapshots", [snapshot::VERSION; 2], hello.snapshot)?;
        let count = u32::try_from(sockets.len()).unwrap_or(u32::MAX);
        let stand = Stand { protocol, snapshot, sockets: count, ..stand };
        self.0.send_json(Kind::Stand, &stand, None)?;
        for (place, socket) in sockets {
            self.0.send_json(Kind::Socket, place, Some(socket.as_fd()))?;
        }
        self.0.expect(Kind::Freeze)?;
        self.0.set_patience(STAND_STILL);
        Ok(())
    }

    /// Hands over what the control connection with a peer has to hold.
    ///
    /// # Errors
    /// See [`Broken`].
    pub fn claim(&mut self, peer: u8, held: &Resumption) -> Result<(), Broken> {
        self.0.send(Kind::Claim, &[&[peer], held.exposed()])
    }

    /// Hands a thread's state towards a peer over, taken at this time.
    ///
    /// # Errors
    /// See [`Broken`].
    pub fn state(&mut self, thread: u8, peer: u8, taken: Instant, state: &[u8]) -> Result<(), Broken> {
        let age = u64::try_from(taken.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.send(Kind::Snapshot, &[&[thread, peer], &age.to_le_bytes(), state])
    }

    /// Says that this was all, and waits until the other process has it.
    ///
    /// # Errors
    /// [`Broken`]: this process goes on.
    pub fn ask_if_taken(&mut self) -> Result<(), Broken> {
        self.0.send(Kind::Whole, &[])?;
        self.0.expect(Kind::HaveIt)
    }

    /// Leaves everything to the other process.
    ///
    /// # Errors
    /// [`Broken`]: the other process has ended, and this one goes on. Otherwise it must not.
    pub fn commit(&mut self) -> Result<(), Broken> {
        self.0.set_patience(Duration::from_secs(1));
        self.0.send(Kind::Yours, &[])
    }

    /// Waits until the other process is known to the service manager, or for a while.
    pub fn wait_until_known(mut self) {
        self.0.set_patience(RUNNING);
        if let Err(why) = self.0.expect(Kind::Running) {
            tracing::warn!("the process that took over has not said that it runs: {why}");
        }
    }

    /// Says that this process goes on.
    pub fn refuse(&mut self, why: &str) {
        self.0.set_patience(Duration::from_secs(1));
        self.0.refuse(why);
    }
}
