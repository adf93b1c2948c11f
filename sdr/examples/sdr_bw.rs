//! `sdr_bw`: messages between two hosts, by any reliability layer or none; contents are checked.
//!
//! It is `sdr-c/examples/sdr_bw.c` in Rust, and either end can be the C program.
//! The server is started first, and the client with the server's address behind its options.
//!
//! ```text
//! sdr_bw -a ADDRESS [-d RDMA DEVICE] [-p PORT] [-s BYTES] [-c CHUNK BYTES] [-f IN FLIGHT]
//!        [-n MESSAGES] [-C CHANNELS] [-m MTU] [-r MBIT/S] [-t RTT IN US] [-v]
//!        [-S none|rto|nack|mds:K,M|xor:K,M] [SERVER]
//! ```
//!
//! Without `-d` it is UDP, and `SDR_SECRET_FILE` names the secret.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use sdr::blob::BLOB_BYTES;
use sdr::layers::{ReceiveError, Receiving, Scheme, Sending, Timing, TransferError};
use sdr::udp::now;
use sdr::{
    Buffer, Closing, Completed, ControlPath, Mtu, PostError, QpAttr, RecvHandle, RecvQp, SendError, SendQp,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "sdr_bw -a ADDRESS [-d RDMA DEVICE] [-p PORT] [-s BYTES] [-c CHUNK BYTES] [-f IN FLIGHT]
       [-n MESSAGES] [-C CHANNELS] [-m MTU] [-r MBIT/S] [-t RTT IN US] [-v]
       [-S none|rto|nack|mds:K,M|xor:K,M] [SERVER]";

/// After so long without a new packet, a message is completed as it is.
const PATIENCE: Duration = Duration::from_millis(100);

struct Options {
    address: IpAddr,
    device: Option<String>,
    port: u16,
    size: u32,
    chunk: u32,
    in_flight: u32,
    messages: u32,
    channels: u8,
    mtu: u32,
    rate: u64,
    rtt: u64,
    validate: bool,
    scheme: Option<Scheme>,
    server: Option<IpAddr>,
}

impl Options {
    fn parse() -> Result<Self> {
        let mut options = Options {
            address: IpAddr::from([0, 0, 0, 0]),
            device: None,
            port: 18516,
            size: 512 << 10,
            chunk: 64 << 10,
            in_flight: 16,
            messages: 1000,
            channels: 1,
            mtu: 1024,
            rate: 1000,
            rtt: 1000,
            validate: false,
            scheme: None,
            server: None,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            if word == "-v" {
                options.validate = true;
                continue;
            }
            if !word.starts_with('-') {
                options.server = Some(word.parse()?);
                continue;
            }
            let Some(value) = words.next() else {
                return Err(format!("no option {word}, or no value of it; usage: {USAGE}").into());
            };
            match word.as_str() {
                "-a" => options.address = value.parse()?,
                "-d" => options.device = Some(value),
                "-p" => options.port = value.parse()?,
                "-s" => options.size = value.parse()?,
                "-c" => options.chunk = value.parse()?,
                "-f" => options.in_flight = value.parse()?,
                "-n" => options.messages = value.parse()?,
                "-C" => options.channels = value.parse()?,
                "-m" => options.mtu = value.parse()?,
                "-r" => options.rate = value.parse()?,
                "-t" => options.rtt = value.parse()?,
                "-S" if value == "none" => options.scheme = None,
                "-S" => options.scheme = Some(value.parse()?),
                _ => return Err(format!("no option {word}; usage: {USAGE}").into()),
            }
        }
        Ok(options)
    }

    fn attr(&self) -> Result<QpAttr> {
        let log = |value: u32| value.next_power_of_two().ilog2();
        // Coded parts are smaller than messages, so they need slots of their own.
        let slots = if self.scheme.is_some() { log(self.in_flight) + 1 } else { log(self.in_flight) };
        Ok(QpAttr {
            chunk_log: log(self.chunk),
            in_flight_log: log(self.size) + slots,
            messages_log: slots,
            mtu: Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == self.mtu).ok_or("no such MTU")?,
            channels: self.channels,
            send: self.server.is_some(),
            receive: self.server.is_none(),
            rate: self.rate * 1_000_000,
            rtt: Duration::from_micros(self.rtt),
            ..QpAttr::default()
        })
    }

    fn pattern(&self, message: u32) -> Vec<u8> {
        let byte = |at: u32| message.wrapping_mul(131).wrapping_add(at / self.chunk * 7 + 1) as u8;
        (0..self.size).map(byte).collect()
    }
}

/// A connected queue pair on either back end.
struct Pair {
    send: Option<SendQp>,
    receive: Option<RecvQp>,
    control: ControlPath,
    /// Keeps the thread running.
    _link: Box<dyn Send>,
}

