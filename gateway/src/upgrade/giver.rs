//! The old process's end.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use session::resumption::Resumption;
use snapshot::Beside;

use super::channel::{Kind, Message};
use super::{
    Broken, Channel, Extent, Hello, PREPARE, PROTOCOL, Place, RUNNING, SNAPSHOTS, STAND_STILL, Stand,
    WITH_SITES, common, moment, open_room,
};

/// Longest text about a room.
const MOST_EXTENT: usize = 256;

/// The old process's end of a take-over. Each step blocks, for a bounded time.
#[derive(Debug)]
pub struct Giver {
    channel: Channel,
    /// Lives as long as the take-over may come to pass.
    alive: Arc<()>,
    /// Shared memory, for as long as unmapping it would cost time that matters.
    rooms: Vec<Beside>,
}

/// A thread's room towards a peer.
#[derive(Debug)]
pub struct Offer {
    /// Whose, and its extent.
    pub extent: Extent,
    /// The memory, empty.
    pub beside: Beside,
    /// Gone once the take-over cannot come to pass any more.
    pub alive: Weak<()>,
}

impl Giver {
    /// Greets whoever connected: says what this process is, and hands its sockets over. Has packets
    /// copied ahead if there is room: `copy` returns when that is done. Returns when everything is
    /// to stand still.
    ///
    /// # Errors
    /// [`Broken`]: nothing has changed here. Whoever is there has been told.
    pub fn prepare(
        stream: UnixStream,
        stand: Stand,
        sockets: &[(Place, OwnedFd)],
        copy: impl FnMut(Vec<Offer>),
    ) -> Result<Self, Broken> {
        let channel = Channel::new(stream, PREPARE)?;
        let mut giver = Self { channel, alive: Arc::new(()), rooms: Vec::new() };
        giver.greet(stand, sockets, copy).inspect_err(|why| giver.refuse(&why.to_string()))?;
        Ok(giver)
    }

    fn greet(
        &mut self,
        stand: Stand,
        sockets: &[(Place, OwnedFd)],
        copy: impl FnMut(Vec<Offer>),
    ) -> Result<(), Broken> {
        use std::os::fd::AsFd;
        let (hello, _): (Hello, _) = self.channel.receive_json(Kind::Hello)?;
        let agreed = |what: &str, ours, theirs| {
            common(ours, theirs).ok_or_else(|| {
                Broken::Protocol(format!("versions {theirs:?} of {what}, where {ours:?} are known here"))
            })
        };
        let protocol = agreed("a take-over", PROTOCOL, hello.protocol)?;
        let snapshot = agreed("snapshots", SNAPSHOTS, hello.snapshot)?;
        if stand.is_member && protocol < WITH_SITES {
            let why = "it knows nothing of sites with several gateways: that takes a restart";
            return Err(Broken::Refused(why.to_owned()));
        }
        let is_equal = stand.peer_threads.iter().all(|there| *there == stand.threads);
        if protocol < WITH_SITES && !is_equal {
            let why = "it knows nothing of `peer.threads`: that takes a restart";
            return Err(Broken::Refused(why.to_owned()));
        }
        let most = stand.all_pairs();
        let count = u32::try_from(sockets.len()).unwrap_or(u32::MAX);
        let stand = Stand { protocol, snapshot, sockets: count, ..stand };
        self.channel.send_json(Kind::Stand, &stand, None)?;
        for (place, socket) in sockets {
            self.channel.send_json(Kind::Socket, place, Some(socket.as_fd()))?;
        }
        // Snapshots of version 1 refer to no room.
        let most = if protocol >= 2 && snapshot >= 2 { most } else { 0 };
        self.await_freeze(most, copy)?;
        self.channel.set_patience(STAND_STILL);
        Ok(())
    }

