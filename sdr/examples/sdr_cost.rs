//! `sdr_cost`: the price of SDR over sealed UDP without it, as ratios measured in turns in one run.
//!
//! - receive path: opening a datagram and placing its packet, against opening and copying it;
//! - back end: packets a second over loopback, against sealing, sending, receiving and opening
//!   alone.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::net::sockopt;
use sdr::blob::{BackEnd, Blob};
use sdr::imm::PacketImm;
use sdr::udp::{Unconnected, now};
use sdr::wire::{Datagram, data_header};
use sdr::{Buffer, Closing, QpAttr, RecvHandle, SendError, Slice, connect};
use session::seal::pair;
use session::{Cipher, HEADER, OVERHEAD};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const MESSAGE: usize = 512 << 10;
const PACKETS: usize = MESSAGE / 1024;
const ROUNDS: usize = 11;
const SPAN: Duration = Duration::from_millis(400);
/// Messages in flight.
const SLOTS: usize = 16;
/// Pause of the program when there is nothing to do.
const PAUSE: Duration = Duration::from_micros(50);

fn attr() -> QpAttr {
    QpAttr { in_flight_log: 23, rate: 100_000_000_000, rtt: Duration::from_micros(200), ..QpAttr::default() }
}

/// Nanoseconds a packet of the receive path: the kernel's part, opening, and opening and placing.
///
/// With bitmaps a packet is placed by SDR, without them by a bare copy.
fn receive_path(with_bitmaps: bool) -> Result<[f64; 2]> {
    let (mut sealer, mut opener) = pair(7, Cipher::Aes128Gcm, &[1; 32], u64::MAX)?;
    let blob = Blob::new(attr(), BackEnd::None, Vec::new())?;
    let mut end = connect(&blob, &blob, 0, now())?;
    let Some(receive) = &mut end.receive else { return Err("no receiving side".into()) };
    let lander = receive.lander();
    let (from, to) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    let states = (UdpSocketState::new((&from).into())?, UdpSocketState::new((&to).into())?);
    let size = 8 + 1024 + OVERHEAD;
    let mut buffers = vec![vec![0; 65_536]; 8];
    let (mut kernel, mut ours, mut count) = (Duration::ZERO, Duration::ZERO, 0);
    for id in 0..16 {
        // Touched, so that neither way pays for the memory's first use.
        let mut copy = vec![1; MESSAGE];
        let handle = receive.post(Buffer::from(vec![1; MESSAGE]))?;
        for first in (0..PACKETS).step_by(32) {
            let mut batch = vec![0; size * 32];
            for (datagram, offset) in batch.chunks_mut(size).zip(first..) {
                let imm = PacketImm { id, offset: offset as u32, fragment: 0 }.encode();
                datagram.get_mut(HEADER..HEADER + 8).ok_or("room")?.copy_from_slice(&data_header(0, imm));
                sealer.seal(0, datagram, 8 + 1024)?;
            }
            let destination = to.local_addr()?;
            states.0.send(
                (&from).into(),
                &Transmit {
                    destination,
                    ecn: None,
                    contents: &batch,
                    segment_size: Some(size),
                    src_ip: None,
                },
            )?;
            let mut slices: Vec<IoSliceMut<'_>> =
                buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
            let mut metas = [RecvMeta::default(); 8];
            let start = now();
            let filled = states.1.recv((&to).into(), &mut slices, &mut metas)?;
            let received = now();
            for (slice, meta) in slices.iter_mut().zip(&metas).take(filled) {
                for datagram in slice.get_mut(..meta.len).unwrap_or_default().chunks_mut(meta.stride) {
                    let text = opener.open(datagram)?;
                    let Datagram::Data { generation, imm, payload } = Datagram::decode(text)? else {
                        return Err("not a packet".into());
                    };
                    count += 1;
                    if with_bitmaps {
                        lander.land(generation, imm, payload)?;
                        continue;
                    }
                    let at = PacketImm::decode(imm).offset as usize * 1024;
                    copy.get_mut(at..at + 1024).ok_or("room")?.copy_from_slice(payload);
                }
            }
            kernel += received - start;
            ours += received.elapsed();
        }
        drop(handle);
    }
    Ok([kernel, ours].map(|time| time.as_nanos() as f64 / f64::from(count)))
}