fn exchange(meeting: &mut TcpStream, blob: &[u8; BLOB_BYTES]) -> Result<[u8; BLOB_BYTES]> {
    let mut peer = [0; BLOB_BYTES];
    meeting.write_all(blob)?;
    meeting.read_exact(&mut peer)?;
    Ok(peer)
}

fn pair(options: &Options, meeting: &mut TcpStream) -> Result<Pair> {
    let Some(device) = &options.device else {
        let file = std::env::var_os("SDR_SECRET_FILE").ok_or("SDR_SECRET_FILE names no secret")?;
        let secret = std::fs::read(file)?.try_into().map_err(|_| "a secret has 32 bytes")?;
        let unconnected = sdr::udp::Unconnected::bind(options.attr()?, options.address)?;
        let peer = exchange(meeting, &unconnected.blob())?;
        let pair = unconnected.connect(&peer, &secret)?;
        let (send, receive, control) = (pair.send, pair.receive, pair.control);
        return Ok(Pair { send, receive, control, _link: Box::new(pair.link) });
    };
    on_device(options, device, meeting)
}

#[cfg(feature = "verbs")]
fn on_device(options: &Options, device: &str, meeting: &mut TcpStream) -> Result<Pair> {
    let unconnected = sdr::verbs::Unconnected::open(options.attr()?, device)?;
    let peer = exchange(meeting, &unconnected.blob())?;
    let pair = unconnected.connect(&peer)?;
    let (send, receive, control) = (pair.send, pair.receive, pair.control);
    Ok(Pair { send, receive, control, _link: Box::new(pair.link) })
}

#[cfg(not(feature = "verbs"))]
fn on_device(_: &Options, device: &str, _: &mut TcpStream) -> Result<Pair> {
    Err(format!("{device}: this program was built without the feature verbs").into())
}

#[expect(clippy::disallowed_methods, reason = "a program may wait for its peer")]
fn meet(options: &Options) -> Result<TcpStream> {
    let Some(server) = options.server else {
        return Ok(TcpListener::bind((options.address, options.port))?.accept()?.0);
    };
    for _ in 0..100 {
        match TcpStream::connect((server, options.port)) {
            Ok(stream) => return Ok(stream),
            Err(_) => std::thread::sleep(PATIENCE),
        }
    }
    Err("the server does not answer".into())
}

/// The server's last word: whole messages, chunks lost, messages with wrong contents.
#[derive(Default)]
struct Report([u64; 3]);

impl Report {
    fn add(&mut self, options: &Options, message: u32, bytes: &[u8], chunks: &[bool]) {
        let lost = chunks.iter().filter(|there| !**there).count() as u64;
        let [whole, missing, bad] = &mut self.0;
        *whole += u64::from(lost == 0);
        *missing += lost;
        let wanted = if options.validate { options.pattern(message) } else { Vec::new() };
        let size = options.chunk as usize;
        let pieces = bytes.chunks(size).zip(wanted.chunks(size)).zip(chunks);
        *bad += u64::from(pieces.fold(false, |bad, ((got, want), there)| bad || *there && got != want));
    }
}

/// Waits until all is there, or nothing more comes, and completes.
fn complete(handle: RecvHandle) -> Completed {
    let (mut seen, mut since) = (0, now());
    while !handle.bitmap().all() && now().duration_since(since) < PATIENCE && !handle.has_ended() {
        if handle.arrived() != seen {
            (seen, since) = (handle.arrived(), now());
        }
        std::thread::yield_now();
    }
    let mut closing: Closing = handle.complete();
    loop {
        match closing.poll() {
            Ok(completed) => return completed,
            Err(again) => closing = again,
        }
        std::thread::yield_now();
    }
}

fn serve(options: &Options, receive: &mut RecvQp) -> Result<Report> {
    let mut report = Report::default();
    let (mut handles, mut posted) = (VecDeque::new(), 0);
    // Memory is registered with a device once, and used again.
    let mut free: Vec<Buffer> =
        (0..options.in_flight).map(|_| Buffer::zeroed(options.size as usize)).collect();
    for message in 0..options.messages {
        while posted < options.messages
            && let Some(buffer) = free.pop()
        {
            match receive.post(buffer) {
                Ok(handle) => handles.push_back(handle),
                Err(unposted) if unposted.error == PostError::Retry => {
                    free.push(unposted.buffer);
                    break;
                }
                Err(unposted) => return Err(unposted.error.into()),
            }
            posted += 1;
        }
        let completed = complete(handles.pop_front().ok_or("no receive is posted")?);
        report.add(options, message, completed.buffer.as_slice(), &completed.chunks);
        free.push(completed.buffer);
    }
    Ok(report)
}