    /// `most`: rooms that there may be.
    fn await_freeze(&mut self, most: usize, mut copy: impl FnMut(Vec<Offer>)) -> Result<(), Broken> {
        let mut offers = Vec::new();
        loop {
            let message = self.channel.receive(|kind| if kind == Kind::Room { MOST_EXTENT } else { 0 })?;
            match message.kind {
                Kind::Freeze => return Ok(()),
                Kind::Room if offers.len() < most => offers.push(self.offer(&message)?),
                Kind::CopyAhead if !offers.is_empty() => {
                    copy(std::mem::take(&mut offers));
                    self.channel.send(Kind::Copied, &[])?;
                }
                _ => return Err(message.unexpected()),
            }
        }
    }

    fn offer(&self, message: &Message) -> Result<Offer, Broken> {
        let wrong = |why: &dyn Display| Broken::Protocol(format!("a room that cannot be used: {why}"));
        let extent: Extent = serde_json::from_slice(&message.body).map_err(|why| wrong(&why))?;
        let file = message.descriptor.as_ref().ok_or_else(|| wrong(&"it has no memory"))?;
        let beside = open_room(&extent, file).map_err(|why| wrong(&why))?;
        Ok(Offer { extent, beside, alive: Arc::downgrade(&self.alive) })
    }

    /// Hands over what the control connection with a peer has to hold.
    ///
    /// # Errors
    /// See [`Broken`].
    pub fn claim(&mut self, peer: u8, held: &Resumption) -> Result<(), Broken> {
        self.channel.send(Kind::Claim, &[&[peer], held.exposed()])
    }

    /// Hands a thread's part in its site towards another one over, taken at this time.
    ///
    /// # Errors
    /// See [`Broken`].
    pub fn site(&mut self, thread: u8, taken: Instant, state: &[u8]) -> Result<(), Broken> {
        let taken = moment::to_shared(taken).to_le_bytes();
        self.channel.send(Kind::Site, &[&[thread], &taken, state])
    }

    /// Hands a thread's state towards a peer over, taken at this time.
    ///
    /// # Errors
    /// See [`Broken`].
    pub fn state(&mut self, thread: u8, peer: u8, taken: Instant, state: &[u8]) -> Result<(), Broken> {
        let age = u64::try_from(taken.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.channel.send(Kind::Snapshot, &[&[thread, peer], &age.to_le_bytes(), state])
    }

    /// Hands over a state that is in the room, of so many bytes.
    ///
    /// # Errors
    /// See [`Broken`].
    pub fn state_in_room(&mut self, thread: u8, peer: u8, taken: Instant, len: usize) -> Result<(), Broken> {
        let age = u64::try_from(taken.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let len = (len as u64).to_le_bytes();
        self.channel.send(Kind::InRoom, &[&[thread, peer], &age.to_le_bytes(), &len])
    }

    /// Keeps a room that has been written.
    pub fn keep(&mut self, room: Beside) {
        self.rooms.push(room);
    }

    /// Says that this was all, and waits until the other process has it.
    ///
    /// # Errors
    /// [`Broken`]: this process goes on.
    pub fn ask_if_taken(&mut self) -> Result<(), Broken> {
        self.channel.send(Kind::Whole, &[])?;
        self.channel.expect(Kind::HaveIt)
    }

    /// Leaves everything to the other process.
    ///
    /// # Errors
    /// [`Broken`]: the other process has ended, and this one goes on. Otherwise it must not.
    pub fn commit(&mut self) -> Result<(), Broken> {
        self.channel.set_patience(Duration::from_secs(1));
        self.channel.send(Kind::Yours, &[])
    }

    /// Waits until the other process is known to the service manager, or for a while.
    pub fn wait_until_known(mut self) {
        self.channel.set_patience(RUNNING);
        if let Err(why) = self.channel.expect(Kind::Running) {
            tracing::warn!("the process that took over has not said that it runs: {why}");
        }
    }

    /// Says that this process goes on.
    pub fn refuse(&mut self, why: &str) {
        self.channel.set_patience(Duration::from_secs(1));
        self.channel.refuse(why);
    }
}
