//! The programs at both ends: sender and receiver of messages over one transport.
//!
//! A receiver says `ready`; a sender `begin` when it is connected, `done` when everything is
//! confirmed, and then what there is to know ([`crate::job::report`]). Both end when their standard
//! input does.

mod certificate;
mod quic;
mod rdma;
mod tcp;
mod tls;

use std::net::SocketAddr;

use clap::Subcommand;

use crate::job::Job;

pub(crate) use certificate::FILE as CERTIFICATE_FILE;
pub(crate) use rdma::{ADMIN, HOST, LAN, RECEIVER, SENDER};

/// Why an agent failed.
pub(super) type Error = Box<dyn std::error::Error + Send + Sync>;

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

/// An agent's part.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Agent {
    /// Receives over TCP
    TcpReceive {
        /// Where
        listen: SocketAddr,
        /// Congestion control
        #[arg(long)]
        congestion: Option<String>,
    },
    /// Sends over TCP
    TcpSend {
        /// To whom
        to: SocketAddr,
        /// Congestion control
        #[arg(long)]
        congestion: Option<String>,
        /// The job
        job: Vec<u64>,
    },
    /// Receives over TLS
    TlsReceive {
        /// Where
        listen: SocketAddr,
        /// TCP's congestion control
        #[arg(long)]
        congestion: String,
    },
    /// Sends over TLS
    TlsSend {
        /// To whom
        to: SocketAddr,
        /// TCP's congestion control
        #[arg(long)]
        congestion: String,
        /// The job
        job: Vec<u64>,
    },
    /// Receives over QUIC
    QuicReceive {
        /// Where
        listen: SocketAddr,
        /// Congestion control
        #[arg(long)]
        congestion: String,
        /// MTU of the path: bytes of an IP packet
        #[arg(long)]
        mtu: u16,
    },
    /// Sends over QUIC
    QuicSend {
        /// To whom
        to: SocketAddr,
        /// Congestion control
        #[arg(long)]
        congestion: String,
        /// MTU of the path: bytes of an IP packet
        #[arg(long)]
        mtu: u16,
        /// The job
        job: Vec<u64>,
    },
    /// Is the target of RDMA WRITEs
    RdmaReceive {
        /// The job
        job: Vec<u64>,
    },
    /// Sends RDMA WRITEs
    RdmaSend {
        /// The job
        job: Vec<u64>,
    },
}

impl Agent {
    pub(crate) fn run(&self) -> Result<(), Error> {
        let parse = |job: &[u64]| Job::parse(job).ok_or("a job is seven numbers");
        match self {
            Self::TcpReceive { listen, congestion } => tcp::receive(*listen, congestion.as_deref()),
            Self::TcpSend { to, congestion, job } => tcp::send(*to, congestion.as_deref(), parse(job)?),
            Self::TlsReceive { listen, congestion } => tls::receive(*listen, congestion),
            Self::TlsSend { to, congestion, job } => tls::send(*to, congestion, parse(job)?),
            Self::QuicReceive { listen, congestion, mtu } => quic::receive(*listen, congestion, *mtu),
            Self::QuicSend { to, congestion, mtu, job } => quic::send(*to, congestion, *mtu, parse(job)?),
            Self::RdmaReceive { job } => rdma::receive(&parse(job)?),
            Self::RdmaSend { job } => rdma::send(&parse(job)?),
        }
    }
}