fn drive(options: &Options, send: &mut SendQp) -> Result<()> {
    let mut sent = VecDeque::new();
    for message in 0..options.messages {
        let data: sdr::Slice = options.pattern(message).into();
        let handle = loop {
            match send.post(data.clone(), 0, None, now()) {
                Ok(handle) => break handle,
                Err(SendError::Retry) => std::thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        };
        sent.push_back(handle);
        while sent.len() >= options.in_flight as usize
            && let Some(oldest) = sent.front()
        {
            if oldest.poll()? {
                sent.pop_front();
            } else {
                std::thread::yield_now();
            }
        }
    }
    while let Some(oldest) = sent.front() {
        if oldest.poll()? {
            sent.pop_front();
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn serve_reliably(options: &Options, layer: &mut Receiving, control: &ControlPath) -> Result<Report> {
    let mut report = Report::default();
    let (mut expected, mut message) = (0, 0);
    let chunks = vec![true; options.size.div_ceil(options.chunk) as usize];
    while message < options.messages {
        while expected < options.messages.min(message + options.in_flight) {
            match layer.expect(options.size as usize) {
                Ok(_) => expected += 1,
                Err(ReceiveError::Retry) => break,
                Err(error) => return Err(error.into()),
            }
        }
        layer.poll(control, now())?;
        while let Some(bytes) = layer.take() {
            report.add(options, message, &bytes, &chunks);
            message += 1;
        }
        std::thread::yield_now();
    }
    Ok(report)
}

fn drive_reliably(options: &Options, layer: &mut Sending, control: &ControlPath) -> Result<()> {
    let (mut next, mut pending) = (0, VecDeque::new());
    while next < options.messages || !layer.is_idle() {
        while next < options.messages && pending.len() < options.in_flight as usize {
            match layer.send(&Arc::new(Buffer::from(options.pattern(next)))) {
                Ok(number) => pending.push_back(number),
                Err(TransferError::Retry) => break,
                Err(error) => return Err(error.into()),
            }
            next += 1;
        }
        layer.poll(control, now())?;
        while pending.front().is_some_and(|number| layer.is_done(*number)) {
            pending.pop_front();
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn server(options: &Options, mut pair: Pair, meeting: &mut TcpStream) -> Result<()> {
    let mut receive = pair.receive.take().ok_or("the peer does not send")?;
    let Some(scheme) = &options.scheme else {
        let report = serve(options, &mut receive)?;
        return tell(meeting, &report);
    };
    let timing = Timing::new(Duration::from_micros(options.rtt), options.rate * 1_000_000);
    let mut layer = Receiving::new(receive, scheme.clone(), timing, now())?;
    let report = serve_reliably(options, &mut layer, &pair.control)?;
    println!("{} parts decoded, {:?}", layer.decoded(), layer.path());
    tell(meeting, &report)?;
    // The peer learns of the last messages. It closes the meeting when it knows.
    meeting.set_nonblocking(true)?;
    let (mut last, deadline) = ([0], now() + Duration::from_secs(10));
    while meeting.read(&mut last).is_err() && now() < deadline {
        if layer.poll(&pair.control, now()).is_err() {
            break;
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn tell(meeting: &mut TcpStream, report: &Report) -> Result<()> {
    meeting.write_all(&report.0.map(u64::to_ne_bytes).concat())?;
    if report.0[2] > 0 { Err("wrong contents".into()) } else { Ok(()) }
}

fn client(options: &Options, mut pair: Pair, meeting: &mut TcpStream) -> Result<()> {
    let mut send = pair.send.take().ok_or("the peer does not receive")?;
    let start = now();
    let repeated = if let Some(scheme) = &options.scheme {
        let timing = Timing::new(Duration::from_micros(options.rtt), options.rate * 1_000_000);
        let mut layer = Sending::new(send, scheme.clone(), timing, now())?;
        drive_reliably(options, &mut layer, &pair.control)?;
        println!("{} chunks repeated, {:?}", layer.repeated(), layer.path());
        layer.repeated()
    } else {
        drive(options, &mut send)?;
        0
    };
    let mut report = [[0; 8]; 3];
    meeting.read_exact(report.as_flattened_mut())?;
    let [whole, lost, bad] = report.map(u64::from_ne_bytes);
    let time = now().duration_since(start).as_secs_f64();
    let bits = f64::from(options.size) * f64::from(options.messages) * 8.0;
    println!(
        "{} messages of {} bytes in {time:.3} s: {:.3} Gbit/s",
        options.messages,
        options.size,
        bits / time * 1e-9
    );
    let checked = if options.validate { ", contents checked" } else { "" };
    println!("{whole} whole, {lost} chunks lost, {repeated} repeated{checked}");
    if bad > 0 { Err(format!("{bad} messages with wrong contents").into()) } else { Ok(()) }
}

fn main() -> Result<()> {
    let options = Options::parse()?;
    let mut meeting = meet(&options)?;
    let pair = pair(&options, &mut meeting)?;
    if options.server.is_some() {
        client(&options, pair, &mut meeting)
    } else {
        server(&options, pair, &mut meeting)
    }
}
