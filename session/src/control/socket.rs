//! The socket of the control connection.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};

/// A UDP socket whose datagrams are not ECN-capable.
///
/// QUIC marks all of its packets, and goes on doing so where none arrives (RFC 9000, 13.4.2).
/// Some paths drop marked packets, and a connection over them never comes up.
/// What little the control connection sends gains nothing from marks.
#[derive(Debug)]
pub(super) struct Unmarked(Arc<dyn AsyncUdpSocket>);

impl Unmarked {
    /// Binds it. Must be called within a tokio runtime.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self(TokioRuntime.wrap_udp_socket(std::net::UdpSocket::bind(address)?)?))
    }
}

impl AsyncUdpSocket for Unmarked {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.0).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.0.try_send(&Transmit { ecn: None, ..transmit.clone() })
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.0.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.0.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }
}