/// Packets a second that are sealed, sent in batches, received and opened, and nothing else.
fn ceiling() -> Result<f64> {
    let (mut sealer, mut opener) = pair(7, Cipher::Aes128Gcm, &[1; 32], u64::MAX)?;
    let (from, to) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    // As the back end does.
    if sockopt::set_socket_recv_buffer_size_force(&to, 8 << 20).is_err() {
        sockopt::set_socket_recv_buffer_size(&to, 8 << 20)?;
    }
    let destination = to.local_addr()?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let sender = std::thread::spawn(move || -> std::io::Result<()> {
        let state = UdpSocketState::new((&from).into())?;
        let size = 8 + 1024 + OVERHEAD;
        let payload = vec![7; 8 + 1024];
        let mut batch = vec![0; size * 56];
        while !stopped.load(Relaxed) {
            for datagram in batch.chunks_mut(size) {
                datagram.iter_mut().skip(HEADER).zip(&payload).for_each(|(to, from)| *to = *from);
                sealer.seal(0, datagram, 8 + 1024).map_err(std::io::Error::other)?;
            }
            let transmit =
                Transmit { destination, ecn: None, contents: &batch, segment_size: Some(size), src_ip: None };
            while state.try_send((&from).into(), &transmit).is_err() && !stopped.load(Relaxed) {
                std::thread::yield_now();
            }
        }
        Ok(())
    });
    let state = UdpSocketState::new((&to).into())?;
    let mut buffers = vec![vec![0; 65_536]; 8];
    let mut memory = vec![0; 1024];
    let (mut count, start) = (0, now());
    while now() - start < SPAN {
        let mut slices: Vec<IoSliceMut<'_>> =
            buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let mut metas = [RecvMeta::default(); 8];
        let filled = state.recv((&to).into(), &mut slices, &mut metas).unwrap_or(0);
        for (slice, meta) in slices.iter_mut().zip(&metas).take(filled) {
            for datagram in slice.get_mut(..meta.len).unwrap_or_default().chunks_mut(meta.stride.max(1)) {
                if let Ok(text) = opener.open(datagram) {
                    memory.iter_mut().zip(text.iter().skip(8)).for_each(|(to, from)| *to = *from);
                    count += 1;
                }
            }
        }
    }
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    stop.store(true, Relaxed);
    sender.join().map_err(|_| "the sender panicked")??;
    Ok(rate)
}

/// Packets a second that the back end puts in place, in messages of 512 KiB, 16 in flight.
#[expect(clippy::disallowed_methods, reason = "a program may rest between two looks")]
fn back_end() -> Result<f64> {
    let ends = [(); 2].map(|()| Unconnected::bind(attr(), [127, 0, 0, 1].into()));
    let [near, far] = ends;
    let (near, far) = (near?, far?);
    let blobs = (near.blob(), far.blob());
    let (mut near, mut far) = (near.connect(&blobs.1, &[5; 32])?, far.connect(&blobs.0, &[5; 32])?);
    let (Some(send), Some(receive)) = (&mut near.send, &mut far.receive) else {
        return Err("one direction only".into());
    };
    let data = Slice::from(vec![7; MESSAGE]);
    // Buffers are used again, as a program for which speed counts does. So memory is not measured.
    let mut free = (0..SLOTS).map(|_| Buffer::from(vec![1; MESSAGE])).collect::<Vec<_>>();
    let (mut open, mut closing) = (VecDeque::<RecvHandle>::new(), None::<Closing>);
    let start = now();
    let mut looked = (0, start);
    while now() - start < SPAN {
        while let Some(buffer) = free.pop() {
            match receive.post(buffer) {
                Ok(handle) => open.push_back(handle),
                Err(unposted) => {
                    free.push(unposted.buffer);
                    break;
                }
            }
        }
        let is_full = match send.post(data.clone(), 0, None, now()) {
            Ok(_) => false,
            Err(SendError::Retry) => true,
            Err(error) => return Err(error.into()),
        };
        // The oldest one is over when it is whole, or when the next one has begun: loopback keeps
        // the order. The last one of all has no next one.
        let placed = far.link.stats().taken.load(Relaxed);
        if placed != looked.0 {
            looked = (placed, now());
        }
        let is_stuck = now() - looked.1 > Duration::from_millis(2);
        let is_next_here = open.get(1).is_some_and(|next| next.arrived() > 0);
        let is_over = |oldest: &RecvHandle| is_next_here || is_stuck && oldest.arrived() > 0;
        if closing.is_none() && open.front().is_some_and(|oldest| oldest.bitmap().all() || is_over(oldest)) {
            closing = open.pop_front().map(RecvHandle::complete);
        }
        let was_closing = closing.is_some();
        match closing.take().map(Closing::poll) {
            Some(Ok(completed)) => free.push(completed.buffer),
            Some(Err(again)) => closing = Some(again),
            None => {}
        }
        if is_full && !was_closing {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(far.link.stats().taken.load(Relaxed) as f64 / start.elapsed().as_secs_f64())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn main() -> Result<()> {
    let (mut with, mut without, mut kernels) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS * 3 {
        let ([kernel, bare], [again, full]) = (receive_path(false)?, receive_path(true)?);
        with.push(full);
        without.push(bare);
        kernels.extend([kernel, again]);
    }
    let (full, bare, kernel) = (median(with), median(without), median(kernels));
    println!("receiving {kernel:.0} ns a packet; opening and placing {full:.0}, without bitmaps {bare:.0}");
    println!(
        "receive path: ratio {:.2}, {:.2} Mpps a core",
        (kernel + full) / (kernel + bare),
        1e3 / (kernel + full)
    );
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (top, rate) = (ceiling()?, back_end()?);
        theirs.push(top);
        ours.push(rate);
        ratios.push(rate / top);
    }
    println!(
        "back end: {:.3} Mpps, sealed UDP alone {:.3} Mpps, ratio {:.2}",
        median(ours) * 1e-6,
        median(theirs) * 1e-6,
        median(ratios)
    );
    Ok(())
}
