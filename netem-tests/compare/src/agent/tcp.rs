//! Messages over the kernel's TCP, each connection with as many outstanding as it gets its share
//! of.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use socket2::{Domain, SockRef, Socket, Type};

use super::Error;
use crate::job::{HEADER, Header, Job, Tally, say, wait_for_release};

const BACKLOG: i32 = 1024;

pub(super) fn receive(listen: SocketAddr, congestion: Option<&str>) -> Result<(), Error> {
    let listener = listener(listen, congestion)?;
    say("ready")?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // A connection that breaks shows at the sender, as messages that are never confirmed.
            thread::spawn(move || serve(stream));
        }
    });
    Ok(wait_for_release()?)
}

pub(super) fn listener(listen: SocketAddr, congestion: Option<&str>) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(listen), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if let Some(name) = congestion {
        socket.set_tcp_congestion(name.as_bytes())?;
    }
    socket.bind(&listen.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut body = Vec::new();
    loop {
        let mut header = [0; HEADER];
        stream.read_exact(&mut header)?;
        let header = Header::parse(header);
        body.resize(usize::try_from(header.length).map_err(io::Error::other)?, 0);
        stream.read_exact(&mut body)?;
        stream.write_all(&header.confirmation(&body).to_le_bytes())?;
    }
}

pub(super) fn send(to: SocketAddr, congestion: Option<&str>, job: Job) -> Result<(), Error> {
    let streams = connect_all(to, congestion, job.connections)?;
    let tally = Arc::new(Tally::begin(job)?);
    let depth = job.outstanding.div_ceil(job.connections);
    for stream in streams {
        let (posted, to_write) = channel();
        let reader = stream.try_clone()?;
        let (for_writer, for_reader) = (Arc::clone(&tally), posted.clone());
        for _ in 0..depth {
            post(&for_writer, &posted);
        }
        thread::spawn(move || write(stream, &to_write, &job));
        let tally = Arc::clone(&tally);
        thread::spawn(move || read(reader, &tally, &for_reader));
    }
    tally.finish()?;
    Ok(wait_for_release()?)
}

/// All at once: one after the other, each would wait a round trip.
fn connect_all(to: SocketAddr, congestion: Option<&str>, count: u32) -> io::Result<Vec<TcpStream>> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(|| connect(to, congestion))).collect();
        let joined = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("connecting panicked")))
        };
        threads.into_iter().map(joined).collect()
    })
}

pub(super) fn connect(to: SocketAddr, congestion: Option<&str>) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if let Some(name) = congestion {
        socket.set_tcp_congestion(name.as_bytes())?;
    }
    socket.connect(&to.into())?;
    SockRef::from(&socket).set_tcp_nodelay(true)?;
    Ok(socket.into())
}

/// The time of a message runs from here, however long the writer is busy with those before.
fn post(tally: &Tally, posted: &Sender<u64>) {
    if let Some(number) = tally.post() {
        // The writer is gone with its connection.
        let _ = posted.send(number);
    }
}

fn write(mut stream: TcpStream, posted: &Receiver<u64>, job: &Job) -> io::Result<()> {
    let size = usize::try_from(job.size).map_err(io::Error::other)?;
    let mut message = vec![0; HEADER + size];
    while let Ok(number) = posted.recv() {
        let header = Header::new(job, number);
        let (head, body) = message.split_at_mut(HEADER);
        head.copy_from_slice(&header.to_bytes());
        header.fill(body);
        stream.write_all(&message)?;
    }
    Ok(())
}

fn read(mut stream: TcpStream, tally: &Tally, posted: &Sender<u64>) -> io::Result<()> {
    loop {
        let mut number = [0; 8];
        stream.read_exact(&mut number)?;
        tally.confirm(u64::from_le_bytes(number));
        post(tally, posted);
    }
}
