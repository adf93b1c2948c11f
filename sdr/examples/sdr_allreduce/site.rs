//! One site of a ring over several machines.
//!
//! The sites meet by TCP: each one listens for the site before it, and connects to the next one.
//! They exchange blobs there, and at the end say that all has arrived.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::Duration;

use sdr::blob::BLOB_BYTES;
use sdr::layers::{Scheme, Timing};
use sdr::udp::{QueuePair, SECRET_BYTES, Unconnected, now};
use sdr::{Mtu, QpAttr};

use crate::Result;
use crate::ring::{Ends, Site, text};

pub(crate) const USAGE: &str = "sdr_allreduce site INDEX ADDRESS ADDRESS... [-S rto|nack|mds:K,M|xor:K,M] \
                                [-s SEGMENT BYTES] [-m MTU] [-r MBIT/S] [-t RTT IN US] [-p PORT]";

/// Pause between two looks.
const PAUSE: Duration = Duration::from_micros(200);
/// Looks for the next site's program before it is given up.
const TRIES: usize = 300;
const RETRY: Duration = Duration::from_millis(100);

struct Options {
    index: usize,
    addresses: Vec<IpAddr>,
    scheme: Scheme,
    segment: usize,
    mtu: u32,
    rate: u64,
    rtt: u64,
    port: u16,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let index = words.next().ok_or(USAGE)?.parse()?;
        let mut options = Options {
            index,
            addresses: Vec::new(),
            scheme: Scheme::SrNack,
            segment: 1 << 20,
            mtu: 1024,
            rate: 1000,
            rtt: 1000,
            port: 18517,
        };
        while let Some(word) = words.next() {
            if !word.starts_with('-') {
                options.addresses.push(word.parse()?);
                continue;
            }
            let value = words.next().ok_or(USAGE)?;
            match word.as_str() {
                "-S" => options.scheme = value.parse()?,
                "-s" => options.segment = value.parse()?,
                "-m" => options.mtu = value.parse()?,
                "-r" => options.rate = value.parse()?,
                "-t" => options.rtt = value.parse()?,
                "-p" => options.port = value.parse()?,
                _ => return Err(format!("no option {word}; usage: {USAGE}").into()),
            }
        }
        let sites = options.addresses.len();
        if sites < 2 || options.index >= sites || !options.segment.is_multiple_of(8) || options.segment == 0 {
            return Err(
                format!("no ring, no such site of it, or no segment of numbers; usage: {USAGE}").into()
            );
        }
        Ok(options)
    }

    /// The attributes of a queue pair in one direction.
    fn attr(&self, is_sender: bool) -> Result<QpAttr> {
        Ok(QpAttr {
            chunk_log: 12,
            in_flight_log: 26,
            messages_log: 7,
            mtu: Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == self.mtu).ok_or("no such MTU")?,
            send: is_sender,
            receive: !is_sender,
            rate: self.rate * 1_000_000,
            rtt: Duration::from_micros(self.rtt),
            ..QpAttr::default()
        })
    }

    fn address(&self, index: usize) -> Result<IpAddr> {
        self.addresses.get(index % self.addresses.len()).copied().ok_or_else(|| USAGE.into())
    }
}

/// Runs a site until all sites have all sums.
#[expect(clippy::disallowed_methods, reason = "a program may rest between two looks")]
pub(crate) fn site(words: impl Iterator<Item = String>) -> Result<()> {
    let options = Options::parse(words)?;
    let file = std::env::var_os("SDR_SECRET_FILE").ok_or("SDR_SECRET_FILE names no secret")?;
    let secret = std::fs::read(file)?.try_into().map_err(|_| "a secret has 32 bytes")?;
    let (mut to_next, mut from_last) = meet(&options)?;
    // All sites tell theirs first, or each would wait for the next one's.
    let next = offer(&options, true, &mut to_next)?;
    let last = offer(&options, false, &mut from_last)?;
    let next = connect(next, &mut to_next, &secret)?;
    let last = connect(last, &mut from_last, &secret)?;
    let (Some(send), Some(receive)) = (next.send, last.receive) else {
        return Err("one direction only".into());
    };
    let ends = Ends { send, to_next: next.control, receive, from_last: last.control };
    let place = (options.index, options.addresses.len());
    let timing = Timing::new(Duration::from_micros(options.rtt), options.rate * 1_000_000);
    let start = now();
    let mut site = Site::new(place, options.segment / 8, &options.scheme, timing, ends, start)?;
    from_last.set_nonblocking(true)?;
    let (mut is_told, mut may_leave) = (false, false);
    while !(is_told && may_leave) {
        site.poll(now())?;
        if !is_told && site.done_at().is_some() && site.is_idle() {
            // The next site has all, and need not answer any more.
            to_next.write_all(&[1])?;
            is_told = true;
        }
        may_leave |= is_released(&mut from_last)?;
        std::thread::sleep(PAUSE);
    }
    if !site.is_right() {
        return Err("wrong sums".into());
    }
    let took = site.done_at().unwrap_or(start) - start;
    let (index, sites) = place;
    println!(
        "site {index} of {sites}: {} bytes a segment, {}, sums right, {:.0} ms",
        options.segment,
        text(&options.scheme),
        took.as_secs_f64() * 1e3
    );
    Ok(())
}

/// Returns the connections to the next site, and from the one before.
#[expect(clippy::disallowed_methods, reason = "a program may wait for its peer")]
fn meet(options: &Options) -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((options.address(options.index)?, options.port))?;
    let next = options.address(options.index + 1)?;
    for _ in 0..TRIES {
        // Its listener need not accept it yet.
        if let Ok(to_next) = TcpStream::connect((next, options.port)) {
            return Ok((to_next, listener.accept()?.0));
        }
        std::thread::sleep(RETRY);
    }
    Err(format!("the site at {next} does not answer").into())
}

/// Makes a queue pair in one direction, and tells the site at the other end of it.
fn offer(options: &Options, is_sender: bool, meeting: &mut TcpStream) -> Result<Unconnected> {
    let unconnected = Unconnected::bind(options.attr(is_sender)?, options.address(options.index)?)?;
    meeting.write_all(&unconnected.blob())?;
    Ok(unconnected)
}

/// Connects a queue pair to that of the site at the other end.
fn connect(
    unconnected: Unconnected,
    meeting: &mut TcpStream,
    secret: &[u8; SECRET_BYTES],
) -> Result<QueuePair> {
    let mut peer = [0; BLOB_BYTES];
    meeting.read_exact(&mut peer)?;
    Ok(unconnected.connect(&peer, secret)?)
}

/// Returns true if the site before has said that all arrived.
fn is_released(from_last: &mut TcpStream) -> Result<bool> {
    match from_last.read(&mut [0]) {
        Ok(0) => Err("the site before has ended".into()),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.into()),
    }
}
