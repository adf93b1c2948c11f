//! The emulator on real sockets.

mod bridge;
mod offload;
mod relay;
