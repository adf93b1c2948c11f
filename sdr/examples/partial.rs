//! A partial completion: the receiver takes what came of a message, and does not wait for the rest.

use std::net::IpAddr;
use std::time::Duration;

use sdr::udp::{Unconnected, now};
use sdr::{Buffer, QpAttr, SendError};

const CHUNK: usize = 64 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two queue pairs; mostly they are on two machines, which exchange blobs over TCP.
    let attr = QpAttr { rtt: Duration::from_millis(1), ..QpAttr::default() };
    let here: IpAddr = "127.0.0.1".parse()?;
    let (near, far) = (Unconnected::bind(attr, here)?, Unconnected::bind(attr, here)?);
    let (near_blob, far_blob) = (near.blob(), far.blob());
    let secret = [7; 32]; // Both sides read it from a file; it is as secret as the data.
    let near = near.connect(&far_blob, &secret)?;
    let far = far.connect(&near_blob, &secret)?;
    let (Some(mut send), Some(mut receive)) = (near.send, far.receive) else {
        return Err("both sides send and receive".into());
    };

    // The first receive that is posted gets the first message that is sent.
    let handle = receive.post(Buffer::zeroed(16 * CHUNK))?;

    // The sender has credit as soon as it was told of the receive.
    let mut stream = loop {
        match send.stream(None, now()) {
            Ok(stream) => break stream,
            Err(SendError::Retry) => std::thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    };
    // Every chunk but the sixth, in any order.
    for chunk in (0..16).rev().filter(|chunk| *chunk != 5) {
        stream.write(chunk, vec![chunk as u8; CHUNK].into())?;
    }
    let sent = stream.end()?;

    // The bitmap is live. A chunk may be read as soon as its bit is set.
    let deadline = now() + Duration::from_secs(5);
    while handle.bitmap().missing().count() > 1 && now() < deadline {
        std::thread::yield_now();
    }
    println!("first byte of chunk 9: {:?}", handle.chunk(9).and_then(|chunk| chunk.first()));

    // Late packets change nothing from here on. The buffer comes back when no worker is inside.
    let mut closing = handle.complete();
    let completed = loop {
        match closing.poll() {
            Ok(completed) => break completed,
            Err(again) => closing = again,
        }
    };
    let missing = completed.chunks.iter().filter(|there| !**there).count();
    println!("{} bytes, {missing} chunk missing, all left: {}", completed.buffer.len(), sent.poll()?);
    Ok(())
}
