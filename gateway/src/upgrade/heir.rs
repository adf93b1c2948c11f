//! The new process's end.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use session::resumption::Resumption;
use zeroize::Zeroizing;

use super::channel::{Kind, Message};
use super::{
    Broken, Channel, Extent, Hello, NAME, NoRoom, PATH, PREPARE, PROTOCOL, Place, Room, SNAPSHOTS,
    STAND_STILL, Stand, control_group, moment, peer_threads, room,
};
use crate::uninterrupted::uninterrupted;

/// Longest head of an HTTP answer.
const MOST_HEAD: usize = 4 << 10;
/// Numbers before a snapshot: thread, peer, age.
const NUMBERS: usize = 2 + 8;
/// Numbers before a part's snapshot: thread, time.
const SITE_NUMBERS: usize = 1 + 8;
const SECRET: usize = 32;
/// Sockets that cross at most.
const MOST_SOCKETS: u32 = 65_536;

/// Why the old process goes on.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    /// Nobody is there.
    #[error("no gateway answers at {}", path.display())]
    Nobody {
        /// Its admin socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Somebody is there, and says nothing.
    #[error("the gateway at {} does not answer in time", path.display())]
    Silent {
        /// Its admin socket.
        path: PathBuf,
    },
    /// Somebody else is there.
    #[error("{} is user {uid}'s, who is neither this one nor root", path.display())]
    Stranger {
        /// The admin socket.
        path: PathBuf,
        /// Whose process listens there.
        uid: u32,
    },
    /// It answers otherwise.
    #[error("the running gateway does not hand over: {0}")]
    Unable(String),
    /// It broke off.
    #[error("nothing was taken over: {0}")]
    Broken(#[from] Broken),
    /// The files differ in what an upgrade cannot change.
    #[error("{what} is {here} in the files and {there} in the running gateway: that takes a restart")]
    Differs {
        /// Which setting.
        what: &'static str,
        /// Its value in the files.
        here: String,
        /// The running gateway's.
        there: String,
    },
    /// A state cannot be gone on with.
    #[error("the state of the running gateway cannot be taken over: {0}")]
    State(String),
}

/// The new process's end of a take-over. Each step blocks, for a bounded time. Dropped, it leaves
/// the old process in charge, and says so.
#[derive(Debug)]
pub struct Heir {
    channel: Channel,
    stand: Stand,
    sockets: BTreeMap<Place, OwnedFd>,
    /// Shared memory by thread and peer.
    rooms: BTreeMap<(u8, u8), Arc<Room>>,
    state: State,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The old process waits for what comes next.
    Claiming,
    /// It needs no further word.
    Over,
}

/// The flows of the old process.
#[derive(Debug)]
pub struct Given {
    /// The secret that each peer's control connection has to hold.
    pub claims: Vec<Option<Resumption>>,
    /// Each thread's state towards each peer.
    pub parts: Vec<Part>,
    /// Each thread's part in its site towards each other one, if a site has several gateways.
    pub sites: Vec<SitePart>,
}

/// A thread's part in its site, towards another one.
#[derive(Debug)]
pub struct SitePart {
    /// The thread's number.
    pub thread: u8,
    /// When the snapshot was taken.
    pub then: Instant,
    body: Vec<u8>,
}

impl SitePart {
    /// The part's snapshot.
    #[must_use]
    pub fn snapshot(&self) -> &[u8] {
        self.body.get(SITE_NUMBERS..).unwrap_or_default()
    }
}

/// A thread's state towards a peer.
#[derive(Debug)]
pub struct Part {
    /// The number of the pair of threads.
    pub thread: u8,
    /// The peer's, in the gateway file's order.
    pub peer: u8,
    /// When the snapshot was taken.
    pub then: Instant,
    /// The memory that its packets may be in.
    room: Option<Arc<Room>>,
    body: Body,
}

#[derive(Debug)]
enum Body {
    /// The core's snapshot, behind some bytes.
    Apart(Vec<u8>),
    /// So many bytes of the room.
    There(usize),
}

impl Part {
    /// The core's snapshot.
    #[must_use]
    pub fn snapshot(&self) -> &[u8] {
        match &self.body {
            Body::Apart(body) => body.get(NUMBERS..).unwrap_or_default(),
            Body::There(len) => self.room.as_ref().and_then(|room| room.state(*len)).unwrap_or_default(),
        }
    }

    /// The room that its packets may be in, if there is one.
    #[must_use]
    pub fn room(&self) -> Option<&Arc<Room>> {
        self.room.as_ref()
    }
}

impl Part {
    fn with_room(self, rooms: &BTreeMap<(u8, u8), Arc<Room>>) -> Self {
        Self { room: rooms.get(&(self.thread, self.peer)).map(Arc::clone), ..self }
    }

    /// Has what the message names for its body: so many bytes of the room.
    fn in_room(self) -> Result<Self, Broken> {
        let wrong = || Broken::Protocol("a snapshot that is not in its room".to_owned());
        let len = <[u8; 8]>::try_from(self.snapshot()).map_err(|_| wrong())?;
        let len = usize::try_from(u64::from_le_bytes(len)).map_err(|_| wrong())?;
        let is_there = self.room.as_ref().is_some_and(|room| room.state(len).is_some());
        if is_there { Ok(Self { body: Body::There(len), ..self }) } else { Err(wrong()) }
    }
}

impl Heir {
    /// Asks the gateway with this admin socket what it is, and for its sockets.
    ///
    /// # Errors
    /// See [`NotTaken`].
    pub fn connect(path: &Path) -> Result<Self, NotTaken> {
        let nobody = |source| NotTaken::Nobody { path: path.to_owned(), source };
        let mut stream = uninterrupted(|| UnixStream::connect(path)).map_err(nobody)?;
        let there = socket_peercred(&stream).map_err(|error| nobody(error.into()))?;
        let own = geteuid();
        if !own.is_root() && !there.uid.is_root() && there.uid != own {
            return Err(NotTaken::Stranger { path: path.to_owned(), uid: there.uid.as_raw() });
        }
        stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(nobody)?;
        let silent = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => NotTaken::Silent { path: path.to_owned() },
            _ => nobody(error),
        };
        ask(&mut stream).map_err(silent)?.map_err(NotTaken::Unable)?;
        let mut channel = Channel::new(stream, PREPARE).map_err(nobody)?;
        let hello =
            Hello { protocol: PROTOCOL, snapshot: SNAPSHOTS, build: env!("CARGO_PKG_VERSION").to_owned() };
        channel.send_json(Kind::Hello, &hello, None)?;
        let (stand, _): (Stand, _) = channel.receive_json(Kind::Stand)?;
        if stand.sockets > MOST_SOCKETS {
            return Err(Broken::Protocol(format!("{} sockets", stand.sockets)).into());
        }
        let mut sockets = BTreeMap::new();
        for _ in 0..stand.sockets {
            let (place, socket) = channel.receive_json(Kind::Socket)?;
            let socket = socket.ok_or_else(|| Broken::Protocol("no socket".to_owned()))?;
            sockets.insert(place, socket);
        }
        Ok(Self { channel, stand, sockets, rooms: BTreeMap::new(), state: State::Claiming })
    }

    /// Returns what the old process is.
    #[must_use]
    pub fn stand(&self) -> &Stand {
        &self.stand
    }

    /// Takes the socket for this.
    pub fn take(&mut self, place: Place) -> Option<OwnedFd> {
        self.sockets.remove(&place)
    }

    /// Compares with the files what an upgrade cannot change and what shows in no snapshot.
    ///
    /// # Errors
    /// [`NotTaken::Differs`], and [`NotTaken::Unable`] if a service manager would lose sight of the
    /// gateway.
    pub fn check(&self, gateway: &config::Gateway) -> Result<(), NotTaken> {
        let Stand { site, peers, threads, .. } = &self.stand;
        let names: Vec<&str> = gateway.peers().map(|peer| peer.name.as_str()).collect();
        let differs = |what, here: &str, there: &str| NotTaken::Differs {
            what,
            here: here.to_owned(),
            there: there.to_owned(),
        };
        if *site != gateway.site.name {
            return Err(differs("site.name", &gateway.site.name, site));
        }
        if names != *peers {
            return Err(differs("the list of peers", &names.join(", "), &peers.join(", ")));
        }
        let here = gateway.data_plane.threads;
        if here != *threads {
            return Err(differs("data_plane.threads", &here.to_string(), &threads.to_string()));
        }
        let (files, running) = (peer_threads(gateway), &self.stand.peer_threads);
        let differing = files.iter().zip(running).find(|(here, there)| here != there);
        let unsaid = files.iter().find(|peer| running.is_empty() && **peer != here).map(|peer| (peer, &here));
        if let Some((here, there)) = differing.or(unsaid) {
            return Err(differs("peer.threads", &here.to_string(), &there.to_string()));
        }
        let is_member = gateway.is_member();
        if is_member != self.stand.is_member {
            let say = |is_member| if is_member { "given" } else { "absent" };
            return Err(differs("site.gateways or peer.site", say(is_member), say(self.stand.is_member)));
        }
        let is_managed = self.stand.control_group.is_some();
        if is_managed && self.stand.control_group != control_group() {
            return Err(NotTaken::Unable(
                "a service manager runs it, and would not find the new process: let the manager start \
                 that, as `systemctl reload` does"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Makes room for what waits in the old process, and has it copied there while that runs. Call
    /// it before privileges are given up. Without room, all is copied while nothing moves.
    ///
    /// # Errors
    /// [`NotTaken::Broken`]: of the old process. That there is no room is returned beside.
    pub fn offer_room(&mut self) -> Result<Result<(), NoRoom>, NotTaken> {
        let extents: Vec<_> = self.stand.waiting.iter().map(Extent::of).collect();
        if self.stand.protocol < 2 || self.stand.snapshot < 2 || extents.is_empty() {
            return Ok(Ok(()));
        }
        let make = || -> Result<Vec<_>, NoRoom> {
            room::check(extents.iter().fold(0, |sum, extent| extent.bytes().saturating_add(sum)))?;
            extents.iter().map(Room::new).collect()
        };
        let rooms = match make() {
            Ok(rooms) => rooms,
            Err(why) => return Ok(Err(why)),
        };
        for (extent, (room, file)) in extents.iter().zip(rooms) {
            self.channel.set_patience(PREPARE);
            self.channel.send_json(Kind::Room, extent, Some(file.as_fd()))?;
            self.rooms.insert((extent.thread, extent.peer), Arc::new(room));
        }
        self.channel.send(Kind::CopyAhead, &[])?;
        Ok(Ok(()))
    }

    /// Waits until the old process has copied ahead, if there is room. It still runs then.
    ///
    /// # Errors
    /// See [`NotTaken`].
    pub fn await_copied(&mut self) -> Result<(), NotTaken> {
        if !self.rooms.is_empty() {
            self.channel.set_patience(PREPARE);
            self.channel.expect(Kind::Copied)?;
        }
        Ok(())
    }

    /// Has the old process stand still, and takes its flows. `most`: bytes of all snapshots.
    ///
    /// # Errors
    /// See [`NotTaken`].
    pub fn receive(&mut self, most: usize) -> Result<Given, NotTaken> {
        self.channel.set_patience(STAND_STILL);
        self.channel.send(Kind::Freeze, &[])?;
        let peers = self.stand.peers.len();
        let pairs: Vec<_> = (0..peers).map(|peer| self.stand.pairs(peer)).collect();
        let threads = usize::from(self.stand.threads);
        let claims = (0..peers).map(|_| None).collect();
        let mut given = Given { claims, parts: Vec::new(), sites: Vec::new() };
        let mut left = most;
        loop {
            let message = self.channel.receive(|kind| match kind {
                Kind::Claim => 1 + SECRET,
                Kind::Snapshot => left.saturating_add(NUMBERS),
                Kind::InRoom => NUMBERS + 8,
                Kind::Site => left.saturating_add(SITE_NUMBERS),
                _ => 0,
            })?;
            match message.kind {
                Kind::Claim => given.claim(message)?,
                Kind::Snapshot => {
                    let part = given.part(message, &pairs)?;
                    left = left.saturating_sub(part.snapshot().len());
                    given.parts.push(part.with_room(&self.rooms));
                }
                Kind::InRoom => {
                    let part = given.part(message, &pairs)?;
                    given.parts.push(part.with_room(&self.rooms).in_room()?);
                }
                Kind::Site if given.sites.len() < threads * peers => {
                    let site = Given::site(message, threads)?;
                    left = left.saturating_sub(site.snapshot().len());
                    given.sites.push(site);
                }
                Kind::Whole if given.parts.len() == self.stand.all_pairs() => return Ok(given),
                _ => return Err(message.unexpected().into()),
            }
        }
    }

    /// Says that everything is there and understood. Returns when the old process has left
    /// everything to this one.
    ///
    /// # Errors
    /// The old process goes on, or has ended.
    pub fn conclude(&mut self) -> Result<(), NotTaken> {
        self.channel.send(Kind::HaveIt, &[])?;
        self.channel.expect(Kind::Yours)?;
        self.state = State::Over;
        Ok(())
    }

    /// Leaves without a word: there was nothing to do.
    pub fn leave(mut self) {
        self.state = State::Over;
    }

    /// Says that the old process may end.
    pub fn dismiss(mut self) {
        self.state = State::Over;
        self.channel.set_patience(Duration::from_secs(1));
        // It ends in any case.
        let _ = self.channel.send(Kind::Running, &[]);
    }

    /// Says why the old process has to go on.
    pub fn refuse(&mut self, why: &str) {
        self.state = State::Over;
        self.channel.set_patience(Duration::from_secs(1));
        self.channel.refuse(why);
    }
}

impl Drop for Heir {
    fn drop(&mut self) {
        if self.state == State::Claiming {
            self.refuse("it could not begin, and says why in its own log");
        }
    }
}

impl Given {
    fn claim(&mut self, message: Message) -> Result<(), Broken> {
        let body = Zeroizing::new(message.body);
        let wrong = || Broken::Protocol("a claim that is none".to_owned());
        let Some(([peer], secret)) = body.split_first_chunk::<1>() else { return Err(wrong()) };
        let secret = <[u8; SECRET]>::try_from(secret).map_err(|_| wrong())?;
        let place = self.claims.get_mut(usize::from(*peer)).ok_or_else(wrong)?;
        *place = Some(Resumption::new(Zeroizing::new(secret)));
        Ok(())
    }

    fn site(message: Message, threads: usize) -> Result<SitePart, Broken> {
        let wrong = || Broken::Protocol("a part in a site that is none".to_owned());
        let body = message.body;
        let Some(([thread, at @ ..], _)) = body.split_first_chunk::<SITE_NUMBERS>() else {
            return Err(wrong());
        };
        let (thread, then) = (*thread, moment::from_shared(u64::from_le_bytes(*at)).ok_or_else(wrong)?);
        if usize::from(thread) >= threads { Err(wrong()) } else { Ok(SitePart { thread, then, body }) }
    }

    /// `pairs`: pairs of threads by peer.
    fn part(&self, message: Message, pairs: &[u8]) -> Result<Part, Broken> {
        let wrong = || Broken::Protocol("a snapshot out of its place".to_owned());
        let body = message.body;
        let Some(([thread, peer, age @ ..], _)) = body.split_first_chunk::<NUMBERS>() else {
            return Err(wrong());
        };
        let (thread, peer, age) = (*thread, *peer, Duration::from_nanos(u64::from_le_bytes(*age)));
        let is_known = self.parts.iter().any(|part| (part.thread, part.peer) == (thread, peer));
        if is_known || pairs.get(usize::from(peer)).is_none_or(|pairs| thread >= *pairs) {
            return Err(wrong());
        }
        let then = Instant::now().checked_sub(age).ok_or_else(wrong)?;
        Ok(Part { thread, peer, then, room: None, body: Body::Apart(body) })
    }
}

/// Asks for the messages. Returns the other's words if it has none.
fn ask(stream: &mut UnixStream) -> io::Result<Result<(), String>> {
    write!(
        stream,
        "POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: {NAME}\r\n\
         Content-Length: 0\r\n\r\n"
    )?;
    let mut head = Vec::new();
    // Nothing behind it may be read.
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if head.len() >= MOST_HEAD || uninterrupted(|| stream.read(&mut byte))? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.extend(byte);
    }
    let head = String::from_utf8_lossy(&head);
    let status = head.split_ascii_whitespace().nth(1).unwrap_or_default();
    if status == "101" {
        return Ok(Ok(()));
    }
    let mut words = String::new();
    // It need not say why.
    let _ = stream.take(MOST_HEAD as u64).read_to_string(&mut words);
    let words = words.trim();
    let is_older = status == "404" || words.is_empty();
    let why = if is_older { "it is of an older version, and takes a restart" } else { words };
    Ok(Err(why.to_owned()))
}
